//! Memory with guards: bytes before and after each memory region that nobody may touch.
#![allow(unsafe_code)]

use crate::failure::{Checked, ensure};
use ferroce_verbs::{Access, Buffer, Mr, Pd, Region, Sge};
use std::ops::Range;

/// Bytes on either side of a memory region.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0xa7;

/// A memory region between two guards.
pub(crate) struct Area {
    /// Covers the middle of `all`. Dropped before it.
    mr: Mr,
    all: Region,
}

impl Area {
    /// `len` bytes of `fill`, registered in `pd`.
    pub(crate) fn new(pd: &Pd, len: usize, fill: u8, access: Access) -> Checked<Self> {
        let mut buffer = Buffer::zeroed(len + 2 * GUARD)?;
        let bytes = buffer.as_mut_slice();
        bytes.fill(GUARD_BYTE);
        bytes[GUARD..GUARD + len].fill(fill);
        let all = Region::owned(buffer);
        let start = (all.addr() as usize + GUARD) as *mut u8;
        // SAFETY: these bytes are part of `all`, which this value keeps for longer than its only handle to the memory region:
        // that is never given away, and the device looks a region up in each access, so none outlives it. No
        // references to the bytes exist: `all` gives out copies only.
        let middle = unsafe { Region::borrowed(start, len)? };
        Ok(Self { mr: pd.reg_region(middle, access)?, all })
    }

    pub(crate) fn len(&self) -> usize {
        self.mr.len()
    }

    pub(crate) fn addr(&self) -> u64 {
        self.mr.addr()
    }

    pub(crate) fn key(&self) -> u32 {
        self.mr.rkey()
    }

    pub(crate) fn sge(&self, range: Range<usize>) -> Sge {
        Sge { addr: self.addr() + range.start as u64, length: range.len() as u32, lkey: self.mr.lkey() }
    }

    pub(crate) fn fill(&self, range: Range<usize>, byte: u8) -> Checked {
        Ok(self.mr.write(range.start, &vec![byte; range.len()])?)
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Checked {
        Ok(self.mr.write(offset, bytes)?)
    }

    pub(crate) fn read(&self, range: Range<usize>) -> Checked<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        self.mr.read(range.start, &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn word(&self, index: usize) -> Checked<u64> {
        let mut bytes = [0; 8];
        self.mr.read(8 * index, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    /// That nobody touched the guards.
    pub(crate) fn check_guards(&self) -> Checked {
        for (side, offset) in [("before", 0), ("after", GUARD + self.len())] {
            let mut guard = [0; GUARD];
            self.all.read(offset, &mut guard)?;
            ensure!(guard == [GUARD_BYTE; GUARD], "bytes {side} a memory region of {} were written", self.len());
        }
        Ok(())
    }
}
