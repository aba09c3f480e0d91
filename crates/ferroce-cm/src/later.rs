//! What follows from an event, for when no lock is held.

use crate::id::Queued;
use std::collections::VecDeque;
use std::task::Waker;

/// Tasks to wake, and events that nobody will read. It happens when this is dropped, after the guards of all locks: an executor may poll in
/// the waker, and then calls anything of this crate; and with an event may go an id, which is destroyed.
#[derive(Default)]
#[must_use = "it happens when this is dropped, which must not be under a lock"]
pub(crate) struct Later {
    wakers: Vec<Waker>,
    unread: VecDeque<Queued>,
}

impl Later {
    pub(crate) fn wake(wakers: Vec<Waker>) -> Self {
        Self { wakers, unread: VecDeque::new() }
    }

    pub(crate) fn unread(unread: VecDeque<Queued>) -> Self {
        Self { wakers: Vec::new(), unread }
    }

    /// What `other` has comes with this.
    pub(crate) fn add(&mut self, mut other: Self) {
        self.wakers.append(&mut other.wakers);
        self.unread.append(&mut other.unread);
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.unread.clear();
        self.wakers.drain(..).for_each(Waker::wake);
    }
}
