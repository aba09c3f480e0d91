//! Which services of the host the manager holds, and until when.
//!
//! A service is held for longer than its listener lives if requests are left that may come again: whoever had the service then would
//! refuse them, and their peers take that for the answer.

use crate::proto::ListenId;
use ferroce_verbs::{Gid, Gsi, ServiceBinding};
use std::collections::HashMap;

/// Behind the protocol's lock, so that a service and its listener change together.
pub(crate) struct Services {
    gsi: Gsi,
    held: HashMap<ServiceBinding, Held>,
    /// What a listener has claimed, until its last request is settled.
    of: HashMap<ListenId, Claim>,
}

/// A listener's part of what is held, or that of one to be.
#[derive(Clone, Copy)]
pub(crate) struct Claim {
    held: ServiceBinding,
    /// At which address; `None` at all.
    local: Option<Gid>,
}

impl Claim {
    /// What is held.
    pub(crate) fn service_id(&self) -> u64 {
        self.held.service_id
    }
}

struct Held {
    /// Where somebody listens, or is about to. What was held for a listener at all addresses may have several at one each.
    claims: Vec<Option<Gid>>,
    /// Listeners that are closed and have requests left.
    closed: usize,
}

impl Held {
    fn takes(&self, local: Option<Gid>) -> bool {
        self.claims.iter().all(|other| other.is_some() && local.is_some() && *other != local)
    }

    /// Nobody listens there any more.
    fn end(&mut self, local: Option<Gid>) {
        if let Some(at) = self.claims.iter().position(|other| *other == local) {
            self.claims.swap_remove(at);
        }
    }
}

impl Services {
    pub(crate) fn new(gsi: Gsi) -> Self {
        Self { gsi, held: HashMap::new(), of: HashMap::new() }
    }

    /// Claims a service of which this manager holds what is needed, at its address or at all, for requests that are left or for listeners at
    /// other addresses: the host would not give it twice.
    pub(crate) fn reclaim(&mut self, service: ServiceBinding) -> Option<Claim> {
        let candidates = [service, ServiceBinding { local: None, ..service }];
        candidates.into_iter().find_map(|candidate| {
            let held = self.held.get_mut(&candidate).filter(|held| held.takes(service.local))?;
            held.claims.push(service.local);
            Some(Claim { held: candidate, local: service.local })
        })
    }

    /// The host has given this manager the service.
    pub(crate) fn claimed(&mut self, service: ServiceBinding) -> Claim {
        self.held.insert(service, Held { claims: vec![service.local], closed: 0 });
        Claim { held: service, local: service.local }
    }

    /// The service that was claimed has this listener.
    pub(crate) fn opened(&mut self, listener: ListenId, claim: Claim) {
        self.of.insert(listener, claim);
    }

    /// Nobody listens after all.
    pub(crate) fn unclaim(&mut self, claim: Claim) {
        self.change(claim, |held| held.end(claim.local));
    }

    /// The listener is closed, and `released` if no requests are left.
    pub(crate) fn closed(&mut self, listener: ListenId, released: bool) {
        let claim = if released { self.of.remove(&listener) } else { self.of.get(&listener).copied() };
        if let Some(claim) = claim {
            self.change(claim, |held| {
                held.end(claim.local);
                held.closed += usize::from(!released);
            });
        }
    }

    /// A listener that is closed has no requests left.
    pub(crate) fn released(&mut self, listener: ListenId) {
        if let Some(claim) = self.of.remove(&listener) {
            self.change(claim, |held| held.closed -= 1);
        }
    }

    fn change(&mut self, claim: Claim, change: impl FnOnce(&mut Held)) {
        let Some(held) = self.held.get_mut(&claim.held) else { return };
        change(held);
        if held.claims.is_empty() && held.closed == 0 {
            self.held.remove(&claim.held);
            self.gsi.release_service(claim.held);
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
