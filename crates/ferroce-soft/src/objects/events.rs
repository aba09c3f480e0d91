use crate::driver::Kick;
use crate::engine::{EventSink, Nanos, SharedRecvQueue};
use ferroce_verbs::EventType;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A queue with a descriptor that is readable while it is not empty.
pub(super) struct FdQueue<T> {
    queue: Mutex<VecDeque<T>>,
    fd: OwnedFd,
}

impl<T> FdQueue<T> {
    pub(super) fn new() -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { queue: Mutex::new(VecDeque::new()), fd })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.lock().len()
    }

    pub(super) fn push(&self, entry: T) {
        let mut queue = self.queue.lock();
        queue.push_back(entry);
        if queue.len() == 1 {
            // Cannot fail: the counter is 0 while the queue is empty.
            let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        }
    }

    pub(super) fn pop(&self) -> Option<T> {
        let mut queue = self.queue.lock();
        let entry = queue.pop_front()?;
        if queue.is_empty() {
            let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        }
        Some(entry)
    }
}

/// An asynchronous event as the engine reports it. The handle is looked up when the program asks, so that an event keeps
/// nothing alive that its owner let go.
pub(super) enum RawEvent {
    Qp(EventType, u32),
    Srq(EventType, u32),
    Cq(EventType, u32),
    Port(EventType),
}

/// Events that wait at most; further ones are counted and dropped.
const MAX_EVENTS: usize = 4096;

/// Collects what the engine reports.
pub(super) struct Events {
    pub(super) queue: FdQueue<RawEvent>,
    pub(super) lost: AtomicU64,
}

impl Events {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { queue: FdQueue::new()?, lost: AtomicU64::new(0) })
    }

    pub(super) fn push(&self, event: RawEvent) {
        if self.queue.len() >= MAX_EVENTS {
            self.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            self.queue.push(event);
        }
    }
}

/// The engine's way to report.
pub(super) struct Sink {
    pub(super) events: Arc<Events>,
    /// Wakes the driver's thread; `None` where there is none.
    pub(super) kick: Option<Arc<Kick>>,
}

impl EventSink for Sink {
    fn qp(&self, event: EventType, qpn: u32) {
        self.events.push(RawEvent::Qp(event, qpn));
    }

    fn srq(&self, event: EventType, srq: &Arc<SharedRecvQueue>) {
        self.events.push(RawEvent::Srq(event, srq.id));
    }

    fn port(&self, event: EventType) {
        self.events.push(RawEvent::Port(event));
    }

    fn wake_at(&self, deadline: Nanos) {
        if let Some(kick) = &self.kick {
            kick.wake_at(deadline);
        }
    }

    fn wake_to_send(&self) {
        if let Some(kick) = &self.kick {
            kick.wake_unless_polled();
        }
    }
}
