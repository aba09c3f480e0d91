//! What expires.

use super::world::{SECOND, World, infinite};
use crate::ah_cache::{AhCacheConfig, Ttl};
use crate::sync::step;

pub(super) fn expiry() {
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
pub(super) fn expiry_while_it_is_held() {
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

pub(super) fn expired_for_two_threads() {
    expired_for(|world| world.expect_later_than(1));
}

pub(super) fn expired_as_others_take_its_place() {
    expired_for(|world| [2, 3].into_iter().for_each(|n| drop(world.get(n))));
}

pub(super) fn expired_as_it_is_counted() {
    expired_for(|world| drop(world.cache.counters()));
}

pub(super) fn expired_as_its_thread_ends() {
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
pub(super) fn swept_while_threads_have_it() {
    let world = World::new(AhCacheConfig { ttl: Ttl::Finite(SECOND), ..infinite() });
    let user = world.user(&[1, 1]);
    drop(world.get(1));
    world.advance(2 * SECOND);
    world.cache.sweep();
    world.finish(vec![user]);
}

pub(super) fn largest_age() {
    let world = World::new(AhCacheConfig { max_age: Some(SECOND), ..infinite() });
    let held = world.get(1).unwrap();
    let clock = world.thread(|world| world.advance(2 * SECOND));
    let holder = world.thread(move |world| world.use_and_put(held));
    world.clone().finish(vec![world.user(&[1, 1]), clock, holder]);
}
