//! Leases that wait with their threads: a thread that puts a lease keeps it at hand, and takes it from there when it gets the same
//! address again. So a hit changes nothing that another thread looks at: no reference count, no lock.
//!
//! What is parked is idle. Whoever has to know or to end that, as when an entry is invalidated or the cache closed, takes parked
//! leases back from the threads that have them, which is rare and may cost something. A thread parks only what is in the table, and
//! only where nobody asks when it was put (no TTL, no capacity).
//!
//! # Why a parked lease has one owner
//!
//! A slot is filled by its thread alone, and emptied by its thread or by whoever takes back. The latter, one at a time, make `rounds`
//! odd, pass the heavy barrier, empty slots, and make `rounds` even again. The thread empties its slot with a plain store, passes the
//! light barrier, and looks whether `rounds` is still even and what it was. If so, nobody who took back before can have the lease, since
//! the thread saw all that they did; and whoever takes back after finds the slot empty, by the barriers. If `rounds` has changed, the
//! thread waits for them and looks whether they emptied the slot: `taken` counts that, and as only the thread itself could have filled
//! it again, what was taken is what it saw. If it was odd to begin with, the thread waits first.
//!
//! For the same reason what was parked while somebody took back does not stay parked: the thread looks at `rounds` once more, and takes
//! it out itself. And as an entry is marked as gone before a round begins, either the thread sees the mark, or the round its lease.
#![allow(unsafe_code)]

use super::barrier::{LightBarrier, heavy_barrier};
use super::entry::{AhLease, Entry, Shared};
use super::key::Key;
use crate::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use crate::sync::{Mutex, global, thread_local};
use hashbrown::HashMap;
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Leases that a thread has at hand.
#[cfg(not(test))]
const SLOTS: usize = 64;
/// A model wants to see one take the place of another, and always the same run.
#[cfg(test)]
const SLOTS: usize = 1;

struct Registry {
    /// Twice the times that somebody has taken back; odd while somebody does.
    rounds: AtomicU64,
    book: Mutex<Book>,
}

/// Held while somebody takes back.
struct Book {
    /// One for each thread.
    lots: Vec<Arc<Lot>>,
    /// Hits of slots that are used for another cache by now.
    hits: Option<HashMap<u64, u64, crate::sync::Hashing>>,
}

impl Registry {
    const fn new() -> Self {
        Self { rounds: AtomicU64::new(0), book: Mutex::new(Book { lots: Vec::new(), hits: None }) }
    }
}

global! {
    /// All threads that have leases at hand.
    static REGISTRY: Registry = Registry::new();
}

/// What a thread has at hand, for all to see.
struct Lot {
    slots: [Slot; SLOTS],
}

#[repr(align(32))]
struct Slot {
    /// A strong reference, or null.
    entry: AtomicPtr<Entry>,
    /// How often it was emptied by another than its thread.
    taken: AtomicU64,
    /// Of which cache its entry is; written by its thread.
    cache: std::sync::atomic::AtomicU64,
    /// Hits of that cache; written by its thread.
    hits: std::sync::atomic::AtomicU64,
}

/// The thread's own side.
struct Owner {
    lot: Arc<Lot>,
    /// What is in the slots, if they are not empty.
    keys: [Cell<Key>; SLOTS],
    barrier: LightBarrier,
}

thread_local! {
    static OWNER: Owner = Owner::new();
}

/// A lease that this thread has at hand.
#[inline]
pub(super) fn get(shared: &Shared, key: &Key, hash: u64) -> Option<AhLease> {
    if !shared.parks {
        return None;
    }
    OWNER.try_with(|owner| owner.get(shared, key, hash)).ok()?
}

/// Lets go of a lease: keeps it at hand if it may.
#[inline]
pub(super) fn put(entry: Arc<Entry>) {
    if !entry.shared.parks {
        return Entry::release(entry);
    }
    let mut entry = Some(entry);
    // A thread that is about to end has nothing at hand any more.
    let rest = OWNER.try_with(|owner| entry.take().map(|entry| owner.park(entry))).ok().flatten();
    let rest = rest.unwrap_or_default();
    for entry in [entry, rest.0, rest.1].into_iter().flatten() {
        Entry::release(entry);
    }
}

/// Takes these entries back from all threads.
pub(super) fn take_back(shared: &Shared, entries: &[Arc<Entry>]) {
    if entries.len() > SLOTS / 2 {
        return take_back_all(shared);
    }
    take_back_if(shared, |index| entries.iter().any(|entry| index_of(entry.hash) == index));
}

/// Takes all entries of a cache back from all threads.
pub(super) fn take_back_all(shared: &Shared) {
    take_back_if(shared, |_| true);
}

/// It may take back more than it is asked for: a lease that is not parked costs the next get a little.
fn take_back_if(shared: &Shared, which: impl Fn(usize) -> bool) {
    if !shared.parks {
        return;
    }
    let mut taken = Vec::new();
    {
        let book = REGISTRY.book.lock();
        let rounds = REGISTRY.rounds.load(Ordering::Relaxed);
        REGISTRY.rounds.store(rounds + 1, Ordering::SeqCst);
        heavy_barrier();
        for lot in &book.lots {
            for (index, slot) in lot.slots.iter().enumerate() {
                if slot.cache.load(Relaxed) != shared.id || !which(index) {
                    continue;
                }
                let entry = slot.entry.swap(ptr::null_mut(), Ordering::AcqRel);
                if !entry.is_null() {
                    let count = slot.taken.load(Ordering::Relaxed);
                    slot.taken.store(count + 1, Ordering::Release);
                    // SAFETY: it was in the slot, which had a strong reference, and the thread of the slot does not take it for its
                    // own: see above.
                    taken.push(unsafe { Arc::from_raw(entry) });
                }
            }
        }
        REGISTRY.rounds.store(rounds + 2, Ordering::Release);
    }
    // Whoever holds the last reference destroys an address handle: not under a lock.
    taken.into_iter().for_each(Entry::release);
}

/// Hits of a cache that were parked leases.
pub(super) fn hits(shared: &Shared) -> u64 {
    let book = REGISTRY.book.lock();
    let slots = book.lots.iter().flat_map(|lot| &lot.slots);
    let present: u64 =
        slots.filter(|slot| slot.cache.load(Relaxed) == shared.id).map(|slot| slot.hits.load(Relaxed)).sum();
    present + book.hits.as_ref().and_then(|hits| hits.get(&shared.id)).copied().unwrap_or_default()
}

/// The cache is gone, and its hits with it.
pub(super) fn forget(cache: u64) {
    if let Some(hits) = &mut REGISTRY.book.lock().hits {
        hits.remove(&cache);
    }
}

#[inline]

fn index_of(hash: u64) -> usize {
    hash as usize % SLOTS
}

impl Owner {
    fn new() -> Self {
        let slot = |_| Slot {
            entry: AtomicPtr::new(ptr::null_mut()),
            taken: AtomicU64::new(0),
            cache: std::sync::atomic::AtomicU64::new(0),
            hits: std::sync::atomic::AtomicU64::new(0),
        };
        let lot = Arc::new(Lot { slots: std::array::from_fn(slot) });
        REGISTRY.book.lock().lots.push(lot.clone());
        Self { lot, keys: std::array::from_fn(|_| Cell::new(Key::NONE)), barrier: LightBarrier::new() }
    }

    #[inline]
    fn get(&self, shared: &Shared, key: &Key, hash: u64) -> Option<AhLease> {
        let index = index_of(hash);
        let slot = &self.lot.slots[index];
        if slot.cache.load(Relaxed) != shared.id || self.keys[index].get() != *key {
            return None;
        }
        let entry = self.empty(slot)?;
        slot.hits.store(slot.hits.load(Relaxed) + 1, Relaxed);
        Some(AhLease::new(entry))
    }

    /// Takes what is in a slot.
    #[inline]
    fn empty(&self, slot: &Slot) -> Option<Arc<Entry>> {
        let before = REGISTRY.rounds.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return Self::empty_alone(slot);
        }
        let taken = slot.taken.load(Ordering::Acquire);
        let entry = slot.entry.load(Ordering::Relaxed);
        if entry.is_null() {
            return None;
        }
        slot.entry.store(ptr::null_mut(), Ordering::Relaxed);
        self.barrier.pass();
        if REGISTRY.rounds.load(Ordering::Relaxed) != before && Self::was_taken(slot, taken) {
            return None;
        }
        // SAFETY: this thread put a strong reference there, and nobody else has taken it.
        Some(unsafe { Arc::from_raw(entry) })
    }

    /// Somebody has taken back, or does: whether the slot was emptied since it had been so often.
    #[cold]
    fn was_taken(slot: &Slot, before: u64) -> bool {
        let _wait = REGISTRY.book.lock();
        slot.taken.load(Ordering::Acquire) != before
    }

    /// Takes what is in a slot when nobody takes back. For who comes while somebody does: what `taken` counts then may be of something
    /// that was in the slot earlier.
    #[cold]
    fn empty_alone(slot: &Slot) -> Option<Arc<Entry>> {
        let _wait = REGISTRY.book.lock();
        let entry = slot.entry.swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: this thread put a strong reference there, and under the lock nobody else takes it.
        (!entry.is_null()).then(|| unsafe { Arc::from_raw(entry) })
    }

    /// Puts an entry at hand. Returns those that have to be released instead: what was there before, and the entry itself if somebody
    /// takes back.
    #[inline]
    fn park(&self, entry: Arc<Entry>) -> (Option<Arc<Entry>>, Option<Arc<Entry>>) {
        let before = REGISTRY.rounds.load(Ordering::Acquire);
        if before % 2 == 1 || entry.gone.load(Ordering::Acquire) {
            return (Some(entry), None);
        }
        let index = index_of(entry.hash);
        let slot = &self.lot.slots[index];
        let displaced = self.empty(slot);
        let cache = slot.cache.load(Relaxed);
        if cache != entry.shared.id {
            self.change_cache(slot, cache, entry.shared.id);
        }
        self.keys[index].set(entry.key);
        slot.entry.store(Arc::into_raw(entry).cast_mut(), Ordering::Release);
        self.barrier.pass();
        if REGISTRY.rounds.load(Ordering::Relaxed) == before {
            return (displaced, None);
        }
        (displaced, self.empty(slot))
    }

    #[cold]
    fn change_cache(&self, slot: &Slot, from: u64, to: u64) {
        Self::save_hits(&mut REGISTRY.book.lock(), slot, from);
        slot.cache.store(to, Relaxed);
    }

    fn save_hits(book: &mut Book, slot: &Slot, cache: u64) {
        let hits = slot.hits.swap(0, Relaxed);
        if hits != 0 {
            *book.hits.get_or_insert_default().entry(cache).or_default() += hits;
        }
    }
}

impl Drop for Owner {
    /// The thread ends.
    fn drop(&mut self) {
        let entries: Vec<_> = self.lot.slots.iter().filter_map(|slot| self.empty(slot)).collect();
        {
            let mut book = REGISTRY.book.lock();
            book.lots.retain(|lot| !Arc::ptr_eq(lot, &self.lot));
            for slot in &self.lot.slots {
                Self::save_hits(&mut book, slot, slot.cache.load(Relaxed));
            }
        }
        entries.into_iter().for_each(Entry::release);
    }
}
