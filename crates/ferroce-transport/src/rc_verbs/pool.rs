//! Memory of the transport for messages on their way out, and for what is fetched.

use crossbeam_queue::ArrayQueue;
use ferroce_verbs::{Access, Mr, Pd, Result, Sge};
use std::ops::Range;

/// Buffers of one size, which all endpoints share. Taking one and giving it back takes no lock.
#[derive(Debug)]
pub(super) struct Pool {
    mr: Mr,
    slot_len: usize,
    count: usize,
    free: ArrayQueue<u32>,
}

/// A buffer. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Bounce<'a> {
    pool: &'a Pool,
    slot: u32,
}

impl Pool {
    pub(super) fn new(pd: &Pd, count: u32, slot_len: usize) -> Result<Self> {
        let mr = pd.alloc_mr(count as usize * slot_len, Access::LOCAL_WRITE)?;
        let free = ArrayQueue::new(count as usize);
        for slot in 0..count {
            // There is room for all of them.
            let _ = free.push(slot);
        }
        Ok(Self { mr, slot_len, count: count as usize, free })
    }

    pub(super) fn take(&self) -> Option<Bounce<'_>> {
        self.free.pop().map(|slot| Bounce { pool: self, slot })
    }

    /// Fewer than half are left: then those in use must say when they are free.
    pub(super) fn is_scarce(&self) -> bool {
        self.free.len() < self.count / 2
    }

    /// A buffer that [`Bounce::keep`] took out.
    pub(super) fn put_back(&self, slot: u32) {
        let _ = self.free.push(slot);
    }

    /// Copies out the first bytes of a buffer.
    pub(super) fn read(&self, slot: u32, out: &mut [u8]) -> Result<()> {
        self.mr.read(slot as usize * self.slot_len, out)
    }

    #[inline]
    pub(super) fn available(&self) -> usize {
        self.free.len()
    }
}

impl Bounce<'_> {
    pub(super) fn offset(&self) -> usize {
        self.slot as usize * self.pool.slot_len
    }

    pub(super) fn mr(&self) -> &Mr {
        &self.pool.mr
    }

    /// Writes to it, from `at` on.
    pub(super) fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        self.pool.mr.write(self.offset() + at, bytes)
    }

    /// A part of it.
    pub(super) fn sge(&self, range: Range<usize>) -> Result<Sge> {
        self.pool.mr.sge(self.offset() + range.start..self.offset() + range.end)
    }

    /// An operation has it from now on: [`Pool::put_back`].
    pub(super) fn keep(self) -> u32 {
        let slot = self.slot;
        std::mem::forget(self);
        slot
    }
}

impl Drop for Bounce<'_> {
    fn drop(&mut self) {
        self.pool.put_back(self.slot);
    }
}
