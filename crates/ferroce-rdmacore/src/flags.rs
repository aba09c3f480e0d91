//! What those who poll and those who own queue pairs tell each other, by queue pair number and without locks.
//!
//! A completion names its queue pair by number only. Looking the queue pair up would take a lock, and might make the poll the one who lets
//! go of it last; a flag needs neither.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// It is connected: its receives do not begin with a GRH. Stays after it is gone, as its completions may be polled later.
pub(crate) const CONNECTED: u8 = 1;
/// A request of it failed.
pub(crate) const FAILED: u8 = 1 << 1;
/// The marker of its send queue is outstanding.
pub(crate) const SEND_MARKER: u8 = 1 << 2;
/// The marker of its receive queue is outstanding.
pub(crate) const RECV_MARKER: u8 = 1 << 3;
/// The marker of its send queue found no room there.
pub(crate) const SEND_FULL: u8 = 1 << 4;
/// The marker of its receive queue found no room there.
pub(crate) const RECV_FULL: u8 = 1 << 5;

const PER_CHUNK: usize = 1 << 12;

/// What there is to be known of a queue pair.
#[derive(Default)]
struct Place {
    flags: AtomicU8,
    /// Completions that were polled, but for failures and markers; modulo 2^32.
    completed: AtomicU32,
}

type Chunk = Box<[Place]>;

/// Flags of all queue pairs of a context. Memory is taken for 4096 numbers at a time, 128 MiB if all are used.
pub(crate) struct Flags {
    chunks: Box<[OnceLock<Chunk>]>,
}

impl Default for Flags {
    fn default() -> Self {
        Self { chunks: (0..PER_CHUNK).map(|_| OnceLock::new()).collect() }
    }
}

impl Flags {
    #[inline]
    fn place(&self, qp_num: u32) -> Option<&Place> {
        let (chunk, place) = split(qp_num);
        Some(&self.chunks[chunk].get()?[place])
    }

    #[inline]
    fn get(&self, qp_num: u32) -> Option<&AtomicU8> {
        self.place(qp_num).map(|place| &place.flags)
    }

    /// A queue pair begins with these flags. Until then its number has none.
    pub(crate) fn begin(&self, qp_num: u32, flags: u8) {
        let (chunk, place) = split(qp_num);
        let chunk = self.chunks[chunk].get_or_init(|| (0..PER_CHUNK).map(|_| Place::default()).collect());
        chunk[place].completed.store(0, Ordering::Relaxed);
        chunk[place].flags.store(flags, Ordering::Release);
    }

    /// So many completions were polled that are no failures.
    #[inline]
    pub(crate) fn completed(&self, qp_num: u32, count: u32) {
        if let Some(place) = self.place(qp_num) {
            place.completed.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// How many were; see [`crate::posted`].
    pub(crate) fn count(&self, qp_num: u32) -> u32 {
        self.place(qp_num).map_or(0, |place| place.completed.load(Ordering::Relaxed))
    }

    /// Whether a queue pair has one of these flags.
    #[inline]
    pub(crate) fn has(&self, qp_num: u32, flags: u8) -> bool {
        self.get(qp_num).is_some_and(|all| all.load(Ordering::Acquire) & flags != 0)
    }

    /// Sets flags of a queue pair, if there ever was one of this number.
    pub(crate) fn set(&self, qp_num: u32, flags: u8) {
        if let Some(all) = self.get(qp_num)
            && all.load(Ordering::Acquire) & flags != flags
        {
            all.fetch_or(flags, Ordering::AcqRel);
        }
    }

    /// Clears flags; says whether one was set. Of two that do so at once one is told.
    pub(crate) fn take(&self, qp_num: u32, flags: u8) -> bool {
        self.take_from(qp_num, flags).is_some()
    }

    /// The same; says which others were set at that moment.
    pub(crate) fn take_from(&self, qp_num: u32, flags: u8) -> Option<u8> {
        let all = self.get(qp_num).filter(|all| all.load(Ordering::Acquire) & flags != 0)?;
        let before = all.fetch_and(!flags, Ordering::AcqRel);
        (before & flags != 0).then_some(before & !flags)
    }

    /// The flags of a queue pair that is draining, after whatever others have changed: what this caller did before is seen by whoever changes them
    /// next.
    pub(crate) fn after_others(&self, qp_num: u32) -> u8 {
        self.get(qp_num).map_or(0, |all| all.fetch_or(0, Ordering::AcqRel))
    }
}

/// Queue pair numbers have 24 bits.
fn split(qp_num: u32) -> (usize, usize) {
    let qp_num = qp_num as usize;
    (qp_num / PER_CHUNK % PER_CHUNK, qp_num % PER_CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A marker is one completion, and whoever polls it says so once.
    #[test]
    fn of_all_who_take_a_flag_one_has_it() {
        let flags = Flags::default();
        flags.begin(7, 0);
        for _ in 0..100 {
            flags.set(7, SEND_MARKER | CONNECTED);
            let taken = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| flags.take(7, SEND_MARKER))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).filter(|&taken| taken).count()
            });
            assert_eq!(taken, 1);
        }
        assert!(flags.has(7, CONNECTED));
    }

    /// Whoever takes the second of two is told that none is left, and only he.
    #[test]
    fn the_last_of_two_is_known() {
        let flags = Flags::default();
        flags.begin(7, CONNECTED);
        for _ in 0..100 {
            flags.set(7, SEND_MARKER | RECV_MARKER);
            let take = |flag| flags.take_from(7, flag).unwrap() & (SEND_MARKER | RECV_MARKER) == 0;
            let last = std::thread::scope(|scope| {
                let threads = [SEND_MARKER, RECV_MARKER].map(|flag| scope.spawn(move || take(flag)));
                threads.map(|thread| thread.join().unwrap())
            });
            assert!(last[0] != last[1], "{last:?}");
        }
        assert_eq!(flags.take_from(7, SEND_MARKER), None);
    }

    #[test]
    fn flags_belong_to_one_number() {
        let flags = Flags::default();
        flags.set(7, FAILED);
        assert!(!flags.has(7, FAILED), "there never was one");
        for qp_num in [0, 7, 8, 0xff_ffff] {
            flags.begin(qp_num, 0);
        }
        flags.begin(7, CONNECTED);
        flags.set(7, FAILED | SEND_FULL);
        assert!(flags.has(7, CONNECTED) && flags.has(7, SEND_FULL) && !flags.has(7, SEND_MARKER));
        assert!(flags.take(7, FAILED) && !flags.take(7, FAILED));
        assert!(flags.has(7, CONNECTED));
        for other in [0, 8, 0xff_ffff] {
            assert!(!flags.has(other, CONNECTED | SEND_FULL));
        }
        flags.begin(7, 0);
        assert!(!flags.has(7, CONNECTED | SEND_FULL), "another queue pair of this number");
    }
}
