//! A run as one number: two runs with the same number were the same, packet by packet.

use ferroce_soft::memory::{TraceEvent, TraceKind};
use ferroce_verbs::WorkCompletion;
use ferroce_wire::{Ext, Packet};

/// Hashes what happens in a run, in order.
///
/// Memory is somewhere else in every process, so the virtual addresses in packets, and the ICRCs that cover them, are left out;
/// of a damaged packet only its length counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceHash(u64);

impl TraceHash {
    /// The number.
    #[must_use]
    pub fn value(self) -> u64 {
        self.0
    }

    fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        for &byte in rest {
            self.word(u64::from(byte));
        }
        self.word(bytes.len() as u64);
    }

    /// An event of the network.
    pub fn event(&mut self, event: &TraceEvent<'_>) {
        self.word(event.at.as_nanos() as u64);
        self.word(event.kind as u64);
        for ip in [event.src, event.dst] {
            match ip {
                std::net::IpAddr::V4(ip) => self.word(u64::from(u32::from(ip))),
                std::net::IpAddr::V6(ip) => self.bytes(&ip.octets()),
            }
        }
        let Some(len) = event.packet.len().checked_sub(4).filter(|_| event.kind != TraceKind::Rejected) else {
            self.word(event.packet.len() as u64);
            return;
        };
        let body = &event.packet[..len];
        match Packet::parse(body) {
            Ok(mut packet) => {
                match &mut packet.headers.ext {
                    Ext::Reth(reth) | Ext::RethImm(reth, _) => reth.va = 0,
                    Ext::Atomic(atomic) => atomic.va = 0,
                    _ => {}
                }
                let mut headers = [0; ferroce_wire::MAX_HEADERS_LEN];
                let len = packet.headers.emit(&mut headers);
                self.bytes(&headers[..len]);
                self.bytes(packet.payload);
            }
            Err(_) => self.bytes(body),
        }
    }

    /// Something that a run says about itself.
    pub(crate) fn note(&mut self, what: &str) {
        self.bytes(what.as_bytes());
    }

    /// A completion that the program polled.
    pub fn completion(&mut self, wc: &WorkCompletion) {
        let WorkCompletion { wr_id, status, opcode, byte_len, imm, qp_num, src_qp, flags, .. } = *wc;
        self.word(wr_id);
        self.word(u64::from(status as u8) << 16 | u64::from(opcode as u8) << 8 | u64::from(flags.bits()));
        self.word(u64::from(byte_len) << 32 | u64::from(imm));
        self.word(u64::from(qp_num) << 32 | u64::from(src_qp));
    }
}
