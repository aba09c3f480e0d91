//! Addresses without a route, flushes under load, and sleepers that other threads must wake.

use crate::support::{AM, connect, fill, numbers, open, plain};
use crate::waiting::{readable, until};
use ferroce_transport::uct::{
    Arm, Cause, CompletionCounter, Endpoint, FlushKind, Interface, OpError, PendingError, PendingStatus, Posted,
};
use ferroce_transport::ud::Config;
use ferroce_transport::ud_verbs::{InterfaceAddress, UdVerbs};
use ferroce_verbs::Gid;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// An address that nothing leads to.
fn nowhere(like: &UdVerbs) -> InterfaceAddress {
    let mut bytes = like.address().to_bytes();
    bytes[..16].copy_from_slice(&Gid::from(Ipv4Addr::new(203, 0, 113, 7)).to_bytes());
    InterfaceAddress::from_bytes(&bytes).unwrap()
}

/// It fails, with its cause, before anybody makes progress: who tries again and asks to wait in turn must not do so for ever.
#[test]
fn an_endpoint_without_a_route_fails_at_once() {
    let (a, _) = plain();
    let to_nobody = a.connect(nowhere(&a)).unwrap();
    assert_eq!(Endpoint::failure(&to_nobody).unwrap().cause, Cause::Unreachable);
    assert!(
        matches!(to_nobody.am_short(AM, &[]), Err(OpError::Failed(_, failure)) if failure.cause == Cause::Unreachable)
    );
    assert!(matches!(to_nobody.pending_add(Box::new(|_| PendingStatus::Done)), Err(PendingError::Over(_, Some(_)))));
    let over = CompletionCounter::new();
    assert!(matches!(Endpoint::flush(&to_nobody, FlushKind::Local, Some(over.token())), Err(OpError::Failed(..))));
    assert!(matches!(a.arm().unwrap(), Arm::Busy), "somebody may have to be told");
    // Who asked when it was made is told by progress.
    let told = Arc::new(AtomicU32::new(0));
    let tell = told.clone();
    let other = a.connect_or(nowhere(&a), move |_| _ = tell.fetch_add(1, Ordering::SeqCst)).unwrap();
    assert_eq!(told.load(Ordering::SeqCst), 0);
    a.progress().unwrap();
    a.progress().unwrap();
    assert_eq!(told.load(Ordering::SeqCst), 1);
    drop((to_nobody, other));
    until(&[&a], || a.counters().endpoints == 0);
}

/// A flush waits for what was sent before it, and for nothing that is sent afterwards.
#[test]
fn a_flush_completes_under_steady_sending() {
    let ((a, _), (b, at_b)) = (plain(), plain());
    let to_b = connect(&a, &b);
    let mut sent = fill(&to_b, 0);
    let done = CompletionCounter::new();
    assert_eq!(Endpoint::flush(&to_b, FlushKind::Local, Some(done.token())).unwrap(), Posted::InProgress);
    let before = sent;
    // There is always something that the peer has not seen.
    until(&[&a, &b], || {
        if done.outstanding() == 0 {
            return true;
        }
        assert!(sent < 100 * before, "it waits for ever");
        to_b.am_short(AM, &sent.to_be_bytes()).map_or_else(|_| {}, |()| sent += 1);
        false
    });
    assert!(done.succeeded() == 1 && numbers(&at_b).len() >= before as usize);
    until(&[&a, &b], || Interface::flush(&a));
    assert_eq!(numbers(&at_b), (0..sent).collect::<Vec<_>>());
}

/// As many flushes as there can be wait; who is refused can wait for room.
#[test]
fn whoever_finds_no_room_for_a_flush_can_wait_for_it() {
    let ((a, _), (b, _)) = (plain(), plain());
    let to_b = connect(&a, &b);
    to_b.am_short(AM, &[0; 4]).unwrap();
    let done = CompletionCounter::new();
    let refused = (0..10_000).find_map(|_| Endpoint::flush(&to_b, FlushKind::Local, Some(done.token())).err());
    done.answered();
    assert!(matches!(refused, Some(OpError::NoResource)), "{refused:?}");
    let (flushed, count) = (Arc::new(AtomicU32::new(0)), done.clone());
    let over = flushed.clone();
    let request = move |endpoint: &dyn Endpoint| match endpoint.flush(FlushKind::Local, Some(count.token())) {
        Err(OpError::NoResource) => {
            count.answered();
            PendingStatus::NoResource
        }
        Ok(posted) => {
            if posted == Posted::Done {
                count.answered();
            }
            over.fetch_add(1, Ordering::SeqCst);
            PendingStatus::Done
        }
        Err(error) => panic!("{error}"),
    };
    to_b.pending_add(Box::new(request)).unwrap();
    until(&[&a, &b], || flushed.load(Ordering::SeqCst) == 1 && done.outstanding() == 0);
    assert_eq!(done.failed() + done.canceled(), 0);
}

fn asleep(interface: &UdVerbs) {
    // Something may be due as soon as it is armed, and then it does not sleep for long.
    while interface.arm().unwrap() == Arm::Busy || readable(interface, 0) {
        interface.progress().unwrap();
    }
}

/// Whatever another thread begins may bring a deadline that who sleeps does not know of.
#[test]
fn whatever_is_begun_wakes_who_sleeps() {
    type Begin<'a> = &'a dyn Fn();
    let ((a, _), (b, _)) = (plain(), plain());
    let to_b = connect(&a, &b);
    to_b.am_short(AM, &[0; 4]).unwrap();
    until(&[&a, &b], || Interface::flush(&a));
    let begin: [(&str, Begin<'_>); 5] = [
        ("a sign of life", &|| Endpoint::check(&to_b).unwrap()),
        ("the other one", &|| ferroce_transport::ud_verbs::UdEndpoint::check(&to_b).unwrap()),
        ("a message", &|| to_b.am_short(AM, &[0; 4]).unwrap()),
        ("a flush", &|| _ = to_b.flush().unwrap()),
        ("a flush of all", &|| _ = Interface::flush(&a)),
    ];
    for (what, begin) in begin {
        asleep(&a);
        begin();
        assert!(readable(&a, 30_000), "{what} wakes nobody");
    }
}

/// One thread sleeps, another makes progress, and goes: who sleeps sees that something came, and when something is due.
#[test]
fn progress_of_another_thread_takes_no_wake_up_away() {
    let ((a, _), (b, at_b)) = (plain(), plain());
    let to_b = connect(&a, &b);
    until(&[&a, &b], || to_b.is_connected(b.address()));
    asleep(&b);
    to_b.am_short(AM, &[0; 4]).unwrap();
    until(&[&b], || numbers(&at_b).len() == 1);
    assert!(readable(&b, 30_000), "something came, and nobody knows");
    asleep(&b);
    b.progress().unwrap();
    to_b.am_short(AM, &[0; 4]).unwrap();
    assert!(readable(&b, 30_000), "progress has disarmed who sleeps");
}

/// Whatever is on its way, a peer that died is found out while everybody sleeps.
#[test]
fn a_failure_reaches_who_sleeps_whoever_makes_progress() {
    let quick = Config { connect_timeout: Duration::from_millis(50), ..Config::default() };
    let ((a, _), (silent, _)) = (open(quick, None), plain());
    asleep(&a);
    let to_nobody = connect(&a, &silent);
    until(&[&a], || Endpoint::failure(&to_nobody).is_some());
    assert!(readable(&a, 30_000));
}

/// A message that others of its endpoint are on their way before waits for more only if it is not the first since progress was made.
#[test]
fn the_first_message_after_progress_does_not_wait_for_more() {
    let ((a, _), (b, at_b)) = (plain(), plain());
    let to_b = connect(&a, &b);
    until(&[&a, &b], || to_b.is_connected(b.address()));
    for n in 0..10_u32 {
        // Whatever was acknowledged so far is not taken in, but for this.
        a.progress().unwrap();
        to_b.am_short(AM, &n.to_be_bytes()).unwrap();
        until(&[&b], || numbers(&at_b).len() == n as usize + 1);
    }
}
