//! Leases that wait with their threads: a thread that puts a lease keeps it at hand, and takes it from there when it gets the same
//! address again. So a hit changes nothing that another thread looks at: no reference count, no lock.
//!
//! What is parked is idle. Whoever has to know or to end that, as when an entry is invalidated or the cache closed, takes parked
//! leases back from the threads that have them, which is rare and may cost something. A thread parks only what is in the table, and
//! only where nobody asks which lease was put before which (no capacity).
//!
//! # Time
//!
//! With a TTL or a largest age, a thread notes until when it may use what it parks. A coarse clock is good enough for that, and costs a
//! fifth (`Shared`). Later the thread leaves the lease where it is and asks the table, which knows of the puts of all threads. There an
//! entry whose references but the table's are all parked is idle ([`are_parked`]).
//!
//! For that nobody may have a reference at hand that is neither a holder's nor parked, to an entry that was put long ago: it would look
//! held, and so be used once more. Therefore what goes from here, long ago put, goes under the lock of the book, under which references
//! are counted, too ([`drop_idle`]). It cannot be the last reference, whose drop would destroy an address handle under the lock: whoever takes
//! an entry out of the table that others refer to marks it, and keeps the table's reference until he has had the book ([`take_back`]).
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
use crate::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use crate::sync::{Mutex, global, thread_local};
use crate::{AhAttr, Pd};
use hashbrown::HashMap;
use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Leases that a thread has at hand, in sets of a cache line each. Each address has one set: 256 addresses find room but for one in a
/// hundred, where as many single slots would leave a fifth of them in each other's way.
#[cfg(not(test))]
const SETS: usize = 512;
#[cfg(not(test))]
const WAYS: usize = 3;
/// A model wants to see one take the place of another.
#[cfg(test)]
const SETS: usize = 1;
#[cfg(test)]
const WAYS: usize = 2;
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
    sets: [Set; SETS],
    /// Until when the thread may use what is in a slot, in the time of its cache; written by the thread alone.
    until: [[Plain; WAYS]; SETS],
    counts: [Count; COUNTS],
}

/// Written by its thread alone.
type Plain = std::sync::atomic::AtomicU64;

/// Hits of one cache; written by the thread alone.
#[derive(Default)]
struct Count {
    cache: Plain,
    hits: Plain,
}

/// A few slots.
#[derive(Default)]
#[repr(align(64))]
struct Set {
    /// A strong reference, or null.
    entries: [AtomicPtr<Entry>; WAYS],
    /// The tag of its entry: no other cache's.
    tags: [Plain; WAYS],
    /// How often it was emptied by another than its thread, as far as the thread wants to know: whether it was, since it was filled.
    taken: [AtomicU8; WAYS],
}

impl Set {
    /// The slot of this tag.
    #[inline]
    fn find(&self, tag: u64) -> Option<usize> {
        let is_it = |way: usize| self.tags[way].load(Relaxed) == tag;
        if is_it(0) { Some(0) } else { (1..WAYS).find(|way| is_it(*way)) }
    }
}

/// The thread's own side.
struct Owner {
    lot: Arc<Lot>,
    barrier: LightBarrier,
    /// Which slot of a full set makes room next.
    hand: Cell<usize>,
}

thread_local! {
    static OWNER: Owner = Owner::new();
}

/// A lease that this thread has at hand.
#[inline]
pub(super) fn get(shared: &Shared, pd: &Pd, attr: &AhAttr) -> Option<AhLease> {
    if !shared.parks {
        return None;
    }
    OWNER
        .try_with(|owner| {
            if shared.is_timed { owner.get_timed(shared, pd, attr) } else { owner.get(shared, &Key::new(pd, attr)) }
        })
        .ok()?
}

/// Lets go of a lease: keeps it at hand if it may.
#[inline]
pub(super) fn put(entry: Arc<Entry>) {
    if !entry.shared.parks {
        return Entry::put(entry);
    }
    // A thread that is about to end has nothing at hand any more: then the closure goes, and the reference with it.
    let _ = OWNER.try_with(
        move |owner| {
            if entry.shared.is_timed { owner.park_timed(entry) } else { owner.park(entry, None) }
        },
    );
}

/// Takes these entries back from all threads, which are marked as gone. It may take back others too, which costs their next get a little.
pub(super) fn take_back(shared: &Shared, entries: &[Arc<Entry>]) {
    if entries.len() * 4 >= SETS {
        return take_back_all(shared);
    }
    take_back_from(shared, || entries.iter().map(|entry| index_of(entry.hash)));
}

/// Takes all entries of a cache back from all threads.
pub(super) fn take_back_all(shared: &Shared) {
    take_back_from(shared, || 0..SETS);
}

fn take_back_from<I: Iterator<Item = usize>>(shared: &Shared, sets: impl Fn() -> I) {
    if !shared.parks {
        return;
    }
    let mut gone = Vec::new();
    {
        let book = REGISTRY.book.lock();
        let rounds = REGISTRY.rounds.load(Ordering::Relaxed);
        REGISTRY.rounds.store(rounds + 1, Ordering::SeqCst);
        // Without the barrier nothing can be taken back. Then what is parked goes when its thread gets it, and sees that it is gone.
        let lots = if heavy_barrier() { &book.lots[..] } else { &[] };
        for set in lots.iter().flat_map(|lot| sets().map(|index| &lot.sets[index])) {
            for way in 0..WAYS {
                if !shared.has_tag(set.tags[way].load(Relaxed)) {
                    continue;
                }
                let entry = set.entries[way].swap(ptr::null_mut(), Ordering::AcqRel);
                if !entry.is_null() {
                    let count = set.taken[way].load(Ordering::Relaxed);
                    set.taken[way].store(count.wrapping_add(1), Ordering::Release);
                    // SAFETY: it was in the slot, which had a strong reference, and the thread of the slot does not take it for its
                    // own: see above.
                    gone.extend(drop_idle(unsafe { Arc::from_raw(entry) }));
                }
            }
        }
        REGISTRY.rounds.store(rounds + 2, Ordering::Release);
    }
    // Whoever holds the last reference destroys an address handle: not under a lock.
    gone.into_iter().for_each(Entry::release);
}

/// Drops a reference to what is idle, under the lock of the book; or returns it, if that might destroy an address handle.
fn drop_idle(entry: Arc<Entry>) -> Option<Arc<Entry>> {
    // If it is in the table still, whoever takes it out has to have the book before he drops the table's reference.
    entry.gone.load(Ordering::Acquire).then_some(entry)
}

/// Whether all references to an entry are parked, but for the table's. It is in the table, and its shard is locked. Only for what was put
/// so long ago that whatever threads parked of it can be seen: nothing is waited for.
pub(super) fn are_parked(entry: &Arc<Entry>) -> bool {
    let book = REGISTRY.book.lock();
    let slots = book.lots.iter().flat_map(|lot| &lot.sets[index_of(entry.hash)].entries);
    let parked = slots.filter(|slot| ptr::eq(slot.load(Ordering::Acquire), Arc::as_ptr(entry))).count();
    Arc::strong_count(entry) == 1 + parked
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
///
/// The counts are their threads' to write. But none counts for this cache any more: who counts has the cache, and nobody has. A thread that takes
/// its count for another cache does so with the book, as this does, and writes it again only afterwards. So with the book nobody writes a count
/// that is this cache's.
pub(super) fn forget(cache: u64) {
    let mut book = REGISTRY.book.lock();
    let counts = book.lots.iter().flat_map(|lot| &lot.counts);
    counts.filter(|count| count.cache.load(Relaxed) == cache).for_each(|count| count.hits.store(0, Relaxed));
    if let Some(hits) = &mut book.hits {
        hits.remove(&cache);
    }
}

/// Of how many caches hits are remembered that their threads count no more.
#[cfg(test)]
pub(super) fn remembered() -> usize {
    REGISTRY.book.lock().hits.as_ref().map_or(0, HashMap::len)
}

#[inline]
fn index_of(hash: u64) -> usize {
    const { assert!(SETS.is_power_of_two()) };
    (hash >> 32) as usize & (SETS - 1)
}

impl Owner {
    fn new() -> Self {
        let lot = Arc::new(Lot {
            sets: std::array::from_fn(|_| Set::default()),
            until: std::array::from_fn(|_| Default::default()),
            counts: Default::default(),
        });
        REGISTRY.book.lock().lots.push(lot.clone());
        Self { lot, barrier: LightBarrier::new(), hand: Cell::new(0) }
    }

    /// What is at hand and fit for use still.
    #[inline(never)]
    fn get_timed(&self, shared: &Shared, pd: &Pd, attr: &AhAttr) -> Option<AhLease> {
        self.get_if(shared, &Key::new(pd, attr), |index, way| shared.now() <= self.lot.until[index][way].load(Relaxed))
    }

    /// What is at hand.
    #[inline]
    fn get(&self, shared: &Shared, key: &Key) -> Option<AhLease> {
        self.get_if(shared, key, |_, _| true)
    }

    #[inline]
    fn get_if(&self, shared: &Shared, key: &Key, is_fit: impl FnOnce(usize, usize) -> bool) -> Option<AhLease> {
        let hash = key.hash(shared.id);
        let index = index_of(hash);
        let set = &self.lot.sets[index];
        let way = set.find(shared.tag(hash))?;
        if !is_fit(index, way) {
            return None;
        }
        let entry = self.empty(set, way)?;
        // Two keys with one tag there are once in the life of a machine; an entry that is gone, while somebody takes it back.
        if entry.key != *key || entry.gone.load(Ordering::Acquire) {
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
        let mut book = REGISTRY.book.lock();
        Self::save_hits(&mut book, count);
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
    fn empty(&self, set: &Set, way: usize) -> Option<Arc<Entry>> {
        let before = REGISTRY.rounds.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return Self::empty_alone(set, way);
        }
        let taken = set.taken[way].load(Ordering::Acquire);
        let entry = set.entries[way].load(Ordering::Relaxed);
        if entry.is_null() {
            return None;
        }
        set.entries[way].store(ptr::null_mut(), Ordering::Relaxed);
        self.barrier.pass();
        if REGISTRY.rounds.load(Ordering::Relaxed) != before && Self::was_taken(set, way, taken) {
            return None;
        }
        // SAFETY: this thread put a strong reference there, and nobody else has taken it.
        Some(unsafe { Arc::from_raw(entry) })
    }

    /// Somebody has taken back, or does: whether the slot was emptied since it had been so often. Only this thread fills it, so that it
    /// can have been emptied once.
    #[cold]
    fn was_taken(set: &Set, way: usize, before: u8) -> bool {
        let _wait = REGISTRY.book.lock();
        set.taken[way].load(Ordering::Acquire) != before
    }

    /// Takes what is in a slot when nobody takes back. For who comes while somebody does: what `taken` counts then may be of something
    /// that was in the slot earlier.
    #[cold]
    fn empty_alone(set: &Set, way: usize) -> Option<Arc<Entry>> {
        Self::empty_locked(&REGISTRY.book.lock(), set, way)
    }

    fn empty_locked(_book: &Book, set: &Set, way: usize) -> Option<Arc<Entry>> {
        let entry = set.entries[way].swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: this thread put a strong reference there, and under the lock nobody else takes it.
        (!entry.is_null()).then(|| unsafe { Arc::from_raw(entry) })
    }

    /// As [`Self::park`], where somebody asks when that was.
    #[inline(never)]
    fn park_timed(&self, entry: Arc<Entry>) {
        let until = entry.note_put();
        self.park(entry, Some(until));
    }

    /// Puts an entry at hand, in the place of another if need be.
    #[inline]
    fn park(&self, entry: Arc<Entry>, until: Option<u64>) {
        let before = REGISTRY.rounds.load(Ordering::Acquire);
        if before % 2 == 1 || entry.gone.load(Ordering::Acquire) {
            return Entry::release(entry);
        }
        let (tag, index) = (entry.shared.tag(entry.hash), index_of(entry.hash));
        let set = &self.lot.sets[index];
        let way = set.find(tag).unwrap_or_else(|| self.make_room(set, tag));
        let displaced =
            if set.entries[way].load(Ordering::Relaxed).is_null() { None } else { self.make_way(set, way, &entry) };
        if let Some(until) = until {
            self.lot.until[index][way].store(until, Relaxed);
        }
        set.entries[way].store(Arc::into_raw(entry).cast_mut(), Ordering::Release);
        self.barrier.pass();
        if REGISTRY.rounds.load(Ordering::Relaxed) != before {
            self.unpark(set, way);
        }
        // Last: what that destroys may put leases, too.
        if let Some(displaced) = displaced {
            Entry::release(displaced);
        }
    }

    /// A slot for a tag that the set does not have.
    #[cold]
    fn make_room(&self, set: &Set, tag: u64) -> usize {
        let is_free = |way: &usize| set.entries[*way].load(Ordering::Relaxed).is_null();
        let way = (0..WAYS).find(is_free).unwrap_or_else(|| {
            let way = self.hand.replace((self.hand.get() + 1) % WAYS);
            Self::let_go(set, way);
            way
        });
        set.tags[way].store(tag, Relaxed);
        way
    }

    /// Puts something out of a slot for good.
    #[cold]
    fn let_go(set: &Set, way: usize) {
        let gone = {
            let book = REGISTRY.book.lock();
            Self::empty_locked(&book, set, way).and_then(drop_idle)
        };
        gone.into_iter().for_each(Entry::release);
    }

    /// Makes way for an entry; returns what was there, if it is another reference to the same.
    #[cold]
    fn make_way(&self, set: &Set, way: usize, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        if ptr::eq(set.entries[way].load(Ordering::Relaxed), Arc::as_ptr(entry)) {
            return self.empty(set, way);
        }
        Self::let_go(set, way);
        None
    }

    /// Somebody has taken back meanwhile, and may not have seen what was parked.
    #[cold]
    fn unpark(&self, set: &Set, way: usize) {
        if let Some(entry) = self.empty(set, way) {
            Entry::release(entry);
        }
    }
}

impl Drop for Owner {
    /// The thread ends.
    fn drop(&mut self) {
        let mut gone = Vec::new();
        {
            let mut book = REGISTRY.book.lock();
            for set in &self.lot.sets {
                gone.extend((0..WAYS).filter_map(|way| Self::empty_locked(&book, set, way).and_then(drop_idle)));
            }
            book.lots.retain(|lot| !Arc::ptr_eq(lot, &self.lot));
            self.lot.counts.iter().for_each(|count| Self::save_hits(&mut book, count));
        }
        gone.into_iter().for_each(Entry::release);
    }
}
