//! Channels whose events are awaited, or polled for by their descriptor.

use super::device::Answer;
use super::search::{exhaust, sample};
use super::{What, World, join};
use crate::{Error, EventChannel, Id, PortSpace};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shuttle::future::block_on;
use shuttle::thread;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn is_readable(channel: &EventChannel) -> bool {
    let fd = channel.fd().unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

/// Two events, and two tasks of which each awaits one.
fn awaited() {
    let world = World::new(Answer::Grant);
    let ids: Vec<Id> = (0..2).map(|_| world.cm.create_id(&world.channel, PortSpace::Tcp)).collect();
    let tasks = (0..2).map(|_| {
        let channel = world.channel.clone();
        thread::spawn(move || drop(block_on(channel.next_async()).unwrap().expect("an event")))
    });
    let tasks = tasks.collect();
    let posters = ids.iter().map(|id| {
        let id = id.clone();
        thread::spawn(move || id.resolve_addr(None, super::THERE).unwrap())
    });
    join(posters.collect());
    // None sleeps on: that would be a deadlock.
    join(tasks);
    drop(ids);
    world.finish();
}

#[test]
fn each_event_wakes_a_task() {
    exhaust(1, awaited);
    sample(2000, awaited);
}

/// A task awaits, a thread blocks, an event is posted, and the channel closes: both end.
fn closed() {
    let world = World::new(Answer::Grant);
    let id = world.id(super::HERE);
    let reader = world.reader(&world.channel, drop);
    let task = {
        let channel = world.channel.clone();
        thread::spawn(move || {
            loop {
                match block_on(channel.next_async()) {
                    Ok(_) => {}
                    Err(Error::ChannelClosed) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        })
    };
    let (channel, poster) = (world.channel.clone(), id.clone());
    let poster = thread::spawn(move || {
        let posted = channel.post(&poster, 1);
        assert!(matches!(posted, Ok(()) | Err(Error::ChannelClosed)));
    });
    let channel = world.channel.clone();
    join(vec![poster, thread::spawn(move || channel.close()), reader, task]);
    drop(id);
    world.finish();
}

#[test]
fn a_channel_closes_under_its_tasks() {
    exhaust(1, closed);
    sample(2000, closed);
}

/// Somebody reads whenever the descriptor says that there is something, while others bring events: at the end the descriptor
/// says so exactly if there is something left. Who is woken by hand finds nothing, once for each time.
fn polled(wakes: usize) {
    let world = World::new(Answer::Grant);
    let ids: Vec<Id> = (0..2).map(|_| world.id(super::HERE)).collect();
    // From now on the descriptor is kept.
    assert!(!is_readable(&world.channel));
    let read = Arc::new(AtomicUsize::new(0));
    let pollers = (0..2).map(|_| {
        let (channel, read) = (world.channel.clone(), read.clone());
        thread::spawn(move || {
            for _ in 0..3 {
                if is_readable(&channel) && channel.try_next().unwrap().is_some() {
                    read.fetch_add(1, Ordering::Relaxed);
                }
                thread::yield_now();
            }
        })
    });
    let mut threads: Vec<_> = pollers.collect();
    let (channel, woken) = (world.channel.clone(), wakes);
    threads.push(thread::spawn(move || (0..woken).for_each(|_| channel.wake())));
    threads.extend(ids.iter().map(|id| {
        let (channel, id) = (world.channel.clone(), id.clone());
        thread::spawn(move || channel.post(&id, 1).unwrap())
    }));
    join(threads);
    let left = 2 - read.load(Ordering::Relaxed);
    assert!(left == 0 || is_readable(&world.channel), "{left} events are left");
    for _ in 0..left {
        assert!(is_readable(&world.channel) && world.channel.try_next().unwrap().is_some());
    }
    let mut interrupts = 0;
    while is_readable(&world.channel) {
        assert!(world.channel.try_next().unwrap().is_none());
        interrupts += 1;
        assert!(interrupts <= wakes, "a reader would turn round and round");
    }
    assert!(!is_readable(&world.channel) && world.channel.try_next().unwrap().is_none());
    drop(ids);
    world.finish();
}

#[test]
fn the_descriptor_says_whether_there_is_something() {
    exhaust(1, || polled(0));
    sample(2000, || polled(2));
}

/// Somebody wakes two tasks by hand, of which each awaits an event: they end, and nothing is left of it.
fn woken() {
    let world = World::new(Answer::Grant);
    let tasks = (0..2).map(|_| {
        let channel = world.channel.clone();
        thread::spawn(move || assert!(block_on(channel.next_async()).unwrap().is_none()))
    });
    let mut threads: Vec<_> = tasks.collect();
    let channel = world.channel.clone();
    threads.push(thread::spawn(move || (0..2).for_each(|_| channel.wake())));
    join(threads);
    assert!(!is_readable(&world.channel));
    world.finish();
}

#[test]
fn tasks_are_woken_by_hand() {
    exhaust(2, woken);
}

/// A task that gives up takes no event along.
fn abandoned() {
    let world = World::new(Answer::Grant);
    let id = world.id(super::HERE);
    let task = {
        let channel = world.channel.clone();
        thread::spawn(move || {
            // Polled once, by somebody who then loses interest.
            let mut context = std::task::Context::from_waker(std::task::Waker::noop());
            let polled = std::pin::pin!(channel.next_async()).poll(&mut context);
            usize::from(polled.is_ready())
        })
    };
    let reader = world.reader(&world.channel, drop);
    let (channel, poster) = (world.channel.clone(), id.clone());
    let poster = thread::spawn(move || channel.post(&poster, 1).unwrap());
    poster.join().unwrap();
    let taken = task.join().unwrap();
    world.join(Vec::new(), &world.channel, vec![reader]);
    assert_eq!(world.seen(&id, What::User) + taken, 1, "the event is read once");
    drop(id);
    world.finish();
}

#[test]
fn a_task_that_gives_up_takes_nothing_along() {
    exhaust(2, abandoned);
    sample(2000, abandoned);
}
