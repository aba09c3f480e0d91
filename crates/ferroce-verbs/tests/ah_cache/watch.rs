use crate::device::{IFINDEX, MAC_A, MAC_B, Mac, peer, to};
use crate::{World, ttl};
use ferroce_verbs::{AddressChange, AhAttr, AhCacheConfig, Gid, GlobalRoute, LinkLayer, Ttl};
use std::net::IpAddr;

fn mac(world: &World, n: u32) -> Mac {
    world.cache.get(&world.pd, &to(n)).unwrap().link_layer().unwrap().mac.unwrap()
}

fn neighbour(ip: IpAddr, mac: Option<Mac>) -> AddressChange {
    AddressChange::Neighbour { ifindex: IFINDEX, ip, mac }
}

#[test]
fn t9_a_new_endpoint_gets_the_new_mac_and_the_old_one_keeps_its_own() {
    let world = World::new(AhCacheConfig::default());
    world.device.set_mac(peer(1), MAC_A);
    world.device.set_mac(peer(2), MAC_A);
    let old = world.cache.get(&world.pd, &to(1)).unwrap();
    let other = world.cache.get(&world.pd, &to(2)).unwrap();
    world.device.move_to(peer(1), MAC_B);
    let new = world.cache.get(&world.pd, &to(1)).unwrap();
    assert_eq!(old.link_layer().unwrap().mac, Some(MAC_A));
    assert_eq!(new.link_layer().unwrap().mac, Some(MAC_B));
    assert_eq!(new.attr(), old.attr(), "who the peer is does not change with it");
    assert!(new.generation() > old.generation() && !old.is_cached());
    assert_eq!(world.cache.get(&world.pd, &to(2)).unwrap().generation(), other.generation());
    assert_eq!(world.cache.counters().invalidations, 1);
}

#[test]
fn without_the_watch_the_old_mac_stays() {
    let world = World::new(AhCacheConfig { watch: false, ..AhCacheConfig::default() });
    assert!(!world.cache.is_watched());
    world.device.set_mac(peer(1), MAC_A);
    assert_eq!(mac(&world, 1), MAC_A);
    world.device.set_mac(peer(1), MAC_B);
    assert_eq!(mac(&world, 1), MAC_A, "which is what the watch is for");
    assert!(world.cache.invalidate_address(&world.pd, &to(1)));
    assert_eq!(mac(&world, 1), MAC_B);
}

#[test]
fn a_device_that_cannot_watch_says_so() {
    let device = crate::device::Device::default();
    device.refuse_to_watch();
    let context = device.open();
    let cache = context.ah_cache().unwrap();
    assert!(!cache.is_watched());
    assert!(cache.get(&context.alloc_pd().unwrap(), &to(1)).is_ok());
}

#[test]
fn t20_exactly_those_go_that_a_change_concerns() {
    let world = World::new(AhCacheConfig::default());
    for n in 0..4 {
        world.device.set_mac(peer(n), MAC_A);
    }
    let from =
        |n: u32, sgid_index: u32, port_num: u8| AhAttr { port_num, ..AhAttr::roce(Gid::from(peer(n)), sgid_index) };
    let attrs = [from(1, 0, 1), from(2, 0, 1), from(1, 5, 1), from(3, 5, 1), from(1, 0, 2), from(3, 5, 2)];
    let all = || attrs.iter().map(|attr| world.cache.get(&world.pd, attr).unwrap()).collect::<Vec<_>>();
    let gone = |change: AddressChange| {
        let before = all();
        world.device.tell(&change);
        let gone: Vec<usize> = (0..attrs.len()).filter(|&n| !before[n].is_cached()).collect();
        gone
    };
    assert_eq!(gone(AddressChange::Gid { port: 1, index: 5, gid: Gid::from(peer(77)) }), [2, 3]);
    assert_eq!(gone(AddressChange::Gid { port: 1, index: 9, gid: Gid::from(peer(2)) }), [1], "the peer is here now");
    assert_eq!(gone(AddressChange::Port { port: 2 }), [4, 5]);
    assert_eq!(gone(neighbour(peer(1), Some(MAC_B))), [0, 2, 4]);
    assert_eq!(gone(neighbour(peer(3), None)), [3, 5], "it does not answer any more");
    assert_eq!(gone(neighbour(peer(2), Some(MAC_A))), [] as [usize; 0], "it is as it was");
    assert_eq!(gone(neighbour(peer(9), Some(MAC_B))), [] as [usize; 0], "nobody sends there");
    let elsewhere = AddressChange::Neighbour { ifindex: IFINDEX + 1, ip: peer(1), mac: Some(MAC_B) };
    assert_eq!(gone(elsewhere), [] as [usize; 0], "it is another network's");
    let route = |prefix, prefix_len| AddressChange::Route { prefix, prefix_len };
    assert_eq!(gone(route(peer(2), 31)), [1, 3, 5]);
    assert_eq!(gone(route(peer(1), 32)), [0, 2, 4]);
    assert_eq!(gone(route(peer(512), 23)), [] as [usize; 0]);
    assert_eq!(gone(route("0.0.0.0".parse().unwrap(), 0)), [0, 1, 2, 3, 4, 5]);
    assert_eq!(gone(route("::".parse().unwrap(), 0)), [] as [usize; 0], "of the other family");
    assert_eq!(gone(AddressChange::Unknown), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn t20_whoever_is_behind_a_router_goes_with_it() {
    let world = World::new(AhCacheConfig::default());
    let router = peer(1000);
    world.device.set_mac(router, MAC_A);
    world.device.set_router(router);
    world.device.set_mac(peer(1), MAC_A);
    let near = world.cache.get(&world.pd, &to(1)).unwrap();
    let far: Vec<_> = (2..100).map(|n| world.cache.get(&world.pd, &to(n)).unwrap()).collect();
    assert_eq!(far[0].link_layer().unwrap().next_hop, router);
    world.device.move_to(router, MAC_B);
    assert!(near.is_cached());
    assert!(far.iter().all(|lease| !lease.is_cached()));
    assert_eq!(mac(&world, 2), MAC_B);
}

/// A device that could not find out by which neighbour an address goes has not found out that it stays as it is.
#[test]
fn t20_who_goes_by_an_unknown_neighbour_goes_with_any() {
    let world = World::new(AhCacheConfig::default());
    world.device.set_mac(peer(1), MAC_A);
    world.device.set_router(LinkLayer::UNKNOWN.next_hop);
    let (known, unknown) = (world.cache.get(&world.pd, &to(1)).unwrap(), world.cache.get(&world.pd, &to(2)).unwrap());
    assert!(unknown.link_layer().unwrap().is_unknown());
    world.device.move_to(peer(77), MAC_B);
    assert!(known.is_cached() && !unknown.is_cached());
}

#[test]
fn with_other_flow_labels_a_neighbour_is_the_same() {
    let world = World::new(AhCacheConfig::default());
    world.device.set_mac(peer(1), MAC_A);
    let base = to(1);
    let labelled = |flow_label| AhAttr { grh: base.grh.map(|grh| GlobalRoute { flow_label, ..grh }), ..base };
    let leases: Vec<_> = (0..100).map(|n| world.cache.get(&world.pd, &labelled(n)).unwrap()).collect();
    world.device.move_to(peer(1), MAC_B);
    assert!(leases.iter().all(|lease| !lease.is_cached()));
}

#[test]
fn what_other_threads_put_last_is_invalidated_too() {
    let world = World::new(AhCacheConfig::default());
    world.device.set_mac(peer(1), MAC_A);
    let (begin, begun) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // Dropped if this fails, so that the thread ends.
        let (world, end) = (&world, end);
        scope.spawn(move || {
            drop(world.cache.get(&world.pd, &to(1)).unwrap());
            begin.send(()).unwrap();
            ended.recv().unwrap();
            assert_eq!(mac(world, 1), MAC_B);
        });
        begun.recv().unwrap();
        world.device.move_to(peer(1), MAC_B);
        assert_eq!(world.device.live(), 0, "an entry that nobody holds goes at once");
        end.send(()).unwrap();
    });
}

#[test]
fn with_ttl_0_nobody_watches() {
    let world = World::new(ttl(Ttl::Bypass));
    assert!(!world.cache.is_watched());
    world.device.set_mac(peer(1), MAC_A);
    assert_eq!(mac(&world, 1), MAC_A);
    world.device.set_mac(peer(1), MAC_B);
    assert_eq!(mac(&world, 1), MAC_B);
}

#[test]
fn t10_t11_who_the_peer_is_depends_neither_on_a_mac_nor_on_an_entry() {
    for config in [
        AhCacheConfig::default(),
        ttl(Ttl::Bypass),
        ttl(Ttl::Finite(crate::MILLI)),
        AhCacheConfig { capacity: Some(1), ..AhCacheConfig::default() },
    ] {
        let world = World::new(config);
        let mut leases = Vec::new();
        for mac in [MAC_A, MAC_B, MAC_A, MAC_B] {
            world.device.set_mac(peer(1), mac);
            if world.cache.is_watched() {
                world.device.move_to(peer(1), mac);
            }
            // Expired, evicted, invalidated, or none of a cache: whatever it is, the next one is another.
            world.clock.advance(2 * crate::MILLI);
            leases.clear();
            drop(world.cache.get(&world.pd, &to(2)).unwrap());
            let lease = world.cache.get(&world.pd, &to(1)).unwrap();
            assert_eq!((lease.attr(), lease.link_layer().unwrap().mac), (&to(1), Some(mac)), "{config:?}");
            leases.push(lease);
        }
        let again = world.cache.get(&world.pd, &to(1)).unwrap();
        assert_eq!(again.attr(), leases[0].attr());
        assert_ne!(again.attr(), &to(2));
    }
}
