use crate::world::{SECOND, TTLS, World, ip, ttl};
use ferroce_transport::ud::Cause;
use ferroce_verbs::{AhAttr, AhCacheConfig, Gid, Ttl};

/// T9, T10: the peer's address moves to another MAC while an endpoint is alive. A new endpoint gets the new MAC and works; the old one fails
/// alone and in time; nothing of one arrives as the other's; and the peer is who it was, at both ends.
#[test]
fn t9_t10_a_new_endpoint_has_the_new_mac_and_the_old_one_fails_alone() {
    for ttl_of in TTLS {
        let world = World::new(2, ttl(ttl_of));
        let old = world.connect(0, 1);
        for number in 0..10 {
            world.exchange(&old, 1, number);
        }
        let entries = world.hosts[0].cache.counters().entries;
        world.network.move_address(ip(1));
        if matches!(ttl_of, Ttl::Infinite) {
            assert_eq!((entries, world.hosts[0].cache.counters().entries), (1, 0), "it is invalidated at once");
        }
        // Into the void.
        world.send(&old, 777);
        let new = world.connect(0, 1);
        for number in 10..20 {
            world.exchange(&new, 1, number);
        }
        assert_eq!(new.peer(), old.peer());
        assert!(new.is_connected(world.address(1)) && old.is_connected(world.address(1)), "{ttl_of}");
        assert!(old.failure().is_none());
        world.run(31 * SECOND);
        let failure = old.failure().expect("its address leads nowhere");
        assert_eq!(failure.cause, Cause::PeerTimeout);
        assert!(failure.evidence.retransmissions > 5, "{failure}");
        assert!(new.failure().is_none());
        world.exchange(&new, 1, 20);
        // What the old one sent never came, and no message came twice or from somebody else.
        assert_eq!(world.numbers(1, 0), (0..=20).collect::<Vec<_>>(), "{ttl_of}");
        drop((old, new));
        world.ends();
    }
}

/// T9 for the end that receives: the initiator's own address moves. Its acknowledgements go to the old MAC, so the endpoint fails,
/// and another one works.
#[test]
fn t9_the_initiators_address_moves() {
    for ttl_of in TTLS {
        let world = World::new(2, ttl(ttl_of));
        let old = world.connect(0, 1);
        world.exchange(&old, 1, 1);
        world.network.move_address(ip(0));
        world.send(&old, 2);
        world.until("what was sent before", || world.numbers(1, 0) == [1, 2]);
        let new = world.connect(0, 1);
        world.exchange(&new, 1, 3);
        world.run(31 * SECOND);
        assert_eq!(old.failure().unwrap().cause, Cause::PeerTimeout);
        world.exchange(&new, 1, 4);
        assert_eq!(world.numbers(1, 0), [1, 2, 3, 4], "what arrived is handed over once");
        drop((old, new));
        world.ends();
    }
}

/// T9: the address moves while it is resolved for an endpoint: the endpoint gets the new MAC, and never fails.
#[test]
fn t9_an_address_that_moves_while_it_is_resolved() {
    let world = World::slow(2, ttl(Ttl::Infinite), SECOND);
    let endpoint = world.connect(0, 1);
    world.send(&endpoint, 1);
    for _ in 0..2 {
        world.run(SECOND * 7 / 10);
        world.network.move_address(ip(1));
    }
    world.until("the message", || world.numbers(1, 0) == [1]);
    assert!(endpoint.failure().is_none());
    assert_eq!(world.hosts[0].cache.counters().repeats, 2);
    drop(endpoint);
    world.ends();
}

/// T20: a change invalidates exactly the entries that it concerns: endpoints to others go on with theirs, new ones share them.
#[test]
fn t20_exactly_those_go_that_a_change_concerns() {
    let world = World::new(3, ttl(Ttl::Infinite));
    let (moves, stays) = (world.connect(0, 1), world.connect(0, 2));
    world.exchange(&moves, 1, 1);
    world.exchange(&stays, 2, 1);
    world.network.move_address(ip(1));
    let counters = world.hosts[0].cache.counters();
    assert_eq!((counters.invalidations, counters.entries, counters.live), (1, 1, 2));
    let more = world.connect(0, 2);
    world.exchange(&more, 2, 2);
    assert_eq!(world.hosts[0].cache.counters().misses, 2, "the other's entry is still there");
    let again = world.connect(0, 1);
    world.exchange(&again, 1, 2);
    assert_eq!(world.hosts[0].cache.counters().misses, 3);
    drop((moves, stays, more, again));
    world.ends();
}

/// T9 without what prevents it: nobody watches, the entry never expires, and new endpoints go to the dead MAC. So the tests above prove something.
#[test]
fn t9_without_the_watch_new_endpoints_go_to_the_dead_mac() {
    let world = World::new(2, AhCacheConfig { watch: false, ..ttl(Ttl::Infinite) });
    let old = world.connect(0, 1);
    world.exchange(&old, 1, 1);
    world.network.move_address(ip(1));
    let new = world.connect(0, 1);
    world.send(&new, 2);
    world.run(31 * SECOND);
    assert_eq!(new.failure().unwrap().cause, Cause::ConnectTimeout);
    assert_eq!(world.numbers(1, 0), [1]);
    // Whoever finds that out can say so.
    let pd = world.hosts[0].context.alloc_pd().unwrap();
    let attr = AhAttr::roce(Gid::from(ip(1)), 0);
    assert!(!world.hosts[0].cache.invalidate_address(&pd, &attr), "an entry belongs to a protection domain");
    let change = ferroce_verbs::AddressChange::Neighbour { ifindex: 0, ip: ip(1), mac: None };
    assert_eq!(world.hosts[0].cache.invalidate(&change), 1);
    drop(pd);
    let third = world.connect(0, 1);
    world.exchange(&third, 1, 3);
    drop((old, new, third));
    world.ends();
}
