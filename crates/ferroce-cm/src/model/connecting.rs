//! A connection is under way, and something comes in between.

use super::device::Answer;
use super::search::{exhaust, sample};
use super::{What, World, join, tolerate};
use crate::{ConnParam, Error, EventKind, Phase, SetupIn};
use ferroce_verbs::QpState;
use shuttle::thread;

/// The peer's answer comes, the event thread moves the queue pair, and two threads destroy the id.
fn destroyed() {
    let world = World::new(Answer::Grant);
    let id = world.connecting();
    world.watch(&id);
    let reader = world.reader(&world.channel, drop);
    let others = vec![world.progress(), world.destroyer(id.clone()), world.destroyer(id)];
    world.join(others, &world.channel, vec![reader]);
    assert_eq!(world.host.ends(), [1], "the peer is told");
    world.finish();
}

#[test]
fn destroyed_while_the_answer_comes() {
    exhaust(1, destroyed);
    sample(2000, destroyed);
}

/// As before, with one thread less and one preemption more.
fn destroyed_by_one() {
    let world = World::new(Answer::Grant);
    let id = world.connecting();
    assert!(world.host.deliver());
    world.watch(&id);
    let reader = world.reader(&world.channel, drop);
    let others = vec![world.destroyer(id)];
    world.join(others, &world.channel, vec![reader]);
    assert_eq!(world.host.ends(), [1], "the peer is told");
    world.finish();
}

#[test]
fn destroyed_while_the_answer_is_read() {
    exhaust(3, destroyed_by_one);
}

/// `connect` itself and `destroy` at once.
fn connect_and_destroy() {
    let world = World::new(Answer::Grant);
    let id = world.resolved();
    world.watch(&id);
    let reader = world.reader(&world.channel, drop);
    let connector = {
        let (id, host) = (id.clone(), world.host.clone());
        thread::spawn(move || {
            tolerate(id.connect(&ConnParam::default()));
            while host.deliver() {}
        })
    };
    let others = vec![connector, world.destroyer(id)];
    world.join(others, &world.channel, vec![reader]);
    assert!(world.host.ends().into_iter().all(|ends| ends == 1), "the peer is told");
    world.finish();
}

#[test]
fn connected_and_destroyed_at_once() {
    exhaust(2, connect_and_destroy);
    sample(2000, connect_and_destroy);
}

/// The peer refuses, or grants and ends it while the event thread moves the queue pair: there is one end.
fn ended_by_the_peer(answer: Answer) {
    let world = World::new(answer);
    let id = world.connecting();
    let readers = vec![world.reader(&world.channel, drop), world.reader(&world.channel, drop)];
    let others = vec![world.progress()];
    world.join(others, &world.channel, readers);
    assert_eq!(world.seen(&id, What::Ended), 1, "{:?}", world.all(&id));
    assert_eq!(id.phase(), Phase::Disconnected);
    drop(id);
    world.finish();
}

#[test]
fn the_peer_refuses() {
    exhaust(2, || ended_by_the_peer(Answer::Refuse));
}

#[test]
fn the_peer_grants_and_ends_it_at_once() {
    exhaust(1, || ended_by_the_peer(Answer::GrantAndEnd));
    sample(2000, || ended_by_the_peer(Answer::GrantAndEnd));
}

/// One reader moves the queue pair, and another one could have the end of the connection meanwhile.
fn in_order() {
    let world = World::new(Answer::GrantAndEnd);
    let id = world.connecting();
    // Of REP, REJ and DREQ.
    world.host.lose(1);
    assert!(world.host.deliver());
    let reader = || {
        let host = world.host.clone();
        world.reader(&world.channel, move |event| {
            let is_end = matches!(event.kind(), EventKind::Disconnected(_));
            assert!(!(is_end && host.is_in_transition()), "an event has overtaken the one before");
        })
    };
    let readers = vec![reader(), reader()];
    world.join(vec![world.progress()], &world.channel, readers);
    assert_eq!(world.seen(&id, What::Ended), 1, "{:?}", world.all(&id));
    drop(id);
    world.finish();
}

#[test]
fn events_are_processed_in_order() {
    exhaust(1, in_order);
}

/// Whoever reads the answer has another thread confirm it, while a third destroys the id and the peer ends it.
fn confirmed_by_the_caller() {
    let world = World::new(Answer::Grant);
    let id = world.resolved();
    id.set_options(|options| options.setup_in = SetupIn::Caller).unwrap();
    id.connect(&ConnParam::default()).unwrap();
    assert!(world.host.deliver());
    world.watch(&id);
    let reader = world.reader(&world.channel, |event| tolerate(event.id().establish()));
    let caller = {
        let id = id.clone();
        thread::spawn(move || tolerate(id.establish()))
    };
    let others = vec![caller, world.destroyer(id)];
    world.join(others, &world.channel, vec![reader]);
    assert_eq!(world.host.ends(), [1], "the peer is told");
    world.finish();
}

#[test]
fn confirmed_by_the_caller_and_destroyed() {
    exhaust(2, confirmed_by_the_caller);
    sample(2000, confirmed_by_the_caller);
}

/// Two threads confirm it at once: one of them has, and the connection is there.
fn confirmed_twice() {
    let world = World::new(Answer::Grant);
    let id = world.resolved();
    id.set_options(|options| options.setup_in = SetupIn::Caller).unwrap();
    id.connect(&ConnParam::default()).unwrap();
    assert!(world.host.deliver());
    assert!(matches!(world.channel.try_next().unwrap().unwrap().kind(), EventKind::ConnectResponse(_)));
    let callers: Vec<_> = (0..2)
        .map(|_| {
            let id = id.clone();
            thread::spawn(move || id.establish().is_ok())
        })
        .collect();
    let established = callers.into_iter().map(|caller| caller.join().unwrap()).filter(|&ok| ok).count();
    assert_eq!(established, 1);
    assert_eq!(id.phase(), Phase::Connected);
    drop(id);
    world.finish();
}

#[test]
fn confirmed_by_two_callers() {
    exhaust(2, confirmed_twice);
    sample(1000, confirmed_twice);
}

/// A request is granted while the peer takes it back.
fn granted_and_taken_back() {
    let world = World::new(Answer::Grant);
    let listener = world.listener();
    let id = world.requested();
    world.host.end_all();
    let reader = world.reader(&world.channel, drop);
    let accepting = {
        let id = id.clone();
        thread::spawn(move || tolerate(id.accept(&ConnParam::default())))
    };
    let others = vec![accepting, world.progress()];
    world.join(others, &world.channel, vec![reader]);
    assert_eq!(world.all(&id), [What::Ended], "exactly once");
    assert_eq!(id.phase(), Phase::Disconnected);
    drop((id, listener));
    world.finish();
}

#[test]
fn granted_while_the_peer_takes_it_back() {
    exhaust(2, granted_and_taken_back);
    sample(2000, granted_and_taken_back);
}

/// A request is granted, refused and destroyed by three threads at once.
fn decided_thrice() {
    let world = World::new(Answer::Grant);
    let listener = world.listener();
    let id = world.requested();
    world.watch(&id);
    let reader = world.reader(&world.channel, drop);
    let (accepting, rejecting) = (id.clone(), id.clone());
    let others = vec![
        thread::spawn(move || tolerate(accepting.accept(&ConnParam::default()))),
        thread::spawn(move || tolerate(rejecting.reject(&[]))),
        world.destroyer(id),
    ];
    join(others);
    world.join(vec![world.progress()], &world.channel, vec![reader]);
    assert_eq!(world.host.ends(), [1], "the peer is told");
    drop(listener);
    world.finish();
}

#[test]
fn granted_refused_and_destroyed_at_once() {
    exhaust(1, decided_thrice);
    sample(2000, decided_thrice);
}

/// A request is granted by two threads at once: one does it, with what the queue pair has.
fn granted_twice() {
    let world = World::new(Answer::Grant);
    let listener = world.listener();
    let id = world.requested();
    let callers: Vec<_> = [1, 2]
        .map(|depth| {
            let id = id.clone();
            thread::spawn(move || {
                let param = ConnParam { responder_resources: Some(depth), ..ConnParam::default() };
                match id.accept(&param) {
                    Ok(()) => true,
                    Err(Error::Phase { .. }) => false,
                    Err(error) => panic!("{error}"),
                }
            })
        })
        .into();
    let granted = callers.into_iter().map(|caller| caller.join().unwrap()).filter(|&ok| ok).count();
    assert_eq!(granted, 1);
    world.drain(&world.channel);
    assert_eq!(world.all(&id), [What::Established]);
    drop((id, listener));
    world.finish();
}

#[test]
fn granted_by_two_threads_at_once() {
    exhaust(2, granted_twice);
    sample(1000, granted_twice);
}

/// R14: the reader cannot move the queue pair to what was granted. That is the end, which is said once; the peer is told, too.
fn cannot_be_set_up(answer: Answer) {
    let world = World::new(answer);
    let id = world.connecting();
    world.host.refuse_rtr();
    let readers = vec![world.reader(&world.channel, drop), world.reader(&world.channel, drop)];
    world.join(vec![world.progress()], &world.channel, readers);
    assert_eq!(world.all(&id), [What::Ended], "exactly once");
    assert_eq!(id.phase(), Phase::Disconnected);
    assert_eq!(id.qp().unwrap().state(), QpState::Err);
    while world.host.deliver() {}
    if answer == Answer::Grant {
        assert_eq!(world.host.ends(), [1], "the peer is told");
    }
    drop(id);
    world.finish();
}

#[test]
fn r14_what_cannot_be_set_up_is_given_up() {
    exhaust(1, || cannot_be_set_up(Answer::Grant));
    sample(1000, || cannot_be_set_up(Answer::Grant));
    sample(1000, || cannot_be_set_up(Answer::GrantAndEnd));
}

/// The same of who grants, while the id is destroyed.
fn cannot_be_granted(destroyed: bool) {
    let world = World::new(Answer::Grant);
    let listener = world.listener();
    let id = world.requested();
    world.host.refuse_rtr();
    let granting = {
        let id = id.clone();
        thread::spawn(move || {
            assert!(matches!(id.accept(&ConnParam::default()), Err(Error::Device { .. } | Error::Destroyed)));
        })
    };
    let mut others = vec![granting, world.progress()];
    if destroyed {
        others.push(world.destroyer(id.clone()));
    }
    join(others);
    while world.host.deliver() {}
    assert_eq!(world.host.ends(), [1], "the peer is told");
    drop((id, listener));
    world.finish();
}

#[test]
fn r14_what_cannot_be_granted_is_rejected() {
    exhaust(2, || cannot_be_granted(false));
    exhaust(1, || cannot_be_granted(true));
    sample(1000, || cannot_be_granted(true));
}
