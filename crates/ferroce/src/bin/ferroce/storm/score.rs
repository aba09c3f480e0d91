//! What the client of a run counts: how many connections began and ended, how long their setup took, and which are to be cancelled.

use hdrhistogram::Histogram;
use parking_lot::{Condvar, Mutex};
use rand::Rng;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What setup is expected to take before any was seen.
const FIRST_GUESS: u64 = 500_000;
/// The longest setup that is told from longer ones.
const LONGEST: u64 = 120_000_000_000;

pub(super) struct Score {
    connections: u64,
    cancel: u64,
    began: Mutex<Instant>,
    started: AtomicU64,
    ended: AtomicU64,
    exchanged: AtomicU64,
    cancelled: AtomicU64,
    interrupted: AtomicU64,
    /// Those that were cancelled, and those whose moment has not come.
    doomed: AtomicU64,
    /// A running mean of what setup takes, in nanoseconds.
    expected: AtomicU64,
    setup: Mutex<Histogram<u64>>,
    end: Mutex<Option<Instant>>,
    over: Condvar,
}

impl Score {
    pub(super) fn new(connections: u64, cancel: u32) -> Self {
        let histogram =
            Histogram::new_with_bounds(1, LONGEST, 3).unwrap_or_else(|_| unreachable!("the bounds are valid"));
        Self {
            connections,
            cancel: cancel.into(),
            began: Mutex::new(Instant::now()),
            started: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            exchanged: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            interrupted: AtomicU64::new(0),
            doomed: AtomicU64::new(0),
            expected: AtomicU64::new(FIRST_GUESS),
            setup: Mutex::new(histogram),
            end: Mutex::new(None),
            over: Condvar::new(),
        }
    }

    /// The run begins only now.
    pub(super) fn begin(&self) {
        *self.began.lock() = Instant::now();
    }

    /// Begins no more connections, and waits for none.
    pub(super) fn give_up(&self) {
        self.started.fetch_max(self.connections, Ordering::Relaxed);
        self.end.lock().get_or_insert_with(Instant::now);
        self.over.notify_all();
    }

    /// The number of the next connection, if there is to be another one.
    pub(super) fn start(&self) -> Option<u64> {
        let serial = self.started.fetch_add(1, Ordering::Relaxed);
        (serial < self.connections).then_some(serial)
    }

    /// When connection `serial` is to be cancelled, if it is: at a random moment of the setup that is expected. Some are established
    /// before their moment comes; others are cancelled in their place.
    pub(super) fn doom(&self, serial: u64) -> Option<Duration> {
        let wanted = (serial + 1) * self.cancel / 100;
        let one_more = |doomed| (doomed < wanted).then_some(doomed + 1);
        self.doomed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        let expected = self.expected.load(Ordering::Relaxed).max(1);
        Some(Duration::from_nanos(rand::rng().random_range(0..expected)))
    }

    /// The moment has come; `cancelled` says whether it was in time.
    pub(super) fn doomsday(&self, cancelled: bool) {
        if cancelled {
            self.cancelled.fetch_add(1, Ordering::Relaxed);
        } else {
            self.doomed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn established(&self, setup: Duration) {
        let nanos = setup.as_nanos() as u64;
        let old = self.expected.load(Ordering::Relaxed);
        self.expected.store(old - old / 16 + nanos / 16, Ordering::Relaxed);
        self.setup.lock().saturating_record(nanos.max(1));
    }

    pub(super) fn exchanged(&self) {
        self.exchanged.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection has ended, in whatever way.
    pub(super) fn ended(&self) {
        if self.ended.fetch_add(1, Ordering::AcqRel) + 1 == self.connections {
            *self.end.lock() = Some(Instant::now());
            self.over.notify_all();
        }
    }

    /// How many have ended.
    pub(super) fn progress(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    pub(super) fn exchanges(&self) -> u64 {
        self.exchanged.load(Ordering::Relaxed)
    }

    /// A connection ended because its server was killed.
    pub(super) fn interrupted(&self) {
        self.interrupted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn interruptions(&self) -> u64 {
        self.interrupted.load(Ordering::Relaxed)
    }

    pub(super) fn cancellations(&self) -> u64 {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Waits until all have ended, calling `look` now and then; false if for `patience` none did.
    pub(super) fn wait(&self, patience: Duration, mut look: impl FnMut(u64)) -> bool {
        const NAP: Duration = Duration::from_millis(100);
        let (mut seen, mut since) = (0, Instant::now());
        let mut end = self.end.lock();
        while end.is_none() {
            self.over.wait_for(&mut end, NAP);
            let ended = self.progress();
            if ended != seen {
                (seen, since) = (ended, Instant::now());
            } else if end.is_none() && since.elapsed() >= patience {
                return false;
            }
            look(ended);
        }
        true
    }

    /// From the first beginning to the last end, or to now.
    pub(super) fn elapsed(&self) -> Duration {
        self.end.lock().unwrap_or_else(Instant::now).duration_since(*self.began.lock())
    }

    pub(super) fn setup(&self) -> Histogram<u64> {
        self.setup.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_doomed_as_asked_for() {
        let score = Score::new(1000, 30);
        let mut missed = false;
        while let Some(serial) = score.start() {
            if score.doom(serial).is_some() {
                missed = !missed;
                score.doomsday(missed);
            }
            score.ended();
        }
        // Every other one came too late and was made up for; not that of the end.
        assert!((299..=300).contains(&score.cancellations()), "{}", score.cancellations());
        assert!(score.wait(Duration::ZERO, |_| {}));
    }

    #[test]
    fn a_standstill_is_noticed() {
        let score = Score::new(2, 0);
        score.ended();
        assert!(!score.wait(Duration::from_millis(1), |_| {}));
    }
}
