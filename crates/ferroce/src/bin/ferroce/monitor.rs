//! Watches a measuring loop from outside, so that the loop itself reads no clock and makes no system call: it only loads
//! one flag and stores one counter.

use crate::failure::{Failure, Result};
use crate::progress::Progress;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Why a loop should end. A later variant outweighs an earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Halt {
    /// It should not.
    Running,
    /// The time is up: start nothing new, finish what is outstanding.
    TimeUp,
    /// The control connection has something to say, or is gone.
    Control,
    /// Nothing was completed for too long.
    Idle,
}

/// A counter on a cache line of its own.
#[repr(align(128))]
#[derive(Default)]
struct Line<T>(T);

#[derive(Default)]
struct Shared {
    halt: Line<AtomicU8>,
    done: Line<AtomicU64>,
    /// When the loop that is watched began; none before it did.
    began: Mutex<Option<Instant>>,
}

/// How often the watch of a limited time looks whether the loop has begun.
const UNTIL_BEGUN: Duration = Duration::from_millis(1);

/// What a loop shares with those who watch it.
#[derive(Clone, Default)]
pub(crate) struct Monitor(Arc<Shared>);

impl Monitor {
    /// Whether the loop should end.
    #[inline]
    pub(crate) fn halt(&self) -> Halt {
        match self.0.halt.0.load(Ordering::Relaxed) {
            0 => Halt::Running,
            1 => Halt::TimeUp,
            2 => Halt::Control,
            _ => Halt::Idle,
        }
    }

    /// The loop begins now, and so does the time that it was given: what starts the watch and what starts the loop are
    /// two moments, and a loaded machine may put any time between them.
    pub(crate) fn begin(&self) -> Instant {
        let now = Instant::now();
        *self.began() = Some(now);
        now
    }

    fn began(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.began.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports how many operations are complete.
    #[inline]
    pub(crate) fn set_done(&self, done: u64) {
        self.0.done.0.store(done, Ordering::Relaxed);
    }

    /// Asks the loop to end.
    pub(crate) fn request(&self, halt: Halt) {
        self.0.halt.0.fetch_max(halt as u8, Ordering::Relaxed);
    }

    /// Withdraws a request of class `halt`, before the next loop starts.
    pub(crate) fn withdraw(&self, halt: Halt) {
        let _ = self.0.halt.0.compare_exchange(halt as u8, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Watches until the guard is dropped: the loop is told to end when `duration` has passed since it called
    /// [`Self::begin`], and to give up when nothing was completed for `idle`.
    pub(crate) fn watch(&self, duration: Option<Duration>, idle: Duration, mut progress: Progress) -> Watch {
        let (stop, stopped) = mpsc::channel::<()>();
        let monitor = self.clone();
        monitor.set_done(0);
        *monitor.began() = None;
        let started = Instant::now();
        let thread = std::thread::spawn(move || {
            let mut last = (0, started);
            loop {
                let began = *monitor.began();
                let now = Instant::now();
                let left = duration.map(|duration| began.map(|began| duration.saturating_sub(now - began)));
                if left == Some(Some(Duration::ZERO)) {
                    monitor.request(Halt::TimeUp);
                }
                let done = monitor.0.done.0.load(Ordering::Relaxed);
                if done != last.0 {
                    last = (done, now);
                } else if now - last.1 >= idle {
                    monitor.request(Halt::Idle);
                }
                progress.update(done);
                let tick = Duration::from_millis(100).min(idle / 4);
                let wait = match left {
                    None | Some(Some(Duration::ZERO)) => tick,
                    Some(Some(left)) => left.min(tick),
                    Some(None) => UNTIL_BEGUN.min(tick),
                };
                if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Watch { stop: Some(stop), thread: Some(thread) }
    }
}

/// Keeps a watch going; see [`Monitor::watch`].
pub(crate) struct Watch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What it means that nothing was completed for `idle`.
pub(crate) fn idle_failure(idle: Duration, waiting_for: &str) -> Failure {
    Failure::run(format!("nothing came for {:?} while waiting for {waiting_for}", idle))
        .hint("the peer is stuck, has ended, or its packets are lost; --timeout sets how long to wait")
}

/// For loops that may not be ended early: an error if they should be.
#[inline]
pub(crate) fn check(monitor: &Monitor, idle: Duration, waiting_for: &str) -> Result<()> {
    match monitor.halt() {
        Halt::Running | Halt::TimeUp => Ok(()),
        Halt::Control => Err(Failure::broken_off(waiting_for)),
        Halt::Idle => Err(idle_failure(idle, waiting_for)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_runs_out_while_work_is_done() {
        let monitor = Monitor::default();
        let watch =
            monitor.watch(Some(Duration::from_millis(30)), Duration::from_secs(60), Progress::new("test", None));
        std::thread::sleep(Duration::from_millis(60));
        assert_eq!(monitor.halt(), Halt::Running, "the time is that of the loop, which has not begun");
        let began = monitor.begin();
        let mut done = 0;
        while monitor.halt() == Halt::Running {
            done += 1;
            monitor.set_done(done);
            std::thread::yield_now();
        }
        assert!(began.elapsed() >= Duration::from_millis(30));
        drop(watch);
        assert_eq!(monitor.halt(), Halt::TimeUp);
        assert!(check(&monitor, Duration::ZERO, "x").is_ok());
        monitor.withdraw(Halt::TimeUp);
        assert_eq!(monitor.halt(), Halt::Running);
    }

    #[test]
    fn idleness_outweighs_the_end_of_time() {
        let monitor = Monitor::default();
        let watch =
            monitor.watch(Some(Duration::from_millis(1)), Duration::from_millis(50), Progress::new("test", None));
        monitor.begin();
        while monitor.halt() != Halt::TimeUp {
            std::thread::sleep(Duration::from_millis(1));
        }
        while monitor.halt() != Halt::Idle {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(watch);
        let failure = check(&monitor, Duration::from_secs(10), "a reply").unwrap_err();
        assert_eq!(failure.message, "nothing came for 10s while waiting for a reply");
        monitor.withdraw(Halt::TimeUp);
        assert_eq!(monitor.halt(), Halt::Idle, "only what was asked for is withdrawn");
    }
}
