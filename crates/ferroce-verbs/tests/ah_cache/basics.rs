use crate::device::to;
use crate::{SECOND, World, ttl};
use ferroce_verbs::{AhAttr, AhCacheConfig, AhCacheOptions, AhError, AhLease, Error, Gid, GlobalRoute, Ttl};
use std::sync::Barrier;

#[test]
fn one_cache_for_all_who_use_a_context() {
    let world = World::new(AhCacheConfig::default());
    let again = world.pd.context().ah_cache().unwrap();
    let lease = world.cache.get(&world.pd, &to(1)).unwrap();
    assert_eq!(again.get(&world.pd, &to(1)).unwrap().generation(), lease.generation());
    let second = world.context.ah_cache_with(AhCacheOptions::new(AhCacheConfig::default()));
    assert!(matches!(second, Err(Error::Invalid { .. })));
    assert_eq!(world.device.made(), 1);
}

#[test]
fn clone_holds_and_drop_puts() {
    let world = World::new(AhCacheConfig::default());
    let first = world.cache.get(&world.pd, &to(1)).unwrap();
    let second = first.clone();
    assert_eq!(first.ah(), second.ah());
    assert_eq!(*second.attr(), to(1));
    drop(first);
    assert_eq!(world.cache.counters().idle, 0);
    drop(second);
    let counters = world.cache.counters();
    assert_eq!((counters.entries, counters.idle, counters.live), (1, 1, 1));
}

#[test]
fn a_hit_with_ttl_inf_reads_no_clock_and_resolves_nothing() {
    let world = World::new(AhCacheConfig::default());
    drop(world.cache.get(&world.pd, &to(1)).unwrap());
    let (reads, made) = (world.clock.reads(), world.device.made());
    for _ in 0..100 {
        drop(world.cache.get(&world.pd, &to(1)).unwrap());
    }
    assert_eq!((world.clock.reads(), world.device.made()), (reads, made));
    assert_eq!(world.cache.counters().hits, 100);
    assert_eq!(world.cache.counters().misses, 1);
}

#[test]
fn t19_every_field_of_the_address_is_part_of_the_key() {
    let world = World::new(AhCacheConfig::default());
    let base = to(1);
    let route = base.grh.unwrap();
    let routed = |route: GlobalRoute| AhAttr { grh: Some(route), ..base };
    let mut gid = route.dgid.to_bytes();
    gid[0] = 1;
    let others = [
        routed(GlobalRoute { dgid: Gid::from_bytes(gid), ..route }),
        to(2),
        routed(GlobalRoute { sgid_index: 1, ..route }),
        routed(GlobalRoute { flow_label: 1, ..route }),
        routed(GlobalRoute { flow_label: 1 << 31, ..route }),
        routed(GlobalRoute { hop_limit: 1, ..route }),
        routed(GlobalRoute { traffic_class: 1, ..route }),
        // With LMC, a lane of a fabric has its own LID and path bits; byte orders are not confused.
        AhAttr { dlid: 1, ..base },
        AhAttr { dlid: 1 << 8, ..base },
        AhAttr { src_path_bits: 1, ..base },
        AhAttr { sl: 1, ..base },
        AhAttr { static_rate: 1, ..base },
        AhAttr { port_num: 2, ..base },
        AhAttr { port_num: 0, ..base },
    ];
    let mut leases: Vec<AhLease> = vec![world.cache.get(&world.pd, &base).unwrap()];
    for other in &others {
        let lease = world.cache.get(&world.pd, other).unwrap();
        assert_eq!(lease.attr(), other);
        assert!(leases.iter().all(|known| known.generation() != lease.generation()), "{other:?}");
        leases.push(lease);
    }
    assert_eq!(world.device.made() as usize, leases.len());
    for lease in &leases {
        // Made anew, with whatever is in its padding.
        let attr = AhAttr { grh: lease.attr().grh.map(|route| GlobalRoute { ..route }), ..*lease.attr() };
        assert_eq!(world.cache.get(&world.pd, &attr).unwrap().generation(), lease.generation());
    }
}

#[test]
fn an_address_handle_belongs_to_a_protection_domain() {
    let world = World::new(AhCacheConfig::default());
    let other = world.context.alloc_pd().unwrap();
    let mine = world.cache.get(&world.pd, &to(1)).unwrap();
    let others = world.cache.get(&other, &to(1)).unwrap();
    assert_ne!(mine.generation(), others.generation());
    drop(others);
    assert_eq!(world.cache.forget_pd(&other), 1);
    let counters = world.cache.counters();
    assert_eq!((counters.entries, counters.live), (1, 1));
    assert_eq!(world.cache.get(&world.pd, &to(1)).unwrap().generation(), mine.generation());
}

#[test]
fn t15_a_full_cache_evicts_who_was_put_longest_ago_and_refuses_if_all_are_held() {
    let world = World::new(AhCacheConfig { capacity: Some(3), ..AhCacheConfig::default() });
    let get = |n| world.cache.get(&world.pd, &to(n));
    let held: Vec<_> = (0..3).map(|n| get(n).unwrap()).collect();
    for _ in 0..2 {
        let error = get(3).unwrap_err();
        assert!(matches!(error, AhError::Full { capacity: 3 }), "{error}");
        assert!(error.to_string().contains("FERROCE_AH_CACHE_CAPACITY"));
    }
    assert!(get(1).is_ok(), "what is there needs no room");
    drop(held);
    // Put in the order 1 (by the get above), 0, 1, 2, and then 0 again: the order is 1, 2, 0.
    drop(get(0).unwrap());
    let first = get(3).unwrap();
    assert!(!world.cache.invalidate_address(&world.pd, &to(1)), "1 went");
    let second = get(4).unwrap();
    let third = get(5).unwrap();
    let counters = world.cache.counters();
    assert_eq!((counters.evictions, counters.entries, counters.live, counters.refusals), (3, 3, 3, 2));
    assert!(matches!(get(6), Err(AhError::Full { .. })));
    drop((first, second, third));
    assert!(get(6).is_ok());
}

#[test]
fn t15_the_order_of_eviction_is_that_of_puts() {
    const MANY: u32 = 5000;
    let world = World::new(AhCacheConfig { capacity: Some(MANY as usize), ..AhCacheConfig::default() });
    let get = |n| world.cache.get(&world.pd, &to(n)).unwrap();
    for n in 0..MANY {
        drop(get(n));
    }
    // Every third is used once more, so that it goes after all others.
    let (used, unused): (Vec<u32>, Vec<u32>) = (0..MANY).partition(|n| n % 3 == 0);
    for n in &used {
        drop(get(*n));
    }
    let made = world.device.made();
    for (new, gone) in (MANY..).zip(unused.iter().chain(&used)) {
        drop(get(new));
        assert!(!world.cache.invalidate_address(&world.pd, &to(*gone)), "{gone} is the next to go");
        assert!(new < MANY + 4000 || new % 100 == 0 || world.cache.counters().live <= u64::from(MANY));
        if new == MANY + 4800 {
            break;
        }
    }
    assert_eq!(world.device.made() - made, 4801);
    assert_eq!(world.device.live(), u64::from(MANY));
}

#[test]
fn with_ttl_0_nothing_is_shared_and_nothing_is_kept() {
    let world = World::new(ttl(Ttl::Bypass));
    let first = world.cache.get(&world.pd, &to(1)).unwrap();
    let second = world.cache.get(&world.pd, &to(1)).unwrap();
    assert_ne!(first.generation(), second.generation());
    assert_ne!(first.ah(), second.ah());
    assert!(!first.is_cached());
    let counters = world.cache.counters();
    assert_eq!((counters.entries, counters.live, counters.bypasses, counters.misses), (0, 2, 2, 0));
    drop((first, second));
    assert_eq!(world.device.live(), 0);
}

#[test]
fn t14_a_storm_of_grants_makes_one_address_handle_for_each_peer() {
    let world = World::new(ttl(Ttl::Finite(SECOND)));
    for _ in 0..100 {
        for n in 0..50 {
            // A grant: look at the address, let go.
            drop(world.cache.get(&world.pd, &to(n)).unwrap());
        }
    }
    assert_eq!(world.device.made(), 50);
}

#[test]
fn threads_that_get_and_put_at_once_leave_nothing() {
    const THREADS: u32 = 4;
    for config in [
        AhCacheConfig::default(),
        AhCacheConfig { capacity: Some(5), ..AhCacheConfig::default() },
        ttl(Ttl::Finite(SECOND)),
        ttl(Ttl::Bypass),
    ] {
        let world = World::new(config);
        let barrier = Barrier::new(THREADS as usize);
        std::thread::scope(|scope| {
            let user = |thread: u32| {
                let (world, barrier) = (&world, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for n in 0..2000_u32 {
                        let attr = to(n.wrapping_mul(7 + thread) % 16);
                        match world.cache.get(&world.pd, &attr) {
                            Ok(lease) => assert_eq!(*lease.clone().attr(), attr),
                            Err(AhError::Full { .. }) => assert!(config.capacity.is_some()),
                            Err(error) => panic!("{error}"),
                        }
                        if n % 100 == 0 {
                            world.cache.invalidate_address(&world.pd, &attr);
                        }
                    }
                })
            };
            let threads: Vec<_> = (0..THREADS).map(user).collect();
            // The end of the scope alone does not wait until they have let go of what is local to them.
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        let counters = world.cache.counters();
        assert_eq!((counters.idle, counters.live), (counters.entries, counters.entries), "{config:?}");
        assert!(counters.entries <= config.capacity.unwrap_or(16) as u64);
        world.cache.close();
        assert_eq!(world.device.live(), 0, "{config:?}");
    }
}
