//! Listeners end while peers ask.

use super::device::Answer;
use super::search::{exhaust, sample};
use super::{What, World, give_qp, join, tolerate};
use crate::{ConnParam, EventKind, Phase};
use shuttle::thread;
use std::sync::{Arc, Mutex};

/// One request was read and is granted; another waits; a third comes; the listener is destroyed.
fn destroyed_with_requests() {
    let world = World::new(Answer::Grant);
    let listener = world.listener();
    let first = world.requested();
    world.ask();
    world.host.ask();
    world.watch(&listener);
    let granted = Arc::new(Mutex::new(Vec::new()));
    let reader = {
        let (pd, granted) = (world.pd.clone(), granted.clone());
        world.reader(&world.channel, move |event| {
            if let EventKind::ConnectRequest { id, .. } = event.kind() {
                give_qp(&pd, id);
                id.accept(&ConnParam::default()).unwrap();
                granted.lock().unwrap().push(id.clone());
            }
        })
    };
    let accepting = {
        let id = first.clone();
        thread::spawn(move || id.accept(&ConnParam::default()).unwrap())
    };
    // What is held of a destroyed id holds nothing else.
    let others = vec![accepting, world.progress(), world.destroyer(listener.clone())];
    world.join(others, &world.channel, vec![reader]);
    let mut live = std::mem::take(&mut *granted.lock().unwrap());
    live.push(first);
    for id in &live {
        // Those that were read live on.
        assert_eq!(world.all(id), [What::Established], "exactly once");
        assert_eq!(id.phase(), Phase::Connected);
    }
    assert_eq!(world.host.established(), live.len());
    assert_eq!(world.host.ends().into_iter().sum::<usize>(), 3 - live.len(), "the others are told");
    assert_eq!(world.cm.id_count(), live.len());
    drop((live, listener));
    world.finish();
}

#[test]
fn destroyed_while_requests_wait_and_are_granted() {
    exhaust(1, destroyed_with_requests);
    sample(2000, destroyed_with_requests);
}

/// Nobody reads: requests go with their listener, though a handle to it is left.
fn destroyed_unread() {
    let world = World::new(Answer::Grant);
    let listener = world.listener();
    world.ask();
    world.host.ask();
    join(vec![world.progress(), world.destroyer(listener.clone()), world.destroyer(listener.clone())]);
    while world.host.deliver() {}
    assert_eq!(world.host.ends(), [1, 1], "the peers are told");
    assert_eq!(world.cm.id_count(), 0);
    drop(listener);
    world.finish();
}

#[test]
fn destroyed_while_nobody_reads() {
    exhaust(2, destroyed_unread);
}

/// `listen` itself and `destroy` at once, while a peer asks.
fn listen_and_destroy() {
    let world = World::new(Answer::Grant);
    let id = world.id(super::HERE);
    world.host.ask();
    world.watch(&id);
    let reader = world.reader(&world.channel, drop);
    let listening = {
        let id = id.clone();
        thread::spawn(move || tolerate(id.listen(0)))
    };
    let others = vec![listening, world.progress(), world.destroyer(id)];
    world.join(others, &world.channel, vec![reader]);
    assert_eq!(world.host.ends(), [1], "the peer is told");
    world.finish();
}

#[test]
fn destroyed_while_it_begins_to_listen() {
    exhaust(1, listen_and_destroy);
    sample(2000, listen_and_destroy);
}
