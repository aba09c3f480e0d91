//! UD: each packet is a message by itself.

use super::Cx;
use crate::engine::payload::Payload;
use crate::engine::recv::{RecvWqe, Taken};
use crate::engine::{Origin, count, ip_pair, sgl};
use ferroce_verbs::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
use ferroce_wire::{GRH_LEN, Grh, Headers};

/// Delivers a datagram with its GRH before it (IBTA 11.4.1.2); drops it silently where it does not belong (9.8.3.2). Returns
/// how its receive failed, if it did.
pub(super) fn receive_datagram(
    cx: &Cx<'_>,
    wqe: &mut RecvWqe,
    origin: &Origin,
    headers: &Headers,
    payload: Payload<'_>,
) -> Option<WcStatus> {
    let deth = headers.ext.deth()?;
    if deth.qkey != cx.conn.qkey {
        count(&cx.engine.counters.qkey_violation);
        return None;
    }
    let Origin::Net { src, dst, tos, ttl } = *origin else {
        count(&cx.engine.counters.malformed_packets);
        return None;
    };
    let Some(ip) = ip_pair(src, dst) else {
        count(&cx.engine.counters.malformed_packets);
        return None;
    };
    match cx.qp.rq.take(wqe) {
        Taken::Empty => {
            count(&cx.engine.counters.no_recv_dropped);
            return None;
        }
        Taken::Yes => {}
        Taken::BelowLimit => cx.qp.srq_limit(cx.engine),
    }
    let total = GRH_LEN + payload.len();
    if wqe.capacity() < total as u64 {
        return Some(WcStatus::LocLenErr);
    }
    let mut grh = [0; GRH_LEN];
    // UDP, BTH, DETH, payload, pad and ICRC, as a header on the wire would count them.
    let payload_len = (8 + headers.len() + payload.len().next_multiple_of(4) + 4) as u16;
    Grh { ip, tclass: tos, hop_limit: ttl, flow_label: 0, payload_len }.emit(&mut grh);
    let mrs = &cx.mrs;
    let written = sgl::scatter(mrs, cx.qp.pd, &wqe.sges, 0, Payload::Here(&grh))
        .and_then(|()| sgl::scatter(mrs, cx.qp.pd, &wqe.sges, GRH_LEN as u64, payload));
    if written.is_err() {
        return Some(WcStatus::LocProtErr);
    }
    let mut wc = WorkCompletion::new(wqe.wr_id, WcOpcode::Recv, cx.qp.qpn);
    wc.byte_len = total as u32;
    wc.src_qp = deth.src_qpn;
    wc.flags = WcFlags::GRH;
    if let Some(imm) = headers.ext.imm() {
        wc.imm = imm;
        wc.flags |= WcFlags::WITH_IMM;
    }
    cx.qp.recv_cq.push(wc, headers.bth.solicited);
    None
}
