use crate::world::{SECOND, World, ttl};
use ferroce_transport::ud::Cause;
use ferroce_verbs::ah_cache::ResolveCause;
use ferroce_verbs::{AhCacheConfig, AhError, Ttl};
use std::time::Duration;

/// T15: one more peer than there may be address handles. While all are held it cannot connect, and says why; once an endpoint has let go of
/// its own, the same endpoint connects.
#[test]
fn t15_one_more_peer_than_there_is_room_for() {
    let config = AhCacheConfig { capacity: Some(2), ..ttl(Ttl::Infinite) };
    let world = World::new(4, config);
    let (first, second) = (world.connect(0, 1), world.connect(0, 2));
    world.exchange(&first, 1, 1);
    world.exchange(&second, 2, 2);
    // More endpoints of peers that are known need no room.
    let third = world.connect(0, 1);
    world.exchange(&third, 1, 3);
    let late = world.connect(0, 3);
    world.send(&late, 4);
    world.run(5 * SECOND);
    assert!(!late.is_connected(world.address(3)) && late.failure().is_none());
    let why = world.hosts[0].interface.last_resolution_error();
    assert!(matches!(why, Some(AhError::Full { capacity: 2 })), "{why:?}");
    drop(second);
    world.until("room", || world.numbers(3, 0) == [4]);
    let counters = world.hosts[0].cache.counters();
    assert_eq!((counters.evictions, counters.live), (1, 2), "{counters:?}");
    // All are held for good: it fails in time.
    let never = world.connect(0, 2);
    world.run(31 * SECOND);
    let failure = never.failure().unwrap();
    assert_eq!((failure.cause, failure.evidence.resolution), (Cause::ConnectTimeout, Some(ResolveCause::NoResources)));
    assert!(first.failure().is_none() && third.failure().is_none() && late.failure().is_none());
    drop((first, third, late, never));
    world.ends();
}

/// Peers that begin and never go on, as somebody would who forges their packets, do not take the room of those that do: with address handles
/// that come at once, and with those that take a while.
#[test]
fn t15_strangers_leave_room_for_who_connects() {
    for delay in [Duration::ZERO, SECOND / 2] {
        let config = AhCacheConfig { capacity: Some(8), ..ttl(Ttl::Infinite) };
        let mut world = World::slow(32, config, delay);
        // They send once, and look at nothing that comes.
        let strangers = world.hosts.split_off(2);
        let begun: Vec<_> = strangers.iter().map(|host| host.interface.connect(world.address(0)).unwrap()).collect();
        world.run(delay);
        for host in &strangers {
            host.resolver.progress();
            host.interface.progress().unwrap();
        }
        world.run(SECOND);
        let counters = world.hosts[0].interface.counters();
        assert_eq!(counters.endpoints, strangers.len(), "they have begun");
        assert!(counters.leases <= 4, "{counters:?}");
        let begin = world.network.now();
        let honest = world.connect(0, 1);
        world.exchange(&honest, 1, 1);
        let back = world.connect(1, 0);
        world.exchange(&back, 0, 2);
        let took = world.network.now() - begin;
        assert!(took < 4 * SECOND, "{delay:?}: {took:?}");
        drop((honest, back, begun, strangers));
        world.ends();
    }
}

/// T11: who a peer is does not depend on what became of the entry that its address handle came from.
#[test]
fn t11_identity_after_eviction_and_at_every_time_to_live() {
    let bounded = AhCacheConfig { capacity: Some(1), ..ttl(Ttl::Infinite) };
    let aged = AhCacheConfig { max_age: Some(Duration::from_millis(1)), ..ttl(Ttl::Infinite) };
    let expiring = [Ttl::Bypass, Ttl::Finite(Duration::from_millis(1)), Ttl::Infinite].map(ttl);
    for config in expiring.into_iter().chain([bounded, aged]) {
        let world = World::new(3, config);
        let endpoint = world.connect(0, 1);
        world.exchange(&endpoint, 1, 1);
        for number in 2..10 {
            world.run(SECOND / 10);
            if config.capacity.is_none() {
                // Others come and go, and the entry with them.
                let other = world.connect(0, 2);
                world.exchange(&other, 2, number);
            }
            world.hosts[0].cache.sweep();
            world.exchange(&endpoint, 1, number);
            let second = world.connect(0, 1);
            world.exchange(&second, 1, 100 + number);
            for endpoint in [&endpoint, &second] {
                assert!(endpoint.is_connected(world.address(1)), "{config:?}");
                assert!(!endpoint.is_connected(world.address(2)) && !endpoint.is_connected(world.address(0)));
            }
        }
        // All of them came from one peer, whichever address handle they were sent with.
        assert_eq!(world.numbers(1, 0).len(), 17);
        drop(endpoint);
        world.ends();
    }
}

/// T19: endpoints of one interface to one address share an entry; those of another interface, which has another protection domain, do not.
#[test]
fn t19_what_is_shared_is_what_the_address_says() {
    let world = World::new(3, ttl(Ttl::Infinite));
    let same: Vec<_> = (0..5).map(|_| world.connect(0, 1)).collect();
    let other = world.connect(0, 2);
    world.run(SECOND / 10);
    assert_eq!(world.hosts[0].cache.counters().live, 2);
    let options = ferroce_transport::ud_verbs::UdOptions::default();
    let second = ferroce_transport::ud_verbs::UdVerbs::open(&world.hosts[0].context, options).unwrap();
    let elsewhere = second.connect(world.address(1)).unwrap();
    second.progress().unwrap();
    assert_eq!(world.hosts[0].cache.counters().live, 3);
    drop((elsewhere, second));
    drop((same, other));
    world.ends();
}
