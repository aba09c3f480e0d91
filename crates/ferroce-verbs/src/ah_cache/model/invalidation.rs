//! What is shared, parked and invalidated.

use super::world::{World, infinite, peer};
use crate::ah_cache::AhLease;
use crate::ah_cache::barrier::refused;
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

/// As [`put_while_it_is_invalidated`], of what the thread has got from where it had it at hand; it may keep another.
fn given_back_while_it_is_invalidated(then: impl FnOnce(&World, AhLease) -> Option<AhLease>) {
    let world = World::new(infinite());
    drop(world.get(1).unwrap());
    let lease = world.get(1).unwrap();
    let first = lease.generation();
    let invalidate = world.thread(move |world| {
        world.cache.invalidate(&AddressChange::Unknown);
        world.expect_later_than(first);
    });
    // The other may have come anywhere by then.
    world.thread(|_| ()).join().unwrap();
    let kept = then(&world, lease);
    invalidate.join().unwrap();
    // Unless it is the same.
    let kept = kept.filter(|kept| kept.generation() != first);
    assert!(!world.has(first), "a thread has it at hand");
    world.expect_later_than(first);
    drop(kept);
    world.finish(Vec::new());
}

/// The kernel refuses the barrier, from the first invalidation on or not: nobody gets what was invalidated, and no thread has it at hand for good.
pub(super) fn the_barrier_is_refused() {
    let world = World::new(infinite());
    drop(world.get(1).unwrap());
    let lease = world.get(1).unwrap();
    let first = lease.generation();
    let invalidate = world.thread(move |world| {
        refused::from_now_on();
        world.cache.invalidate(&AddressChange::Unknown);
        world.expect_later_than(first);
    });
    drop(lease);
    drop(world.get(1));
    invalidate.join().unwrap();
    world.expect_later_than(first);
    assert!(!world.has(first), "a thread has it at hand");
    world.finish(Vec::new());
}

pub(super) fn given_back() {
    given_back_while_it_is_invalidated(|_, lease| {
        drop(lease);
        None
    });
}

/// Another is put before it, and gotten again.
pub(super) fn given_back_after_another() {
    given_back_while_it_is_invalidated(|_, lease| {
        drop(lease.clone());
        drop(lease);
        None
    });
}

/// Two, of which the slot knows both.
pub(super) fn given_back_twice() {
    given_back_while_it_is_invalidated(|world, lease| {
        drop(lease.clone());
        // Or another resolves it, and takes longer than anybody waits.
        let more = world.get(1).ok();
        drop(lease);
        drop(more);
        None
    });
}

/// The slot has had it once more, and it was taken from there just as the thread got it.
pub(super) fn given_back_after_it_was_taken() {
    given_back_while_it_is_invalidated(|world, lease| {
        drop(lease.clone());
        let more = world.get(1).ok();
        drop(lease);
        more
    });
}

/// By another thread, which has the same address at hand, or nothing.
pub(super) fn given_back_by_another_thread() {
    given_back_while_it_is_invalidated(|world, lease| {
        let other = world.thread(move |world| {
            let more = lease.clone();
            drop(lease);
            world.use_and_put(more);
        });
        other.join().unwrap();
        None
    });
}

/// Others have taken its slot meanwhile.
pub(super) fn given_back_when_others_have_its_slot() {
    given_back_while_it_is_invalidated(|world, lease| {
        [2, 3].into_iter().for_each(|n| drop(world.get(n)));
        drop(lease);
        drop(world.get(2));
        world.cache.invalidate(&AddressChange::Unknown);
        None
    });
}
