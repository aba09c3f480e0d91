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
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Leases that a thread has at hand: 32 KiB, of which only what is used is touched.
#[cfg(not(test))]
const SLOTS: usize = 1024;
/// A model wants to see one take the place of another.
#[cfg(test)]
const SLOTS: usize = 2;
/// Caches whose hits a thread counts at one time.
const COUNTS: usize = 8;

struct Registry {
    /// Twice the times that somebody has taken back; odd while somebody does.
    rounds: AtomicU64,
    book: Mutex<Book>,
}

/// Held while somebody takes back.
struct Book {
    /// One for each thread.
    lots: Vec<Arc<Lot>>,
    /// Hits that their threads count no more.
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
    slots: Box<[Slot]>,
    counts: [Count; COUNTS],
}

/// Hits of one cache; written by the thread alone.
#[derive(Default)]
struct Count {
    cache: std::sync::atomic::AtomicU64,
    hits: std::sync::atomic::AtomicU64,
}

#[repr(align(32))]
struct Slot {
    /// A strong reference, or null.
    entry: AtomicPtr<Entry>,
    /// How often it was emptied by another than its thread.
    taken: AtomicU64,
    /// Of which cache its entry is; written by its thread.
    cache: std::sync::atomic::AtomicU64,
    /// The tag of its entry's key; written by its thread.
    tag: std::sync::atomic::AtomicU64,
}

/// The thread's own side.
struct Owner {
    lot: Arc<Lot>,
    barrier: LightBarrier,
}

thread_local! {
    static OWNER: Owner = Owner::new();
}

/// A lease that this thread has at hand.
#[inline]
pub(super) fn get(shared: &Shared, key: &Key) -> Option<AhLease> {
    if !shared.parks {
        return None;
    }
    OWNER.try_with(|owner| owner.get(shared, key)).ok()?
}

/// Lets go of a lease: keeps it at hand if it may.
#[inline]
pub(super) fn put(entry: Arc<Entry>) {
    if !entry.parks {
        return Entry::release(entry);
    }
    // A thread that is about to end has nothing at hand any more: then the closure goes, and the reference with it.
    let _ = OWNER.try_with(move |owner| owner.park(entry));
}

/// Takes these entries back from all threads. It may take back others too, which costs their next get a little.
pub(super) fn take_back(shared: &Shared, entries: &[Arc<Entry>]) {
    if entries.len() * 4 >= SLOTS {
        return take_back_all(shared);
    }
    let slots: Vec<usize> = entries.iter().map(|entry| index_of(entry.tag)).collect();
    take_back_from(shared, || slots.iter().copied());
}

/// Takes all entries of a cache back from all threads.
pub(super) fn take_back_all(shared: &Shared) {
    take_back_from(shared, || 0..SLOTS);
}

fn take_back_from<I: Iterator<Item = usize>>(shared: &Shared, slots: impl Fn() -> I) {
    if !shared.parks {
        return;
    }
    let mut taken = Vec::new();
    {
        let book = REGISTRY.book.lock();
        let rounds = REGISTRY.rounds.load(Ordering::Relaxed);
        REGISTRY.rounds.store(rounds + 1, Ordering::SeqCst);
        // Without the barrier nothing can be taken back. Then what is parked goes when its thread gets it, and sees that it is gone.
        let lots = if heavy_barrier() { &book.lots[..] } else { &[] };
        for slot in lots.iter().flat_map(|lot| slots().map(|index| &lot.slots[index])) {
            if slot.cache.load(Relaxed) != shared.id {
                continue;
            }
            let entry = slot.entry.swap(ptr::null_mut(), Ordering::AcqRel);
            if !entry.is_null() {
                let count = slot.taken.load(Ordering::Relaxed);
                slot.taken.store(count + 1, Ordering::Release);
                // SAFETY: it was in the slot, which had a strong reference, and the thread of the slot does not take it for its own:
                // see above.
                taken.push(unsafe { Arc::from_raw(entry) });
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
    let counts = book.lots.iter().flat_map(|lot| &lot.counts);
    let counts = counts.filter(|count| count.cache.load(Relaxed) == shared.id);
    let present: u64 = counts.map(|count| count.hits.load(Relaxed)).sum();
    present + book.hits.as_ref().and_then(|hits| hits.get(&shared.id)).copied().unwrap_or_default()
}

/// The cache is gone, and its hits with it.
pub(super) fn forget(cache: u64) {
    if let Some(hits) = &mut REGISTRY.book.lock().hits {
        hits.remove(&cache);
    }
}

#[inline]
fn index_of(tag: u64) -> usize {
    tag as usize % SLOTS
}

impl Owner {
    fn new() -> Self {
        let slot = |_| Slot {
            entry: AtomicPtr::new(ptr::null_mut()),
            taken: AtomicU64::new(0),
            cache: std::sync::atomic::AtomicU64::new(0),
            tag: std::sync::atomic::AtomicU64::new(0),
        };
        let lot = Arc::new(Lot { slots: (0..SLOTS).map(slot).collect(), counts: Default::default() });
        REGISTRY.book.lock().lots.push(lot.clone());
        Self { lot, barrier: LightBarrier::new() }
    }

    #[inline]
    fn get(&self, shared: &Shared, key: &Key) -> Option<AhLease> {
        let tag = key.tag(shared.id);
        let slot = &self.lot.slots[index_of(tag)];
        if slot.tag.load(Relaxed) != tag {
            return None;
        }
        let entry = self.empty(slot)?;
        // Two keys with one tag there are once in the life of a machine; an entry that is gone, while somebody takes it back.
        if entry.key != *key || slot.cache.load(Relaxed) != shared.id || entry.gone.load(Ordering::Acquire) {
            Entry::release(entry);
            return None;
        }
        self.count(shared.id);
        Some(AhLease::new(entry))
    }

    #[inline]
    fn count(&self, cache: u64) {
        let count = &self.lot.counts[cache as usize % COUNTS];
        if count.cache.load(Relaxed) != cache {
            Self::change_cache(count, cache);
        }
        count.hits.store(count.hits.load(Relaxed) + 1, Relaxed);
    }

    #[cold]
    fn change_cache(count: &Count, cache: u64) {
        Self::save_hits(&mut REGISTRY.book.lock(), count);
        count.cache.store(cache, Relaxed);
    }

    fn save_hits(book: &mut Book, count: &Count) {
        let hits = count.hits.swap(0, Relaxed);
        if hits != 0 {
            *book.hits.get_or_insert_default().entry(count.cache.load(Relaxed)).or_default() += hits;
        }
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

    /// Puts an entry at hand, in the place of another if need be.
    #[inline]
    fn park(&self, entry: Arc<Entry>) {
        let before = REGISTRY.rounds.load(Ordering::Acquire);
        if before % 2 == 1 || entry.gone.load(Ordering::Acquire) {
            return Entry::release(entry);
        }
        let (cache, tag) = (entry.shared.id, entry.tag);
        let slot = &self.lot.slots[index_of(tag)];
        let displaced = self.empty(slot);
        slot.cache.store(cache, Relaxed);
        slot.tag.store(tag, Relaxed);
        slot.entry.store(Arc::into_raw(entry).cast_mut(), Ordering::Release);
        self.barrier.pass();
        if REGISTRY.rounds.load(Ordering::Relaxed) != before {
            self.unpark(slot);
        }
        // Last: what that destroys may put leases, too.
        if let Some(displaced) = displaced {
            Entry::release(displaced);
        }
    }

    /// Somebody has taken back meanwhile, and may not have seen what was parked.
    #[cold]
    fn unpark(&self, slot: &Slot) {
        if let Some(entry) = self.empty(slot) {
            Entry::release(entry);
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
            self.lot.counts.iter().for_each(|count| Self::save_hits(&mut book, count));
        }
        entries.into_iter().for_each(Entry::release);
    }
}
