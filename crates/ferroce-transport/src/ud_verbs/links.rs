//! Address handles: one leased by each endpoint for as long as it exists, lingering included.

use crate::ud::{EndpointId, PeerAddress};
use ferroce_verbs::ah_cache::ResolveCause;
use ferroce_verbs::{AhAttr, AhCache, AhError, AhLease, AhLookup, AhPending, Pd};
use std::collections::HashMap;

/// Packets of an endpoint that wait for its address handle. More are dropped, as a network may: the protocol sends them again.
const MAX_WAITING: usize = 16;

/// What an endpoint has of its address handle.
enum Link {
    Ready(AhLease),
    Pending { handle: AhPending, waiting: Vec<Vec<u8>> },
}

/// The address handles of an interface's endpoints.
pub(super) struct Links {
    cache: AhCache,
    pd: Pd,
    port: u8,
    sgid_index: u32,
    links: HashMap<EndpointId, (PeerAddress, Link)>,
    /// Those that are not ready.
    pending: Vec<EndpointId>,
}

/// What became of a packet.
pub(super) enum Route {
    /// It can be sent with this.
    Ready(AhLease, Vec<u8>),
    /// It waits, or was dropped.
    Later,
    /// There is no way.
    None(AhError),
}

/// That something has run out may be over when the protocol sends again; what is wrong or unreachable stays so.
fn no_way(error: AhError) -> Route {
    if error.cause() == ResolveCause::NoResources { Route::Later } else { Route::None(error) }
}

impl Links {
    pub(super) fn new(cache: AhCache, pd: Pd, port: u8, sgid_index: u32) -> Self {
        Self { cache, pd, port, sgid_index, links: HashMap::new(), pending: Vec::new() }
    }

    fn look_up(&self, to: PeerAddress) -> Result<AhLookup, AhError> {
        let attr = AhAttr { port_num: self.port, ..AhAttr::roce(to.gid, self.sgid_index) };
        self.cache.try_get(&self.pd, &attr)
    }

    /// Whether the device finds a way, as far as it knows without waiting.
    pub(super) fn reach(&self, to: PeerAddress) -> Result<(), AhError> {
        let attr = AhAttr { port_num: self.port, ..AhAttr::roce(to.gid, self.sgid_index) };
        self.cache.try_get(&self.pd, &attr).map(|_| ())
    }

    /// The way for a packet of an endpoint, or for one that is no endpoint's.
    pub(super) fn route(&mut self, endpoint: Option<EndpointId>, to: PeerAddress, packet: Vec<u8>) -> Route {
        let Some(id) = endpoint else {
            return match self.look_up(to) {
                Ok(AhLookup::Ready(lease)) => Route::Ready(lease, packet),
                // Nobody is left to wait for it; whoever it answers will ask again.
                Ok(AhLookup::Pending(_)) => Route::Later,
                Err(error) => no_way(error),
            };
        };
        match self.links.get_mut(&id) {
            Some((_, Link::Ready(lease))) => Route::Ready(lease.clone(), packet),
            Some((_, Link::Pending { waiting, .. })) => {
                if waiting.len() < MAX_WAITING {
                    waiting.push(packet);
                }
                Route::Later
            }
            None => match self.look_up(to) {
                Ok(AhLookup::Ready(lease)) => {
                    self.links.insert(id, (to, Link::Ready(lease.clone())));
                    Route::Ready(lease, packet)
                }
                Ok(AhLookup::Pending(handle)) => {
                    self.links.insert(id, (to, Link::Pending { handle, waiting: vec![packet] }));
                    self.pending.push(id);
                    Route::Later
                }
                Err(error) => no_way(error),
            },
        }
    }

    /// Looks whether address handles have come that were waited for; hands out what waited with them.
    pub(super) fn settle(
        &mut self,
        mut found: impl FnMut(EndpointId, PeerAddress, Result<(AhLease, Vec<Vec<u8>>), AhError>),
    ) {
        let links = &mut self.links;
        self.pending.retain(|id| {
            let Some((to, link)) = links.get_mut(id) else { return false };
            let Link::Pending { handle, waiting } = link else { return false };
            match handle.try_take() {
                None => true,
                Some(Ok(lease)) => {
                    let waiting = std::mem::take(waiting);
                    *link = Link::Ready(lease.clone());
                    found(*id, *to, Ok((lease, waiting)));
                    false
                }
                Some(Err(error)) => {
                    let to = *to;
                    links.remove(id);
                    if let Route::None(error) = no_way(error) {
                        found(*id, to, Err(error));
                    }
                    false
                }
            }
        });
    }

    /// An endpoint is gone: its address handle can go.
    pub(super) fn release(&mut self, id: EndpointId) {
        self.links.remove(&id);
    }

    /// Address handles that are leased.
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether some are waited for.
    pub(super) fn waits(&self) -> bool {
        !self.pending.is_empty()
    }
}
