use crate::device::{MAC_A, MAC_B, peer, to};
use crate::support::Steps;
use crate::{MILLI, SECOND, World, ttl};
use ferroce_verbs::{AhCacheConfig, Ttl};
use std::time::Duration;

/// A cache whose cheap clock goes in steps of 4 ms, and how its first entry is used again: whether after `idle`, which begins a while
/// after a step.
fn is_hit_after(config: AhCacheConfig, begin: Duration, idle: Duration) -> bool {
    let world = World::with(config, |options, clock| options.clock(Steps(clock.clone(), 4 * MILLI)));
    world.clock.advance(begin);
    let first = world.cache.get(&world.pd, &to(1)).unwrap().generation();
    world.clock.advance(idle);
    world.cache.get(&world.pd, &to(1)).unwrap().generation() == first
}

#[test]
fn t4_a_coarse_clock_makes_nothing_last_longer() {
    let micros = Duration::from_micros;
    for begin in (0..4000).step_by(100).map(micros) {
        for config in [ttl(Ttl::Finite(SECOND)), AhCacheConfig { max_age: Some(SECOND), ..AhCacheConfig::default() }] {
            assert!(!is_hit_after(config, begin, SECOND + micros(1)), "after {begin:?}");
            assert!(is_hit_after(config, begin, SECOND - 8 * MILLI), "after {begin:?}");
        }
        // What is short against its steps is measured by the other.
        let short = ttl(Ttl::Finite(99 * MILLI));
        assert!(!is_hit_after(short, begin, 99 * MILLI + micros(1)) && is_hit_after(short, begin, 99 * MILLI));
    }
}

#[test]
fn what_several_threads_used_expires_for_all() {
    let world = World::new(ttl(Ttl::Finite(SECOND)));
    let get = || world.cache.get(&world.pd, &to(1)).unwrap().generation();
    let first = get();
    let (begin, end) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(get(), first);
            begin.wait();
            end.wait();
            get()
        });
        begin.wait();
        // The other one put it last, and has it at hand.
        world.clock.advance(SECOND);
        assert_eq!(get(), first);
        world.clock.advance(SECOND);
        assert_eq!(get(), first);
        world.clock.advance(SECOND + MILLI);
        let second = get();
        assert!(second > first);
        assert_eq!(world.device.live(), 1, "no thread has the old one");
        end.wait();
    });
    assert_eq!(world.device.made(), 2);
}

#[test]
fn t4_what_was_idle_for_longer_than_the_ttl_is_resolved_anew() {
    let world = World::new(ttl(Ttl::Finite(SECOND)));
    let get = || world.cache.get(&world.pd, &to(1)).unwrap();
    let first = get().generation();
    world.clock.advance(SECOND);
    assert_eq!(get().generation(), first, "exactly the TTL is not longer");
    world.clock.advance(SECOND + MILLI);
    let second = get().generation();
    assert!(second > first, "the generation tells, whatever object is where");
    let counters = world.cache.counters();
    assert_eq!((counters.misses, counters.requeries, counters.entries, counters.live), (1, 1, 1, 1));
}

#[test]
fn the_ttl_counts_from_the_last_put() {
    let world = World::new(ttl(Ttl::Finite(SECOND)));
    let held = world.cache.get(&world.pd, &to(1)).unwrap();
    let more = held.clone();
    world.clock.advance(100 * SECOND);
    assert_eq!(world.cache.get(&world.pd, &to(1)).unwrap().generation(), held.generation(), "shared while held");
    let generation = held.generation();
    drop(held);
    world.clock.advance(100 * SECOND);
    drop(more);
    world.clock.advance(SECOND);
    assert_eq!(world.cache.get(&world.pd, &to(1)).unwrap().generation(), generation);
    world.clock.advance(SECOND + MILLI);
    assert_ne!(world.cache.get(&world.pd, &to(1)).unwrap().generation(), generation);
}

#[test]
fn t1_t2_who_holds_an_address_handle_has_it_whatever_becomes_of_its_entry() {
    for config in [ttl(Ttl::Bypass), ttl(Ttl::Finite(MILLI)), ttl(Ttl::Infinite)] {
        let world = World::new(AhCacheConfig { max_age: Some(5 * MILLI), ..config });
        world.device.set_mac(peer(1), MAC_A);
        // An endpoint and what it has posted.
        let endpoint = world.cache.get(&world.pd, &to(1)).unwrap();
        let posted: Vec<_> = (0..10).map(|_| endpoint.clone()).collect();
        let ah = endpoint.ah().clone();
        // It lingers; meanwhile the address expires, and moves, and others come and go.
        drop(endpoint);
        for _ in 0..20 {
            world.clock.advance(3 * MILLI);
            drop(world.cache.get(&world.pd, &to(1)).unwrap());
        }
        world.device.set_mac(peer(1), MAC_B);
        world.cache.invalidate_address(&world.pd, &to(1));
        world.cache.sweep();
        for lease in &posted {
            assert_eq!(lease.ah(), &ah);
            assert_eq!(lease.link_layer().unwrap().mac, Some(MAC_A));
        }
        assert!(world.device.live() >= 1);
        drop((posted, ah));
        world.cache.sweep();
        world.cache.invalidate_address(&world.pd, &to(1));
        assert_eq!(world.device.live(), 0, "{config:?}");
    }
}

#[test]
fn t5_what_was_copied_from_an_address_handle_is_not_disturbed_when_it_expires() {
    let world = World::new(ttl(Ttl::Finite(SECOND)));
    world.device.set_mac(peer(1), MAC_A);
    // A queue pair's path: looked at, copied, put; and an endpoint that goes on with what it leased.
    let copy = world.cache.get(&world.pd, &to(1)).unwrap().link_layer();
    let endpoint = world.cache.get(&world.pd, &to(1)).unwrap();
    let (ah, made) = (endpoint.ah().clone(), world.device.made());
    for _ in 0..10 {
        world.clock.advance(2 * SECOND);
        world.cache.sweep();
        // Whoever comes meanwhile shares it, as it is held.
        assert_eq!(world.cache.get(&world.pd, &to(1)).unwrap().ah(), &ah);
    }
    assert_eq!((world.device.made(), world.device.live()), (made, 1));
    assert_eq!((endpoint.link_layer(), endpoint.ah()), (copy, &ah));
    drop((endpoint, ah));
    world.clock.advance(2 * SECOND);
    world.device.set_mac(peer(1), MAC_B);
    let next = world.cache.get(&world.pd, &to(1)).unwrap();
    assert_ne!(next.link_layer(), copy);
    assert_eq!(copy.unwrap().mac, Some(MAC_A));
}

#[test]
fn t6_how_often_is_resolved_with_each_ttl() {
    for (config, made) in [(Ttl::Bypass, 100), (Ttl::Finite(SECOND), 34), (Ttl::Infinite, 1)] {
        let world = World::new(ttl(config));
        for n in 0..100 {
            drop(world.cache.get(&world.pd, &to(1)).unwrap());
            // Every third pause is longer than the TTL.
            world.clock.advance(if n % 3 == 2 { 2 * SECOND } else { SECOND / 2 });
        }
        assert_eq!(world.device.made(), made, "{config}");
    }
}

#[test]
fn t8_a_lookup_has_three_answers() {
    let world = World::new(ttl(Ttl::Finite(SECOND)));
    let get = || drop(world.cache.get(&world.pd, &to(1)).unwrap());
    let counted = || {
        let counters = world.cache.counters();
        (counters.hits, counters.requeries, counters.misses)
    };
    get();
    assert_eq!(counted(), (0, 0, 1), "a miss");
    get();
    assert_eq!(counted(), (1, 0, 1), "a hit");
    world.clock.advance(2 * SECOND);
    get();
    assert_eq!(counted(), (1, 1, 1), "it had expired");
    // An entry that expired while its new resolution fails is none, not one without an address handle.
    world.clock.advance(2 * SECOND);
    world.device.fail(Some(|| ferroce_verbs::Error::invalid("address", "no")));
    assert!(world.cache.get(&world.pd, &to(1)).is_err());
    world.device.fail(None);
    get();
    assert_eq!(counted(), (1, 2, 2));
}

#[test]
fn at_the_largest_age_an_entry_leaves_whoever_holds_it() {
    let world = World::new(AhCacheConfig { max_age: Some(10 * SECOND), ..AhCacheConfig::default() });
    let held = world.cache.get(&world.pd, &to(1)).unwrap();
    world.clock.advance(10 * SECOND);
    assert_eq!(world.cache.get(&world.pd, &to(1)).unwrap().generation(), held.generation());
    world.clock.advance(MILLI);
    let next = world.cache.get(&world.pd, &to(1)).unwrap();
    assert!(next.generation() > held.generation());
    assert!(!held.is_cached() && next.is_cached());
    assert_eq!(world.device.live(), 2);
    drop(held);
    assert_eq!(world.device.live(), 1);
}

#[test]
fn t13_what_is_queued_with_no_endpoint_has_its_address_handle_across_expiry() {
    let world = World::new(ttl(Ttl::Finite(MILLI)));
    world.device.set_mac(peer(1), MAC_A);
    // A response that is queued without an endpoint, and a request that outlives its endpoint.
    let endpoint = world.cache.get(&world.pd, &to(1)).unwrap();
    let response = world.cache.get(&world.pd, &to(1)).unwrap();
    let request = endpoint.clone();
    drop(endpoint);
    world.clock.advance(SECOND);
    world.device.move_to(peer(1), MAC_B);
    let fresh = world.cache.get(&world.pd, &to(1)).unwrap();
    assert_eq!(fresh.link_layer().unwrap().mac, Some(MAC_B));
    assert_eq!(response.ah(), request.ah());
    assert_eq!(request.link_layer().unwrap().mac, Some(MAC_A));
    drop((response, request));
    assert_eq!(world.device.live(), 1);
}

#[test]
fn what_nobody_asks_for_any_more_goes_as_the_cache_grows() {
    let world = World::new(ttl(Ttl::Finite(SECOND)));
    for n in 0..100_000 {
        drop(world.cache.get(&world.pd, &to(n)).unwrap());
        world.clock.advance(MILLI);
    }
    // About a thousand of them are younger than the TTL.
    assert!(world.device.live() < 10_000, "{} are left", world.device.live());
    world.clock.advance(2 * SECOND);
    world.cache.sweep();
    assert_eq!(world.device.live(), 0);
}
