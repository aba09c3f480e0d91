//! Connection management of one open device by the protocol itself: messages come and go over queue pair 1.

use crate::alarm::Alarms;
use crate::id::{IdCore, Queued, is_link_local};
use crate::later::Later;
use crate::proto::{Address, Config, Counters, Endpoint, Event as ProtoEvent, Nanos, Transmit, Usage};
use crate::services::{Claim, Services};
use crate::sync::Mutex;
use crate::{Error, Result};
use ferroce_verbs::{
    AhAttr, AhCache, AhLease, Context, Gid, GidEntry, GlobalRoute, Gsi, MAD_LEN, MadHandler, MadOrigin, Pd,
    ServiceBinding,
};
use rand::rngs::StdRng;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Peers whose addresses are kept.
const ROUTES: usize = 4096;

/// Ports that are given to ids that do not ask for one, as Linux does (`net.ipv4.ip_local_port_range`).
const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;

/// It works in the threads that make progress for the device and has none of its own.
pub(crate) struct Manager {
    this: Weak<Self>,
    pub(crate) context: Context,
    pub(crate) gsi: Gsi,
    pd: Pd,
    protocol: Mutex<Protocol>,
    /// The context's: shared with all who send datagrams.
    cache: AhCache,
    routes: Mutex<HashMap<(Address, u8), Route>>,
}

/// The address of a peer, and the generation of its address handle when the index of the local GID in it was right.
#[derive(Clone, Copy)]
struct Route {
    attr: AhAttr,
    generation: u64,
}

/// What is behind the manager's lock. It is held for the time of one message or call, and never while anything is sent,
/// resolved, or handed to a user.
pub(crate) struct Protocol {
    pub(crate) endpoint: Endpoint,
    pub(crate) services: Services,
    pub(crate) alarms: Alarms<Nanos>,
    /// Who gets the events with which cookie.
    ids: HashMap<u64, Weak<IdCore>>,
    next_cookie: u64,
}

impl Manager {
    /// Takes over queue pair 1 of `context`.
    pub(crate) fn new(context: &Context, rng: StdRng, change: impl FnOnce(&mut Config)) -> Result<Arc<Self>> {
        let info = context.info();
        let gsi = context.gsi().ok_or(Error::NoGsi { device: info.name })?;
        let mut config = Config::new(info.node_guid, gsi.comm_id_prefix());
        change(&mut config);
        let protocol = Protocol {
            endpoint: Endpoint::new(config, rng),
            services: Services::new(gsi.clone()),
            alarms: Alarms::default(),
            ids: HashMap::new(),
            next_cookie: 1,
        };
        let pd = context.alloc_pd().map_err(Error::device("making a protection domain"))?;
        let cache = context.ah_cache().map_err(Error::device("making the cache of address handles"))?;
        let manager = Arc::new_cyclic(|this: &Weak<Self>| Self {
            this: this.clone(),
            context: context.clone(),
            pd,
            gsi,
            protocol: Mutex::new(protocol),
            cache,
            routes: Mutex::default(),
        });
        let handler: Weak<dyn MadHandler> = manager.this.clone();
        manager.gsi.set_handler(handler).map_err(Error::device("taking over queue pair 1"))?;
        Ok(manager)
    }

    pub(crate) fn usage(&self) -> Usage {
        self.protocol.lock().endpoint.usage()
    }

    pub(crate) fn id_count(&self) -> usize {
        self.protocol.lock().ids.len()
    }

    pub(crate) fn counters(&self) -> Counters {
        *self.protocol.lock().endpoint.counters()
    }

    /// Runs `work` on the protocol, then does what follows from it. For those who hold no lock.
    pub(crate) fn run<T>(self: &Arc<Self>, work: impl FnOnce(&mut Protocol, Nanos) -> T) -> T {
        self.run_locked(&mut Later::default(), work)
    }

    /// The same for those who hold the state of an id, and have made `later` before they locked it. What the protocol has to say leaves
    /// before this returns, so that the messages of an id leave in the order of the calls that lead to them; that blocks nobody, see
    /// [`Manager::handle`].
    pub(crate) fn run_locked<T>(
        self: &Arc<Self>,
        later: &mut Later,
        work: impl FnOnce(&mut Protocol, Nanos) -> T,
    ) -> T {
        let now = self.gsi.now();
        let (result, transmits, wake_at) = {
            let mut protocol = self.protocol.lock();
            let result = work(&mut protocol, now);
            while let Some(event) = protocol.endpoint.poll_event() {
                self.dispatch(&mut protocol, event, later);
            }
            let transmits: Vec<Transmit> = std::iter::from_fn(|| protocol.endpoint.poll_transmit()).collect();
            let wake_at = [protocol.endpoint.poll_timeout(), protocol.alarms.first()].into_iter().flatten().min();
            (result, transmits, wake_at)
        };
        for transmit in &transmits {
            self.send(transmit);
        }
        if let Some(deadline) = wake_at {
            self.gsi.wake_at(deadline);
        }
        result
    }

    /// Gives an event to its id.
    fn dispatch(self: &Arc<Self>, protocol: &mut Protocol, event: ProtoEvent, later: &mut Later) {
        let (cookie, queued) = match event {
            ProtoEvent::ConnectRequest(request) => {
                let Some(listener) = protocol.id(request.listener_cookie) else { return };
                let child = IdCore::of_request(self, protocol, &listener, &request);
                (request.listener_cookie, Queued::Request { child, request: Box::new(request) })
            }
            ProtoEvent::Response(ref response) => (response.cookie, Queued::Protocol(Box::new(event))),
            ProtoEvent::Rejected(ref rejected) => (rejected.cookie, Queued::Protocol(Box::new(event))),
            ProtoEvent::Unreachable(ref unreachable) => (unreachable.cookie, Queued::Protocol(Box::new(event))),
            ProtoEvent::Established { cookie, .. }
            | ProtoEvent::Disconnected { cookie, .. }
            | ProtoEvent::TimewaitExit { cookie, .. }
            | ProtoEvent::SidrUnreachable { cookie, .. } => (cookie, Queued::Protocol(Box::new(event))),
            ProtoEvent::SidrResponse(ref response) => (response.cookie, Queued::Protocol(Box::new(event))),
            ProtoEvent::SidrRequest(request) => {
                let Some(listener) = protocol.id(request.listener_cookie) else { return };
                let child = IdCore::of_question(self, protocol, &listener, &request);
                (request.listener_cookie, Queued::Question { child, request: Box::new(request) })
            }
            ProtoEvent::ListenerReleased { listener } => return protocol.services.released(listener),
        };
        match protocol.id(cookie) {
            Some(id) => later.add(id.push(queued)),
            None => later.add(Later::unread([queued].into())),
        }
    }

    fn send(&self, transmit: &Transmit) {
        match self.handle(transmit) {
            Ok(ah) => {
                if let Err(error) = self.gsi.send(&ah, &transmit.mad) {
                    tracing::debug!(%error, to = %transmit.to.remote, "a management datagram could not be sent");
                }
            }
            // Like one that is lost: the protocol repeats what matters, and gives up in time.
            Err(error) => {
                tracing::debug!(%error, to = %transmit.to.remote, "no address handle for a management datagram");
            }
        }
    }

    /// The address handle to a peer, of the cache. A device that has queue pair 1 to give away resolves addresses without blocking, so
    /// nobody waits here for longer than another thread takes to do so.
    fn handle(&self, transmit: &Transmit) -> ferroce_verbs::Result<AhLease> {
        let key = (transmit.to, transmit.traffic_class);
        let known = self.routes.lock().get(&key).copied();
        if let Some(Route { attr, generation }) = known {
            // If it was resolved anew, that may be because the GID table has changed.
            if let Some(lease) = self.cache.get(&self.pd, &attr).ok().filter(|lease| lease.generation() == generation) {
                return Ok(lease);
            }
        }
        let local = self.context.find_gid(1, transmit.to.local.ip())?;
        let route = GlobalRoute {
            traffic_class: transmit.traffic_class,
            // One for all connections to a peer: the first one's.
            flow_label: known.and_then(|route| route.attr.grh).map_or(transmit.flow_label, |grh| grh.flow_label),
            ..GlobalRoute::new(transmit.to.remote, local.index)
        };
        let attr = AhAttr { grh: Some(route), ..AhAttr::roce(transmit.to.remote, local.index) };
        let lease = self.cache.get(&self.pd, &attr)?;
        let mut routes = self.routes.lock();
        let full = routes.len() >= ROUTES && !routes.contains_key(&key);
        let dropped = if full { routes.keys().next().copied().and_then(|old| routes.remove(&old)) } else { None };
        routes.insert(key, Route { attr, generation: lease.generation() });
        drop(routes);
        // Whoever forges requests chooses their addresses: what is kept of them is bounded in the cache, too.
        if let Some(route) = dropped {
            self.cache.invalidate_address(&self.pd, &route.attr);
        }
        Ok(lease)
    }

    /// A port for an id that does not ask for one.
    pub(crate) fn ephemeral_port(&self) -> u16 {
        let random = self.protocol.lock().endpoint.random_psn();
        EPHEMERAL.start + (random % u32::from(EPHEMERAL.end - EPHEMERAL.start)) as u16
    }

    /// Claims a service of the host for this manager; returns what it has then. Waits for the registry of the host, at most some seconds.
    pub(crate) fn claim(&self, service: ServiceBinding) -> ferroce_verbs::Result<Claim> {
        let reclaim = || self.protocol.lock().services.reclaim(service);
        if let Some(held) = reclaim() {
            return Ok(held);
        }
        match self.gsi.bind_service(service) {
            Ok(()) => Ok(self.protocol.lock().services.claimed(service)),
            // The listener that had it may have closed meanwhile.
            Err(error @ ferroce_verbs::Error::InUse { .. }) => reclaim().ok_or(error),
            Err(error) => Err(error),
        }
    }

    /// Gives a claimed service back for which there is no listener.
    pub(crate) fn unclaim(&self, claim: Claim) {
        self.protocol.lock().services.unclaim(claim);
    }

    /// The entry of a local GID, on the interface `scope_id` if it is not 0.
    pub(crate) fn local_gid(&self, gid: Gid, scope_id: u32) -> ferroce_verbs::Result<Option<GidEntry>> {
        let mut table = self.context.gid_table(1)?.into_iter();
        Ok(table.find(|entry| entry.gid == gid && (scope_id == 0 || entry.ifindex == scope_id)))
    }

    /// The two ends of a path as the protocol knows them: with the interface, if addresses are link-local. A device does not say by
    /// which interface a datagram came, so of an address that several have the interface is not known to anybody, and 0.
    pub(crate) fn address(&self, local: Gid, remote: Gid) -> Address {
        let address = Address { local, remote, scope_id: 0 };
        if !is_link_local(local.ip()) {
            return address;
        }
        let table = self.context.gid_table(1).unwrap_or_default();
        let mut interfaces = table.iter().filter(|entry| entry.gid == local).map(|entry| entry.ifindex);
        match (interfaces.next(), interfaces.next()) {
            (Some(scope_id), None) => Address { scope_id, ..address },
            _ => address,
        }
    }
}

impl Protocol {
    /// A cookie for an id's events.
    pub(crate) fn enroll(&mut self, id: &Arc<IdCore>) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.ids.insert(cookie, Arc::downgrade(id));
        cookie
    }

    fn id(&self, cookie: u64) -> Option<Arc<IdCore>> {
        self.ids.get(&cookie)?.upgrade()
    }

    pub(crate) fn dismiss(&mut self, cookie: u64) {
        self.ids.remove(&cookie);
    }
}

impl MadHandler for Manager {
    fn receive(&self, origin: &MadOrigin, mad: &[u8; MAD_LEN]) {
        let Some(this) = self.this.upgrade() else { return };
        let from = this.address(Gid::from(origin.local), Gid::from(origin.remote));
        this.run(|protocol, now| protocol.endpoint.handle_mad(now, &from, mad));
    }

    fn peers_lost(&self, qpns: &[u32]) {
        let Some(this) = self.this.upgrade() else { return };
        this.run(|protocol, now| protocol.endpoint.peers_lost(now, qpns));
    }

    fn expired(&self) {
        let Some(this) = self.this.upgrade() else { return };
        let due = this.run(|protocol, now| {
            protocol.endpoint.handle_timeout(now);
            protocol.alarms.due(now)
        });
        drop(Later::wake(due));
    }
}
