//! An id that is connected is closed, by whoever likes to.

use super::device::{Answer, HERE, cq};
use super::search::{exhaust, sample};
use super::{What, World};
use crate::Error;
use ferroce_verbs::{QpInitAttr, QpState, QpType};
use shuttle::thread;

/// The peer ends the connection; the event thread reads that; two threads destroy the id; handles go.
fn two_closers() {
    let world = World::new(Answer::Grant);
    let id = world.connected();
    world.host.disconnect_all();
    world.watch(&id);
    let reader = world.reader(&world.channel, drop);
    let others = vec![world.progress(), world.destroyer(id.clone()), world.destroyer(id)];
    world.join(others, &world.channel, vec![reader]);
    assert_eq!(world.host.ends(), [1], "the peer is told");
    world.finish();
}

#[test]
fn one_event_thread_and_two_closers() {
    exhaust(1, two_closers);
    sample(2000, two_closers);
}

/// Nobody destroys it: the last handle does, and that may be the event's.
fn last_handles() {
    let world = World::new(Answer::Grant);
    let id = world.connected();
    world.host.disconnect_all();
    let reader = world.reader(&world.channel, drop);
    let other = id.clone();
    let others = vec![world.progress(), thread::spawn(move || drop(other)), thread::spawn(move || drop(id))];
    world.join(others, &world.channel, vec![reader]);
    assert_eq!(world.host.ends(), [1], "the peer is told");
    world.finish();
}

#[test]
fn the_last_handle_goes_while_events_come() {
    exhaust(2, last_handles);
    sample(2000, last_handles);
}

/// Both sides end it at once, and one thread takes the queue pair away.
fn both_disconnect() {
    let world = World::new(Answer::Grant);
    let id = world.connected();
    world.host.disconnect_all();
    let reader = world.reader(&world.channel, drop);
    let (closer, taker) = (id.clone(), id.clone());
    let others = vec![
        world.progress(),
        thread::spawn(move || closer.disconnect().unwrap()),
        thread::spawn(move || drop(taker.take_qp())),
    ];
    world.join(others, &world.channel, vec![reader]);
    assert_eq!(world.all(&id), [What::Ended], "exactly once");
    assert_eq!(world.host.qps(), 0, "nobody holds it");
    drop(id);
    world.finish();
}

#[test]
fn both_sides_end_it_at_once() {
    exhaust(1, both_disconnect);
    sample(2000, both_disconnect);
}

/// The peer ends it; whoever reads that answers, and so does another thread, whether it knows or not.
fn answered() {
    let world = World::new(Answer::Grant);
    let id = world.connected();
    world.host.disconnect_all();
    let reader = world.reader(&world.channel, |event| event.id().disconnect().unwrap());
    let other = id.clone();
    let others = vec![world.progress(), thread::spawn(move || other.disconnect().unwrap())];
    world.join(others, &world.channel, vec![reader]);
    assert_eq!(world.all(&id), [What::Ended], "exactly once");
    assert_eq!(world.host.ends(), [1], "the peer does not have to ask again");
    assert_eq!(id.qp().unwrap().state(), QpState::Err);
    drop(id);
    world.finish();
}

#[test]
fn the_peer_is_answered() {
    exhaust(2, answered);
    sample(2000, answered);
}

/// It gets a queue pair while it is destroyed.
fn equipped() {
    let world = World::new(Answer::Grant);
    let id = world.id(HERE);
    let (pd, other) = (world.pd.clone(), id.clone());
    let maker = thread::spawn(move || {
        let made = other.create_qp(&pd, &QpInitAttr::new(QpType::Rc, &cq()));
        assert!(matches!(made, Ok(_) | Err(Error::Destroyed)));
    });
    world.join(vec![maker, world.destroyer(id.clone())], &world.channel, Vec::new());
    assert_eq!(world.host.qps(), 0, "a destroyed id has a queue pair");
    drop(id);
    world.finish();
}

#[test]
fn it_gets_a_queue_pair_while_it_is_destroyed() {
    exhaust(3, equipped);
}
