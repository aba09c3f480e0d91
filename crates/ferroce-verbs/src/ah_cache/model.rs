//! All orders in which threads may get, put, let expire, invalidate, evict and close, within bounds: nobody holds an address handle
//! that is destroyed, no address is resolved more than once for a generation, what is cached is not older than the last word of the
//! device, and nothing is left.
//!
//! Shuttle (`sync`) decides which thread runs, and the rest is the cache itself, parked leases included.

use super::{AhCache, AhCacheConfig, AhCacheOptions, AhError, AhLease, AhLookup, AhResolver, Clock, Ttl};
use crate::provider::{AhOps, ContextOps, MrOps, PdOps, QpOps, SrqOps};
use crate::sync::step;
use crate::{Access, AddressChange, Ah, AhAttr, Error, Gid, LinkLayer, Pd, QpInitAttr, Region, Result, SrqInitAttr};
use ferroce_testing::model::shuttle::thread::{self, JoinHandle};
use ferroce_testing::model::{exhaust, sample};
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The device, the clock and the resolver.
#[derive(Clone, Default)]
struct Device(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    now: u64,
    made: u64,
    live: BTreeSet<u64>,
    /// Of each generation that somebody held: which address handle it was.
    generations: HashMap<u64, u64>,
    /// The neighbour's MAC, and by now nobody has to see an older one in the cache.
    mac: u8,
    failures: u64,
    resolving: Vec<JoinHandle<()>>,
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

    fn start(&self, resolution: super::Resolution) {
        let thread = thread::spawn(move || resolution.run());
        self.0.lock().unwrap().resolving.push(thread);
    }
}

impl Clock for Device {
    fn now(&self) -> u64 {
        self.0.lock().unwrap().now
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// Peer number `n`.
fn peer(n: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, n).into()
}

#[derive(Clone)]
struct World {
    device: Device,
    pd: Pd,
    cache: AhCache,
}

impl World {
    fn new(config: AhCacheConfig) -> Self {
        let device = Device::default();
        let options = AhCacheOptions::new(config).clock(device.clone()).resolver(device.clone());
        Self { device, pd: Pd::from_ops(Arc::new(Domain)), cache: AhCache::detached(options).unwrap() }
    }

    fn get(&self, n: u8) -> Result<AhLease, AhError> {
        self.cache.get(&self.pd, &AhAttr::roce(Gid::from(peer(n)), 0)).inspect(|lease| self.check(lease))
    }

    /// What is held exists, and is the only one of its generation.
    fn check(&self, lease: &AhLease) {
        let number = lease.ah().ops().as_any().downcast_ref::<Handle>().unwrap().number;
        let mut state = self.device.0.lock().unwrap();
        assert!(state.live.contains(&number), "it is destroyed");
        assert_eq!(*state.generations.entry(lease.generation()).or_insert(number), number, "two of one generation");
    }

    fn use_and_put(&self, lease: AhLease) {
        step();
        self.check(&lease);
        drop(lease);
    }

    /// A thread that gets and puts.
    fn user(&self, peers: &'static [u8]) -> JoinHandle<()> {
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

    fn thread<T: Send + 'static>(&self, f: impl FnOnce(&Self) -> T + Send + 'static) -> JoinHandle<T> {
        let world = self.clone();
        thread::spawn(move || f(&world))
    }

    /// The neighbour moves, and the cache is told. From then on nobody gets the old MAC.
    fn mover(&self, mac: u8) -> JoinHandle<()> {
        self.thread(move |world| {
            world.device.0.lock().unwrap().mac = mac;
            step();
            world.cache.invalidate(&AddressChange::Neighbour { ifindex: 1, ip: peer(1), mac: Some([mac; 6]) });
            world.expect_mac(mac);
        })
    }

    fn expect_mac(&self, mac: u8) {
        if let Ok(lease) = self.get(1) {
            assert_eq!(lease.link_layer().unwrap().mac, Some([mac; 6]), "it is stale");
        }
    }

    /// What there was has expired.
    fn expect_later_than(&self, generation: u64) {
        // Or the other one, whose resolution is waited for, takes longer than anybody waits.
        if let Ok(lease) = self.get(1) {
            assert!(lease.generation() > generation, "it has expired");
            self.use_and_put(lease);
        }
    }

    fn advance(&self, time: Duration) {
        self.device.0.lock().unwrap().now += time.as_nanos() as u64;
    }

    fn live(&self) -> usize {
        self.device.0.lock().unwrap().live.len()
    }

    /// All threads have ended.
    fn finish(self, threads: Vec<JoinHandle<()>>) {
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let counters = self.cache.counters();
        assert_eq!(counters.in_flight, 0);
        assert_eq!((counters.idle, counters.live), (counters.entries, counters.entries), "somebody still holds");
        assert_eq!(self.live() as u64, counters.entries);
        let made = self.device.0.lock().unwrap().made;
        let resolved = counters.misses + counters.requeries + counters.bypasses + counters.repeats - counters.failures;
        assert_eq!(made, resolved, "resolved for nobody");
        assert!(counters.entries <= self.cache.config().capacity.unwrap_or(9) as u64);
        let report = self.cache.close();
        assert_eq!((report.held, report.leases), (0, 0));
        assert_eq!(self.live(), 0, "address handles are left");
    }
}

fn infinite() -> AhCacheConfig {
    AhCacheConfig::default()
}

fn concurrent_gets_share() {
    let world = World::new(infinite());
    let threads = vec![world.user(&[1, 1]), world.user(&[1])];
    world.clone().finish(threads);
    assert_eq!(world.device.0.lock().unwrap().made, 1);
}

fn get_put_and_invalidate() {
    let world = World::new(infinite());
    drop(world.get(1).unwrap());
    world.clone().finish(vec![world.user(&[1, 1]), world.mover(1)]);
}

fn invalidated_while_it_is_resolved() {
    let world = World::new(infinite());
    world.clone().finish(vec![world.user(&[1]), world.mover(1), world.user(&[1])]);
}

fn two_moves() {
    let world = World::new(infinite());
    let first = world.thread(|world| {
        world.device.0.lock().unwrap().mac = 1;
        world.cache.invalidate(&AddressChange::Neighbour { ifindex: 1, ip: peer(1), mac: Some([1; 6]) });
    });
    let user = world.user(&[1, 1]);
    first.join().unwrap();
    world.expect_mac(1);
    world.clone().finish(vec![user, world.mover(2)]);
}

/// A lease that waits with its thread goes back when its entry is invalidated, and the thread that has it meanwhile loses nothing.
fn parked_and_taken_back() {
    let world = World::new(infinite());
    let user = world.thread(|world| {
        for _ in 0..2 {
            let lease = world.get(1).unwrap();
            world.check(&lease);
            let more = lease.clone();
            drop(lease);
            world.use_and_put(more);
        }
    });
    let other = world.thread(|world| {
        world.cache.invalidate_address(&world.pd, &AhAttr::roce(Gid::from(peer(1)), 0));
        let _ = world.cache.counters();
    });
    world.clone().finish(vec![user, other]);
}

/// Nothing stays with a thread that puts it while it is invalidated, though the thread does nothing more.
fn put_while_it_is_invalidated() {
    let world = World::new(infinite());
    let lease = world.get(1).unwrap();
    let invalidate = world.thread(|world| {
        world.cache.invalidate(&AddressChange::Unknown);
    });
    drop(lease);
    invalidate.join().unwrap();
    assert_eq!(world.live(), 0, "a thread has it at hand");
    world.finish(Vec::new());
}

/// More addresses than a thread has slots.
fn parked_in_the_place_of_another() {
    let world = World::new(infinite());
    let invalidate = world.thread(|world| {
        world.cache.invalidate(&AddressChange::Unknown);
    });
    world.clone().finish(vec![world.user(&[1, 2, 3, 1]), invalidate]);
}

/// A lease goes to another thread, which puts it.
fn put_by_another_thread() {
    let world = World::new(infinite());
    let lease = world.get(1).unwrap();
    let other = world.thread(move |world| {
        world.use_and_put(lease.clone());
        world.use_and_put(lease);
    });
    let invalidate = world.thread(|world| {
        world.cache.invalidate(&AddressChange::Port { port: 1 });
    });
    world.clone().finish(vec![other, world.user(&[1]), invalidate]);
}

fn expiry() {
    let world = World::new(AhCacheConfig { ttl: Ttl::Finite(SECOND), ..infinite() });
    drop(world.get(1).unwrap());
    let clock = world.thread(|world| {
        world.advance(2 * SECOND);
        step();
        world.cache.sweep();
    });
    world.clone().finish(vec![world.user(&[1, 1]), clock, world.user(&[1])]);
}

/// What is held does not expire, and is the same for all.
fn expiry_while_it_is_held() {
    let world = World::new(AhCacheConfig { ttl: Ttl::Finite(SECOND), ..infinite() });
    let held = world.get(1).unwrap();
    let generation = held.generation();
    let user = world.thread(move |world| {
        world.advance(2 * SECOND);
        let lease = world.get(1).unwrap();
        assert_eq!(lease.generation(), generation);
        drop(held);
        world.use_and_put(lease);
    });
    let clock = world.thread(|world| {
        step();
        world.cache.sweep();
    });
    world.clone().finish(vec![user, clock]);
}

/// Nobody gets what was idle for too long, though another thread that had it at hand asks for it, too, or lets go of it.
fn expired_for(other: impl FnOnce(&World) + Send + 'static) {
    let world = World::new(AhCacheConfig { ttl: Ttl::Finite(SECOND), ..infinite() });
    let owner = world.thread(move |world| {
        let first = world.get(1).unwrap().generation();
        world.advance(2 * SECOND);
        let user = world.thread(move |world| {
            world.expect_later_than(first);
        });
        other(world);
        user.join().unwrap();
    });
    world.finish(vec![owner]);
}

fn expired_for_two_threads() {
    expired_for(|world| world.expect_later_than(1));
}

fn expired_as_others_take_its_place() {
    expired_for(|world| [2, 3].into_iter().for_each(|n| drop(world.get(n))));
}

fn expired_as_it_is_counted() {
    expired_for(|world| drop(world.cache.counters()));
}

fn expired_as_its_thread_ends() {
    let world = World::new(AhCacheConfig { ttl: Ttl::Finite(SECOND), ..infinite() });
    let owner = world.thread(|world| {
        drop(world.get(1).unwrap());
        world.advance(2 * SECOND);
        // It ends while the other looks.
        world.thread(|world| world.expect_later_than(1))
    });
    let user = owner.join().unwrap();
    world.finish(vec![user]);
}

/// What two threads have at hand is swept, or is used by one of them.
fn swept_while_threads_have_it() {
    let world = World::new(AhCacheConfig { ttl: Ttl::Finite(SECOND), ..infinite() });
    let user = world.user(&[1, 1]);
    drop(world.get(1));
    world.advance(2 * SECOND);
    world.cache.sweep();
    world.finish(vec![user]);
}

fn largest_age() {
    let world = World::new(AhCacheConfig { max_age: Some(SECOND), ..infinite() });
    let held = world.get(1).unwrap();
    let clock = world.thread(|world| world.advance(2 * SECOND));
    let holder = world.thread(move |world| world.use_and_put(held));
    world.clone().finish(vec![world.user(&[1, 1]), clock, holder]);
}

fn eviction() {
    let world = World::new(AhCacheConfig { capacity: Some(1), ..infinite() });
    world.clone().finish(vec![world.user(&[1, 1]), world.user(&[2]), world.user(&[1])]);
}

/// T7: puts meet gets, evictions and expiry of the entry that they put. Whoever gets when all that there is has been put, gets.
fn t7_eviction_finds_what_was_put() {
    let world = World::new(AhCacheConfig { capacity: Some(1), ..infinite() });
    let held = world.get(1).unwrap();
    let putter = world.thread(move |world| world.use_and_put(held));
    let other = world.user(&[2]);
    putter.join().unwrap();
    other.join().unwrap();
    let lease = world.get(3).expect("nobody holds anything");
    world.use_and_put(lease);
    world.finish(Vec::new());
}

fn close() {
    let world = World::new(infinite());
    let held = world.get(2).unwrap();
    let closer = world.thread(|world| {
        world.cache.close();
        assert!(matches!(world.get(1), Err(AhError::Closed)));
    });
    let holder = world.thread(move |world| world.use_and_put(held));
    let threads = vec![world.user(&[1, 1]), closer, holder];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(world.live(), 0, "closed, and nobody holds");
}

/// T3: what a thread parks while the cache is closed does not stay with it, and what others hold does, until they put it.
fn t3_put_while_it_is_closed() {
    let world = World::new(infinite());
    let (lease, held) = (world.get(1).unwrap(), world.get(2).unwrap());
    let closer = world.thread(|world| {
        let report = world.cache.close();
        // Who is in the middle of a put counts as a holder.
        assert!(report.entries == 2 && (1..=2).contains(&report.held), "{report:?}");
    });
    let more = lease.clone();
    drop(lease);
    drop(more);
    closer.join().unwrap();
    assert_eq!(world.live(), 1, "a thread has it at hand, or a holder lost his");
    world.use_and_put(held);
    assert_eq!(world.live(), 0, "closed, and nobody holds");
}

fn failure() {
    let world = World::new(AhCacheConfig { capacity: Some(2), ..infinite() });
    world.device.0.lock().unwrap().failures = 1;
    world.clone().finish(vec![world.user(&[1]), world.user(&[1, 1]), world.user(&[2])]);
}

fn nobody_waits_any_more() {
    let world = World::new(AhCacheConfig { capacity: Some(1), ..infinite() });
    let asker = world.thread(|world| {
        let lookup = world.cache.try_get(&world.pd, &AhAttr::roce(Gid::from(peer(1)), 0));
        match lookup {
            Ok(AhLookup::Pending(pending)) => {
                step();
                let _ = pending.try_take();
            }
            Ok(AhLookup::Ready(lease)) => world.use_and_put(lease),
            Err(error) => assert!(matches!(error, AhError::Full { .. })),
        }
    });
    let user = world.user(&[1, 2]);
    asker.join().unwrap();
    user.join().unwrap();
    let resolving = std::mem::take(&mut world.device.0.lock().unwrap().resolving);
    world.finish(resolving);
}

fn bypass() {
    let world = World::new(AhCacheConfig { ttl: Ttl::Bypass, ..infinite() });
    let closer = world.thread(|world| {
        world.cache.close();
    });
    world.clone().finish(vec![world.user(&[1]), world.user(&[1]), closer]);
}

macro_rules! checked {
    ($($model:ident: $preemptions:expr;)*) => {
        mod all {
            $(#[test] fn $model() { super::exhaust($preemptions, super::$model); })*
        }

        mod some {
            $(#[test] fn $model() { super::sample(2000, super::$model); })*
        }
    };
}

checked! {
    concurrent_gets_share: 2;
    get_put_and_invalidate: 2;
    invalidated_while_it_is_resolved: 1;
    two_moves: 1;
    parked_and_taken_back: 2;
    put_while_it_is_invalidated: 3;
    parked_in_the_place_of_another: 2;
    put_by_another_thread: 1;
    expiry: 1;
    expiry_while_it_is_held: 2;
    expired_for_two_threads: 2;
    expired_as_others_take_its_place: 2;
    expired_as_it_is_counted: 2;
    expired_as_its_thread_ends: 2;
    swept_while_threads_have_it: 1;
    largest_age: 1;
    eviction: 1;
    t7_eviction_finds_what_was_put: 2;
    close: 1;
    t3_put_while_it_is_closed: 3;
    failure: 1;
    nobody_waits_any_more: 1;
    bypass: 2;
}
