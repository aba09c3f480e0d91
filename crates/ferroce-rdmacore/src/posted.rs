//! How much was posted to a queue pair, and whether all of it is known to be out.
//!
//! A queue pair all of whose work requests were seen to succeed has nothing to flush: it need not drain (`drain`) when it is dropped, which costs a
//! change of state, a marker, an event and the thread. So posts are counted here, and completions where they are polled ([`Flags::completed`]). A
//! request adds one to the latter at most: none if it fails, if its success is not reported, or if a RESET takes it away. After that the counts
//! differ for good, and in doubt a queue pair drains.

use crate::flags::Flags;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// What was posted.
#[derive(Default)]
pub(crate) struct Posted {
    /// Whether there was anything, since the queue pair was in RESET.
    sends: AtomicBool,
    receives: AtomicBool,
    /// Requests of both queues, ever; modulo 2^32, which is more than can be outstanding.
    count: AtomicU32,
}

impl Posted {
    /// So many were posted to the send queue.
    #[inline]
    pub(crate) fn sends(&self, count: usize) {
        self.add(&self.sends, count);
    }

    /// So many were posted to its own receive queue.
    #[inline]
    pub(crate) fn receives(&self, count: usize) {
        self.add(&self.receives, count);
    }

    #[inline]
    fn add(&self, queue: &AtomicBool, count: usize) {
        if count != 0 {
            mark(queue);
            self.count.fetch_add(count as u32, Relaxed);
        }
    }

    /// RESET has taken away what was outstanding.
    pub(crate) fn reset(&self) {
        self.sends.store(false, Relaxed);
        self.receives.store(false, Relaxed);
    }

    /// Whether something was posted to the send queue.
    pub(crate) fn any_sends(&self) -> bool {
        self.sends.load(Relaxed)
    }

    /// Whether something was posted to the receive queue.
    pub(crate) fn any_receives(&self) -> bool {
        self.receives.load(Relaxed)
    }

    /// Whether all was polled. Only of a queue pair with a receive queue of its own, to which nobody posts any more. What another thread has polled, and
    /// not told this one, may not be seen: then not.
    pub(crate) fn is_out(&self, flags: &Flags, qp_num: u32) -> bool {
        self.count.load(Relaxed) == flags.count(qp_num)
    }
}

/// Notes something, without writing what others read when it is noted already.
#[inline]
pub(crate) fn mark(noted: &AtomicBool) {
    if !noted.load(Relaxed) {
        noted.store(true, Relaxed);
    }
}
