//! Asynchronous events: what they say about the context's objects, and their way to the user.
//!
//! The kernel gives an event to whoever reads it first. The user reads; and so does the thread that waits for a queue pair's last WQE
//! ([`crate::drain`]). What that reads and is not for it is kept for the user, whose descriptor watches both the kernel's and the sign that
//! something is kept.

use crate::context::RdmaContext;
use crate::convert;
use crate::cq::RdmaCq;
use crate::drain::Events;
use crate::qp::RdmaQp;
use crate::srq::RdmaSrq;
use crate::sys::RawEvent;
use ferroce_abi::types::value;
use ferroce_verbs::{AsyncEvent, Cq, Error, EventType, Qp, Result, Srq};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

/// Events that are kept at most; others stay with the kernel.
const KEPT: usize = 1024;

/// An event, which keeps nothing alive.
pub(crate) enum Event {
    Qp(EventType, Weak<RdmaQp>),
    Cq(EventType, Weak<RdmaCq>),
    Srq(EventType, Weak<RdmaSrq>),
    Port(EventType, u8),
    Device(EventType),
}

impl Event {
    /// For the user. An event for something that its owner let go of is of no use to anybody.
    fn upgrade(self) -> Option<AsyncEvent> {
        Some(match self {
            Self::Qp(kind, qp) => AsyncEvent::Qp(kind, Qp::from_ops(qp.upgrade()?)),
            Self::Cq(kind, cq) => AsyncEvent::Cq(kind, Cq::from_ops(cq.upgrade()?)),
            Self::Srq(kind, srq) => AsyncEvent::Srq(kind, Srq::from_ops(srq.upgrade()?)),
            Self::Port(kind, port) => AsyncEvent::Port(kind, port),
            Self::Device(kind) => AsyncEvent::Device(kind),
        })
    }
}

/// Events that were read for the user, and what tells.
pub(crate) struct Kept {
    /// Held from reading an event until it is here or with the user: two who read at once would change their order.
    order: Mutex<()>,
    events: Mutex<VecDeque<Event>>,
    /// Readable while there are any.
    sign: OwnedFd,
    /// Readable while there are any, or the kernel has some.
    either: OwnedFd,
}

impl Kept {
    /// `kernel` is where the kernel says that it has events.
    pub(crate) fn new(kernel: BorrowedFd<'_>) -> Result<Self> {
        let os = |what| move |error: rustix::io::Errno| Error::os(what, error);
        let sign = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(os("creating an eventfd"))?;
        let either = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(os("creating an epoll descriptor"))?;
        for fd in [kernel, sign.as_fd()] {
            epoll::add(&either, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(os("watching for asynchronous events"))?;
        }
        Ok(Self { order: Mutex::default(), events: Mutex::default(), sign, either })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.either.as_fd()
    }

    fn is_full(&self) -> bool {
        self.events.lock().len() >= KEPT
    }

    fn push(&self, event: Event) {
        let mut events = self.events.lock();
        if events.is_empty() {
            // Cannot fail: the counter was 0.
            let _ = rustix::io::write(&self.sign, &1_u64.to_ne_bytes());
        }
        events.push_back(event);
    }

    fn pop(&self) -> Option<Event> {
        let mut events = self.events.lock();
        let event = events.pop_front()?;
        if events.is_empty() {
            // Cannot fail: the counter is 1.
            let _ = rustix::io::read(&self.sign, &mut [0; 8]);
        }
        Some(event)
    }
}

impl RdmaContext {
    /// What an event is about. It is not acknowledged yet, so its object's address is its own, and nothing must be destroyed.
    fn look(&self, raw: RawEvent) -> Option<Event> {
        if let RawEvent::Qp(value::IBV_EVENT_QP_LAST_WQE_REACHED, id) = raw {
            self.drains.last_wqe(id);
        }
        Some(match raw {
            RawEvent::Qp(kind, id) => Event::Qp(convert::event(kind)?, self.registry.qps.find(&id)?),
            RawEvent::Cq(kind, id) => {
                if kind == value::IBV_EVENT_CQ_ERR {
                    self.drains.cq_failed(id);
                }
                Event::Cq(convert::event(kind)?, self.registry.cqs.find(&id)?)
            }
            RawEvent::Srq(kind, id) => Event::Srq(convert::event(kind)?, self.registry.srqs.find(&id)?),
            RawEvent::Port(kind, port) => Event::Port(convert::event(kind)?, port),
            RawEvent::Device(kind) => Event::Device(convert::event(kind)?),
            RawEvent::Other => return None,
        })
    }

    /// The next event that the kernel has. What it says about states is noted.
    fn read(&self) -> Result<Option<Option<Event>>> {
        let Some(event) = self.raw.next_async_event(|raw| self.look(raw))? else { return Ok(None) };
        match &event {
            Some(Event::Qp(kind, qp)) => {
                if let Some(qp) = qp.upgrade() {
                    match kind {
                        EventType::QpFatal | EventType::QpReqErr | EventType::QpAccessErr => qp.failed(),
                        EventType::QpLastWqeReached => qp.last_wqe_reached(),
                        _ => {}
                    }
                }
            }
            Some(Event::Cq(EventType::CqErr, cq)) => {
                if let Some(cq) = cq.upgrade() {
                    self.doubt(|qp| qp.uses(cq.raw.id()));
                }
            }
            Some(Event::Srq(EventType::SrqErr, srq)) => {
                if let Some(srq) = srq.upgrade() {
                    self.doubt(|qp| qp.uses(srq.raw.id()));
                }
            }
            Some(Event::Device(EventType::DeviceFatal)) => {
                if self.raw.ask_whether_gone() {
                    self.drains.abandon();
                }
                self.doubt(|_| true);
            }
            _ => {}
        }
        Ok(Some(event))
    }

    /// These queue pairs may have failed.
    fn doubt(&self, which: impl Fn(&RdmaQp) -> bool) {
        self.registry.qps.all().iter().filter(|qp| which(qp)).for_each(|qp| qp.failed());
    }

    /// The next event for the user.
    pub(crate) fn next_event(&self) -> Result<Option<AsyncEvent>> {
        loop {
            let event = {
                let _order = self.kept.order.lock();
                match self.kept.pop() {
                    Some(event) => Some(event),
                    None => match self.read()? {
                        Some(event) => event,
                        None => return Ok(None),
                    },
                }
            };
            if let Some(event) = event.and_then(Event::upgrade) {
                return Ok(Some(event));
            }
        }
    }
}

impl Events for RdmaContext {
    fn gather(&self) {
        while !self.kept.is_full() {
            let _order = self.kept.order.lock();
            match self.read() {
                Ok(Some(Some(event))) => self.kept.push(event),
                Ok(Some(None)) => {}
                // The user will hear of it.
                Ok(None) | Err(_) => return,
            }
        }
    }
}

/// The context, as its thread asks it for events.
pub(crate) fn of(context: &Arc<RdmaContext>) -> Weak<dyn Events> {
    let events: Arc<dyn Events> = context.clone();
    Arc::downgrade(&events)
}
