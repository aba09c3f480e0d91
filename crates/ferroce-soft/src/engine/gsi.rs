//! Queue pair 1: datagrams of management agents (IBTA 13.5.1). All contexts of a host share it, so who a datagram is for has to
//! be read from the datagram itself.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ferroce_verbs::{Error, MAD_LEN, MadHandler, MadOrigin, Result};
use ferroce_wire::{Bth, Deth, Ext, Headers, Opcode, Packet};
use parking_lot::RwLock;

use super::tx::{PacketTx, To};
use super::{Nanos, Origin};

/// The number of the queue pair.
pub(crate) const GSI_QPN: u32 = 1;
/// Its queue key (IBTA 10.2.5).
const GSI_QKEY: u32 = 0x8001_0000;
/// BTH and DETH.
const HEADERS: usize = 20;
/// The header of a MAD (IBTA 13.4.2).
const MAD_HEADER: usize = 24;

/// Which contexts of a host a datagram to queue pair 1 is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// The one with this slot: it answers what that one asked, or goes on with its connection.
    Slot(u8),
    /// Whoever has the service.
    Service(u64),
    /// It names nobody: all may look at it.
    All,
    /// No context knows what it is: whoever gets it counts it.
    Any,
}

impl Destination {
    /// Who a MAD is for.
    pub(crate) fn of_mad(mad: &[u8; MAD_LEN]) -> Self {
        mad_destination(mad)
    }
}

/// Who a packet, BTH to pad, is for if it is one to queue pair 1.
#[inline]
pub(crate) fn destination(packet: &[u8]) -> Option<Destination> {
    (packet.get(5..8) == Some(&[0, 0, 1])).then(|| mad_destination(packet.get(HEADERS..).unwrap_or_default()))
}

/// Who a MAD of communication management is for. The top byte of a communication id or SIDR request id is its owner's slot.
#[cold]
fn mad_destination(mad: &[u8]) -> Destination {
    // Class and attribute ids: IBTA 16.1 and 16.7; layouts of the messages: 12.6.
    const CM_CLASS: u8 = 7;
    let Some((header, data)) = mad.split_at_checked(MAD_HEADER).filter(|_| mad.len() == MAD_LEN) else {
        return Destination::Any;
    };
    if header[1] != CM_CLASS {
        return Destination::Any;
    }
    let (own, peers) = (data[0], &data[4..8]);
    match u16::from_be_bytes([header[16], header[17]]) {
        // REQ and SIDR_REQ: the service id.
        0x10 | 0x17 => {
            let mut id = [0; 8];
            id.copy_from_slice(&data[8..16]);
            Destination::Service(u64::from_be_bytes(id))
        }
        // REJ: who gave up before an answer does not know our id.
        0x12 if peers == [0; 4] => Destination::All,
        // MRA, REJ, REP, RTU, DREQ, DREP, LAP, APR: our id comes second.
        0x11..=0x16 | 0x19 | 0x1a => Destination::Slot(peers[0]),
        // SIDR_REP: the id of our request.
        0x18 => Destination::Slot(own),
        _ => Destination::Any,
    }
}

/// Queue pair 1 of one context.
pub(crate) struct GsiQp {
    handler: RwLock<Option<Weak<dyn MadHandler>>>,
    deadline: AtomicU64,
    psn: AtomicU32,
}

impl Default for GsiQp {
    fn default() -> Self {
        Self { handler: RwLock::default(), deadline: AtomicU64::new(Nanos::MAX), psn: AtomicU32::new(0) }
    }
}

impl GsiQp {
    pub(crate) fn set_handler(&self, handler: Weak<dyn MadHandler>) -> Result<()> {
        let mut current = self.handler.write();
        if current.as_ref().is_some_and(|current| current.strong_count() != 0) {
            return Err(Error::invalid("handler", "the context has one already"));
        }
        *current = Some(handler);
        Ok(())
    }

    /// Whether somebody receives the datagrams.
    pub(crate) fn has_handler(&self) -> bool {
        self.handler.read().as_ref().is_some_and(|handler| handler.strong_count() != 0)
    }

    fn handler(&self) -> Option<Arc<dyn MadHandler>> {
        self.handler.read().as_ref()?.upgrade()
    }

    /// Takes in a packet; false if it is none that a management agent sends.
    pub(super) fn receive(&self, origin: &Origin, packet: &Packet<'_>) -> bool {
        let Origin::Net { src, dst, tos, .. } = *origin else { return false };
        let valid = packet.headers.bth.opcode == Opcode::UdSendOnly
            && packet.headers.ext.deth().is_some_and(|deth| deth.qkey == GSI_QKEY);
        match packet.payload.try_into() {
            Ok(mad) if valid => {
                let origin = MadOrigin { remote: src, local: dst, traffic_class: tos };
                if let Some(handler) = self.handler() {
                    handler.receive(&origin, mad);
                }
                true
            }
            _ => false,
        }
    }

    /// Puts a MAD into the link. `lane` is the slot whose ring leads to its receiver, where shared memory does. If there is no
    /// room it is lost.
    pub(crate) fn send(&self, tx: &mut dyn PacketTx, av: &super::Av, lane: u8, mad: &[u8; MAD_LEN]) {
        let headers = Headers {
            bth: Bth {
                opcode: Opcode::UdSendOnly,
                dest_qpn: GSI_QPN,
                psn: self.psn.fetch_add(1, Ordering::Relaxed) & ferroce_wire::PSN_MASK,
                ..Bth::default()
            },
            ext: Ext::Deth(Deth { qkey: GSI_QKEY, src_qpn: GSI_QPN }),
        };
        let at = headers.len();
        let to = To { av, dest_qpn: u32::from(lane) << 16 | GSI_QPN, datagram: true };
        if let Some(out) = tx.reserve(&to, at + MAD_LEN) {
            headers.emit(out);
            out[at..].copy_from_slice(mad);
            tx.commit();
        }
        tx.flush();
    }

    /// Returns whether that is earlier than what was asked for.
    pub(crate) fn wake_at(&self, deadline: Nanos) -> bool {
        deadline < self.deadline.fetch_min(deadline, Ordering::AcqRel)
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        Some(self.deadline.load(Ordering::Acquire)).filter(|deadline| *deadline != Nanos::MAX)
    }

    pub(super) fn on_timer(&self, now: Nanos) {
        if self.deadline.load(Ordering::Acquire) <= now {
            self.deadline.store(Nanos::MAX, Ordering::Release);
            if let Some(handler) = self.handler() {
                handler.expired();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(attribute: u8, data: &[(usize, u8)]) -> Vec<u8> {
        let mut packet = vec![0; HEADERS + MAD_LEN];
        packet[7] = 1;
        packet[HEADERS + 1] = 7;
        packet[HEADERS + 17] = attribute;
        for &(at, value) in data {
            packet[HEADERS + MAD_HEADER + at] = value;
        }
        packet
    }

    #[test]
    fn each_message_finds_its_owner() {
        for request in [0x10, 0x17] {
            assert_eq!(destination(&packet(request, &[(0, 9), (15, 5)])), Some(Destination::Service(5)));
        }
        for answer in [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a] {
            assert_eq!(destination(&packet(answer, &[(0, 9), (4, 7)])), Some(Destination::Slot(7)));
        }
        assert_eq!(destination(&packet(0x18, &[(0, 9), (4, 7)])), Some(Destination::Slot(9)));
        assert_eq!(destination(&packet(0x12, &[(0, 9)])), Some(Destination::All));
        assert_eq!(destination(&packet(0x55, &[])), Some(Destination::Any));
    }

    #[test]
    fn all_else_is_legal_input() {
        let good = packet(0x13, &[(4, 7)]);
        for len in 8..good.len() {
            assert_eq!(destination(&good[..len]), Some(Destination::Any));
        }
        for len in 0..8 {
            assert_eq!(destination(&good[..len]), None);
        }
        let mut other = good;
        other[5] = 3;
        assert_eq!(destination(&other), None);
    }
}
