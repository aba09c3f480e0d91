//! The packets that ask the peer for something.

use super::super::Cx;
use super::super::emit::Header;
use crate::engine::sendq::SendWqe;
use crate::engine::sgl;
use ferroce_verbs::{Access, QpType, SendOp, Sge};
use ferroce_wire::{AtomicEth, Ext, Opcode, Reth, psn_diff};

/// Packets of response that one read request asks for. A longer read is asked for in pieces, so that what is in flight
/// towards us is bounded like what is in flight from us.
pub(super) const READ_CHUNK: u32 = 64;

/// How many packets of a read a request asks for that begins with packet `index`. A piece that is asked for again from its middle ends where
/// it ended before: the responder has no resource that covers more (IBTA 9.7.5.1.2). Of an atomic it is 1.
pub(super) fn request_packets(wqe: &SendWqe, index: u32) -> u32 {
    (wqe.packets - index).min(READ_CHUNK - index % READ_CHUNK)
}

/// The request packet of a read (from the packet with `psn` on) or atomic, and how many PSNs it covers. `None` if the local
/// buffers cannot take the result.
pub(super) fn response_request(cx: &Cx<'_>, wqe: &SendWqe, sges: &[Sge], psn: u32) -> Option<(Header, u32)> {
    let index = psn_diff(psn, wqe.first_psn) as u32;
    let offset = u64::from(index) * u64::from(cx.conn.mtu.bytes());
    if index == 0 && wqe.len != 0 && sgl::check(&cx.mrs, cx.qp.pd, sges, Access::LOCAL_WRITE).is_err() {
        return None;
    }
    let (opcode, ext, packets) = match wqe.op {
        SendOp::Read { remote_addr, rkey } => {
            let packets = request_packets(wqe, index);
            let len = (u64::from(wqe.len) - offset).min(u64::from(packets) * u64::from(cx.conn.mtu.bytes())) as u32;
            let reth = Reth { va: remote_addr.wrapping_add(offset), rkey, len };
            (Opcode::RcReadRequest, Ext::Reth(reth), packets)
        }
        SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
            let atomic = AtomicEth { va: remote_addr, rkey, swap_or_add: swap, compare };
            (Opcode::RcCompareSwap, Ext::Atomic(atomic), 1)
        }
        SendOp::FetchAdd { remote_addr, rkey, add } => {
            let atomic = AtomicEth { va: remote_addr, rkey, swap_or_add: add, compare: 0 };
            (Opcode::RcFetchAdd, Ext::Atomic(atomic), 1)
        }
        _ => return None,
    };
    let header = Header { ack_request: true, ..Header::new(opcode, psn, ext) };
    Some((header, packets))
}

/// Opcode and extension headers of a packet of a send or RDMA write.
#[inline]
pub(super) fn request_header(qp_type: QpType, wqe: &SendWqe, first: bool, last: bool) -> (Opcode, Ext) {
    use Opcode as O;
    let rc = qp_type == QpType::Rc;
    let pick = |rc_opcode, uc_opcode| if rc { rc_opcode } else { uc_opcode };
    let reth = |remote_addr, rkey| Reth { va: remote_addr, rkey, len: wqe.len };
    match (wqe.op, first, last) {
        (SendOp::Send, true, true) => (pick(O::RcSendOnly, O::UcSendOnly), Ext::None),
        (SendOp::Send, false, true) => (pick(O::RcSendLast, O::UcSendLast), Ext::None),
        (SendOp::SendImm(imm), true, true) => (pick(O::RcSendOnlyImm, O::UcSendOnlyImm), Ext::Imm(imm)),
        (SendOp::SendImm(imm), false, true) => (pick(O::RcSendLastImm, O::UcSendLastImm), Ext::Imm(imm)),
        (SendOp::SendInv(rkey), true, true) => (O::RcSendOnlyInv, Ext::Inv(rkey)),
        (SendOp::SendInv(rkey), false, true) => (O::RcSendLastInv, Ext::Inv(rkey)),
        (SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_), true, false) => {
            (pick(O::RcSendFirst, O::UcSendFirst), Ext::None)
        }
        (SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_), false, false) => {
            (pick(O::RcSendMiddle, O::UcSendMiddle), Ext::None)
        }
        (SendOp::Write { remote_addr, rkey }, true, true) => {
            (pick(O::RcWriteOnly, O::UcWriteOnly), Ext::Reth(reth(remote_addr, rkey)))
        }
        (SendOp::WriteImm { remote_addr, rkey, imm }, true, true) => {
            (pick(O::RcWriteOnlyImm, O::UcWriteOnlyImm), Ext::RethImm(reth(remote_addr, rkey), imm))
        }
        (SendOp::Write { remote_addr, rkey } | SendOp::WriteImm { remote_addr, rkey, .. }, true, false) => {
            (pick(O::RcWriteFirst, O::UcWriteFirst), Ext::Reth(reth(remote_addr, rkey)))
        }
        (SendOp::Write { .. } | SendOp::WriteImm { .. }, false, false) => {
            (pick(O::RcWriteMiddle, O::UcWriteMiddle), Ext::None)
        }
        (SendOp::Write { .. }, false, true) => (pick(O::RcWriteLast, O::UcWriteLast), Ext::None),
        (SendOp::WriteImm { imm, .. }, false, true) => (pick(O::RcWriteLastImm, O::UcWriteLastImm), Ext::Imm(imm)),
        // Reads and atomics have requests of their own.
        (SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, ..) => {
            (O::RcReadRequest, Ext::None)
        }
    }
}
