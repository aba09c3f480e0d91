//! The events of one id, on their way to a reader of its channel.

use super::{Id, IdCore};
use crate::channel::ChannelCore;
use crate::kernel::Place;
use crate::later::Later;
use crate::proto::{ConnectRequest, Event as ProtoEvent, SidrRequest};
use crate::sync::Mutex;
use crate::{Event, UdParam};
use ferroce_abi::rdma_cm::CmEvent;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

/// An event that no reader has begun to deliver.
pub(crate) enum Queued {
    /// A peer asks a listener for a connection.
    Request {
        /// The new id, which nobody else holds.
        child: Id,
        /// What the peer asks.
        request: Box<ConnectRequest>,
    },
    /// A peer asks a listener for a queue pair.
    Question {
        /// The new id, which nobody else holds.
        child: Id,
        /// What the peer asks.
        request: Box<SidrRequest>,
    },
    /// A peer asks a listener of the kernel's.
    KernelRequest {
        /// The new id, which nobody else holds.
        child: Id,
        /// What the peer asks.
        event: Box<CmEvent>,
        /// In the listener's backlog.
        place: Place,
    },
    /// Another one of the kernel.
    Kernel(Box<CmEvent>),
    /// The kernel has said nothing for as long as the program wants to wait.
    Expired,
    /// Another one of the protocol.
    Protocol(Box<ProtoEvent>),
    /// A multicast group is joined, or not.
    Multicast {
        /// The group.
        group: IpAddr,
        /// Where datagrams to it go.
        outcome: crate::Result<UdParam>,
    },
    /// The address is resolved, or not.
    AddrResolved(crate::Result<()>),
    /// The route is resolved, or not.
    RouteResolved(crate::Result<()>),
}

pub(super) struct EventQueue(Mutex<Inner>);

struct Inner {
    channel: Arc<ChannelCore>,
    events: VecDeque<Queued>,
    /// The id is in the list of its channel.
    listed: bool,
    /// A reader processes an event: the next one waits, so that they are processed in order.
    busy: bool,
    /// The event that announces the id was not delivered: its own events wait, for nobody knows it yet.
    hidden: bool,
    /// The id is destroyed.
    closed: bool,
}

impl EventQueue {
    /// Of an id that a peer asks for it is hidden, until [`IdCore::announce`].
    pub(super) fn new(channel: Arc<ChannelCore>, hidden: bool) -> Self {
        let events = VecDeque::new();
        Self(Mutex::new(Inner { channel, events, listed: false, busy: false, hidden, closed: false }))
    }

    pub(super) fn channel(&self) -> Arc<ChannelCore> {
        self.0.lock().channel.clone()
    }

    /// If the new channel is closed, what is unread goes.
    pub(super) fn migrate(&self, id: &Arc<IdCore>, channel: &Arc<ChannelCore>) -> Later {
        let mut inner = self.0.lock();
        inner.channel = channel.clone();
        // What is in the old list leads nowhere: its reader sees that the id is not on that channel.
        inner.listed = false;
        inner.list(id)
    }

    /// Ends it: what is unread goes.
    pub(super) fn close(&self) -> Later {
        let mut inner = self.0.lock();
        inner.closed = true;
        Later::unread(std::mem::take(&mut inner.events))
    }
}

impl Inner {
    /// Puts the id into the list of its channel if it belongs there. If the channel is closed nobody will read the events, which go.
    fn list(&mut self, id: &Arc<IdCore>) -> Later {
        if self.listed || self.busy || self.hidden || self.events.is_empty() {
            return Later::default();
        }
        match self.channel.push(id) {
            Some(later) => {
                self.listed = true;
                later
            }
            None => Later::unread(std::mem::take(&mut self.events)),
        }
    }
}

impl IdCore {
    /// Adds an event. Nobody will read it if the id is destroyed or its channel closed.
    pub(crate) fn push(self: &Arc<Self>, event: Queued) -> Later {
        let mut inner = self.queue.0.lock();
        if inner.closed {
            return Later::unread(VecDeque::from([event]));
        }
        inner.events.push_back(event);
        inner.list(self)
    }

    /// Takes the next event and processes it, for a reader of `channel`. `None`: there is nothing to deliver.
    pub(crate) fn next_event(self: &Arc<Self>, channel: &Arc<ChannelCore>) -> Option<Event> {
        let queued = {
            let mut inner = self.queue.0.lock();
            if !Arc::ptr_eq(&inner.channel, channel) || inner.busy {
                return None;
            }
            inner.listed = false;
            let queued = inner.events.pop_front()?;
            inner.busy = true;
            queued
        };
        let event = self.process(queued);
        let mut inner = self.queue.0.lock();
        inner.busy = false;
        let later = inner.list(self);
        drop(inner);
        drop(later);
        // Destroyed meanwhile: what was processed is not delivered.
        event.filter(|_| !self.is_destroyed())
    }

    /// A reader is about to deliver the event that announces this id: events of its own may follow, where its listener is now.
    pub(super) fn announce(self: &Arc<Self>, listener: &Self) {
        let channel = listener.queue.channel();
        let mut inner = self.queue.0.lock();
        inner.hidden = false;
        inner.channel = channel;
        let later = inner.list(self);
        drop(inner);
        drop(later);
    }

    /// The channel is closed: what waits there is dropped.
    pub(crate) fn discard_events(&self, channel: &ChannelCore) {
        let mut inner = self.queue.0.lock();
        if std::ptr::eq(&*inner.channel, channel) {
            inner.listed = false;
            let events = std::mem::take(&mut inner.events);
            drop(inner);
            drop(events);
        }
    }
}
