//! Readers that wait, and channels that close.

use super::device::Answer;
use super::search::{exhaust, sample};
use super::{What, World, join};
use crate::{Error, EventChannel, Id};
use shuttle::thread;
use std::time::Duration;

/// A listener with requests, a connection that ends, readers that wait; and the channel closes.
fn closed() {
    let world = World::new(Answer::Grant);
    let listener = world.listener();
    world.ask();
    world.ask();
    world.host.ask();
    let readers = vec![world.reader(&world.channel, drop), world.reader(&world.channel, drop)];
    let closer = {
        let channel = world.channel.clone();
        thread::spawn(move || channel.close())
    };
    let progress = world.progress();
    // Readers end by themselves.
    join(readers);
    join(vec![closer, progress]);
    world.drain(&world.channel);
    assert!(matches!(world.channel.try_next(), Err(Error::ChannelClosed)));
    assert_eq!(world.host.ends(), [1, 1, 1], "who was not read is told");
    assert_eq!(world.cm.usage().half_open, 0);
    assert_eq!(world.cm.id_count(), 1, "only the listener lives");
    drop(listener);
    world.finish();
}

#[test]
fn a_channel_closes_under_its_readers() {
    exhaust(1, closed);
    sample(2000, closed);
}

/// Two ids have one event each, and each wakes one of two readers, that return with it.
fn two_readers(read: fn(&EventChannel) -> bool) {
    let world = World::new(Answer::Grant);
    let ids: Vec<Id> = (0..2).map(|_| world.cm.create_id(&world.channel, crate::PortSpace::Tcp)).collect();
    let readers = (0..2).map(|_| {
        let channel = world.channel.clone();
        thread::spawn(move || while !read(&channel) {})
    });
    let readers = readers.collect();
    let posters = ids.iter().map(|id| {
        let id = id.clone();
        thread::spawn(move || id.resolve_addr(None, super::THERE).unwrap())
    });
    join(posters.collect());
    // Nobody sleeps on: that would be a deadlock.
    join(readers);
    drop(ids);
    world.finish();
}

#[test]
fn each_event_wakes_a_reader() {
    exhaust(1, || two_readers(|channel| channel.next().unwrap().is_some()));
    sample(2000, || two_readers(|channel| channel.next().unwrap().is_some()));
}

/// As before, but readers give up waiting, and come back.
#[test]
fn a_reader_that_gives_up_takes_nothing_along() {
    sample(4000, || {
        two_readers(|channel| channel.next_timeout(Duration::from_secs(1)).unwrap().is_some());
    });
}

/// Who is woken by hand returns with nothing, once for each time, and events are not lost by it.
fn woken() {
    let world = World::new(Answer::Grant);
    let id = world.id(super::HERE);
    let readers = vec![world.reader(&world.channel, drop), world.reader(&world.channel, drop)];
    let poster = {
        let (channel, id) = (world.channel.clone(), id.clone());
        thread::spawn(move || channel.post(&id, 1).unwrap())
    };
    world.join(vec![poster], &world.channel, readers);
    assert_eq!(world.all(&id), [What::User]);
    drop(id);
    world.finish();
}

#[test]
fn readers_are_woken_by_hand() {
    exhaust(2, woken);
}
