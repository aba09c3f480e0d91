//! What the socket had no room for, until it has.
//!
//! Whoever meets the full socket leaves the rest of its batch here, and so does everybody after that: nothing overtakes what waits. It
//! stays little, for those who could send less ask [`Backlog::is_blocked`] first.

use super::tx::Group;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Most bytes that wait; more are lost, as in a device's queue. A turn of each of a dozen threads.
const MAX_BYTES: usize = 4 << 20;

/// The batches that wait, in order.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Some wait. Changes only with the lock held.
    blocked: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<(Group, Vec<u8>)>,
    bytes: usize,
}

impl Backlog {
    /// Whether something waits.
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Acquire)
    }

    /// Takes `groups`, whose bytes are in `arena`: if `full`, or something waits. Returns how many packets were too much, or `None` if
    /// nothing waits any more and nothing was taken.
    pub(super) fn hold(&self, groups: &[Group], arena: &[u8], full: bool) -> Option<usize> {
        let mut waiting = self.waiting.lock();
        if !full && !self.blocked.load(Ordering::Relaxed) {
            return None;
        }
        self.blocked.store(true, Ordering::Release);
        let mut lost = 0;
        for group in groups {
            if waiting.bytes + group.len > MAX_BYTES {
                lost += group.count;
                continue;
            }
            waiting.bytes += group.len;
            let bytes = arena[group.start..group.start + group.len].to_vec();
            waiting.batches.push_back((group.at_start(), bytes));
        }
        Some(lost)
    }

    /// Has `send` send what waits, until there is no room again, which it says by returning false. Nobody else sends meanwhile.
    pub(super) fn drain(&self, send: impl FnMut(&Group, &mut [u8]) -> bool) {
        self.send_all(&mut self.waiting.lock(), send);
    }

    /// The same, unless others are at it until `until`.
    pub(super) fn drain_until(&self, until: Instant, send: impl FnMut(&Group, &mut [u8]) -> bool) {
        if let Some(mut waiting) = self.waiting.try_lock_until(until) {
            self.send_all(&mut waiting, send);
        }
    }

    fn send_all(&self, waiting: &mut Waiting, mut send: impl FnMut(&Group, &mut [u8]) -> bool) {
        while let Some((group, bytes)) = waiting.batches.front_mut() {
            if !send(group, bytes) {
                return;
            }
            waiting.bytes -= group.len;
            waiting.batches.pop_front();
        }
        self.blocked.store(false, Ordering::Release);
    }
}
