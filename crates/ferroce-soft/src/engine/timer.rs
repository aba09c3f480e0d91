use super::Nanos;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// When to look at which queue pair. Each has at most one entry; what it means is for the queue pair to know when it comes
/// up. A queue pair that is busy keeps its entry, so that sending seldom touches this.
#[derive(Debug)]
pub(super) struct Timers {
    entries: Mutex<BTreeSet<(Nanos, u32)>>,
    next: AtomicU64,
}

impl Default for Timers {
    fn default() -> Self {
        Self { entries: Mutex::default(), next: AtomicU64::new(Nanos::MAX) }
    }
}

impl Timers {
    /// Moves the entry of `qpn` from `old`, if it has one, to `deadline`; returns whether that is now the earliest.
    pub(super) fn set(&self, qpn: u32, old: Option<Nanos>, deadline: Nanos) -> bool {
        let mut entries = self.entries.lock();
        if let Some(old) = old {
            entries.remove(&(old, qpn));
        }
        entries.insert((deadline, qpn));
        let earliest = deadline < self.next.load(Ordering::Relaxed);
        self.note_next(&entries);
        earliest
    }

    /// Takes the entry of `qpn` at `deadline` out.
    pub(super) fn cancel(&self, qpn: u32, deadline: Nanos) {
        let mut entries = self.entries.lock();
        entries.remove(&(deadline, qpn));
        self.note_next(&entries);
    }

    fn note_next(&self, entries: &BTreeSet<(Nanos, u32)>) {
        let next = entries.first().map_or(Nanos::MAX, |&(deadline, _)| deadline);
        self.next.store(next, Ordering::Release);
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.entries.lock().len()
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
        let mut entries = self.entries.lock();
        let due = entries.first().is_some_and(|&(deadline, _)| deadline <= now);
        let entry = if due { entries.pop_first() } else { None };
        self.note_next(&entries);
        entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_moves_and_the_earliest_is_known() {
        let timers = Timers::default();
        assert_eq!(timers.next(), None);
        assert!(timers.set(1, None, 50));
        assert!(!timers.set(2, None, 70));
        assert!(timers.set(2, Some(70), 10));
        assert_eq!((timers.len(), timers.next()), (2, Some(10)));
        assert_eq!(timers.pop(9), None);
        timers.cancel(2, 10);
        assert_eq!((timers.len(), timers.next()), (1, Some(50)));
        assert_eq!(timers.pop(60), Some((50, 1)));
        assert_eq!((timers.pop(60), timers.next(), timers.len()), (None, None, 0));
    }
}
