//! Fields at fixed offsets of a message, as IBTA's tables give them: big-endian, bits counted from
//! the most significant.

use crate::mad::MAD_DATA_LEN;

/// The data of a MAD, to read from.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub(super) &'a [u8; MAD_DATA_LEN]);

impl Reader<'_> {
    pub(super) fn bytes<const N: usize>(self, at: usize) -> [u8; N] {
        *self.0[at..].first_chunk().expect("offsets are constants within the message")
    }

    pub(super) fn u8(self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) fn u16(self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u24(self, at: usize) -> u32 {
        let [a, b, c] = self.bytes(at);
        u32::from_be_bytes([0, a, b, c])
    }

    pub(super) fn u32(self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u64(self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    /// `width` bits of the byte at `at`, after the first `skip`.
    pub(super) fn bits(self, at: usize, skip: u32, width: u32) -> u8 {
        self.0[at] << skip >> (8 - width)
    }

    pub(super) fn bit(self, at: usize, skip: u32) -> bool {
        self.bits(at, skip, 1) == 1
    }
}

/// The data of a MAD, all zero, to write to. A value that is wider than its field loses its upper
/// bits and does not spill into the next field.
pub(super) struct Writer<'a>(pub(super) &'a mut [u8; MAD_DATA_LEN]);

impl Writer<'_> {
    pub(super) fn bytes<const N: usize>(&mut self, at: usize, value: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&value);
    }

    pub(super) fn u8(&mut self, at: usize, value: u8) {
        self.0[at] = value;
    }

    pub(super) fn u16(&mut self, at: usize, value: u16) {
        self.bytes(at, value.to_be_bytes());
    }

    pub(super) fn u24(&mut self, at: usize, value: u32) {
        let [_, a, b, c] = value.to_be_bytes();
        self.bytes(at, [a, b, c]);
    }

    pub(super) fn u32(&mut self, at: usize, value: u32) {
        self.bytes(at, value.to_be_bytes());
    }

    pub(super) fn u64(&mut self, at: usize, value: u64) {
        self.bytes(at, value.to_be_bytes());
    }

    /// Adds `width` bits to the byte at `at`, after the first `skip`.
    pub(super) fn bits(&mut self, at: usize, skip: u32, width: u32, value: u8) {
        self.0[at] |= value << (8 - width) >> skip;
    }

    pub(super) fn bit(&mut self, at: usize, skip: u32, value: bool) {
        self.bits(at, skip, 1, value.into());
    }
}
