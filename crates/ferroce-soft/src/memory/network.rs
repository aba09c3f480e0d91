use super::config::{Clock, MemoryConfig};
use super::device::MemoryDevice;
use super::faults::{FaultPolicy, MemoryFaults, RandomFaults};
use super::port::{Address, MemoryPlace, MemoryTx, Node};
use super::queue::{Event, EventQueue, Flight};
use super::trace::{MemoryStats, TraceEvent, TraceKind};
use super::traffic::{Inner, Mac, Policy, Slots, append_icrc, src_port};
use crate::engine::{Nanos, Origin};
use crate::random::Random;
use ferroce_verbs::{AddressChange, Error, Mtu, Result};
use ferroce_wire::IpPair;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A network of hosts in memory. Clones are handles to one network; any thread may use any of them.
///
/// One thread at a time runs events. A thread that polls while another one does leaves it to that one, so a run is
/// reproducible exactly when one thread makes all calls.
#[derive(Clone)]
pub struct MemoryNetwork(Arc<Network>);

/// The network itself. Locks, in this order: `running`, those of an engine, `inner`.
pub(super) struct Network {
    config: MemoryConfig,
    now: AtomicU64,
    /// Held by whoever runs events.
    running: Mutex<()>,
    inner: Mutex<Inner>,
}

/// What happens next.
enum Next {
    Queued,
    /// A queue pair of a context waits for its turn to send.
    Turn(Arc<Node>),
    Timer(Arc<Node>),
}

/// Events that one poll runs at most: a poll must return even if hosts keep each other busy without time passing.
const POLL_BUDGET: u32 = 4096;

impl MemoryNetwork {
    /// A network without hosts.
    #[must_use]
    pub fn new(config: MemoryConfig) -> Self {
        let random = Random::new(config.seed);
        let inner = Inner {
            queue: EventQueue::default(),
            nodes: BTreeMap::new(),
            slots: Slots::default(),
            groups: HashMap::new(),
            services: HashMap::new(),
            policy: Policy::Random(RandomFaults::new(config.faults, random.fork(1))),
            blocked: HashSet::new(),
            moves: HashMap::new(),
            isolated: HashSet::new(),
            busy_until: HashMap::new(),
            random: random.fork(2),
            stats: MemoryStats::default(),
            observer: None,
        };
        Self(Arc::new(Network { config, now: AtomicU64::new(0), running: Mutex::new(()), inner: Mutex::new(inner) }))
    }

    /// The device of the host at `ip`. Hosts need no set-up: one exists when a context is opened on it.
    #[must_use]
    pub fn host(&self, ip: IpAddr) -> MemoryDevice {
        MemoryDevice::new(self.clone(), ip)
    }

    pub(super) fn claim(&self, ip: IpAddr) -> Result<MemoryPlace> {
        let slot = self.0.inner.lock().slots.take(ip);
        let slot = slot.ok_or(Error::Exhausted { what: "contexts of one host", limit: u64::from(u8::MAX) })?;
        Ok(MemoryPlace { network: self.0.clone(), ip, slot, attached: false })
    }

    // ---- time ----

    /// The virtual time.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.0.now())
    }

    /// When something happens next; `None` if nothing ever will.
    #[must_use]
    pub fn next_event(&self) -> Option<Duration> {
        self.0.next_event().map(Duration::from_nanos)
    }

    /// Moves on to the next event and runs it: a packet arrives, a queue pair has its turn to send, or a timer comes up.
    /// Returns false, and does nothing, if nothing will ever happen.
    pub fn step(&self) -> bool {
        let _running = self.0.running.lock();
        self.0.run_next(Nanos::MAX)
    }

    /// As [`MemoryNetwork::step`], if the next event happens by `until`.
    pub fn step_by(&self, until: Duration) -> bool {
        let _running = self.0.running.lock();
        self.0.run_next(until.as_nanos().try_into().unwrap_or(Nanos::MAX))
    }

    /// Runs all that happens within the next `by`, which then has passed.
    pub fn advance(&self, by: Duration) {
        let _running = self.0.running.lock();
        let until = self.0.now().saturating_add(by.as_nanos() as Nanos);
        while self.0.run_next(until) {}
        self.0.now.store(until, Ordering::Release);
    }

    /// Runs until nothing will ever happen, or until `within` has passed; returns whether it came to rest.
    ///
    /// Without a bound it might never end: a send that waits for a receive which nobody posts is tried again for ever, if its
    /// queue pair was told so.
    pub fn run_until_idle(&self, within: Duration) -> bool {
        let _running = self.0.running.lock();
        let until = self.0.now().saturating_add(within.as_nanos() as Nanos);
        while self.0.run_next(until) {}
        let idle = self.0.next_event().is_none();
        if !idle {
            self.0.now.store(until, Ordering::Release);
        }
        idle
    }

    // ---- faults ----

    /// Changes the faults. Packets in flight are not affected.
    pub fn set_faults(&self, faults: MemoryFaults) {
        let mut inner = self.0.inner.lock();
        match &mut inner.policy {
            Policy::Random(policy) => policy.set(faults),
            Policy::Custom(_) => {
                let random = inner.random.fork(3);
                inner.policy = Policy::Random(RandomFaults::new(faults, random));
            }
        }
    }

    /// Lets `policy` decide on the faults.
    pub fn set_policy(&self, policy: Box<dyn FaultPolicy>) {
        self.0.inner.lock().policy = Policy::Custom(policy);
    }

    /// Drops all packets from `src` to `dst`, those in flight included, until [`MemoryNetwork::unblock`].
    pub fn block(&self, src: IpAddr, dst: IpAddr) {
        self.0.inner.lock().blocked.insert((src, dst));
    }

    /// Lets packets from `src` to `dst` through again.
    pub fn unblock(&self, src: IpAddr, dst: IpAddr) {
        self.0.inner.lock().blocked.remove(&(src, dst));
    }

    /// Cuts the host at `ip` off from all others, until [`MemoryNetwork::restore`]. Its own contexts still reach each other.
    pub fn isolate(&self, ip: IpAddr) {
        self.0.inner.lock().isolated.insert(ip);
    }

    /// Connects the host at `ip` to the others again.
    pub fn restore(&self, ip: IpAddr) {
        self.0.inner.lock().isolated.remove(&ip);
    }

    /// The host at `ip`, on which no context is open, has lost power: those that are opened from now on get the numbers that its first
    /// ones had. Packets in flight stay so.
    pub fn reboot(&self, ip: IpAddr) {
        self.0.inner.lock().slots.restart(ip);
    }

    /// The address `ip` moves to another station: it has another MAC from now on. What was resolved before leads nowhere, packets in
    /// flight included, and connections to it end; those who watch addresses are told.
    pub fn move_address(&self, ip: IpAddr) {
        let (mac, watchers) = {
            let mut inner = self.0.inner.lock();
            *inner.moves.entry(ip).or_default() += 1;
            let watchers = inner.nodes.values().filter_map(|node| node.watcher.lock().as_ref()?.upgrade());
            (inner.mac_of(ip), watchers.collect::<Vec<_>>())
        };
        for watcher in watchers {
            watcher.changed(&AddressChange::Neighbour { ifindex: 0, ip, mac: Some(mac) });
        }
    }

    /// Delivers a packet that nobody on the network sent: `packet` is BTH up to and including the pad, or any bytes. The
    /// right ICRC is added. It arrives next, whatever the faults.
    pub fn inject(&self, src: IpAddr, dst: IpAddr, packet: &[u8]) {
        let Some(ip) = IpPair::new(src, dst) else { return };
        let mut packet = packet.to_vec();
        append_icrc(ip, src_port(&packet), &mut packet);
        self.inject_raw(src, dst, packet);
    }

    /// The same with `packet` up to and including the ICRC, which may be wrong.
    pub fn inject_raw(&self, src: IpAddr, dst: IpAddr, packet: Vec<u8>) {
        let mut inner = self.0.inner.lock();
        let src_port = src_port(&packet);
        let flight = Flight { src, dst, host: dst, mac: None, src_port, tos: 0, ttl: 64, packet };
        let now = self.0.now();
        inner.stats.sent += 1;
        inner.observe(now, TraceKind::Sent, &flight);
        inner.launch(&self.0.config, now, now, flight);
    }

    // ---- what happened ----

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> MemoryStats {
        self.0.inner.lock().stats
    }

    /// Calls `observer` with everything that happens from now on, in order. It is called with the network locked and must
    /// not call back.
    pub fn observe(&self, observer: impl FnMut(&TraceEvent<'_>) + Send + 'static) {
        self.0.inner.lock().observer = Some(Box::new(observer));
    }
}

impl fmt::Debug for MemoryNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.0.inner.lock();
        f.debug_struct("MemoryNetwork")
            .field("seed", &self.0.config.seed)
            .field("now", &Duration::from_nanos(self.0.now()))
            .field("contexts", &inner.nodes.len())
            .field("stats", &inner.stats)
            .finish_non_exhaustive()
    }
}

impl Network {
    pub(super) fn now(&self) -> Nanos {
        self.now.load(Ordering::Acquire)
    }

    pub(super) fn mtu(&self) -> Mtu {
        self.config.mtu
    }

    pub(super) fn keepalive(&self) -> Option<Duration> {
        self.config.keepalive
    }

    pub(super) fn mac_of(&self, ip: IpAddr) -> Mac {
        self.inner.lock().mac_of(ip)
    }

    pub(super) fn key_tag(&self) -> u32 {
        self.inner.lock().random.next_u64() as u32
    }

    // ---- contexts ----

    pub(super) fn attach(&self, node: &Arc<Node>) {
        self.inner.lock().nodes.insert((node.ip, node.slot), node.clone());
    }

    pub(super) fn detach(&self, node: &Node) {
        let mut inner = self.inner.lock();
        let key = (node.ip, node.slot);
        let gone = inner.nodes.remove(&key);
        inner.slots.taken.remove(&key);
        inner.groups.retain(|_, members| {
            members.remove(&key);
            !members.is_empty()
        });
        inner.services.retain(|(ip, _), slot| (*ip, *slot) != key);
        // What it holds may come back here when it is dropped.
        drop(inner);
        drop(gone);
    }

    pub(super) fn release(&self, ip: IpAddr, slot: u8) {
        self.inner.lock().slots.taken.remove(&(ip, slot));
    }

    /// Gives a service to a context; false if another one of its host has it.
    pub(super) fn bind_service(&self, node: &Node, id: u64) -> bool {
        use std::collections::hash_map::Entry;
        match self.inner.lock().services.entry((node.ip, id)) {
            Entry::Occupied(_) => false,
            Entry::Vacant(entry) => {
                entry.insert(node.slot);
                true
            }
        }
    }

    pub(super) fn release_service(&self, node: &Node, id: u64) {
        let mut inner = self.inner.lock();
        if inner.services.get(&(node.ip, id)) == Some(&node.slot) {
            inner.services.remove(&(node.ip, id));
        }
    }

    pub(super) fn join_group(&self, group: IpAddr, node: &Node) {
        self.inner.lock().groups.entry(group).or_default().insert((node.ip, node.slot));
    }

    pub(super) fn leave_group(&self, group: IpAddr, node: &Node) {
        let mut inner = self.inner.lock();
        if let Some(members) = inner.groups.get_mut(&group) {
            members.remove(&(node.ip, node.slot));
            if members.is_empty() {
                inner.groups.remove(&group);
            }
        }
    }

    // ---- sending ----

    /// Whether the link of the host at `ip` has no room at the moment.
    pub(super) fn is_full(&self, ip: IpAddr) -> bool {
        self.config.rate != 0 && {
            let busy = self.inner.lock().busy_until.get(&ip).copied().unwrap_or(0);
            busy.saturating_sub(self.now()) > self.transfer_time(u64::from(self.config.send_buffer))
        }
    }

    /// How long the link takes for `bytes`.
    fn transfer_time(&self, bytes: u64) -> Nanos {
        (bytes * 1_000_000_000).checked_div(self.config.rate).unwrap_or(0)
    }

    /// Sends a packet, BTH to pad.
    pub(super) fn transmit(&self, to: &Address, packet: &[u8]) {
        let Some(ip) = IpPair::new(to.src, to.dst) else { return };
        let src_port = src_port(packet);
        let mut packet = packet.to_vec();
        append_icrc(ip, src_port, &mut packet);
        let now = self.now();
        let mut inner = self.inner.lock();
        let mut leaves = now;
        if self.config.rate != 0 {
            let time = self.transfer_time(packet.len() as u64);
            let busy = inner.busy_until.entry(to.src).or_default();
            *busy = now.max(*busy) + time;
            leaves = *busy;
        }
        let flight = |host, packet| Flight {
            src: to.src,
            dst: to.dst,
            host,
            mac: to.mac,
            src_port,
            tos: to.tos,
            ttl: to.ttl,
            packet,
        };
        if !to.dst.is_multicast() {
            inner.send(&self.config, now, leaves, flight(to.dst, packet));
            return;
        }
        let mut hosts: Vec<IpAddr> = inner.groups.get(&to.dst).into_iter().flatten().map(|&(ip, _)| ip).collect();
        hosts.dedup();
        for host in hosts {
            inner.send(&self.config, now, leaves, flight(host, packet.clone()));
        }
    }

    // ---- running ----

    /// Runs what is due. Called by those who poll.
    pub(super) fn progress(&self) {
        let Some(_running) = self.running.try_lock() else { return };
        let mut left = POLL_BUDGET;
        while left != 0 && self.run_next(self.now()) {
            left -= 1;
        }
        if left == POLL_BUDGET && self.config.clock == Clock::Polled {
            self.run_next(Nanos::MAX);
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        let now = self.now();
        self.next(&self.inner.lock(), now).map(|(at, _)| at)
    }

    /// What happens next, and when. What happens at one time happens in a fixed order.
    fn next(&self, inner: &Inner, now: Nanos) -> Option<(Nanos, Next)> {
        let mut next = inner.queue.next().map(|at| (at.max(now), Next::Queued));
        let mut consider = |at: Nanos, what: Next| {
            if next.as_ref().is_none_or(|(earliest, _)| at < *earliest) {
                next = Some((at, what));
            }
        };
        for node in inner.nodes.values() {
            if node.engine.has_ready() {
                let at = if node.engine.can_send_now() { now } else { now.max(self.room_at(inner, node.ip)) };
                consider(at, Next::Turn(node.clone()));
            }
            if let Some(deadline) = node.engine.next_deadline() {
                consider(deadline.max(now), Next::Timer(node.clone()));
            }
        }
        next
    }

    /// When the link of the host at `ip` has room again: half of its buffer.
    fn room_at(&self, inner: &Inner, ip: IpAddr) -> Nanos {
        let busy = inner.busy_until.get(&ip).copied().unwrap_or(0);
        busy.saturating_sub(self.transfer_time(u64::from(self.config.send_buffer) / 2))
    }

    /// Runs the next event if it happens by `until`. The caller holds `running`.
    fn run_next(&self, until: Nanos) -> bool {
        let now = self.now();
        let mut inner = self.inner.lock();
        let Some((at, next)) = self.next(&inner, now) else { return false };
        if at > until {
            return false;
        }
        self.now.store(at, Ordering::Release);
        let now = at;
        match next {
            Next::Turn(node) => {
                drop(inner);
                node.engine.transmit_ready(&mut MemoryTx::new(self, &node), now);
            }
            Next::Timer(node) => {
                inner.observe_timer(now, node.ip);
                drop(inner);
                node.engine.on_timers(&mut MemoryTx::new(self, &node), now);
            }
            Next::Queued => match inner.queue.pop() {
                Some(Event::Arrive(flight)) => {
                    let nodes = inner.arrive(now, &flight);
                    drop(inner);
                    for node in nodes {
                        self.deliver(&node, &flight, now);
                    }
                }
                Some(Event::Answer(node, qp)) => {
                    drop(inner);
                    if let (Some(node), Some(qp)) = (node.upgrade(), qp.upgrade()) {
                        qp.transmit(&node.engine, &mut MemoryTx::new(self, &node), now);
                    }
                }
                None => {}
            },
        }
        true
    }

    fn deliver(&self, node: &Arc<Node>, flight: &Flight, now: Nanos) {
        let origin = Origin::Net { src: flight.src, dst: flight.dst, tos: flight.tos, ttl: flight.ttl };
        let packet = &flight.packet[..flight.packet.len() - ferroce_wire::ICRC_LEN];
        let mut answers = Vec::new();
        node.engine.receive(&origin, packet, now, &mut |qp, _| answers.push(qp));
        for qp in answers {
            if self.config.answer_within.is_zero() {
                qp.transmit(&node.engine, &mut MemoryTx::new(self, node), now);
                continue;
            }
            let mut inner = self.inner.lock();
            let after = inner.random.below(self.config.answer_within.as_nanos() as u64 + 1);
            inner.queue.push_answer(now + after, node, &qp);
        }
    }
}
