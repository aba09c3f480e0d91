//! Whether all that was in a completion queue at some moment has been polled.

use std::sync::atomic::{AtomicU64, Ordering};

/// Rounds of a completion queue, one at a time.
///
/// A round is over once a poll that began in it found the queue empty, or as many completions were taken by such polls as the queue has
/// room for (IBTA 11.6.3, "Last WQE Reached"): what was in the queue when the round began is out by then.
pub(crate) struct Rounds {
    /// The number of the round, and in the lower half how many completions were taken in it; 0 between rounds.
    now: AtomicU64,
    entries: u32,
}

/// The round in which a poll began.
#[derive(Clone, Copy)]
pub(crate) struct Began(u64);

impl Rounds {
    /// Of a queue that has room for so many.
    pub(crate) fn new(entries: u32) -> Self {
        Self { now: AtomicU64::new(0), entries: entries.max(1) }
    }

    /// Begins round `number`, which is not 0.
    pub(crate) fn begin(&self, number: u32) {
        self.now.store(u64::from(number) << 32, Ordering::Release);
    }

    /// No round is under way any more.
    pub(crate) fn end(&self) {
        self.now.store(0, Ordering::Release);
    }

    /// A poll begins; it is told whether that is in a round.
    #[inline]
    pub(crate) fn poll(&self) -> Option<Began> {
        let now = self.now.load(Ordering::Acquire);
        (now != 0).then_some(Began(now))
    }

    /// It took so many completions, and whether there were no more. Returns the round if it is over with that.
    #[cold]
    pub(crate) fn took(&self, began: Began, count: usize, all: bool) -> Option<u32> {
        let round = (began.0 >> 32) as u32;
        let mut now = self.now.load(Ordering::Acquire);
        loop {
            let before = now as u32;
            if (now >> 32) as u32 != round || before >= self.entries {
                return None;
            }
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            let after = if all { self.entries } else { before.saturating_add(count).min(self.entries) };
            let next = u64::from(round) << 32 | u64::from(after);
            match self.now.compare_exchange_weak(now, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return (after == self.entries).then_some(round),
                Err(other) => now = other,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_ends_when_the_queue_was_empty_or_went_round() {
        let rounds = Rounds::new(20);
        assert!(rounds.poll().is_none());
        rounds.begin(1);
        assert_eq!(rounds.took(rounds.poll().unwrap(), 16, false), None);
        assert_eq!(rounds.took(rounds.poll().unwrap(), 4, false), Some(1));
        assert_eq!(rounds.took(rounds.poll().unwrap(), 4, false), None, "it is told once");
        rounds.begin(2);
        assert_eq!(rounds.took(rounds.poll().unwrap(), 0, true), Some(2));
        rounds.end();
        assert!(rounds.poll().is_none());
    }

    /// It may have looked before what the round is about was there.
    #[test]
    fn a_poll_that_began_before_does_not_count() {
        let rounds = Rounds::new(4);
        rounds.begin(1);
        let early = rounds.poll().unwrap();
        rounds.begin(2);
        assert_eq!(rounds.took(early, 0, true), None);
        assert_eq!(rounds.took(rounds.poll().unwrap(), 3, false), None);
        assert_eq!(rounds.took(rounds.poll().unwrap(), 1, false), Some(2));
    }
}
