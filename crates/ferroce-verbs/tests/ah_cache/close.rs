use crate::device::to;
use crate::support::{Stuck, ThreeSeconds};
use crate::{SECOND, World};
use ferroce_verbs::{AhCacheConfig, AhError, AhLookup};

#[test]
fn t3_closing_with_holders_frees_nothing_that_they_hold_and_says_how_many_there_are() {
    let World { device, context, pd, cache, .. } = World::new(AhCacheConfig::default());
    let first = cache.get(&pd, &to(1)).unwrap();
    let more = (first.clone(), cache.get(&pd, &to(2)).unwrap());
    drop(cache.get(&pd, &to(3)).unwrap());
    drop(pd);
    let report = context.close();
    assert_eq!((report.entries, report.held, report.leases, report.in_flight), (3, 2, 3, 0));
    assert_eq!(cache.close(), Default::default(), "the second time there is nothing");
    assert_eq!(*first.attr(), to(1));
    assert!(!first.is_cached());
    assert_eq!(device.live(), 2, "what nobody held is gone");
    drop(cache);
    assert_eq!(device.contexts(), 1, "the device is there for as long as an address handle is");
    drop(first);
    assert_eq!(device.live(), 2);
    drop(more);
    assert_eq!((device.live(), device.contexts()), (0, 0));
}

#[test]
fn a_cache_closes_with_the_last_who_uses_it() {
    let World { device, context, pd, cache, .. } = World::new(AhCacheConfig::default());
    let lease = cache.get(&pd, &to(1)).unwrap();
    drop(cache.get(&pd, &to(2)).unwrap());
    let generation = lease.generation();
    drop(cache);
    assert_eq!(device.live(), 1);
    assert!(!lease.is_cached());
    // The next one knows nothing of it.
    let next = context.ah_cache().unwrap();
    let other = next.get(&pd, &to(1)).unwrap();
    assert_ne!(other.ah(), lease.ah());
    assert_eq!(other.generation(), generation, "each cache counts for itself");
    drop((lease, other, next, context, pd));
    assert_eq!((device.live(), device.contexts()), (0, 0), "nothing holds the context");
}

#[test]
fn a_closed_cache_gives_nothing() {
    let world = World::new(AhCacheConfig::default());
    world.cache.close();
    let error = world.cache.get(&world.pd, &to(1)).unwrap_err();
    assert!(matches!(error, AhError::Closed), "{error}");
    assert!(matches!(world.cache.try_get(&world.pd, &to(1)), Err(AhError::Closed)));
    let bypass = World::new(crate::ttl(ferroce_verbs::Ttl::Bypass));
    bypass.cache.close();
    assert!(matches!(bypass.cache.get(&bypass.pd, &to(1)), Err(AhError::Closed)));
}

#[test]
fn who_waits_when_the_cache_is_closed_learns_of_it() {
    let mut resolver = None;
    let world = World::with(AhCacheConfig::default(), |options, clock| {
        options.resolver(resolver.insert(ThreeSeconds::new(clock)).clone())
    });
    let AhLookup::Pending(pending) = world.cache.try_get(&world.pd, &to(1)).unwrap() else { panic!("at once?") };
    assert_eq!(world.cache.close().in_flight, 1);
    world.clock.advance(3 * SECOND);
    resolver.unwrap().progress();
    assert!(matches!(pending.try_take(), Some(Err(AhError::Closed))));
    assert_eq!(world.device.live(), 0);
}

#[test]
fn closing_does_not_wait_for_a_resolution() {
    let stuck = Stuck::on(to(1));
    let world = World::with(AhCacheConfig::default(), |options, _| options.resolver(stuck.clone()));
    std::thread::scope(|scope| {
        let get = scope.spawn(|| world.cache.get(&world.pd, &to(1)).unwrap_err());
        stuck.wait_until_inside();
        world.cache.close();
        stuck.let_go();
        assert!(matches!(get.join().unwrap(), AhError::Closed));
    });
    assert_eq!(world.device.live(), 0);
}

#[test]
fn t18_a_device_that_fails_to_destroy_is_counted() {
    let world = World::new(AhCacheConfig::default());
    drop(world.cache.get(&world.pd, &to(1)).unwrap());
    world.device.fail_to_destroy();
    let failures = || {
        let counters = world.context.counters();
        counters.iter().find(|(name, _)| *name == "ah_destroy_failures").unwrap().1
    };
    assert_eq!(failures(), 0);
    world.cache.close();
    assert_eq!(failures(), 1);
}

#[test]
fn a_thread_that_ends_leaves_nothing_behind() {
    let world = World::new(AhCacheConfig::default());
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            for n in 0..1000 {
                drop(world.cache.get(&world.pd, &to(n)).unwrap());
            }
        });
        // The end of the scope alone does not wait until the thread has let go of what is local to it.
        thread.join().unwrap();
    });
    let counters = world.cache.counters();
    assert_eq!((counters.entries, counters.idle, counters.live), (1000, 1000, 1000));
    world.cache.close();
    assert_eq!(world.device.live(), 0);
}
