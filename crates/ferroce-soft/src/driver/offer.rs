//! Offers in shared memory: what a frame with one looks like, and how what it offers is copied.

use super::port::Port;
use crate::engine::{Counters, GrantName, Offer, PeerMemory, count};
use crate::host::Process;
use crate::link::shm;
use ferroce_verbs::Region;
use ferroce_wire::Headers;

/// The frame is an offer, and the headers of its packets after it.
pub(super) const TAG_OFFER: u32 = 2;

/// Bytes of an offer in a frame.
const BYTES: usize = 48;

/// How long a frame with an offer and `headers` is.
pub(super) fn frame_len(headers: &Headers) -> usize {
    BYTES + headers.len()
}

/// Writes an offer and the headers of its packets to a frame of [`frame_len`] bytes.
pub(super) fn put(frame: &mut [u8], headers: &Headers, offer: &Offer) {
    let (at, rest) = frame.split_at_mut(BYTES);
    at[..4].copy_from_slice(&offer.packets.to_ne_bytes());
    at[4..8].copy_from_slice(&offer.len.to_ne_bytes());
    let words = [offer.addr, offer.region.at, offer.region.value, offer.send.at, offer.send.value];
    for (bytes, word) in at[8..].as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = word.to_ne_bytes();
    }
    headers.emit(rest);
}

/// Reads what [`put`] wrote; `None` if it is not that.
pub(super) fn parse(frame: &[u8]) -> Option<(Offer, Headers)> {
    let (at, rest) = frame.split_first_chunk::<BYTES>()?;
    let word = |n: usize| u64::from_ne_bytes(*at[8 + 8 * n..].first_chunk().unwrap_or(&[0; 8]));
    let half = |n: usize| u32::from_ne_bytes(*at[4 * n..].first_chunk().unwrap_or(&[0; 4]));
    let grant = |n| GrantName { at: word(n), value: word(n + 1) };
    let offer = Offer { packets: half(0), len: half(1), addr: word(0), region: grant(1), send: grant(3) };
    let (headers, len) = Headers::parse(rest).ok()?;
    (len == rest.len()).then_some((offer, headers))
}

/// The memory of the process behind a slot.
pub(super) struct SlotMemory<'a> {
    process: Option<Process>,
    counters: &'a Counters,
}

impl<'a> SlotMemory<'a> {
    pub(super) fn new(port: &Port, slot: u8, incarnation: u64, counters: &'a Counters) -> Self {
        Self { process: port.membership.process(slot, incarnation), counters }
    }
}

impl PeerMemory for SlotMemory<'_> {
    fn copy(&self, offer: &Offer, from: u64, len: usize, region: &Region, at: usize) -> bool {
        let (Some(process), Some(addr)) = (self.process, offer.addr.checked_add(from)) else { return false };
        let grants = [offer.region, offer.send];
        let copied = shm::copy(process.pid, addr, (region, at, len), grants.map(|grant| grant.at));
        let ok = copied.is_ok_and(|found| found == grants.map(|grant| grant.value));
        if ok {
            count(&self.counters.cma_copies);
        }
        ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_wire::{Bth, Ext, Opcode, Reth};

    #[test]
    fn a_frame_holds_what_was_put_into_it() {
        let bth = Bth { opcode: Opcode::RcWriteFirst, psn: 0xabcdef, dest_qpn: 0x10203, ..Bth::default() };
        let headers = Headers { bth, ext: Ext::Reth(Reth { va: 1 << 40, rkey: 7, len: 1 << 20 }) };
        let grant = |n| GrantName { at: n, value: n << 32 };
        let offer = Offer { packets: 64, len: 262_144, addr: u64::MAX - 5, region: grant(3), send: grant(4) };
        let mut frame = vec![0xa5; frame_len(&headers)];
        put(&mut frame, &headers, &offer);
        assert_eq!(parse(&frame), Some((offer, headers)));
        // Neither a byte less nor one more.
        for len in 0..frame.len() {
            assert_eq!(parse(&frame[..len]), None);
        }
        frame.push(0);
        assert_eq!(parse(&frame), None);
    }
}
