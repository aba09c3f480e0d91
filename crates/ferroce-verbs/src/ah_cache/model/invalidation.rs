//! What is shared, parked and invalidated.

use super::world::{World, infinite, peer};
use crate::{AddressChange, AhAttr, Gid};

pub(super) fn concurrent_gets_share() {
    let world = World::new(infinite());
    let threads = vec![world.user(&[1, 1]), world.user(&[1])];
    world.clone().finish(threads);
    assert_eq!(world.device.0.lock().unwrap().made, 1);
}

pub(super) fn get_put_and_invalidate() {
    let world = World::new(infinite());
    drop(world.get(1).unwrap());
    world.clone().finish(vec![world.user(&[1, 1]), world.mover(1)]);
}

pub(super) fn invalidated_while_it_is_resolved() {
    let world = World::new(infinite());
    world.clone().finish(vec![world.user(&[1]), world.mover(1), world.user(&[1])]);
}

pub(super) fn two_moves() {
    let world = World::new(infinite());
    let first = world.thread(|world| {
        world.device.0.lock().unwrap().mac = 1;
        world.cache.invalidate(&AddressChange::Neighbour { ifindex: 1, ip: peer(1), mac: Some([1; 6]) });
    });
    let user = world.user(&[1, 1]);
    first.join().unwrap();
    world.expect_mac(1);
    world.clone().finish(vec![user, world.mover(2)]);
}

/// A lease that waits with its thread goes back when its entry is invalidated, and the thread that has it meanwhile loses nothing.
pub(super) fn parked_and_taken_back() {
    let world = World::new(infinite());
    let user = world.thread(|world| {
        for _ in 0..2 {
            let lease = world.get(1).unwrap();
            world.check(&lease);
            let more = lease.clone();
            drop(lease);
            world.use_and_put(more);
        }
    });
    let other = world.thread(|world| {
        world.cache.invalidate_address(&world.pd, &AhAttr::roce(Gid::from(peer(1)), 0));
        let _ = world.cache.counters();
    });
    world.clone().finish(vec![user, other]);
}

/// Nothing stays with a thread that puts it while it is invalidated, though the thread does nothing more.
pub(super) fn put_while_it_is_invalidated() {
    let world = World::new(infinite());
    let lease = world.get(1).unwrap();
    let invalidate = world.thread(|world| {
        world.cache.invalidate(&AddressChange::Unknown);
    });
    drop(lease);
    invalidate.join().unwrap();
    assert_eq!(world.live(), 0, "a thread has it at hand");
    world.finish(Vec::new());
}

/// More addresses than a thread has slots.
pub(super) fn parked_in_the_place_of_another() {
    let world = World::new(infinite());
    let invalidate = world.thread(|world| {
        world.cache.invalidate(&AddressChange::Unknown);
    });
    world.clone().finish(vec![world.user(&[1, 2, 3, 1]), invalidate]);
}

/// A lease goes to another thread, which puts it.
pub(super) fn put_by_another_thread() {
    let world = World::new(infinite());
    let lease = world.get(1).unwrap();
    let other = world.thread(move |world| {
        world.use_and_put(lease.clone());
        world.use_and_put(lease);
    });
    let invalidate = world.thread(|world| {
        world.cache.invalidate(&AddressChange::Port { port: 1 });
    });
    world.clone().finish(vec![other, world.user(&[1]), invalidate]);
}
