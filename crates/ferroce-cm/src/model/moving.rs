//! Ids move between channels that are read.

use super::device::Answer;
use super::search::{exhaust, sample};
use super::{What, World, join, tolerate};
use crate::{ConnParam, EventChannel};
use shuttle::thread;

const WHOLE: [What; 4] = [What::AddrResolved, What::RouteResolved, What::Established, What::Ended];

/// Unread events, more of them under way, and both channels read while the id moves there and perhaps back.
fn moved(back: bool) {
    let world = World::new(Answer::Grant);
    let other = EventChannel::new().unwrap();
    let id = world.unread();
    id.connect(&ConnParam::default()).unwrap();
    let readers = [world.reader(&world.channel, drop), world.reader(&other, drop)];
    let mover = {
        let (id, old, new) = (id.clone(), world.channel.clone(), other.clone());
        thread::spawn(move || {
            id.migrate(&new).unwrap();
            if back {
                id.migrate(&old).unwrap();
            }
        })
    };
    join(vec![world.progress(), mover]);
    // One reader may leave while the other is in the middle of an event: the next one is then for nobody, or for `drain`.
    world.channel.wake();
    other.wake();
    join(readers.into());
    let last = if back { &world.channel } else { &other };
    world.drain(last);
    world.host.disconnect_all();
    world.drain(last);
    let mut seen = world.all(&id);
    // Two readers tell in any order, what they were given.
    seen.sort_unstable();
    assert_eq!(seen, WHOLE, "each once");
    drop((id, other));
    world.finish();
}

#[test]
fn no_event_is_lost_when_an_id_moves() {
    exhaust(1, || moved(false));
    sample(2000, || moved(false));
}

#[test]
fn no_event_is_lost_when_an_id_moves_and_comes_back() {
    exhaust(1, || moved(true));
    sample(2000, || moved(true));
}

/// It is destroyed while it moves, and both channels are read.
fn moved_and_destroyed() {
    let world = World::new(Answer::Grant);
    let other = EventChannel::new().unwrap();
    let id = world.unread();
    id.connect(&ConnParam::default()).unwrap();
    assert!(world.host.deliver());
    world.watch(&id);
    let readers = [world.reader(&world.channel, drop), world.reader(&other, drop)];
    let mover = {
        let (id, new) = (id.clone(), other.clone());
        thread::spawn(move || tolerate(id.migrate(&new)))
    };
    join(vec![mover, world.destroyer(id)]);
    world.channel.wake();
    other.wake();
    join(readers.into());
    assert!(other.try_next().unwrap().is_none(), "it is destroyed");
    world.drain(&other);
    drop(other);
    world.finish();
}

#[test]
fn destroyed_while_it_moves() {
    exhaust(1, moved_and_destroyed);
    sample(2000, moved_and_destroyed);
}

/// All at once: the answer comes, the id moves, one of the two channels closes, two threads destroy it, and both channels are read.
fn moved_closed_and_destroyed(new_closes: bool) {
    let world = World::new(Answer::Grant);
    let other = EventChannel::new().unwrap();
    let id = world.connecting();
    world.watch(&id);
    let readers = vec![world.reader(&world.channel, drop), world.reader(&other, drop)];
    let mover = {
        let (id, new) = (id.clone(), other.clone());
        thread::spawn(move || tolerate(id.migrate(&new)))
    };
    let closer = {
        let closing = if new_closes { other.clone() } else { world.channel.clone() };
        thread::spawn(move || closing.close())
    };
    join(vec![world.progress(), mover, closer, world.destroyer(id.clone()), world.destroyer(id)]);
    world.channel.wake();
    other.wake();
    join(readers);
    world.drain(&other);
    assert_eq!(world.host.ends(), [1], "the peer is told");
    drop(other);
    world.finish();
}

#[test]
fn destroyed_while_it_moves_and_a_channel_closes() {
    sample(1500, || moved_closed_and_destroyed(false));
    sample(1500, || moved_closed_and_destroyed(true));
}

/// Nobody destroys it: whether its events are read or go with a channel, it lives, and what its peer does is seen where it is then.
fn moved_from_a_channel_that_closes() {
    let world = World::new(Answer::Grant);
    let other = EventChannel::new().unwrap();
    let id = world.connecting();
    let readers = vec![world.reader(&world.channel, drop), world.reader(&other, drop)];
    let mover = {
        let (id, new) = (id.clone(), other.clone());
        thread::spawn(move || id.migrate(&new).unwrap())
    };
    let (closing, progress) = (world.channel.clone(), world.progress());
    join(vec![progress, mover, thread::spawn(move || closing.close())]);
    other.wake();
    join(readers);
    world.drain(&other);
    assert_eq!(world.seen(&id, What::Established), world.host.established());
    // Established or not, the peer ends it, and that is read where it is now.
    world.host.end_all();
    while world.host.deliver() {}
    world.drain(&other);
    assert_eq!(world.seen(&id, What::Ended), 1);
    drop((id, other));
    world.finish();
}

#[test]
fn it_moves_from_a_channel_that_closes() {
    sample(2000, moved_from_a_channel_that_closes);
}
