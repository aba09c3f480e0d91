//! Leases that wait with their threads: a thread that puts a lease keeps it at hand, and takes it from there when it gets the same
//! address again. So a hit changes nothing that another thread looks at: no reference count, no lock. And it touches one cache line: a
//! slot has the key of what is parked in it, and of a lease that came from a slot a put need not look at the entry either.
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
//! odd, pass the heavy barrier, empty slots, and make `rounds` even again. The thread takes its lease with a plain store, passes the
//! light barrier, and looks whether `rounds` is still even and what it was. If so, nobody who took back before can have the lease, since
//! the thread saw all that they did; and whoever takes back after finds no reference in the slot, by the barriers. If `rounds` has changed, the
//! thread waits for them and looks whether they emptied the slot: `taken` counts that, and as only the thread itself could have filled
//! it again, what was taken is what it saw. If it was odd to begin with, the thread waits first.
//!
//! For the same reason what was parked while somebody took back does not stay parked: the thread looks at `rounds` once more, and takes
//! it out itself. And as an entry is marked as gone before a round begins, either the thread sees the mark, or the round its lease.
//!
//! # Why a put need not look at the entry
//!
//! A slot whose lease its thread has taken says which entry that is: it is *lent*. Whoever takes back erases that, too, and so does a
//! thread that finds that `rounds` has changed. So while there is a lease of what a slot says it has lent, that is not gone, or somebody will
//! take it back: as with what is parked, for which a get does not look at the mark either. A lease knows its slot. If that still says that it has lent this entry, it
//! has the entry's key: while there is the lease, no other entry lies at that address, and it was that entry's slot when it was lent. If it
//! does not, or belongs to another thread, the put looks at the entry as for any other lease.
//!
//! Once the kernel has refused the barrier, nobody can take back any more. `rounds` stays odd then, for good: nothing is parked any more, and
//! what is goes when its thread gets it, under the lock, and sees that it is gone, or ends.
#![allow(unsafe_code)]

use super::barrier::{LightBarrier, heavy_barrier};
use super::entry::{AhLease, Entry, Shared};
use super::key::Key;
use crate::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};
use crate::sync::{Mutex, global, thread_local};
use crate::{AhAttr, Pd};
use hashbrown::HashMap;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Places where the slots of an address may begin: 64 KiB for a thread. A thousand addresses that follow one another find room.
#[cfg(not(test))]
const HOMES: usize = 1024;
/// In so many slots, one behind the other, an address may be.
#[cfg(not(test))]
const WINDOW: usize = 4;
/// A model wants to see one take the place of another.
#[cfg(test)]
const HOMES: usize = 1;
#[cfg(test)]
const WINDOW: usize = 2;
const SLOTS: usize = HOMES + WINDOW - 1;
/// Caches whose hits a thread counts at one time.
const COUNTS: usize = 8;

struct Registry {
    /// Twice the times that somebody has taken back; odd while somebody does, and once nobody can.
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
    slots: Arc<Slots>,
    counts: [Count; COUNTS],
}

type Slots = [Slot; SLOTS];

/// Written by its thread alone.
type Plain = std::sync::atomic::AtomicU64;

/// Hits of one cache; written by the thread alone.
#[derive(Default)]
struct Count {
    cache: Plain,
    hits: Plain,
}

/// What of one address is at hand: all of it in a cache line.
#[derive(Default)]
#[repr(C, align(64))]
struct Slot {
    /// Whose entry it has, or had; looked at by its thread alone.
    key: [Plain; 5],
    /// A strong reference; or, [`lent`], none but the name of what was there; or null.
    entry: AtomicPtr<Entry>,
    /// Until when the thread may use it, in the time of its cache; looked at by the thread alone.
    until: Plain,
    /// Which cache's entry it has, or had.
    cache: std::sync::atomic::AtomicU32,
    /// How often it was emptied by another than its thread, as far as the thread wants to know: whether it was, since it was filled.
    taken: AtomicU8,
}

#[cfg(not(test))]
const _: () = assert!(size_of::<Slot>() == 64);

/// What a slot says whose thread has taken its lease.
#[inline]
fn lent(entry: *const Entry) -> *mut Entry {
    entry.map_addr(|addr| addr | 1).cast_mut()
}

/// Whether a slot that says so has a reference.
#[inline]
fn is_parked(entry: *const Entry) -> bool {
    const { assert!(align_of::<Entry>() > 1) };
    !entry.is_null() && entry.addr() & 1 == 0
}

impl Slot {
    /// Whether it is this key's in this cache.
    #[inline]
    fn is_of(&self, key: &Key, cache: u64) -> bool {
        let words = Key::from_words([0, 1, 2, 3, 4].map(|n| self.key[n].load(Relaxed)));
        words == *key && self.is_from(cache)
    }

    /// Whether it has, or had, something of this cache.
    #[inline]
    fn is_from(&self, cache: u64) -> bool {
        u64::from(self.cache.load(Relaxed)) == cache
    }

    /// Takes the reference that it has.
    ///
    /// # Safety
    ///
    /// The caller is the slot's thread, or in a round whose heavy barrier has been passed, and counts in `taken` what it took: else the
    /// slot's thread, which needs no lock, might take the same reference.
    unsafe fn clear(&self, _book: &Book) -> Option<Arc<Entry>> {
        let entry = self.entry.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: it was in the slot, which had a strong reference. Under the lock nobody else takes back, and the caller answers for the
        // slot's thread.
        is_parked(entry).then(|| unsafe { Arc::from_raw(entry) })
    }
}

/// Which slot a lease came from, if any: its address, and in the lowest bit whether the time of the put matters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin(usize);

impl Origin {
    /// It came from none.
    pub(super) const ELSEWHERE: Self = Self(0);

    #[inline]
    fn new(slot: &Slot, is_timed: bool) -> Self {
        Self(ptr::from_ref(slot).addr() | usize::from(is_timed))
    }

    #[inline]
    fn is_timed(self) -> bool {
        self.0 & 1 == 1
    }

    /// Where it is behind the first of these, if it is one of them.
    #[inline]
    fn index_in(self, slots: &Slots) -> usize {
        self.0.wrapping_sub(slots.as_ptr().addr()) / size_of::<Slot>()
    }
}

/// The thread's own side.
struct Owner {
    slots: Arc<Slots>,
    lot: Arc<Lot>,
    barrier: LightBarrier,
    /// Which slot of those that an address may be in makes room next.
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
pub(super) fn put(entry: Arc<Entry>, origin: Origin) {
    // Not to be dropped should what is destroyed meanwhile panic: the slot may have the reference.
    let entry = ManuallyDrop::new(entry);
    if origin == Origin::ELSEWHERE || OWNER.try_with(|owner| owner.give_back(&entry, origin)) != Ok(true) {
        put_anew(ManuallyDrop::into_inner(entry));
    }
}

/// As [`put`], wherever it came from.
#[inline(never)]
fn put_anew(entry: Arc<Entry>) {
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
    if entries.len() * 4 >= HOMES {
        return take_back_all(shared);
    }
    take_back_from(shared, || entries.iter().flat_map(|entry| window_of(&entry.key, shared.id)));
}

/// Takes all entries of a cache back from all threads.
pub(super) fn take_back_all(shared: &Shared) {
    take_back_from(shared, || 0..SLOTS);
}

fn take_back_from<I: Iterator<Item = usize>>(shared: &Shared, slots: impl Fn() -> I) {
    if !shared.parks {
        return;
    }
    let mut gone = Vec::new();
    {
        let book = REGISTRY.book.lock();
        let rounds = REGISTRY.rounds.load(Ordering::Relaxed);
        if !rounds.is_multiple_of(2) {
            return;
        }
        REGISTRY.rounds.store(rounds + 1, Ordering::SeqCst);
        if !heavy_barrier() {
            return;
        }
        for slot in book.lots.iter().flat_map(|lot| slots().map(|index| &lot.slots[index])) {
            if !slot.is_from(shared.id) {
                continue;
            }
            // SAFETY: in a round, and behind its barrier; counted below.
            if let Some(entry) = unsafe { slot.clear(&book) } {
                let count = slot.taken.load(Ordering::Relaxed);
                slot.taken.store(count.wrapping_add(1), Ordering::Release);
                gone.extend(drop_idle(entry));
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
    let slots = book.lots.iter().flat_map(|lot| &lot.slots[window_of(&entry.key, entry.shared.id)]);
    let parked = slots.filter(|slot| ptr::eq(slot.entry.load(Ordering::Acquire), Arc::as_ptr(entry))).count();
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

/// The slots that an address may be in.
#[inline]
fn window_of(key: &Key, cache: u64) -> Range<usize> {
    // The uppermost bits.
    let home = ((u64::from(key.place(cache)) * HOMES as u64) >> 32) as usize;
    home..home + WINDOW
}

impl Owner {
    fn new() -> Self {
        // Made in place: it is too long for some stacks.
        let slots: Arc<[Slot]> = (0..SLOTS).map(|_| Slot::default()).collect();
        let Ok(slots) = Arc::<Slots>::try_from(slots) else { unreachable!("so many were made") };
        let lot = Arc::new(Lot { slots: slots.clone(), counts: Default::default() });
        REGISTRY.book.lock().lots.push(lot.clone());
        Self { slots, lot, barrier: LightBarrier::new(), hand: Cell::new(0) }
    }

    /// The slot of a key.
    #[inline]
    fn find(&self, key: &Key, cache: u64) -> Option<&Slot> {
        self.slots[window_of(key, cache)].iter().find(|slot| slot.is_of(key, cache))
    }

    /// What is at hand and fit for use still.
    #[inline(never)]
    fn get_timed(&self, shared: &Shared, pd: &Pd, attr: &AhAttr) -> Option<AhLease> {
        // The clock is the program's, and may do anything: not in the middle.
        let now = shared.now();
        self.get_if(shared, &Key::new(pd, attr), |slot| now <= slot.until.load(Relaxed))
    }

    /// What is at hand.
    #[inline]
    fn get(&self, shared: &Shared, key: &Key) -> Option<AhLease> {
        self.get_if(shared, key, |_| true)
    }

    #[inline]
    fn get_if(&self, shared: &Shared, key: &Key, is_fit: impl FnOnce(&Slot) -> bool) -> Option<AhLease> {
        let slot = self.find(key, shared.id)?;
        if !is_fit(slot) {
            if !REGISTRY.rounds.load(Ordering::Relaxed).is_multiple_of(2) {
                // Perhaps for good, and then nobody else takes it from here.
                Self::let_go(slot).into_iter().for_each(Entry::release);
            }
            return None;
        }
        let entry = match self.empty(slot) {
            Emptied::Alone(entry) => {
                self.count(shared.id);
                return Some(AhLease::from_slot(entry, Origin::new(slot, shared.is_timed)));
            }
            Emptied::Disturbed(entry) => entry?,
        };
        if entry.gone.load(Ordering::Acquire) {
            Entry::release(entry);
            return None;
        }
        self.count(shared.id);
        Some(AhLease::new(entry))
    }

    /// Gives a lease back to the slot that it came from; or not, if that is not to be had.
    #[inline]
    fn give_back(&self, entry: &Arc<Entry>, origin: Origin) -> bool {
        let Some(slot) = self.slots.get(origin.index_in(&self.slots)) else { return false };
        let until = if origin.is_timed() { Some(Self::note_put(entry)) } else { None };
        let before = REGISTRY.rounds.load(Ordering::Acquire);
        if !before.is_multiple_of(2) || slot.entry.load(Ordering::Relaxed) != lent(Arc::as_ptr(entry)) {
            return false;
        }
        self.fill(slot, Arc::as_ptr(entry), until, before);
        true
    }

    /// Puts a reference into a slot that has none, and takes it out again if `rounds` is not what it was `before`.
    #[inline]
    fn fill(&self, slot: &Slot, entry: *const Entry, until: Option<u64>, before: u64) {
        if let Some(until) = until {
            slot.until.store(until, Relaxed);
        }
        slot.entry.store(entry.cast_mut(), Ordering::Release);
        self.barrier.pass();
        if REGISTRY.rounds.load(Ordering::Relaxed) != before {
            self.unpark(slot);
        }
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
    fn empty(&self, slot: &Slot) -> Emptied {
        let before = REGISTRY.rounds.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return Emptied::Disturbed(Self::empty_locked(slot));
        }
        let taken = slot.taken.load(Ordering::Acquire);
        let entry = slot.entry.load(Ordering::Relaxed);
        if !is_parked(entry) {
            return Emptied::Disturbed(None);
        }
        slot.entry.store(lent(entry), Ordering::Relaxed);
        self.barrier.pass();
        let is_alone = REGISTRY.rounds.load(Ordering::Relaxed) == before;
        if !is_alone && Self::was_taken(slot, taken) {
            return Emptied::Disturbed(None);
        }
        // SAFETY: this thread put a strong reference there, and nobody else has taken it.
        let entry = unsafe { Arc::from_raw(entry) };
        if is_alone { Emptied::Alone(entry) } else { Emptied::Disturbed(Some(entry)) }
    }

    /// Somebody has taken back, or does: whether the slot was emptied since it had been so often. Only this thread fills it, so that it
    /// can have been emptied once. It has lent nothing then: whoever takes back may have been there already.
    #[cold]
    fn was_taken(slot: &Slot, before: u8) -> bool {
        let _wait = REGISTRY.book.lock();
        slot.entry.store(ptr::null_mut(), Ordering::Relaxed);
        slot.taken.load(Ordering::Acquire) != before
    }

    /// Takes what is in a slot when nobody takes back. For who comes while somebody does: what `taken` counts then may be of something
    /// that was in the slot earlier.
    #[cold]
    fn empty_locked(slot: &Slot) -> Option<Arc<Entry>> {
        // Only this thread fills it.
        if !is_parked(slot.entry.load(Ordering::Relaxed)) {
            return None;
        }
        // SAFETY: this thread's, which is here.
        unsafe { slot.clear(&REGISTRY.book.lock()) }
    }

    #[inline(never)]
    fn note_put(entry: &Entry) -> u64 {
        entry.note_put()
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
        if !before.is_multiple_of(2) || entry.gone.load(Ordering::Acquire) {
            return Entry::release(entry);
        }
        let (slot, mut displaced) = match self.find(&entry.key, entry.shared.id) {
            Some(slot) => (slot, None),
            None => self.make_room(&entry),
        };
        if is_parked(slot.entry.load(Ordering::Relaxed)) {
            displaced = self.make_way(slot, &entry);
        }
        self.fill(slot, Arc::into_raw(entry), until, before);
        // Last: what that destroys may put leases, too, and find slots as it expects them.
        if let Some(displaced) = displaced {
            Entry::release(displaced);
        }
    }

    /// A slot for an entry whose key has none, and what was there if that is to be released.
    #[cold]
    fn make_room(&self, entry: &Entry) -> (&Slot, Option<Arc<Entry>>) {
        let window = &self.slots[window_of(&entry.key, entry.shared.id)];
        let is_free = |slot: &&Slot| !is_parked(slot.entry.load(Ordering::Relaxed));
        let (slot, displaced) = window.iter().find(is_free).map_or_else(
            || {
                let slot = &window[self.hand.replace((self.hand.get() + 1) % WINDOW)];
                (slot, Self::let_go(slot))
            },
            |slot| (slot, None),
        );
        for (word, of_key) in slot.key.iter().zip(entry.key.words()) {
            word.store(of_key, Relaxed);
        }
        slot.cache.store(entry.shared.id as u32, Relaxed);
        (slot, displaced)
    }

    /// Puts something out of one of this thread's slots for good; returns it if it is to be released.
    #[cold]
    fn let_go(slot: &Slot) -> Option<Arc<Entry>> {
        let book = REGISTRY.book.lock();
        // SAFETY: this thread's, which does not take what is in it meanwhile.
        unsafe { slot.clear(&book) }.and_then(drop_idle)
    }

    /// Makes way for an entry; returns what was there if that is to be released.
    #[cold]
    fn make_way(&self, slot: &Slot, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
        let is_another_of_it = ptr::eq(slot.entry.load(Ordering::Relaxed), Arc::as_ptr(entry));
        if is_another_of_it { self.empty(slot).entry() } else { Self::let_go(slot) }
    }

    /// Somebody has taken back meanwhile, and may not have seen what was parked.
    #[cold]
    fn unpark(&self, slot: &Slot) {
        let entry = self.empty(slot).entry();
        // It may be gone, and so must not be given back here by another lease.
        slot.entry.store(ptr::null_mut(), Ordering::Relaxed);
        if let Some(entry) = entry {
            Entry::release(entry);
        }
    }
}

/// What was in a slot.
enum Emptied {
    /// Nobody took back meanwhile.
    Alone(Arc<Entry>),
    /// Somebody did, or there was nothing.
    Disturbed(Option<Arc<Entry>>),
}

impl Emptied {
    fn entry(self) -> Option<Arc<Entry>> {
        match self {
            Self::Alone(entry) => Some(entry),
            Self::Disturbed(entry) => entry,
        }
    }
}

impl Drop for Owner {
    /// The thread ends.
    fn drop(&mut self) {
        let mut gone = Vec::new();
        {
            let mut book = REGISTRY.book.lock();
            // SAFETY: this thread's, which ends.
            let taken = self.slots.iter().filter_map(|slot| unsafe { slot.clear(&book) });
            gone.extend(taken.filter_map(drop_idle));
            book.lots.retain(|lot| !Arc::ptr_eq(lot, &self.lot));
            self.lot.counts.iter().for_each(|count| Self::save_hits(&mut book, count));
        }
        gone.into_iter().for_each(Entry::release);
    }
}
