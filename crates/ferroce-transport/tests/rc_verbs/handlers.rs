//! Whoever is called may do as he likes, and is not called for what is gone.

use crate::support::{AM, a_while, message, numbers, open, options, pair, raw_pair, until};
use crate::waiting::readable;
use ferroce_transport::rc_verbs::{RcEndpoint, RcOptions};
use ferroce_transport::uct::{
    Arm, Cause, CompletionCounter, Endpoint as _, FlushKind, Interface as _, OpError, PendingError, PendingStatus,
    Posted, Remote,
};
use ferroce_verbs::Access;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Report 6520: two endpoints fail at once; whose handler comes first drops the other, and itself. The other's is not called.
#[test]
fn report_6520_a_failure_is_not_told_after_the_drop() {
    for _ in 0..20 {
        let ((a, _), (b, _)) = (open(options()), open(options()));
        let (ends, peers): (Vec<_>, Vec<_>) = (0..2).map(|_| pair(&a, &b)).unzip();
        let owners: Arc<Mutex<Vec<RcEndpoint>>> = Arc::new(Mutex::new(ends));
        let calls = Arc::new(AtomicUsize::new(0));
        for endpoint in owners.lock().unwrap().iter() {
            let (own, counted) = (owners.clone(), calls.clone());
            endpoint.on_failure(Box::new(move |failure| {
                assert_eq!(failure.cause, Cause::Closed);
                counted.fetch_add(1, Ordering::SeqCst);
                let all = std::mem::take(&mut *own.lock().unwrap());
                assert!(!all.is_empty(), "both were dropped before");
                drop(all);
            }));
        }
        drop(peers);
        // Both have come before this side looks.
        until(&[&b], || b.counters().endpoints == 0);
        until(&[&a], || calls.load(Ordering::SeqCst) != 0);
        a_while(&[&a]);
        assert_eq!((calls.load(Ordering::SeqCst), a.counters().endpoints), (1, 0));
    }
}

/// Who asks when it has failed is told at once, in place of who asked before and was not called yet.
#[test]
fn a_failure_is_told_to_whoever_asked_last() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    drop(to_a);
    until(&[&a, &b], || to_b.failure().is_some());
    let told = Arc::new(AtomicUsize::new(0));
    for round in 1..3 {
        let tell = told.clone();
        to_b.on_failure(Box::new(move |_| _ = tell.fetch_add(1, Ordering::SeqCst)));
        assert_eq!(told.load(Ordering::SeqCst), round);
    }
}

/// Packing is the program's: it may send with the same endpoint.
#[test]
fn packing_locks_nothing() {
    let ((a, _), (b, at_b)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    let theirs = b.pd().alloc_mr(64, Access::ALL).unwrap();
    to_b.am_bcopy(AM, &mut |packer| {
        to_b.am_short(AM, &message(1, 8)).unwrap();
        assert!(to_b.failure().is_none());
        packer.put(&message(2, 100)).unwrap();
    })
    .unwrap();
    to_b.put_bcopy(
        &mut |packer| {
            to_b.am_short(AM, &message(3, 8)).unwrap();
            packer.put(&[7; 64]).unwrap();
        },
        Remote::of(&theirs),
    )
    .unwrap();
    until(&[&a, &b], || a.flush() && numbers(&at_b, &to_a) == [1, 2, 3]);
    let mut bytes = [0; 64];
    theirs.read(0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 64]);
    assert_eq!(a.counters().free_buffers, 512);
}

/// A handler that panics takes nothing with it but its own message.
#[test]
fn a_panicking_handler_loses_nothing_of_the_others() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    let (seen, done) = (Arc::new(Mutex::new(Vec::new())), CompletionCounter::new());
    let to = seen.clone();
    b.set_am_handler(AM, move |message| {
        let number = message.payload[0];
        to.lock().unwrap().push(number);
        assert!(number % 3 != 0, "as it is meant to");
    })
    .unwrap();
    for number in 0..32 {
        to_b.am_short(AM, &[number]).unwrap();
    }
    until(&[&a], || a.flush());
    // Completions of the same batch.
    let theirs = a.pd().alloc_mr(8, Access::ALL).unwrap();
    for _ in 0..4 {
        to_a.get_bcopy(8, Remote::of(&theirs), done.token()).unwrap();
    }
    let mut panics = 0;
    until(&[&a], || {
        panics += usize::from(catch_unwind(AssertUnwindSafe(|| b.progress().unwrap())).is_err());
        seen.lock().unwrap().len() == 32 && done.outstanding() == 0
    });
    assert_eq!((panics, *seen.lock().unwrap() == (0..32).collect::<Vec<_>>()), (11, true));
    assert_eq!((done.succeeded(), done.canceled()), (4, 0));
    // Nor does a request: the others are called.
    let calls = Arc::new(AtomicUsize::new(0));
    // Until the credits are used up, which the peer's program does not renew.
    for _ in 0..10 {
        while to_b.am_short(AM, &[1]).is_ok() {}
        until(&[&a], || a.flush());
    }
    a_while(&[&a]);
    for number in 0..5 {
        let counted = calls.clone();
        let request = move |_: &dyn ferroce_transport::uct::Endpoint| {
            counted.fetch_add(1, Ordering::SeqCst);
            assert!(number != 1, "as it is meant to");
            PendingStatus::Done
        };
        to_b.pending_add(Box::new(request)).unwrap();
    }
    b.set_am_handler(AM, |_| {}).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| a.progress().unwrap())).is_err());
    // Nothing comes, and who sleeps has to know all the same.
    assert_eq!((calls.load(Ordering::SeqCst), a.arm().unwrap()), (2, Arm::Busy));
    a.progress().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 5);
}

/// Who was refused may wait: as many flushes as there can be are under way.
#[test]
fn whoever_finds_no_room_for_a_flush_can_wait_for_it() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, _to_a) = pair(&a, &b);
    let theirs = b.pd().alloc_mr(1 << 20, Access::ALL).unwrap();
    let mine = a.pd().alloc_mr(1 << 20, Access::LOCAL_WRITE).unwrap();
    let done = CompletionCounter::new();
    let iov = [ferroce_transport::uct::Iov::new(&mine, 0..1 << 20)];
    to_b.put_zcopy(&iov, Remote::of(&theirs), Some(done.token())).unwrap();
    let flush = |endpoint: &dyn ferroce_transport::uct::Endpoint, done: &Arc<CompletionCounter>| {
        let outcome = endpoint.flush(FlushKind::Local, Some(done.token()));
        if !matches!(outcome, Ok(Posted::InProgress)) {
            done.answered();
        }
        outcome
    };
    let refused = (0..10_000).find_map(|_| flush(&to_b, &done).err());
    assert!(matches!(refused, Some(OpError::NoResource)), "{refused:?}");
    let (again, flushed) = (done.clone(), Arc::new(AtomicUsize::new(0)));
    let over = flushed.clone();
    let request = move |endpoint: &dyn ferroce_transport::uct::Endpoint| match flush(endpoint, &again) {
        Ok(_) => {
            over.fetch_add(1, Ordering::SeqCst);
            PendingStatus::Done
        }
        Err(OpError::NoResource) => PendingStatus::NoResource,
        Err(error) => panic!("{error}"),
    };
    match to_b.pending_add(Box::new(request)) {
        Ok(()) => {}
        Err(PendingError::Busy(_)) => panic!("it was refused, and is not to wait"),
        Err(error) => panic!("{error}"),
    }
    until(&[&a, &b], || flushed.load(Ordering::SeqCst) == 1 && done.outstanding() == 0);
    assert_eq!(done.failed() + done.canceled(), 0);
}

/// Reports 8151, 8075: an endpoint that was canceled says so, too.
#[test]
fn report_8151_a_canceled_endpoint_says_that_it_closes() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    to_b.flush(FlushKind::Cancel, None).unwrap();
    until(&[&a, &b], || to_a.failure().is_some());
    assert_eq!(to_a.failure().unwrap().cause, Cause::Closed);
    drop((to_a, to_b));
    until(&[&a, &b], || a.counters().endpoints + b.counters().endpoints == 0);
}

/// Who sleeps, without a deadline, learns that there is one now: of an endpoint that another thread connected, of an operation that it began.
#[test]
fn new_deadlines_wake() {
    let some = Some(Duration::from_millis(20));
    for options in [RcOptions { keepalive: some, ..options() }, RcOptions { peer_timeout: some, ..options() }] {
        let (a, _) = open(options);
        let asleep = || {
            while a.arm().unwrap() == Arm::Busy {
                a.progress().unwrap();
            }
            assert!(!readable(&a, 0));
        };
        asleep();
        let (to_raw, raw) = raw_pair(&a, 8);
        if a.next_timeout().is_none() {
            asleep();
            to_raw.am_short(AM, &[1]).unwrap();
        }
        assert!(readable(&a, 30_000), "nobody woke this side");
        drop(raw);
    }
}

/// A device may send nothing inline: what is short is copied then.
#[test]
fn nothing_goes_inline() {
    let plain = || open(RcOptions { max_inline: 0, ..options() });
    let ((a, at_a), (b, at_b)) = (plain(), plain());
    assert_eq!((a.attr().am.max_short, a.attr().put.max_short), (0, 0));
    let (to_b, to_a) = pair(&a, &b);
    let theirs = b.pd().alloc_mr(64, Access::ALL).unwrap();
    assert!(matches!(to_b.put_short(&[1], Remote::of(&theirs)), Err(OpError::TooLong { .. })));
    to_b.am_short(AM, &[]).unwrap();
    until(&[&a, &b], || at_b.lock().unwrap().len() == 1);
    at_b.lock().unwrap().clear();
    // Grants and the end are said all the same.
    for number in 0..2000 {
        until(&[&a, &b], || to_b.am_bcopy(AM, &mut |packer| packer.put(&message(number, 100)).unwrap()).is_ok());
    }
    let header = message(2000, 20);
    until(&[&a, &b], || to_b.am_zcopy(AM, &header, &[], None).is_ok());
    until(&[&a, &b], || numbers(&at_b, &to_a).len() == 2001);
    to_a.am_bcopy(AM, &mut |packer| packer.put(&message(7, 4)).unwrap()).unwrap();
    until(&[&a, &b], || numbers(&at_a, &to_b) == [7]);
    until(&[&a, &b], || a.flush() && b.flush());
    drop(to_a);
    until(&[&a, &b], || to_b.failure().is_some());
    assert_eq!(to_b.failure().unwrap().cause, Cause::Closed);
    drop(to_b);
    until(&[&a, &b], || a.counters().endpoints + b.counters().endpoints == 0);
    assert_eq!((a.counters().free_buffers, b.counters().free_buffers), (512, 512));
}
