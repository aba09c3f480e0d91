use crate::world::{MILLI, SECOND, TTLS, World, ttl};
use ferroce_transport::ud::Cause;
use ferroce_verbs::ah_cache::ResolveCause;
use ferroce_verbs::{Error, Ttl};
use std::time::Duration;

/// T4: whether an address was resolved anew shows in counters and generations, never in where an object is.
#[test]
fn t4_an_endpoint_after_the_ttl_has_another_resolution() {
    let world = World::new(2, ttl(Ttl::Finite(SECOND)));
    let requeries = || world.hosts[0].cache.counters().requeries;
    for (number, (pause, expected)) in [(0, 0), (900, 0), (1100, 1), (900, 1), (1100, 2)].into_iter().enumerate() {
        world.run(pause * MILLI);
        let endpoint = world.connect(0, 1);
        world.exchange(&endpoint, 1, number as u32);
        assert_eq!(requeries(), expected, "after {pause} ms");
        drop(endpoint);
        world.until("the end", || world.hosts[0].interface.counters().endpoints == 0);
    }
    assert_eq!(world.hosts[0].cache.counters().misses, 1);
    world.ends();
}

/// T5: a long-lived endpoint is not disturbed by the expiry of the address that it was made with, nor by others that resolve it anew.
#[test]
fn t5_expiry_does_not_disturb_an_endpoint() {
    for ttl_of in TTLS {
        let world = World::new(2, ttl(ttl_of));
        let long = world.connect(0, 1);
        for round in 0..20 {
            world.exchange(&long, 1, 2 * round);
            world.run(2 * SECOND);
            let short = world.connect(0, 1);
            world.exchange(&short, 1, 2 * round + 1);
        }
        assert_eq!(world.numbers(1, 0), (0..40).collect::<Vec<_>>());
        assert!(long.failure().is_none() && long.is_connected(world.address(1)));
        drop(long);
        world.ends();
    }
}

/// T6: what connecting costs in resolutions, at each time to live.
#[test]
fn t6_how_often_connecting_resolves() {
    for (ttl_of, resolutions) in [(Ttl::Bypass, 30), (Ttl::Finite(SECOND), 10), (Ttl::Infinite, 1)] {
        let world = World::new(2, ttl(ttl_of));
        for number in 0..30 {
            let endpoint = world.connect(0, 1);
            world.exchange(&endpoint, 1, number);
            drop(endpoint);
            world.until("the end", || world.hosts[0].interface.counters().endpoints == 0);
            // Every third pause is longer than the TTL.
            world.run(if number % 3 == 2 { 2 * SECOND } else { SECOND / 4 });
        }
        let counters = world.hosts[0].cache.counters();
        assert_eq!(counters.misses + counters.requeries + counters.bypasses, resolutions, "{ttl_of}");
        world.ends();
    }
}

/// T7: endpoints that are let go of while others of the same peer are made: the entry that they put is the one that others get.
#[test]
fn t7_an_entry_that_is_put_is_still_in_the_map() {
    let world = World::new(2, ttl(Ttl::Finite(SECOND)));
    let mut open = Vec::new();
    for number in 0..100 {
        open.push(world.connect(0, 1));
        world.send(open.last().unwrap(), number);
        if open.len() > 3 {
            drop(open.remove(0));
        }
        world.run(50 * MILLI);
    }
    let counters = world.hosts[0].cache.counters();
    assert_eq!((counters.misses, counters.requeries, counters.live), (1, 0, 1), "{counters:?}");
    assert_eq!(world.numbers(1, 0), (0..100).collect::<Vec<_>>());
    drop(open);
    world.ends();
}

/// T8: an endpoint meets a hit, an expired entry or a miss, and always has an address handle afterwards.
#[test]
fn t8_a_hit_an_expired_entry_and_a_miss() {
    let world = World::slow(3, ttl(Ttl::Finite(SECOND)), 5 * MILLI);
    let counted = || {
        let counters = world.hosts[0].cache.counters();
        (counters.misses, counters.hits, counters.requeries)
    };
    let first = world.connect(0, 1);
    world.exchange(&first, 1, 1);
    assert_eq!(counted(), (1, 0, 0));
    let second = world.connect(0, 1);
    world.exchange(&second, 1, 2);
    assert_eq!(counted(), (1, 1, 0));
    drop((first, second));
    world.until("the end", || world.hosts[0].interface.counters().endpoints == 0);
    world.run(2 * SECOND);
    let third = world.connect(0, 1);
    world.exchange(&third, 1, 3);
    assert_eq!(counted(), (1, 1, 1));
    assert_eq!(world.hosts[0].interface.counters().leases, 1);
    drop(third);
    world.ends();
}

/// T14: a storm of short-lived endpoints makes one address handle for each peer and TTL, at both ends.
#[test]
fn t14_a_storm_of_endpoints_resolves_each_peer_once() {
    let world = World::new(4, ttl(Ttl::Finite(60 * SECOND)));
    for round in 0..50 {
        let endpoints: Vec<_> = (1..4).map(|peer| world.connect(0, peer)).collect();
        for endpoint in &endpoints {
            world.send(endpoint, round);
        }
        drop(endpoints);
        world.run(10 * MILLI);
    }
    for (host, peers) in [(0, 3), (1, 1), (2, 1), (3, 1)] {
        let counters = world.hosts[host].cache.counters();
        assert_eq!((counters.misses, counters.requeries), (peers, 0), "host {host}: {counters:?}");
    }
    world.ends();
}

/// T16, T17: a resolution takes three seconds; endpoints to that peer share it, and others are not held up.
#[test]
fn t16_t17_a_resolution_of_three_seconds_holds_up_nobody_else() {
    let world = World::slow(3, ttl(Ttl::Infinite), 3 * SECOND);
    let begin = world.network.now();
    let other = world.connect(0, 2);
    world.exchange(&other, 2, 0);
    // There and back.
    let took = world.network.now() - begin;
    assert!((6 * SECOND..7 * SECOND).contains(&took), "{took:?}");
    let slow: Vec<_> = (0..10).map(|_| world.connect(0, 1)).collect();
    for (number, endpoint) in slow.iter().enumerate() {
        world.send(endpoint, number as u32);
    }
    let sleeps = world.hosts[0].interface.next_timeout().unwrap();
    assert!(sleeps <= MILLI, "an address may be there at any time: {sleeps:?}");
    // Others go on meanwhile.
    for number in 1..500 {
        world.exchange(&other, 2, number);
    }
    assert!(world.network.now() - begin < 9 * SECOND && world.numbers(1, 0).is_empty());
    world.until("the messages", || world.numbers(1, 0).len() == 10);
    let counters = world.hosts[0].cache.counters();
    assert_eq!((counters.misses, counters.shared_waits), (2, 9), "{counters:?}");
    drop((other, slow));
    world.ends();
}

/// T16: what no time will change fails the endpoint at once, with the reason; what may be over soon does not, and then it connects.
#[test]
fn t16_failures_have_their_causes() {
    fn os(kind: std::io::ErrorKind) -> Error {
        Error::Os { what: "resolving".into(), source: kind.into() }
    }
    type Failure = (fn() -> Error, ResolveCause);
    let causes: [Failure; 4] = [
        (|| os(std::io::ErrorKind::TimedOut), ResolveCause::Timeout),
        (|| os(std::io::ErrorKind::HostUnreachable), ResolveCause::Unreachable),
        (|| Error::invalid("address", "there is none"), ResolveCause::Invalid),
        (|| os(std::io::ErrorKind::OutOfMemory), ResolveCause::NoResources),
    ];
    for delay in [Duration::ZERO, 5 * MILLI] {
        for (error, cause) in causes {
            let world = World::slow(2, ttl(Ttl::Infinite), delay);
            *world.hosts[0].resolver.failure.lock().unwrap() = Some(error);
            let endpoint = world.connect(0, 1);
            // It may have failed already.
            let _ = endpoint.am(3, &1_u32.to_be_bytes());
            world.run(SECOND);
            let known = world.hosts[0].interface.last_resolution_error().map(|error| error.cause());
            assert_eq!(known, Some(cause), "{delay:?}");
            let seen = endpoint.failure().and_then(|failure| failure.evidence.resolution);
            assert!(seen == Some(cause) || cause == ResolveCause::NoResources, "{seen:?} is not {cause:?}");
            *world.hosts[0].resolver.failure.lock().unwrap() = None;
            if cause == ResolveCause::NoResources {
                world.until("the message", || world.numbers(1, 0) == [1]);
                assert!(endpoint.failure().is_none());
            } else {
                assert_eq!(endpoint.failure().unwrap().cause, Cause::Unreachable);
                // It is not kept.
                let second = world.connect(0, 1);
                world.exchange(&second, 1, 2);
            }
            drop(endpoint);
            world.ends();
        }
    }
}

/// T16: whose address could not be resolved knows why, whatever became of others at the same time.
#[test]
fn t16_endpoints_that_fail_together_have_each_its_own_cause() {
    fn os(kind: std::io::ErrorKind) -> Error {
        Error::Os { what: "resolving".into(), source: kind.into() }
    }
    for delay in [Duration::ZERO, 5 * MILLI] {
        let world = World::slow(4, ttl(Ttl::Infinite), delay);
        let begin = |peer, failure: fn() -> Error| {
            *world.hosts[0].resolver.failure.lock().unwrap() = Some(failure);
            let endpoint = world.connect(0, peer);
            // Its packet leaves for an address handle.
            world.hosts[0].interface.progress().unwrap();
            endpoint
        };
        let late = begin(1, || os(std::io::ErrorKind::TimedOut));
        let lost = begin(2, || os(std::io::ErrorKind::HostUnreachable));
        let poor = begin(3, || os(std::io::ErrorKind::OutOfMemory));
        world.run(31 * SECOND);
        let of = |endpoint: &ferroce_transport::ud_verbs::UdEndpoint| {
            let failure = endpoint.failure().expect("it fails");
            (failure.cause, failure.evidence.resolution.unwrap())
        };
        assert_eq!(of(&late), (Cause::Unreachable, ResolveCause::Timeout));
        assert_eq!(of(&lost), (Cause::Unreachable, ResolveCause::Unreachable));
        assert_eq!(of(&poor), (Cause::ConnectTimeout, ResolveCause::NoResources));
        let common = ferroce_transport::uct::Endpoint::failure(&lost).unwrap();
        assert_eq!(common.evidence.resolution, Some(ResolveCause::Unreachable));
        assert!(common.to_string().contains("could not be resolved"), "{common}");
        drop((late, lost, poor));
        world.ends();
    }
}
