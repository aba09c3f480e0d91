//! How much of a send is in flight to the peer.

use super::super::Cx;
use crate::engine::sendq::SendWqe;
use crate::engine::tx::PeerFlow;

/// The flow that bounds what is sent to the peer of a reliable connection. Datagrams are not bounded: nothing tells when
/// they arrived.
pub(super) fn flow<'a>(cx: &'a Cx<'_>) -> Option<&'a PeerFlow> {
    cx.conn.av.as_ref()?.flow.as_deref()
}

pub(super) fn flow_closed(cx: &Cx<'_>) -> bool {
    flow(cx).is_some_and(|flow| !flow.is_open())
}

/// What packets `from..to` of a send cost in flight.
pub(super) fn flow_bytes(cx: &Cx<'_>, wqe: &SendWqe, from: u32, to: u32) -> u32 {
    let mtu = u64::from(cx.conn.mtu.bytes());
    let upto = |packets: u32| (u64::from(packets) * mtu).min(u64::from(wqe.len)) as u32;
    upto(to) - upto(from) + (to - from) * PeerFlow::PACKET_OVERHEAD
}
