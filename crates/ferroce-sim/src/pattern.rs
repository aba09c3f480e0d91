//! What messages hold: bytes that follow from who sent which message, so that both ends know them.

use ferroce_soft::memory::Random;
use std::ops::Range;

/// A posted receive that nothing was written to yet.
pub(crate) const FRESH: u8 = 0xee;
/// Memory that its owner took back after a message.
pub(crate) const CONSUMED: u8 = 0xdd;

/// The bytes of a message.
pub(crate) fn message(key: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(key);
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend_from_slice(&random.next_u64().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Unused bytes between two elements of a scatter/gather list.
pub(crate) const GAP: usize = 8;

/// Cuts `len` bytes into `count` pieces, in order, with gaps between them: where each lies in its slot.
pub(crate) fn pieces(random: &mut Random, len: usize, count: usize) -> Vec<Range<usize>> {
    let mut cuts: Vec<usize> = (1..count).map(|_| random.below(len as u64 + 1) as usize).collect();
    cuts.sort_unstable();
    cuts.push(len);
    let mut from = 0;
    cuts.iter()
        .enumerate()
        .map(|(index, &to)| {
            let piece = from + index * GAP..to + index * GAP;
            from = to;
            piece
        })
        .collect()
}

/// What a slot of `len` bytes of `fill` holds once `bytes` were scattered over `pieces`.
pub(crate) fn scattered(len: usize, fill: u8, pieces: &[Range<usize>], bytes: &[u8]) -> Vec<u8> {
    let mut slot = vec![fill; len];
    let mut rest = bytes;
    for piece in pieces {
        let (part, tail) = rest.split_at(piece.len().min(rest.len()));
        slot[piece.start..piece.start + part.len()].copy_from_slice(part);
        rest = tail;
    }
    slot
}

/// Where two slots differ first, in words.
pub(crate) fn difference(expected: &[u8], found: &[u8]) -> Option<String> {
    let at = expected.iter().zip(found).position(|(a, b)| a != b)?;
    let count = expected.iter().zip(found).filter(|(a, b)| a != b).count();
    Some(format!("{count} bytes differ, first {at}: {:#04x} instead of {:#04x}", found[at], expected[at]))
}
