/// Reads values from the front of the fuzzer's bytes; zeros when they are used up.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Up to `len` bytes.
    pub(super) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.bytes(N);
        let mut array = [0; N];
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    pub(super) fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// One of `items`, by one byte.
    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::from(self.u8()) % items.len()]
    }

    /// Which of the conditions of one byte hold: bit by bit.
    pub(super) fn flags(&mut self) -> impl FnMut() -> bool + use<> {
        let mut bits = self.u8();
        move || {
            let set = bits & 1 != 0;
            bits >>= 1;
            set
        }
    }
}
