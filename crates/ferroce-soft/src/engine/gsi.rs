//! Queue pair 1: datagrams of management agents (IBTA 13.5.1). All contexts of a host share it, so who a datagram is for has to
//! be read from the datagram itself.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ferroce_verbs::{Error, MAD_LEN, MadHandler, MadOrigin, Result};
use ferroce_wire::{Bth, Deth, Ext, GSI_QKEY, GSI_QPN, Headers, Opcode, Packet};
use parking_lot::RwLock;

use super::tx::{PacketTx, To};
use super::{Nanos, Origin};

/// BTH and DETH.
pub(crate) const HEADERS: usize = 20;

/// What a packet, BTH to pad, carries to queue pair 1, if it is one to there: a MAD, as far as its sender tells the truth.
#[inline]
pub(crate) fn mad_of(packet: &[u8]) -> Option<&[u8]> {
    (packet.get(5..8) == Some(&[0, 0, 1])).then(|| packet.get(HEADERS..).unwrap_or_default())
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

    /// Tells the handler of queue pairs whose peer is silent.
    pub(super) fn peers_lost(&self, qpns: &[u32]) {
        if let Some(handler) = self.handler() {
            handler.peers_lost(qpns);
        }
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
    use ferroce_wire::MAD_HEADER_LEN;
    use ferroce_wire::cm::{Destination, ServiceId};

    fn destination(packet: &[u8]) -> Option<Option<Destination>> {
        mad_of(packet).map(Destination::of)
    }

    fn packet(attribute: u8, data: &[(usize, u8)]) -> Vec<u8> {
        let mut packet = vec![0; HEADERS + MAD_LEN];
        packet[7] = 1;
        packet[HEADERS + 1] = 7;
        packet[HEADERS + 17] = attribute;
        for &(at, value) in data {
            packet[HEADERS + MAD_HEADER_LEN + at] = value;
        }
        packet
    }

    #[test]
    fn each_message_finds_its_owner() {
        for request in [0x10, 0x17] {
            assert_eq!(
                destination(&packet(request, &[(0, 9), (15, 5)])),
                Some(Some(Destination::Service(ServiceId(5))))
            );
        }
        for answer in [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1a] {
            assert_eq!(destination(&packet(answer, &[(0, 9), (4, 7)])), Some(Some(Destination::Prefix(7))));
        }
        assert_eq!(destination(&packet(0x18, &[(0, 9), (4, 7)])), Some(Some(Destination::Prefix(9))));
        assert_eq!(destination(&packet(0x12, &[(0, 9)])), Some(Some(Destination::All)));
        assert_eq!(destination(&packet(0x55, &[])), Some(None));
    }

    #[test]
    fn all_else_is_legal_input() {
        let good = packet(0x13, &[(4, 7)]);
        for len in 8..good.len() {
            assert_eq!(destination(&good[..len]), Some(None));
        }
        for len in 0..8 {
            assert_eq!(destination(&good[..len]), None);
        }
        let mut other = good;
        other[5] = 3;
        assert_eq!(destination(&other), None);
    }
}
