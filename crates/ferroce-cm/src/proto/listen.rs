//! Listeners and their backlogs.

use super::slab::{Name, Slab};
use super::{Address, CmError, Endpoint, Event, ListenId, Nanos};
use ferroce_verbs::Gid;
use ferroce_wire::cm::{RejectReason, ServiceId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The backlog that stands for 0, as in the kernel.
const DEFAULT_BACKLOG: usize = 1024;

/// At which addresses a listener is asked.
///
/// Where several listeners have one service id, the most specific is asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Bind {
    /// At all.
    Any,
    /// At all IPv4 addresses.
    AnyV4,
    /// At all IPv6 addresses.
    AnyV6,
    /// At this one.
    Gid {
        /// The GID.
        gid: Gid,
        /// The interface, if the GID is link-local; otherwise 0.
        scope_id: u32,
    },
}

/// What a listener grants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Service {
    /// Connections (REQ). A SIDR_REQ finds nobody.
    Connection,
    /// Datagrams (SIDR_REQ). A REQ has the wrong transport.
    Datagram,
}

/// What to listen to.
#[derive(Clone, Copy, Debug)]
pub struct ListenParams {
    /// Where.
    pub bind: Bind,
    /// What.
    pub service_id: ServiceId,
    /// What is granted.
    pub service: Service,
    /// How many requests may wait to be read: see [`Endpoint::request_read`]. 0 stands for 1024.
    pub backlog: usize,
    /// Comes with every request.
    pub cookie: u64,
}

/// A request's place in a backlog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    listener: Name,
    at: u32,
}

pub(super) struct Listener {
    key: (ServiceId, Bind),
    pub(super) service: Service,
    backlog: usize,
    pub(super) cookie: u64,
    /// Slots of the requests that were not read: connections, or SIDR requests.
    unread: Vec<u32>,
    /// Since when there have been unread requests and none was read.
    stalled_since: Nanos,
    /// Requests, read or not, that the peer may send again for want of an answer.
    open: usize,
}

#[derive(Default)]
pub(super) struct Listeners {
    by_key: HashMap<(ServiceId, Bind), u32>,
    slab: Slab<Listener>,
    /// Listeners that are closed, and how many open requests each has left.
    closed: HashMap<Name, usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl Listeners {
    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    /// Who is asked for `service_id` at `address`.
    pub(super) fn asked(&self, address: &Address, service_id: ServiceId) -> Option<u32> {
        let gid = Bind::Gid { gid: address.local, scope_id: address.scope_id };
        let family = if address.local.ip().is_ipv4() { Bind::AnyV4 } else { Bind::AnyV6 };
        [gid, family, Bind::Any].into_iter().find_map(|bind| self.by_key.get(&(service_id, bind)).copied())
    }

    pub(super) fn id(&self, slot: u32) -> ListenId {
        ListenId(self.slab.name(slot))
    }

    pub(super) fn name(&self, slot: u32) -> Name {
        self.slab.name(slot)
    }

    pub(super) fn get(&self, slot: u32) -> &Listener {
        &self.slab[slot]
    }

    pub(super) fn has_room(&self, slot: u32) -> bool {
        let listener = &self.slab[slot];
        listener.unread.len() < listener.backlog
    }

    /// Whether a listener without room has taken a request lately.
    pub(super) fn is_moving(&self, slot: u32, now: Nanos, patience: Nanos) -> bool {
        now.saturating_sub(self.slab[slot].stalled_since) < patience
    }

    /// Takes a place for `request`, of which there must be one.
    pub(super) fn enter(&mut self, slot: u32, request: u32, now: Nanos) -> Place {
        let name = self.slab.name(slot);
        let listener = &mut self.slab[slot];
        if listener.unread.is_empty() {
            listener.stalled_since = now;
        }
        listener.open += 1;
        listener.unread.push(request);
        Place { listener: name, at: (listener.unread.len() - 1) as u32 }
    }

    /// Gives a place back. Returns the request that has moved there from another place, if any.
    pub(super) fn leave(&mut self, place: Place, now: Nanos) -> Option<(u32, Place)> {
        let slot = self.slab.find(place.listener)?;
        let listener = &mut self.slab[slot];
        listener.stalled_since = now;
        listener.unread.swap_remove(place.at as usize);
        listener.unread.get(place.at as usize).map(|&moved| (moved, place))
    }
}

impl Endpoint {
    /// Begins to listen.
    ///
    /// # Errors
    ///
    /// [`CmError::AddressInUse`] if another listener has the same service id and the same [`Bind`].
    pub fn listen(&mut self, params: &ListenParams) -> Result<ListenId, CmError> {
        let key = (params.service_id, params.bind);
        if self.listeners.by_key.contains_key(&key) {
            return Err(CmError::AddressInUse);
        }
        let slot = self.listeners.slab.insert(Listener {
            key,
            service: params.service,
            backlog: if params.backlog == 0 { DEFAULT_BACKLOG } else { params.backlog },
            cookie: params.cookie,
            unread: Vec::new(),
            stalled_since: 0,
            open: 0,
        });
        self.listeners.by_key.insert(key, slot);
        Ok(self.listeners.id(slot))
    }

    /// Stops to listen. Requests that were not read are rejected, and their events are void; those that were read
    /// (see [`request_read`](Self::request_read)) live on.
    ///
    /// Whether the service may be another endpoint's from now on. If not, then because requests are left that may come again, and must come
    /// here: somebody else would refuse them. [`Event::ListenerReleased`] follows.
    ///
    /// # Errors
    ///
    /// [`CmError::Stale`].
    pub fn close_listener(&mut self, now: Nanos, listener: ListenId) -> Result<bool, CmError> {
        let name = listener.0;
        let slot = self.listeners.slab.find(name).ok_or(CmError::Stale)?;
        let listener = &mut self.listeners.slab[slot];
        self.listeners.by_key.remove(&listener.key);
        let service = listener.service;
        for request in std::mem::take(&mut listener.unread) {
            match service {
                Service::Connection => {
                    if let Some(passive) = &mut self.conns[request].passive {
                        passive.backlog = None;
                    }
                    self.destroy_slot(now, request, RejectReason::ConsumerDefined);
                }
                Service::Datagram => self.refuse_sidr(now, request),
            }
        }
        let open = self.listeners.slab.remove(slot).open;
        if open != 0 {
            self.listeners.closed.insert(name, open);
        }
        Ok(open == 0)
    }

    /// A request of this listener does not come again, or may be refused if it does.
    pub(super) fn request_settled(&mut self, listener: Name) {
        if let Some(slot) = self.listeners.slab.find(listener) {
            self.listeners.slab[slot].open -= 1;
        } else if let Entry::Occupied(mut open) = self.listeners.closed.entry(listener) {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
                self.events.push_back(Event::ListenerReleased { listener: ListenId(listener) });
            }
        }
    }
}
