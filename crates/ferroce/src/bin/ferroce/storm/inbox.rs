//! The queue through which a thread is handed work while it sleeps on descriptors.

use crate::failure::{Failure, Result};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// So often a thread of a storm looks again for something to do, letting others run in between, before it sleeps: to wake it costs
/// more than that.
pub(super) const LOOKS: u32 = 16;

/// The same where it depends on the device. Those that are not in this process are not brought forward by who looks.
pub(super) fn looks(provider: &str) -> u32 {
    if provider == "soft" { LOOKS } else { 0 }
}

/// A queue of one reader, who is woken only if it sleeps.
pub(super) struct Inbox<T> {
    queue: Mutex<Vec<T>>,
    sleeping: AtomicBool,
    bell: OwnedFd,
}

impl<T> Inbox<T> {
    pub(super) fn new() -> Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|error| Failure::environment(format!("an eventfd cannot be made: {error}")))?;
        Ok(Self { queue: Mutex::default(), sleeping: AtomicBool::new(false), bell })
    }

    pub(super) fn push(&self, work: T) {
        self.queue.lock().push(work);
        // The reader said that it sleeps before it looked into the queue for the last time.
        if self.sleeping.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Wakes the reader.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.lock().is_empty()
    }

    /// Swaps what there is with `out`, which is empty.
    pub(super) fn take(&self, out: &mut Vec<T>) {
        std::mem::swap(&mut *self.queue.lock(), out);
    }

    /// The reader is about to sleep on [`Self::bell`]; false if there is work.
    pub(super) fn going_to_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let idle = self.queue.lock().is_empty();
        if !idle {
            self.sleeping.store(false, Ordering::Relaxed);
        }
        idle
    }

    /// The reader is awake.
    pub(super) fn awake(&self, rung: bool) {
        self.sleeping.store(false, Ordering::Relaxed);
        if rung {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
    }

    /// What the reader sleeps on.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
