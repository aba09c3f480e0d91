//! Address handles: one leased by each endpoint for as long as it exists, lingering included.

use crate::ud::{EndpointId, PeerAddress};
use ferroce_verbs::ah_cache::Resolution;
use ferroce_verbs::{AhAttr, AhCache, AhError, AhLease, AhLookup, AhPending, Gid, Pd};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

/// Packets of an endpoint that wait for its address handle. More are dropped, as a network may: the protocol sends them again.
const MAX_WAITING: usize = 16;

/// Answers to strangers that wait for an address handle. More are dropped: whoever asked asks again.
const MAX_ANSWERS: usize = 64;

/// Addresses in the cache for the sake of strangers: of packets that were answered, whoever sent them. Who forges packets chooses their
/// addresses; what is kept of them is bounded, here and in the cache.
const STRANGERS: usize = 1024;

/// What an endpoint has of its address handle. Small, as every endpoint has one.
enum Link {
    /// `proven`: the peer is where it says.
    Ready {
        lease: AhLease,
        proven: bool,
    },
    Pending(Box<Pending>),
}

/// An endpoint's packets wait for its address handle.
struct Pending {
    to: PeerAddress,
    handle: AhPending,
    waiting: Vec<Vec<u8>>,
    proven: bool,
}

impl Link {
    fn proven(&mut self) -> &mut bool {
        match self {
            Self::Ready { proven, .. } => proven,
            Self::Pending(pending) => &mut pending.proven,
        }
    }
}

/// Whether one of the address handles that are waited for may have come: with many that wait, nobody looks at all of them all the time.
struct Landed(AtomicBool);

impl Wake for Landed {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// The address handles of an interface's endpoints.
///
/// In a cache with a capacity an endpoint leases its own only once it is proven that its peer is where it says; until then each answer takes
/// one for itself. So what strangers begin, and never go on with, takes no room from others.
pub(super) struct Links {
    cache: AhCache,
    pd: Pd,
    port: u8,
    sgid_index: u32,
    links: hashbrown::HashMap<EndpointId, Link>,
    /// Those that are not ready.
    pending: Vec<EndpointId>,
    /// How many of those are gone.
    left: usize,
    /// How many of those are not proven.
    unproven: usize,
    /// The cache's.
    capacity: Option<usize>,
    /// Resolutions that are to be started, with nothing locked.
    begun: Vec<Resolution>,
    /// Answers that are no endpoint's.
    answers: Vec<(PeerAddress, AhPending, Vec<u8>)>,
    landed: Arc<Landed>,
    /// Of `landed`. One for all, as a resolution remembers each.
    waker: Waker,
    strangers: Strangers,
}

/// Addresses that only strangers gave, in the order in which they came.
#[derive(Default)]
struct Strangers {
    known: HashMap<Gid, u64>,
    order: BTreeMap<u64, Gid>,
    next: u64,
}

impl Strangers {
    /// One more; returns the oldest if there are too many.
    fn add(&mut self, gid: Gid) -> Option<Gid> {
        if let Entry::Vacant(entry) = self.known.entry(gid) {
            entry.insert(self.next);
            self.order.insert(self.next, gid);
            self.next += 1;
        }
        if self.known.len() <= STRANGERS {
            return None;
        }
        let (_, oldest) = self.order.pop_first()?;
        self.known.remove(&oldest);
        Some(oldest)
    }

    /// It is none.
    fn forget(&mut self, gid: Gid) {
        if let Some(number) = self.known.remove(&gid) {
            self.order.remove(&number);
        }
    }
}

/// What became of a packet.
pub(super) enum Route {
    /// It can be sent with this.
    Ready(AhLease, Vec<u8>),
    /// It waits, or was dropped.
    Later,
    /// It was dropped: there is no way, or no room for an address handle at the moment.
    None(AhError),
}

impl Links {
    pub(super) fn new(cache: AhCache, pd: Pd, port: u8, sgid_index: u32) -> Self {
        let landed = Arc::new(Landed(AtomicBool::new(false)));
        Self {
            waker: landed.clone().into(),
            landed,
            capacity: cache.config().capacity,
            cache,
            pd,
            port,
            sgid_index,
            links: hashbrown::HashMap::new(),
            pending: Vec::new(),
            left: 0,
            unproven: 0,
            begun: Vec::new(),
            answers: Vec::new(),
            strangers: Strangers::default(),
        }
    }

    fn attr(&self, gid: Gid) -> AhAttr {
        AhAttr { port_num: self.port, ..AhAttr::roce(gid, self.sgid_index) }
    }

    fn look_up(&mut self, to: PeerAddress, proven: bool) -> Result<AhLookup, AhError> {
        if proven {
            self.strangers.forget(to.gid);
        } else if let Some(oldest) = self.strangers.add(to.gid) {
            self.cache.invalidate_address(&self.pd, &self.attr(oldest));
        }
        let (lookup, resolution) = self.cache.look_up(&self.pd, &self.attr(to.gid))?;
        self.begun.extend(resolution);
        Ok(lookup)
    }

    /// Whether some are to be started.
    pub(super) fn has_begun(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Those to be started.
    pub(super) fn take_begun(&mut self) -> Vec<Resolution> {
        std::mem::take(&mut self.begun)
    }

    /// Asks, when called, whether the device finds a way, as far as it knows without waiting. With nothing locked.
    pub(super) fn reach(&self, to: PeerAddress) -> impl FnOnce() -> Result<(), AhError> + use<> {
        let (cache, pd, attr) = (self.cache.clone(), self.pd.clone(), self.attr(to.gid));
        move || cache.try_get(&pd, &attr).map(|_| ())
    }

    /// Whoever waits for it is looked at once it has come.
    fn watch(&self, handle: &mut AhPending) {
        if Pin::new(handle).poll(&mut Context::from_waker(&self.waker)).is_ready() {
            self.landed.0.store(true, Ordering::Release);
        }
    }

    /// The way for a packet of an endpoint, or for one that is no endpoint's. It is `proven` if the peer is where it says.
    pub(super) fn route(
        &mut self,
        endpoint: Option<EndpointId>,
        to: PeerAddress,
        proven: impl Fn() -> bool,
        packet: Vec<u8>,
    ) -> Route {
        let Some(id) = endpoint else {
            if self.is_crowded() {
                return Route::Later;
            }
            return match self.look_up(to, false) {
                Ok(AhLookup::Ready(lease)) => Route::Ready(lease, packet),
                Ok(AhLookup::Pending(mut handle)) => {
                    self.watch(&mut handle);
                    if self.answers.len() < MAX_ANSWERS {
                        self.answers.push((to, handle, packet));
                    }
                    Route::Later
                }
                Err(error) => Route::None(error),
            };
        };
        if let Some(known) = self.links.get_mut(&id) {
            if !*known.proven() && proven() {
                *known.proven() = true;
                self.unproven -= usize::from(matches!(known, Link::Pending(_)));
                self.strangers.forget(to.gid);
            }
            return match known {
                Link::Ready { lease, .. } => Route::Ready(lease.clone(), packet),
                Link::Pending(pending) => {
                    if pending.waiting.len() < MAX_WAITING {
                        pending.waiting.push(packet);
                    }
                    Route::Later
                }
            };
        }
        let proven = proven();
        if !proven && self.is_crowded() {
            return Route::Later;
        }
        match self.look_up(to, proven) {
            Ok(AhLookup::Ready(lease)) => {
                if proven || self.capacity.is_none() {
                    self.links.insert(id, Link::Ready { lease: lease.clone(), proven });
                }
                Route::Ready(lease, packet)
            }
            Ok(AhLookup::Pending(mut handle)) => {
                self.watch(&mut handle);
                let pending = Pending { to, handle, waiting: vec![packet], proven };
                self.links.insert(id, Link::Pending(Box::new(pending)));
                self.pending.push(id);
                self.unproven += usize::from(!proven);
                Route::Later
            }
            Err(error) => Route::None(error),
        }
    }

    /// Whether no more strangers may wait: what is being resolved has its room in the cache already, and that is for others, too.
    fn is_crowded(&self) -> bool {
        self.capacity.is_some_and(|capacity| self.unproven + self.answers.len() >= (capacity / 2).max(1))
    }

    /// Looks whether address handles have come that were waited for; hands out what waited with them: whose it is, where it goes, and
    /// what it is or why there is no way.
    pub(super) fn settle(
        &mut self,
        mut found: impl FnMut(Option<EndpointId>, PeerAddress, Result<(AhLease, Vec<Vec<u8>>), AhError>),
    ) {
        if !self.landed.0.swap(false, Ordering::AcqRel) {
            return;
        }
        self.answers.retain_mut(|(to, handle, packet)| match handle.try_take() {
            None => true,
            Some(outcome) => {
                found(None, *to, outcome.map(|lease| (lease, vec![std::mem::take(packet)])));
                false
            }
        });
        self.left = 0;
        let Self { links, unproven, capacity, .. } = self;
        self.pending.retain(|id| {
            let Some(link) = links.get_mut(id) else { return false };
            let Link::Pending(pending) = link else { return false };
            let Pending { to, ref handle, proven, .. } = **pending;
            match handle.try_take() {
                None => true,
                Some(Ok(lease)) => {
                    let waiting = std::mem::take(&mut pending.waiting);
                    *unproven -= usize::from(!proven);
                    if proven || capacity.is_none() {
                        *link = Link::Ready { lease: lease.clone(), proven };
                    } else {
                        links.remove(id);
                    }
                    found(Some(*id), to, Ok((lease, waiting)));
                    false
                }
                Some(Err(error)) => {
                    *unproven -= usize::from(!proven);
                    links.remove(id);
                    found(Some(*id), to, Err(error));
                    false
                }
            }
        });
    }

    /// An endpoint is gone: its address handle can go.
    pub(super) fn release(&mut self, id: EndpointId) {
        if let Some(Link::Pending(pending)) = self.links.remove(&id) {
            self.unproven -= usize::from(!pending.proven);
            self.left += 1;
            if 2 * self.left > self.pending.len() {
                self.landed.0.store(true, Ordering::Release);
            }
        }
    }

    /// Address handles that are leased.
    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Whether some are waited for.
    pub(super) fn waits(&self) -> bool {
        !(self.pending.is_empty() && self.answers.is_empty())
    }
}
