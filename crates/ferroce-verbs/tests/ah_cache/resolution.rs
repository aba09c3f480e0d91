use crate::device::{IFINDEX, MAC_A, MAC_B, Mac, peer, to};
use crate::support::{Stuck, ThreeSeconds, block_on};
use crate::{MILLI, SECOND, World};
use ferroce_verbs::ah_cache::{AhResolver, ResolveCause};
use ferroce_verbs::{AddressChange, Ah, AhAttr, AhCacheConfig, AhError, AhLookup, Error, Gid, Pd, Result};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

fn os(errno: i32) -> Error {
    Error::os("creating an address handle", io::Error::from_raw_os_error(errno))
}

#[test]
fn t16_failures_have_their_causes_and_are_not_kept() {
    let world = World::new(AhCacheConfig::default());
    let failures: [(fn() -> Error, ResolveCause); 6] = [
        (|| os(libc::ETIMEDOUT), ResolveCause::Timeout),
        (|| os(libc::EHOSTUNREACH), ResolveCause::Unreachable),
        (|| os(libc::ENETUNREACH), ResolveCause::Unreachable),
        (|| os(libc::ENOMEM), ResolveCause::NoResources),
        (|| os(libc::EINVAL), ResolveCause::Invalid),
        (|| Error::invalid("dgid", "it is no address"), ResolveCause::Invalid),
    ];
    for (failure, cause) in failures {
        world.device.fail(Some(failure));
        let error = world.cache.get(&world.pd, &to(1)).unwrap_err();
        assert_eq!(error.cause(), cause, "{error}");
        assert!(error.to_string().contains("10.0.0.1"), "{error}");
        assert!(error.to_string().contains(&failure().to_string()), "{error}");
    }
    world.device.fail(None);
    assert!(world.cache.get(&world.pd, &to(1)).is_ok());
    let counters = world.cache.counters();
    assert_eq!((counters.failures, counters.misses, counters.live), (6, 7, 1));
}

#[test]
fn t16_t17_who_asks_for_the_same_waits_and_others_do_not() {
    let stuck = Stuck::on(to(1));
    let world = World::with(AhCacheConfig::default(), |options, _| options.resolver(stuck.clone()));
    std::thread::scope(|scope| {
        let same: Vec<_> = (0..4).map(|_| scope.spawn(|| world.cache.get(&world.pd, &to(1)).unwrap())).collect();
        stuck.wait_until_inside();
        // All that can be done to the cache while it resolves.
        for n in 2..1000 {
            drop(world.cache.get(&world.pd, &to(n)).unwrap());
        }
        assert_eq!(world.cache.counters().in_flight, 1);
        assert_eq!(world.cache.sweep(), 0);
        assert!(world.cache.invalidate_address(&world.pd, &to(2)));
        while world.cache.counters().shared_waits < 3 {
            std::thread::yield_now();
        }
        stuck.let_go();
        let leases: Vec<_> = same.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(leases.iter().all(|lease| lease.generation() == leases[0].generation()));
    });
    assert_eq!(stuck.begun(), 1);
    let counters = world.cache.counters();
    assert_eq!((counters.idle, counters.entries, counters.in_flight), (998, 998, 0));
}

/// Fails for everybody who wants this address, once all have asked.
struct Failing(Stuck, AhAttr);

impl AhResolver for Failing {
    fn resolve(&self, pd: &Pd, attr: &AhAttr) -> Result<Ah> {
        let ah = self.0.resolve(pd, attr);
        if *attr != self.1 {
            return ah;
        }
        Err(os(libc::EHOSTUNREACH))
    }
}

#[test]
fn t16_a_failure_goes_to_all_who_waited() {
    let stuck = Stuck::on(to(1));
    let world = World::with(AhCacheConfig::default(), |options, _| options.resolver(Failing(stuck.clone(), to(1))));
    std::thread::scope(|scope| {
        let same: Vec<_> = (0..4).map(|_| scope.spawn(|| world.cache.get(&world.pd, &to(1)).unwrap_err())).collect();
        while world.cache.counters().shared_waits < 3 {
            std::thread::yield_now();
        }
        stuck.let_go();
        let errors: Vec<_> = same.into_iter().map(|thread| thread.join().unwrap()).collect();
        let AhError::Resolve { source: first, .. } = &errors[0] else { panic!("{:?}", errors[0]) };
        for error in &errors {
            assert_eq!(error.cause(), ResolveCause::Unreachable);
            let AhError::Resolve { source, .. } = error else { panic!("{error:?}") };
            assert!(Arc::ptr_eq(source, first), "it is one failure");
        }
    });
    let counters = world.cache.counters();
    assert_eq!((stuck.begun(), counters.failures, counters.entries, counters.in_flight), (1, 1, 0, 0));
}

#[test]
fn t17_three_seconds_of_virtual_time() {
    let mut resolver = None;
    let world = World::with(AhCacheConfig::default(), |options, clock| {
        let slow = resolver.insert(ThreeSeconds::new(clock));
        options.resolver(slow.clone())
    });
    let resolver = resolver.unwrap();
    let try_get = |n| world.cache.try_get(&world.pd, &to(n)).unwrap();
    let (AhLookup::Pending(first), AhLookup::Pending(second)) = (try_get(1), try_get(1)) else { panic!("at once?") };
    world.clock.advance(2 * SECOND);
    let AhLookup::Pending(other) = try_get(2) else { panic!("at once?") };
    resolver.progress();
    assert!(first.try_take().is_none() && second.try_take().is_none());
    world.clock.advance(SECOND);
    resolver.progress();
    let first = first.try_take().unwrap().unwrap();
    assert_eq!(second.try_take().unwrap().unwrap().generation(), first.generation());
    assert!(matches!(try_get(1), AhLookup::Ready(lease) if lease.generation() == first.generation()));
    assert!(other.try_take().is_none());
    world.clock.advance(2 * SECOND);
    resolver.progress();
    assert!(block_on(other).is_ok());
    assert_eq!(resolver.begun(), 2);
    let times = world.cache.counters().resolution;
    assert_eq!(times.count(), 2);
    assert!(times.quantile(1.0).unwrap() >= 3 * SECOND && times.quantile(0.0).unwrap() <= 6 * SECOND);
}

#[test]
fn a_future_wakes_when_the_address_is_there() {
    let stuck = Stuck::on(to(1));
    let world = World::with(AhCacheConfig::default(), |options, _| options.resolver(stuck.clone()));
    std::thread::scope(|scope| {
        let futures: Vec<_> =
            (0..2).map(|_| scope.spawn(|| block_on(world.cache.get_async(&world.pd, &to(1))).unwrap())).collect();
        stuck.wait_until_inside();
        while world.cache.counters().shared_waits < 1 {
            std::thread::yield_now();
        }
        stuck.let_go();
        let leases: Vec<_> = futures.into_iter().map(|future| future.join().unwrap()).collect();
        assert_eq!(leases[0].generation(), leases[1].generation());
    });
    assert_eq!(stuck.begun(), 1);
    assert!(block_on(world.cache.get_async(&world.pd, &to(1))).is_ok());
    // With TTL 0 everybody has a future of their own.
}

#[test]
fn whoever_stops_waiting_stops_nobody_else() {
    let mut resolver = None;
    let world = World::with(AhCacheConfig { capacity: Some(1), ..AhCacheConfig::default() }, |options, clock| {
        options.resolver(resolver.insert(ThreeSeconds::new(clock)).clone())
    });
    let resolver = resolver.unwrap();
    let AhLookup::Pending(left) = world.cache.try_get(&world.pd, &to(1)).unwrap() else { panic!("at once?") };
    let AhLookup::Pending(stays) = world.cache.try_get(&world.pd, &to(1)).unwrap() else { panic!("at once?") };
    drop(left);
    assert!(matches!(world.cache.try_get(&world.pd, &to(2)), Err(AhError::Full { .. })), "what comes needs its room");
    world.clock.advance(3 * SECOND);
    resolver.progress();
    drop(block_on(stays).unwrap());
    assert_eq!(world.cache.counters().idle, 1);
    assert!(world.cache.try_get(&world.pd, &to(2)).is_ok(), "nobody holds it");
}

#[test]
fn a_resolver_that_gives_up_fails_those_who_wait() {
    let mut resolver = None;
    let world = World::with(AhCacheConfig { capacity: Some(1), ..AhCacheConfig::default() }, |options, clock| {
        options.resolver(resolver.insert(ThreeSeconds::new(clock)).clone())
    });
    let resolver = resolver.unwrap();
    let AhLookup::Pending(pending) = world.cache.try_get(&world.pd, &to(1)).unwrap() else { panic!("at once?") };
    resolver.give_up();
    let error = pending.try_take().unwrap().unwrap_err();
    assert!(error.to_string().contains("gave up"), "{error}");
    assert_eq!(world.cache.counters().in_flight, 0);
    assert!(matches!(world.cache.try_get(&world.pd, &to(2)), Ok(AhLookup::Pending(_))), "its room is free again");
}

#[test]
fn waiting_for_another_has_a_limit() {
    let stuck = Stuck::on(to(1));
    let world = World::with(AhCacheConfig { wait_limit: MILLI, ..AhCacheConfig::default() }, |options, _| {
        options.resolver(stuck.clone())
    });
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| world.cache.get(&world.pd, &to(1)).map(drop));
        stuck.wait_until_inside();
        let error = world.cache.get(&world.pd, &to(1)).unwrap_err();
        assert!(matches!(error, AhError::Wait { .. }), "{error}");
        assert_eq!(error.cause(), ResolveCause::Timeout);
        stuck.let_go();
        leader.join().unwrap().unwrap();
    });
}

#[test]
fn t9_an_address_that_moves_while_it_is_resolved_is_resolved_again() {
    let stuck = Stuck::on(to(1));
    let world = World::with(AhCacheConfig::default(), |options, _| options.resolver(stuck.clone()));
    world.device.set_mac(peer(1), MAC_A);
    std::thread::scope(|scope| {
        let get = scope.spawn(|| world.cache.get(&world.pd, &to(1)).unwrap());
        stuck.wait_until_inside();
        world.device.move_to(peer(1), MAC_B);
        // That does not concern it.
        world.device.move_to(peer(2), MAC_A);
        stuck.let_go();
        assert_eq!(get.join().unwrap().link_layer().unwrap().mac, Some(MAC_B));
    });
    assert_eq!((stuck.begun(), world.cache.counters().repeats), (2, 1));
}

#[test]
fn what_does_not_concern_an_address_while_it_is_resolved_costs_nothing() {
    let stuck = Stuck::on(to(1));
    let world = World::with(AhCacheConfig::default(), |options, _| options.resolver(stuck.clone()));
    world.device.set_mac(peer(1), MAC_A);
    std::thread::scope(|scope| {
        let get = scope.spawn(|| world.cache.get(&world.pd, &to(1)).unwrap());
        stuck.wait_until_inside();
        for n in 2..1000 {
            world.device.move_to(peer(n), MAC_B);
            world.device.move_to(peer(n), MAC_A);
        }
        for n in 1..100 {
            world.device.tell(&AddressChange::Gid { port: 1, index: n, gid: Gid::from(peer(5000 + n)) });
            world.device.tell(&AddressChange::Port { port: 1 + n as u8 });
            world.device.tell(&AddressChange::Route { prefix: peer(n << 8), prefix_len: 24 });
        }
        // That it has this MAC is what the resolution finds out, and the kernel announces.
        world.device.move_to(peer(1), MAC_A);
        stuck.let_go();
        assert!(get.join().unwrap().is_cached());
    });
    assert_eq!((stuck.begun(), world.cache.counters().repeats), (1, 0));
    assert!(world.cache.get(&world.pd, &to(1)).unwrap().is_cached());
    assert_eq!(stuck.begun(), 1);
}

/// Fails each time, after something was told.
struct FailsAs(crate::device::Device, fn() -> Vec<AddressChange>, Arc<AtomicUsize>);

impl AhResolver for FailsAs {
    fn resolve(&self, _: &Pd, _: &AhAttr) -> Result<Ah> {
        self.2.fetch_add(1, SeqCst);
        self.1().iter().for_each(|change| self.0.tell(change));
        Err(os(libc::ETIMEDOUT))
    }
}

/// How often an address is resolved that fails while this changes.
fn attempts(changes: fn() -> Vec<AddressChange>) -> usize {
    let begun = Arc::<AtomicUsize>::default();
    let device = crate::device::Device::default();
    let context = device.open();
    let resolver = FailsAs(device.clone(), changes, begun.clone());
    let options = ferroce_verbs::AhCacheOptions::new(AhCacheConfig::default()).resolver(resolver);
    let cache = context.ah_cache_with(options).unwrap();
    let error = cache.get(&context.alloc_pd().unwrap(), &to(1)).unwrap_err();
    assert_eq!(error.cause(), ResolveCause::Timeout);
    assert_eq!(cache.counters().failures, 1);
    begun.load(SeqCst)
}

#[test]
fn t16_a_failure_is_repeated_once_and_only_for_what_may_mend_it() {
    fn neighbour(ip: IpAddr, mac: Option<Mac>) -> AddressChange {
        AddressChange::Neighbour { ifindex: IFINDEX, ip, mac }
    }
    assert_eq!(attempts(Vec::new), 1);
    // What the kernel announces of a neighbour that does not answer, and the life of others.
    assert_eq!(attempts(|| vec![neighbour(peer(1), None), neighbour(peer(2), Some(MAC_A))]), 1);
    assert_eq!(attempts(|| vec![neighbour(peer(1), Some(MAC_A)), neighbour(peer(1), None)]), 1);
    assert_eq!(attempts(|| (2..100).map(|n| neighbour(peer(n), Some(MAC_A))).collect()), 1);
    assert_eq!(attempts(|| vec![AddressChange::Port { port: 2 }]), 1);
    assert_eq!(attempts(|| vec![AddressChange::Route { prefix: peer(256), prefix_len: 24 }]), 1);
    let mending: [fn() -> Vec<AddressChange>; 5] = [
        || vec![neighbour(peer(1), Some(MAC_A))],
        || vec![AddressChange::Port { port: 1 }],
        || vec![AddressChange::Gid { port: 1, index: 0, gid: Gid::from(peer(9)) }],
        || vec![AddressChange::Route { prefix: peer(0), prefix_len: 24 }],
        || vec![AddressChange::Unknown],
    ];
    for changes in mending {
        assert_eq!(attempts(changes), 2, "{:?}", changes());
    }
}

#[test]
fn t16_a_failure_behind_a_router_is_repeated_when_that_answers() {
    let router = peer(1000);
    let mut begun = None;
    let world = World::with(AhCacheConfig::default(), |options, _| {
        begun = Some(Stuck::on(to(2)));
        options.resolver(Failing(begun.clone().unwrap(), to(2)))
    });
    let stuck = begun.unwrap();
    world.device.set_mac(router, MAC_A);
    world.device.set_router(router);
    drop(world.cache.get(&world.pd, &to(1)).unwrap());
    std::thread::scope(|scope| {
        let get = scope.spawn(|| world.cache.get(&world.pd, &to(2)).map(drop).unwrap_err());
        stuck.wait_until_inside();
        world.device.move_to(router, MAC_B);
        stuck.let_go();
        get.join().unwrap();
    });
    assert_eq!(stuck.begun(), 2);
}

/// The neighbour moves each time that somebody looks.
struct Restless(crate::device::Device);

impl AhResolver for Restless {
    fn resolve(&self, pd: &Pd, attr: &AhAttr) -> Result<Ah> {
        let ah = pd.create_ah(attr)?;
        let mac = [2, 1, 0, 0, 0, self.0.made() as u8];
        self.0.move_to(peer(1), mac);
        Ok(ah)
    }
}

#[test]
fn an_address_that_never_rests_is_not_kept() {
    let device = crate::device::Device::default();
    let context = device.open();
    let pd = context.alloc_pd().unwrap();
    let options = ferroce_verbs::AhCacheOptions::new(AhCacheConfig::default()).resolver(Restless(device.clone()));
    let cache = context.ah_cache_with(options).unwrap();
    let lease = cache.get(&pd, &to(1)).unwrap();
    assert!(!lease.is_cached());
    let counters = cache.counters();
    assert_eq!((counters.entries, counters.repeats), (0, 8));
}
