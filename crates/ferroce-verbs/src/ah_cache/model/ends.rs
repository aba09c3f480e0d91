//! Caches that are closed, and those that are none.

use super::world::{World, infinite};
use crate::ah_cache::parked;
use crate::ah_cache::{AhCacheConfig, AhError, Ttl};
use ferroce_testing::model::shuttle::thread;

pub(super) fn close() {
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
pub(super) fn t3_put_while_it_is_closed() {
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

pub(super) fn bypass() {
    let world = World::new(AhCacheConfig { ttl: Ttl::Bypass, ..infinite() });
    let closer = world.thread(|world| {
        world.cache.close();
    });
    world.clone().finish(vec![world.user(&[1]), world.user(&[1]), closer]);
}

/// Hits of caches that are gone are not remembered, though the threads that counted them count for others now, or end.
pub(super) fn hits_go_with_their_cache() {
    fn user() {
        // More than a thread counts for at one time.
        for _ in 0..9 {
            let world = World::new(infinite());
            for _ in 0..2 {
                drop(world.get(1));
            }
            assert_eq!(world.cache.counters().hits, 1);
        }
    }
    let other = thread::spawn(user);
    user();
    other.join().unwrap();
    assert_eq!(parked::remembered(), 0);
}
