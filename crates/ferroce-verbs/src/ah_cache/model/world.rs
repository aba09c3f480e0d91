//! The device, the clock and the resolver of the models, and what their threads do.

use crate::ah_cache::{AhCache, AhCacheConfig, AhCacheOptions, AhError, AhLease, AhResolver, Clock, Resolution};
use crate::provider::{AhOps, ContextOps, MrOps, PdOps, QpOps, SrqOps};
use crate::sync::step;
use crate::{Access, AddressChange, Ah, AhAttr, Error, Gid, LinkLayer, Pd, QpInitAttr, Region, Result, SrqInitAttr};
use ferroce_testing::model::shuttle::thread::{self, JoinHandle};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The device, the clock and the resolver.
#[derive(Clone, Default)]
pub(super) struct Device(pub(super) Arc<Mutex<State>>);

#[derive(Default)]
pub(super) struct State {
    now: u64,
    pub(super) made: u64,
    live: BTreeSet<u64>,
    /// Of each generation that somebody held: which address handle it was.
    generations: HashMap<u64, u64>,
    /// The neighbour's MAC, and by now nobody has to see an older one in the cache.
    pub(super) mac: u8,
    pub(super) failures: u64,
    pub(super) resolving: Vec<JoinHandle<()>>,
}

struct Handle {
    attr: AhAttr,
    number: u64,
    mac: u8,
    device: Device,
}

impl AhOps for Handle {
    fn attr(&self) -> &AhAttr {
        &self.attr
    }
    fn link_layer(&self) -> Option<LinkLayer> {
        let next_hop = self.attr.grh.unwrap().dgid.ip();
        Some(LinkLayer { ifindex: 1, next_hop, mac: Some([self.mac; 6]) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        assert!(self.device.0.lock().unwrap().live.remove(&self.number), "destroyed twice");
    }
}

struct Domain;

const UNUSED: &str = "the model has no use for this";

impl PdOps for Domain {
    fn reg_mr(self: Arc<Self>, _: Region, _: Access) -> Result<Arc<dyn MrOps>> {
        unreachable!("{UNUSED}")
    }
    fn create_ah(self: Arc<Self>, _: &AhAttr) -> Result<Arc<dyn AhOps>> {
        unreachable!("{UNUSED}")
    }
    fn create_srq(self: Arc<Self>, _: &SrqInitAttr) -> Result<Arc<dyn SrqOps>> {
        unreachable!("{UNUSED}")
    }
    fn create_qp(self: Arc<Self>, _: &QpInitAttr) -> Result<Arc<dyn QpOps>> {
        unreachable!("{UNUSED}")
    }
    fn context(&self) -> Arc<dyn ContextOps> {
        unreachable!("{UNUSED}")
    }
}

impl AhResolver for Device {
    fn resolve(&self, _: &Pd, attr: &AhAttr) -> Result<Ah> {
        // The kernel is asked, and its answer takes a while to arrive.
        let mac = self.0.lock().unwrap().mac;
        step();
        let mut state = self.0.lock().unwrap();
        if state.failures != 0 {
            state.failures -= 1;
            return Err(Error::invalid("address", "it is not to be reached"));
        }
        state.made += 1;
        let number = state.made;
        state.live.insert(number);
        Ok(Ah::from_ops(Arc::new(Handle { attr: *attr, number, mac, device: self.clone() })))
    }

    fn start(&self, resolution: Resolution) {
        let thread = thread::spawn(move || resolution.run());
        self.0.lock().unwrap().resolving.push(thread);
    }
}

impl Clock for Device {
    fn now(&self) -> u64 {
        self.0.lock().unwrap().now
    }
}

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Peer number `n`.
pub(super) fn peer(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

#[derive(Clone)]
pub(super) struct World {
    pub(super) device: Device,
    pub(super) pd: Pd,
    pub(super) cache: AhCache,
}

impl World {
    pub(super) fn new(config: AhCacheConfig) -> Self {
        let device = Device::default();
        let options = AhCacheOptions::new(config).clock(device.clone()).resolver(device.clone());
        Self { device, pd: Pd::from_ops(Arc::new(Domain)), cache: AhCache::detached(options).unwrap() }
    }

    pub(super) fn get(&self, n: u8) -> Result<AhLease, AhError> {
        self.cache.get(&self.pd, &AhAttr::roce(Gid::from(peer(n)), 0)).inspect(|lease| self.check(lease))
    }

    /// What is held exists, and is the only one of its generation.
    pub(super) fn check(&self, lease: &AhLease) {
        let number = lease.ah().ops().as_any().downcast_ref::<Handle>().unwrap().number;
        let mut state = self.device.0.lock().unwrap();
        assert!(state.live.contains(&number), "it is destroyed");
        assert_eq!(*state.generations.entry(lease.generation()).or_insert(number), number, "two of one generation");
    }

    pub(super) fn use_and_put(&self, lease: AhLease) {
        step();
        self.check(&lease);
        drop(lease);
    }

    /// A thread that gets and puts.
    pub(super) fn user(&self, peers: &'static [u8]) -> JoinHandle<()> {
        let world = self.clone();
        thread::spawn(move || {
            for n in peers {
                match world.get(*n) {
                    Ok(lease) => world.use_and_put(lease),
                    Err(AhError::Closed | AhError::Full { .. } | AhError::Wait { .. } | AhError::Resolve { .. }) => {}
                }
            }
        })
    }

    pub(super) fn thread<T: Send + 'static>(&self, f: impl FnOnce(&Self) -> T + Send + 'static) -> JoinHandle<T> {
        let world = self.clone();
        thread::spawn(move || f(&world))
    }

    /// The neighbour moves, and the cache is told. From then on nobody gets the old MAC.
    pub(super) fn mover(&self, mac: u8) -> JoinHandle<()> {
        self.thread(move |world| {
            world.device.0.lock().unwrap().mac = mac;
            step();
            world.cache.invalidate(&AddressChange::Neighbour { ifindex: 1, ip: peer(1), mac: Some([mac; 6]) });
            world.expect_mac(mac);
        })
    }

    pub(super) fn expect_mac(&self, mac: u8) {
        if let Ok(lease) = self.get(1) {
            assert_eq!(lease.link_layer().unwrap().mac, Some([mac; 6]), "it is stale");
        }
    }

    /// What there was has expired.
    pub(super) fn expect_later_than(&self, generation: u64) {
        // Or the other one, whose resolution is waited for, takes longer than anybody waits.
        if let Ok(lease) = self.get(1) {
            assert!(lease.generation() > generation, "it has expired");
            self.use_and_put(lease);
        }
    }

    pub(super) fn advance(&self, time: Duration) {
        self.device.0.lock().unwrap().now += time.as_nanos() as u64;
    }

    pub(super) fn live(&self) -> usize {
        self.device.0.lock().unwrap().live.len()
    }

    /// Whether what was resolved so exists.
    pub(super) fn has(&self, generation: u64) -> bool {
        let state = self.device.0.lock().unwrap();
        state.generations.get(&generation).is_some_and(|number| state.live.contains(number))
    }

    /// A thread that lets everything expire, and looks for it.
    pub(super) fn expirer(&self) -> JoinHandle<()> {
        self.thread(|world| {
            world.advance(2 * SECOND);
            step();
            world.cache.sweep();
        })
    }

    /// A thread that takes out the entry of one peer, and then all.
    pub(super) fn invalidator(&self) -> JoinHandle<()> {
        self.thread(|world| {
            world.cache.invalidate_address(&world.pd, &AhAttr::roce(Gid::from(peer(1)), 0));
            step();
            world.cache.invalidate(&AddressChange::Unknown);
        })
    }

    fn is_closed(&self) -> bool {
        matches!(self.get(99), Err(AhError::Closed))
    }

    /// Nobody holds anything, so as many can be held as there may be, and no more.
    fn expect_room(&self, capacity: usize) {
        let held: Vec<_> = (0..capacity).map(|n| self.get(100 + n as u8).expect("its room is lost")).collect();
        assert!(matches!(self.get(99), Err(AhError::Full { .. })), "there is more room than there may be");
        drop(held);
    }

    /// All threads have ended.
    pub(super) fn finish(self, threads: Vec<JoinHandle<()>>) {
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let counters = self.cache.counters();
        assert_eq!(counters.in_flight, 0);
        assert_eq!((counters.idle, counters.live), (counters.entries, counters.entries), "somebody still holds");
        assert_eq!(self.live() as u64, counters.entries);
        let made = self.device.0.lock().unwrap().made;
        let resolved = counters.misses + counters.requeries + counters.bypasses + counters.repeats - counters.failures;
        assert_eq!(made, resolved, "resolved for nobody");
        if let Some(capacity) = self.cache.config().capacity {
            assert_eq!(self.cache.core().used() as u64, counters.entries, "room is lost, or there is too much");
            if !self.is_closed() {
                self.expect_room(capacity);
            }
        }
        let report = self.cache.close();
        assert_eq!((report.held, report.leases), (0, 0));
        assert_eq!((self.live(), self.cache.core().used()), (0, 0), "address handles are left, or their room");
    }
}

pub(super) fn infinite() -> AhCacheConfig {
    AhCacheConfig::default()
}
