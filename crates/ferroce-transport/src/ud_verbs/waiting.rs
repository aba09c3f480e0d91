//! Requests that wait for resources, and flushes that wait for acknowledgements.

use crate::uct::{Completion, PendingRequest};
use crate::ud::{EndpointId, Sent};
use std::collections::{HashMap, HashSet, VecDeque};

/// Flushes of one interface that may wait at a time.
const MAX_FLUSHES: usize = 4096;

/// A flush that waits until what was sent before it is acknowledged.
pub(super) struct Flush {
    pub(super) id: EndpointId,
    pub(super) sent: Sent,
    pub(super) completion: Completion,
}

/// Who waits for what. Endpoints that wait for nothing have no entry.
#[derive(Default)]
pub(super) struct Waiting {
    requests: HashMap<EndpointId, VecDeque<PendingRequest>>,
    /// Their order.
    order: VecDeque<EndpointId>,
    /// Endpoints that found no room when last tried: in their window, or for a flush.
    blocked: HashSet<EndpointId>,
    pub(super) flushes: Vec<Flush>,
    /// Endpoints that were canceled: they fail for nobody.
    canceled: HashSet<EndpointId>,
    /// Requests are to be looked at, though nothing came.
    look: bool,
}

impl Waiting {
    /// It found no room.
    pub(super) fn block(&mut self, id: EndpointId) {
        self.blocked.insert(id);
    }

    pub(super) fn is_blocked(&self, id: EndpointId) -> bool {
        self.blocked.contains(&id) || self.requests.contains_key(&id)
    }

    /// There may be room.
    pub(super) fn unblock(&mut self) {
        self.blocked.clear();
        self.look_again();
    }

    /// Has requests called that wait, if there are some.
    pub(super) fn look_again(&mut self) {
        self.look |= !self.requests.is_empty();
    }

    pub(super) fn cancel(&mut self, id: EndpointId) {
        self.canceled.insert(id);
    }

    pub(super) fn is_canceled(&self, id: EndpointId) -> bool {
        self.canceled.contains(&id)
    }

    pub(super) fn has_room_for_flush(&self) -> bool {
        self.flushes.len() < MAX_FLUSHES
    }

    pub(super) fn add(&mut self, id: EndpointId, request: PendingRequest) {
        let queue = self.requests.entry(id).or_default();
        if queue.is_empty() {
            self.order.push_back(id);
        }
        queue.push_back(request);
        self.look = true;
    }

    /// Puts a request back that could not do anything.
    pub(super) fn put_back(&mut self, id: EndpointId, request: PendingRequest) {
        let queue = self.requests.entry(id).or_default();
        if queue.is_empty() {
            self.order.push_back(id);
        }
        queue.push_front(request);
    }

    pub(super) fn take(&mut self, id: EndpointId) -> Option<PendingRequest> {
        let queue = self.requests.get_mut(&id)?;
        let request = queue.pop_front();
        if queue.is_empty() {
            self.requests.remove(&id);
            self.order.retain(|other| *other != id);
        }
        request
    }

    pub(super) fn purge(&mut self, id: EndpointId) -> VecDeque<PendingRequest> {
        self.order.retain(|other| *other != id);
        self.requests.remove(&id).unwrap_or_default()
    }

    /// How many endpoints have requests that are to be called now.
    pub(super) fn due(&mut self) -> usize {
        if std::mem::take(&mut self.look) { self.order.len() } else { 0 }
    }

    /// Whether some are to be called now.
    pub(super) fn is_due(&self) -> bool {
        self.look
    }

    /// The endpoint whose turn it is.
    pub(super) fn next(&mut self) -> Option<EndpointId> {
        self.order.rotate_left(usize::from(!self.order.is_empty()));
        self.order.back().copied()
    }

    /// An endpoint is closed.
    pub(super) fn forget(&mut self, id: EndpointId) -> (VecDeque<PendingRequest>, Vec<Completion>) {
        self.blocked.remove(&id);
        self.canceled.remove(&id);
        (self.purge(id), self.take_flushes(id))
    }

    pub(super) fn take_flushes(&mut self, id: EndpointId) -> Vec<Completion> {
        let before = self.flushes.len();
        let taken = self.flushes.extract_if(.., |flush| flush.id == id).map(|flush| flush.completion).collect();
        if self.flushes.len() != before {
            self.unblock();
        }
        taken
    }
}
