//! The event descriptor: arm, sleep, drain.

use crate::support::{AM, message, numbers, open, options, pair, quick, raw_pair, until, when_possible};
use crate::waiting::{readable, sleep_until};
use ferroce_transport::rc_verbs::{RcOptions, RcVerbs};
use ferroce_transport::uct::{Arm, Endpoint as _, Interface as _, OpError, PendingStatus};
use ferroce_verbs::{QpAttr, QpState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn drain(interface: &RcVerbs) {
    while interface.arm().unwrap() == Arm::Busy {
        interface.progress().unwrap();
    }
}

#[test]
fn armed_it_wakes_once_and_arming_drains_it() {
    let ((a, _), (b, at_b)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    drain(&b);
    assert!(!readable(&b, 0));
    to_b.am_short(AM, &message(1, 8)).unwrap();
    assert!(readable(&b, 30_000));
    // There is something already: sleeping now would be for nothing.
    assert_eq!(b.arm().unwrap(), Arm::Busy);
    until(&[&b], || numbers(&at_b, &to_a) == [1]);
    drain(&b);
    assert!(!readable(&b, 0), "what woke it was drained");
    // Progress that finds nothing leaves it armed.
    b.progress().unwrap();
    assert!(!readable(&b, 0));
    to_b.am_short(AM, &message(2, 8)).unwrap();
    assert!(readable(&b, 30_000), "progress of another thread has disarmed who sleeps");
}

/// What arming finds is not lost.
#[test]
fn what_arming_takes_is_handed_over() {
    let ((a, _), (b, at_b)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    for round in 0..500 {
        when_possible(&[&a], || to_b.am_short(AM, &message(round, 8)));
        until(&[&a], || b.arm().unwrap() == Arm::Busy);
        assert_eq!(b.arm().unwrap(), Arm::Busy);
        until(&[&b], || numbers(&at_b, &to_a).len() == round as usize + 1);
    }
    assert_eq!(numbers(&at_b, &to_a), (0..500).collect::<Vec<_>>());
}

/// Two programs that only ever sleep.
#[test]
fn sleepers_wake_each_other() {
    const COUNT: u32 = 2000;
    let ((a, at_a), (b, at_b)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COUNT {
                sleep_until(&b, || at_b.lock().unwrap().len() > number as usize);
                to_a.am_short(AM, &message(number, 8)).unwrap();
            }
        });
        for number in 0..COUNT {
            to_b.am_short(AM, &message(number, 8)).unwrap();
            sleep_until(&a, || at_a.lock().unwrap().len() > number as usize);
        }
    });
    assert_eq!(numbers(&at_a, &to_b), (0..COUNT).collect::<Vec<_>>());
}

/// Requests that another thread adds wake whoever makes progress.
#[test]
fn a_pending_request_wakes() {
    let ((a, _), (b, at_b)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    let alone = a.create_endpoint().unwrap();
    drain(&a);
    alone.pending_add(Box::new(|_| PendingStatus::Done)).unwrap();
    assert!(readable(&a, 30_000));
    a.progress().unwrap();
    assert!(readable(&a, 0), "another thread that sleeps has still to see it");
    drain(&a);
    assert!(!readable(&a, 0), "arming takes away what woke it");
    let mut sent = 0;
    while to_b.am_short(AM, &message(sent, 8)).is_ok() {
        sent += 1;
    }
    let said = Arc::new(AtomicBool::new(false));
    let say = said.clone();
    to_b.pending_add(Box::new(move |endpoint| match endpoint.am_short(AM, &message(sent, 8)) {
        Ok(()) => {
            say.store(true, Ordering::SeqCst);
            PendingStatus::Done
        }
        Err(OpError::NoResource) => PendingStatus::NoResource,
        Err(error) => panic!("{error}"),
    }))
    .unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| sleep_until(&b, || numbers(&at_b, &to_a).len() == sent as usize + 1));
        sleep_until(&a, || said.load(Ordering::SeqCst));
    });
}

/// Reports 7527, 7531, 7864: who sleeps learns that a silent peer is dead, and is then left in peace.
#[test]
fn report_7527_a_sleeper_learns_that_its_peer_is_dead() {
    let keepalive = Some(Duration::from_millis(20));
    let (a, _) = open(RcOptions { keepalive, ..quick() });
    let (dying, raw) = raw_pair(&a, 8);
    sleep_until(&a, || a.counters().probes >= 2);
    raw.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    sleep_until(&a, || dying.failure().is_some());
    drop(dying);
    sleep_until(&a, || a.counters().endpoints == 0);
    // Its deadline finds nobody, and is the last.
    while a.next_timeout().is_some() {
        drain(&a);
        assert!(readable(&a, 30_000));
        a.progress().unwrap();
    }
    drain(&a);
    assert!(!readable(&a, 100));
}
