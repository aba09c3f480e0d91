//! A cache of a few entries: whatever ends one, its room is there for another.

use super::world::{SECOND, World, infinite, peer};
use crate::ah_cache::{AhCacheConfig, AhError, AhLookup, Ttl};
use crate::sync::step;
use crate::{AhAttr, Gid};

pub(super) fn eviction() {
    let world = World::new(AhCacheConfig { capacity: Some(1), ..infinite() });
    world.clone().finish(vec![world.user(&[1, 1]), world.user(&[2]), world.user(&[1])]);
}

/// Room for one, which expires.
fn fleeting() -> World {
    World::new(AhCacheConfig { capacity: Some(1), ttl: Ttl::Finite(SECOND), ..infinite() })
}

/// The entry whose place another one wants expires, and is swept.
pub(super) fn evicted_or_expired() {
    let world = fleeting();
    drop(world.get(1).unwrap());
    world.clone().finish(vec![world.user(&[1]), world.user(&[2]), world.expirer()]);
}

/// It is invalidated.
pub(super) fn evicted_or_invalidated() {
    let world = fleeting();
    drop(world.get(1).unwrap());
    world.clone().finish(vec![world.user(&[1]), world.user(&[2]), world.invalidator()]);
}

/// Nobody wants its place, and it may be resolved anew there.
pub(super) fn expired_or_invalidated() {
    let world = fleeting();
    drop(world.get(1).unwrap());
    world.clone().finish(vec![world.user(&[1]), world.expirer(), world.invalidator()]);
}

/// All of that while the cache is closed.
pub(super) fn closed_while_it_is_evicted_or_expires() {
    let world = fleeting();
    drop(world.get(1).unwrap());
    let closer = world.thread(|world| {
        world.cache.close();
    });
    world.clone().finish(vec![closer, world.user(&[1]), world.user(&[2]), world.expirer()]);
}

pub(super) fn closed_while_it_is_invalidated() {
    let world = fleeting();
    drop(world.get(1).unwrap());
    let closer = world.thread(|world| {
        world.cache.close();
    });
    world.clone().finish(vec![closer, world.user(&[1, 2]), world.invalidator()]);
}

/// Two make room for one address; the second finds that the first has resolved it, and that it has expired.
pub(super) fn expired_as_room_is_made() {
    let world = World::new(AhCacheConfig { capacity: Some(2), ttl: Ttl::Finite(SECOND), ..infinite() });
    let clock = world.thread(|world| world.advance(2 * SECOND));
    world.clone().finish(vec![world.user(&[1]), world.user(&[1]), clock]);
}

/// What is of a largest age goes while it is held, and its place is free; its holder keeps it.
pub(super) fn aged_while_it_is_held() {
    let world = World::new(AhCacheConfig { capacity: Some(1), max_age: Some(SECOND), ..infinite() });
    let held = world.get(1).unwrap();
    let holder = world.thread(move |world| world.use_and_put(held));
    world.clone().finish(vec![world.user(&[2]), world.expirer(), holder]);
}

/// T7: puts meet gets, evictions and expiry of the entry that they put. Whoever gets when all that there is has been put, gets.
pub(super) fn t7_eviction_and_expiry_find_what_was_put() {
    let world = fleeting();
    let held = world.get(1).unwrap();
    let putter = world.thread(move |world| world.use_and_put(held));
    let threads = [putter, world.user(&[2]), world.expirer()];
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let lease = world.get(3).expect("nobody holds anything");
    world.use_and_put(lease);
    world.finish(Vec::new());
}

pub(super) fn failure() {
    let world = World::new(AhCacheConfig { capacity: Some(2), ..infinite() });
    world.device.0.lock().unwrap().failures = 1;
    world.clone().finish(vec![world.user(&[1]), world.user(&[1, 1]), world.user(&[2])]);
}

pub(super) fn nobody_waits_any_more() {
    let world = World::new(AhCacheConfig { capacity: Some(1), ..infinite() });
    let asker = world.thread(|world| {
        let lookup = world.cache.try_get(&world.pd, &AhAttr::roce(Gid::from(peer(1)), 0));
        match lookup {
            Ok(AhLookup::Pending(pending)) => {
                step();
                let _ = pending.try_take();
            }
            Ok(AhLookup::Ready(lease)) => world.use_and_put(lease),
            Err(error) => assert!(matches!(error, AhError::Full { .. })),
        }
    });
    let user = world.user(&[1, 2]);
    asker.join().unwrap();
    user.join().unwrap();
    let resolving = std::mem::take(&mut world.device.0.lock().unwrap().resolving);
    world.finish(resolving);
}
