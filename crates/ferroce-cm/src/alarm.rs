//! Deadlines of futures, which have no thread to wait in: whoever keeps a manager's time wakes their tasks.

use crate::backend::Backend;
use crate::channel::EventChannel;
use crate::proto::{Nanos, nanos};
use crate::{Event, Result};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Tasks to wake, by when. Behind a lock of its owner's, who wakes them without it.
pub(crate) struct Alarms<T> {
    next: u64,
    tasks: BTreeMap<(T, u64), Waker>,
}

impl<T> Default for Alarms<T> {
    fn default() -> Self {
        Self { next: 0, tasks: BTreeMap::new() }
    }
}

impl<T: Ord + Copy> Alarms<T> {
    /// Has a task woken, under the number that it has already or a new one; returns that, and who was to be woken before.
    fn set(&mut self, at: T, number: Option<u64>, waker: Waker) -> (u64, Option<Waker>) {
        let number = number.unwrap_or(self.next);
        self.next = self.next.max(number + 1);
        (number, self.tasks.insert((at, number), waker))
    }

    fn clear(&mut self, at: T, number: u64) -> Option<Waker> {
        self.tasks.remove(&(at, number))
    }

    /// When the first one is due.
    pub(crate) fn first(&self) -> Option<T> {
        self.tasks.keys().next().map(|&(at, _)| at)
    }

    /// Takes those that are due.
    pub(crate) fn due(&mut self, now: T) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(entry) = self.tasks.first_entry().filter(|entry| entry.key().0 <= now) {
            due.push(entry.remove());
        }
        due
    }
}

/// When a future gives up. Dropping it forgets the task.
pub(crate) struct Deadline {
    backend: Backend,
    at: At,
    /// Of its task, once it waits.
    number: Option<u64>,
}

/// In the time of who keeps it. None is too far away to come.
#[derive(Clone, Copy)]
enum At {
    Native(Nanos),
    Kernel(Instant),
    Never,
}

impl Deadline {
    pub(crate) fn new(backend: &Backend, timeout: Duration) -> Self {
        let at = match backend {
            Backend::Native(manager) => manager.gsi.now().checked_add(nanos(timeout)).map_or(At::Never, At::Native),
            Backend::Kernel(_) => Instant::now().checked_add(timeout).map_or(At::Never, At::Kernel),
        };
        Self { backend: backend.clone(), at, number: None }
    }

    fn has_passed(&self) -> bool {
        match (&self.backend, self.at) {
            (Backend::Native(manager), At::Native(at)) => at <= manager.gsi.now(),
            (_, At::Kernel(at)) => at <= Instant::now(),
            _ => false,
        }
    }

    /// Has the task woken.
    fn set(&mut self, waker: &Waker) {
        // It is somebody else's code, and is not called with a lock; nor does the one before go with one.
        let waker = waker.clone();
        let (number, before) = match (&self.backend, self.at) {
            (Backend::Native(manager), At::Native(at)) => {
                manager.run(|protocol, _| protocol.alarms.set(at, self.number, waker))
            }
            (Backend::Kernel(manager), At::Kernel(at)) => manager.alarms(|alarms| alarms.set(at, self.number, waker)),
            _ => return,
        };
        drop(before);
        self.number = Some(number);
    }

    /// The next event, if one comes before. Who wakes the channel's readers means others.
    pub(crate) async fn next(&mut self, channel: &EventChannel) -> Result<Option<Event>> {
        loop {
            let mut event = pin!(channel.next_async());
            let outcome = poll_fn(|context| match event.as_mut().poll(context) {
                Poll::Ready(Ok(None)) => Poll::Ready(None),
                Poll::Ready(outcome) => Poll::Ready(Some(outcome)),
                Poll::Pending if self.has_passed() => Poll::Ready(Some(Ok(None))),
                Poll::Pending => {
                    self.set(context.waker());
                    Poll::Pending
                }
            });
            if let Some(outcome) = outcome.await {
                return outcome;
            }
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        // The waker goes with no lock held.
        drop(match (&self.backend, self.at) {
            (Backend::Native(manager), At::Native(at)) => manager.run(|protocol, _| protocol.alarms.clear(at, number)),
            (Backend::Kernel(manager), At::Kernel(at)) => manager.alarms(|alarms| alarms.clear(at, number)),
            _ => None,
        });
    }
}
