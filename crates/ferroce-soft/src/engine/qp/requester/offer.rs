//! Runs of packets whose payload the peer copies from this process's memory.

use super::super::emit::{Emitted, Header};
use super::super::{Budget, Cx};
use super::Requester;
use super::request::request_header;
use crate::engine::payload::{LEAST_OFFERED, MAX_OFFERED, Offer};
use crate::engine::sgl;
use crate::engine::tx::{Offered, PacketTx};
use ferroce_verbs::{QpType, SendFlags};
use ferroce_wire::psn_diff;

impl Requester {
    /// Offers what is left of a message, as far as that is possible; `None` if packets must carry it.
    ///
    /// Nothing is offered twice: what is sent again may be sent again because the peer could not read it.
    pub(super) fn send_offer(
        &mut self,
        cx: &Cx<'_>,
        tx: &mut dyn PacketTx,
        position: u32,
        budget: &mut Budget,
    ) -> Option<Emitted> {
        let wqe = self.queue.get(position);
        let to = cx.conn.peer()?;
        if cx.qp.qp_type != QpType::Rc || !to.av.same_host || wqe.len < LEAST_OFFERED || self.tx != self.sent {
            return None;
        }
        if wqe.has_response() || self.queue.inline(position).is_some() {
            return None;
        }
        let index = psn_diff(self.tx, wqe.first_psn) as u32;
        let mtu = u64::from(cx.conn.mtu.bytes());
        let offset = u64::from(index) * mtu;
        let packets = (wqe.packets - index).min(MAX_OFFERED);
        let len = (u64::from(wqe.len) - offset).min(u64::from(packets) * mtu) as u32;
        if len < LEAST_OFFERED {
            return None;
        }
        let (addr, region) = sgl::locate(&cx.mrs, cx.qp.pd, self.queue.sges(position), offset, len)?;
        let offer = Offer { packets, len, addr, region, send: self.grant.name() };
        let last = index + packets == wqe.packets;
        let (opcode, ext) = request_header(cx.qp.qp_type, wqe, index == 0, last);
        let ends = last && position.wrapping_add(1) == self.queue.tail;
        let ack_request = ends || self.ask_now(cx, position, packets, last);
        let solicited = last && wqe.flags.contains(SendFlags::SOLICITED);
        let header = Header { ack_request, solicited, ..Header::new(opcode, self.tx, ext) };
        match tx.offer(&to, &header.to_packet(&to, 0), &offer) {
            Offered::No => return None,
            Offered::LinkFull => return Some(Emitted::LinkFull),
            Offered::Yes => {}
        }
        budget.take_more(packets - 1);
        self.offered = true;
        self.unasked = if ack_request { 0 } else { self.unasked + packets };
        self.advance_tx(cx, position, packets);
        Some(Emitted::Yes)
    }
}
