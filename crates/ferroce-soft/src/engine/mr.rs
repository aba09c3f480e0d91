use super::payload::{Grant, GrantName};
use super::table::Table;
use arc_swap::Guard;
use ferroce_verbs::{Access, Region};
use std::cell::RefCell;
use std::sync::Arc;

/// A registered memory region.
#[derive(Debug)]
pub(crate) struct MemoryRegion {
    pub(crate) key: u32,
    pub(crate) pd: u32,
    pub(crate) access: Access,
    pub(crate) region: Region,
    /// Revoked by a send with invalidate, and when the key ends.
    grant: Grant,
}

/// All memory regions of a context, by key.
///
/// A key is the index of its entry and, in the low bits, a random tag: a peer that guesses has one chance in 4,096, and a
/// key from before the entry was reused does not match.
pub(crate) struct MrTable {
    table: Table<MemoryRegion>,
}

const TAG_BITS: u32 = 12;
const TAG_MASK: u32 = (1 << TAG_BITS) - 1;

/// How many memory regions a context can have.
pub(crate) const MAX_MR: u32 = 1 << (32 - TAG_BITS);

/// A key does not allow what it was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyError;

impl MrTable {
    pub(crate) fn new() -> Self {
        // Key 0 is never given out, so that a forgotten key is an error.
        Self { table: Table::new(1, MAX_MR) }
    }

    /// Registers `region`; `None` when the table is full. `tag` should be random.
    pub(crate) fn insert(&self, pd: u32, region: Region, access: Access, tag: u32) -> Option<Arc<MemoryRegion>> {
        self.table.insert(|index| {
            let key = index << TAG_BITS | tag & TAG_MASK;
            Arc::new(MemoryRegion { key, pd, access, region, grant: Grant::new() })
        })
    }

    pub(crate) fn remove(&self, key: u32) {
        if let Some(mr) = self.table.remove(key >> TAG_BITS) {
            mr.grant.revoke();
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.table.len()
    }

    /// Makes `key` invalid for good, as a send with invalidate asks. Only a region with remote access can be.
    pub(crate) fn invalidate(&self, key: u32, pd: u32) -> Result<(), KeyError> {
        let guard = self.table.get(key >> TAG_BITS);
        let Some(mr) = guard.as_ref() else { return Err(KeyError) };
        let remote = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let ok = mr.key == key && mr.pd == pd && mr.access.intersects(remote);
        if ok && mr.grant.revoke() { Ok(()) } else { Err(KeyError) }
    }
}

/// Looks regions up for one turn of a queue pair, and keeps the last one: the packets of a message are mostly of one region, and a
/// look into the table is two locked instructions, each of which waits for the copy before it.
pub(crate) struct MrLookup<'a> {
    table: &'a MrTable,
    last: RefCell<Guard<Option<Arc<MemoryRegion>>>>,
}

impl<'a> MrLookup<'a> {
    pub(crate) fn new(table: &'a MrTable) -> Self {
        Self { table, last: RefCell::new(Guard::from_inner(None)) }
    }

    /// Calls `f` with the region that `key` names and the offset of `addr` in it, if the key allows protection domain `pd` to do
    /// `need` to all of `len` bytes there. The region cannot be freed while `f` runs; `f` must not look up another one.
    #[inline]
    pub(crate) fn with<R>(
        &self,
        key: u32,
        pd: u32,
        addr: u64,
        len: u64,
        need: Access,
        f: impl FnOnce(&Region, usize) -> R,
    ) -> Result<R, KeyError> {
        self.with_mr(key, pd, addr, len, need, |mr| f(&mr.region, mr.region.offset_of(addr)))
    }

    /// What says that the key still holds, if it allows protection domain `pd` to do `need` to `len` bytes at `addr`.
    pub(crate) fn grant(&self, key: u32, pd: u32, addr: u64, len: u64, need: Access) -> Result<GrantName, KeyError> {
        self.with_mr(key, pd, addr, len, need, |mr| mr.grant.name())
    }

    #[inline]
    fn with_mr<R>(
        &self,
        key: u32,
        pd: u32,
        addr: u64,
        len: u64,
        need: Access,
        f: impl FnOnce(&MemoryRegion) -> R,
    ) -> Result<R, KeyError> {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|mr| mr.key != key) {
            *last = self.table.table.get(key >> TAG_BITS);
        }
        let Some(mr) = last.as_ref() else { return Err(KeyError) };
        let ok = mr.key == key
            && mr.pd == pd
            && mr.access.contains(need)
            && mr.region.contains(addr, len)
            && mr.grant.holds();
        if ok { Ok(f(mr)) } else { Err(KeyError) }
    }
}
