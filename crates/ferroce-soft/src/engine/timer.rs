use super::Nanos;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

/// When to look at which queue pair. Each has at most one entry that counts; what an entry means is for the queue pair
/// to know when it comes up. A queue pair that is busy keeps its entry, so that sending seldom touches this.
#[derive(Debug)]
pub(super) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(Nanos, u32)>>>,
    next: AtomicU64,
}

impl Default for Timers {
    fn default() -> Self {
        Self { heap: Mutex::default(), next: AtomicU64::new(Nanos::MAX) }
    }
}

impl Timers {
    /// Adds an entry; returns whether it is now the earliest.
    pub(super) fn insert(&self, deadline: Nanos, qpn: u32) -> bool {
        let mut heap = self.heap.lock();
        heap.push(Reverse((deadline, qpn)));
        let earliest = deadline < self.next.load(Ordering::Relaxed);
        if earliest {
            self.next.store(deadline, Ordering::Release);
        }
        earliest
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.heap.lock().len()
    }

    /// When the earliest entry is due.
    pub(super) fn next(&self) -> Option<Nanos> {
        let next = self.next.load(Ordering::Acquire);
        (next != Nanos::MAX).then_some(next)
    }

    /// Takes the earliest entry out if it is due.
    pub(super) fn pop(&self, now: Nanos) -> Option<(Nanos, u32)> {
        if self.next.load(Ordering::Acquire) > now {
            return None;
        }
        let mut heap = self.heap.lock();
        let due = matches!(heap.peek(), Some(Reverse((deadline, _))) if *deadline <= now);
        let entry = if due { heap.pop().map(|Reverse(entry)| entry) } else { None };
        let next = heap.peek().map_or(Nanos::MAX, |Reverse((deadline, _))| *deadline);
        self.next.store(next, Ordering::Release);
        entry
    }
}
