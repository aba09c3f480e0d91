//! Which services of the host the manager holds, and until when.
//!
//! A service is held for longer than its listener lives if requests are left that may come again: whoever had the service then would
//! refuse them, and their peers take that for the answer.

use crate::proto::ListenId;
use ferroce_verbs::{Gsi, ServiceBinding};
use std::collections::HashMap;

/// Behind the protocol's lock, so that a service and its listener change together.
pub(crate) struct Services {
    gsi: Gsi,
    held: HashMap<ServiceBinding, Held>,
    /// Of which service a listener is, until its last request is settled.
    of: HashMap<ListenId, ServiceBinding>,
}

struct Held {
    /// Somebody listens, or is about to.
    claimed: bool,
    /// Listeners that are closed and have requests left.
    closed: usize,
}

impl Services {
    pub(crate) fn new(gsi: Gsi) -> Self {
        Self { gsi, held: HashMap::new(), of: HashMap::new() }
    }

    /// Claims a service that is held only for requests that are left, at its address or at all: the host would not give it twice. Returns
    /// what is held, which is for the listener to keep.
    pub(crate) fn reclaim(&mut self, service: ServiceBinding) -> Option<ServiceBinding> {
        let candidates = [service, ServiceBinding { local: None, ..service }];
        candidates.into_iter().find(|candidate| match self.held.get_mut(candidate) {
            Some(held) if !held.claimed => {
                held.claimed = true;
                true
            }
            _ => false,
        })
    }

    /// The host has given this manager the service.
    pub(crate) fn claimed(&mut self, service: ServiceBinding) {
        self.held.insert(service, Held { claimed: true, closed: 0 });
    }

    /// The service that was claimed has this listener.
    pub(crate) fn opened(&mut self, listener: ListenId, service: ServiceBinding) {
        self.of.insert(listener, service);
    }

    /// Nobody listens after all.
    pub(crate) fn unclaim(&mut self, service: ServiceBinding) {
        self.change(service, |held| held.claimed = false);
    }

    /// The listener is closed, and `released` if no requests are left.
    pub(crate) fn closed(&mut self, listener: ListenId, released: bool) {
        let service = if released { self.of.remove(&listener) } else { self.of.get(&listener).copied() };
        if let Some(service) = service {
            self.change(service, |held| {
                held.claimed = false;
                held.closed += usize::from(!released);
            });
        }
    }

    /// A listener that is closed has no requests left.
    pub(crate) fn released(&mut self, listener: ListenId) {
        if let Some(service) = self.of.remove(&listener) {
            self.change(service, |held| held.closed -= 1);
        }
    }

    fn change(&mut self, service: ServiceBinding, change: impl FnOnce(&mut Held)) {
        let Some(held) = self.held.get_mut(&service) else { return };
        change(held);
        if !held.claimed && held.closed == 0 {
            self.held.remove(&service);
            self.gsi.release_service(service);
        }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        for service in self.held.keys() {
            self.gsi.release_service(*service);
        }
    }
}
