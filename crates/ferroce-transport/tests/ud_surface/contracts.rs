//! UCT's contracts.

use crate::support::{AM, Over, connect, fill, memory, numbers, open, plain};
use crate::waiting::{readable, sleep_until, until};
use ferroce_soft::FaultConfig;
use ferroce_transport::uct::{
    Arm, AtomicOp, Cause, Completion, CompletionCounter, Endpoint, FlushKind, Interface, InterfaceFlags, Iov, OpError,
    PendingError, PendingStatus, Posted, Remote, Unreachable,
};
use ferroce_transport::ud::Config;
use ferroce_verbs::Gid;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

#[test]
fn messages_of_every_kind() {
    let ((a, _), (b, at_b)) = (plain(), plain());
    let to_b = connect(&a, &b);
    let attr = *a.attr();
    let most = attr.am.max_bcopy;
    let mr = memory(2 * most);
    mr.write(0, &vec![9; most]).unwrap();
    let never = || Some(Completion::once(|_| panic!("it was over when it was begun")));
    to_b.am_short(AM, &0_u32.to_be_bytes()).unwrap();
    let packed = to_b.am_bcopy(AM, &mut |packer| {
        packer.put(&1_u32.to_be_bytes()).unwrap();
        packer.put(&vec![7; packer.room()]).unwrap();
    });
    assert_eq!(packed.unwrap(), most);
    let iov = [Iov::new(&mr, 0..100), Iov::new(&mr, 100..most - 4)];
    assert_eq!(to_b.am_zcopy(AM, &2_u32.to_be_bytes(), &iov, never()).unwrap(), Posted::Done);
    until(&[&a, &b], || numbers(&at_b) == [0, 1, 2]);
    let log = at_b.lock().unwrap().clone();
    assert!(log.iter().all(|(id, _)| *id == log[0].0), "one session");
    assert!(log[1].1.len() == most && log[1].1[4..].iter().all(|byte| *byte == 7));
    assert!(log[2].1.len() == most && log[2].1[4..].iter().all(|byte| *byte == 9));

    assert!(matches!(to_b.am_short(AM, &vec![0; attr.am.max_short + 1]), Err(OpError::TooLong { .. })));
    assert!(matches!(to_b.am_short(32, &[]), Err(OpError::AmId(32))));
    let packed = to_b.am_bcopy(AM, &mut |packer| assert!(packer.put(&vec![0; most + 1]).is_err()));
    assert!(matches!(packed, Err(OpError::TooLong { .. })));
    assert!(matches!(to_b.am_zcopy(AM, &[1], &[Iov::new(&mr, 0..most)], never()), Err(OpError::TooLong { .. })));
    assert!(matches!(
        to_b.am_zcopy(AM, &[], &[Iov::new(&mr, 0..most * 3)], never()),
        Err(OpError::TooLong { .. } | OpError::Device(_))
    ));
    let remote = Remote { addr: 0, rkey: 0 };
    assert!(matches!(to_b.put_short(&[1], remote), Err(OpError::Unsupported(..))));
    assert!(matches!(to_b.get_bcopy(1, remote, never().unwrap()), Err(OpError::Unsupported(..))));
    assert!(matches!(to_b.atomic64_fetch(AtomicOp::Add, 1, remote, never().unwrap()), Err(OpError::Unsupported(..))));
    assert!(matches!(to_b.put_zcopy(&iov, remote, never()), Err(OpError::Unsupported(..))));
    assert_eq!((attr.put.max_short, attr.get.max_zcopy, attr.atomic64_fetch.bits()), (0, 0, 0));
    assert!(!attr.flags.contains(InterfaceFlags::FLUSH_REMOTE | InterfaceFlags::CONNECT_TO_EP));
}

fn pending_over(fault: Option<FaultConfig>) {
    let ((a, _), (b, at_b)) = (open(Config::default(), fault), open(Config::default(), fault));
    let to_b = connect(&a, &b);
    let refused = to_b.pending_add(Box::new(|_: &dyn Endpoint| panic!("it was handed back")));
    assert!(matches!(refused, Err(PendingError::Busy(_))));
    let sent = fill(&to_b, 0);
    let next = Arc::new(AtomicU32::new(sent));
    for number in sent..sent + 2000 {
        let next = next.clone();
        let request = move |endpoint: &dyn Endpoint| {
            assert_eq!(next.load(Ordering::Relaxed), number, "one after the other");
            match endpoint.am_short(AM, &number.to_be_bytes()) {
                Ok(()) => {
                    next.fetch_add(1, Ordering::Relaxed);
                    PendingStatus::Done
                }
                Err(OpError::NoResource) => PendingStatus::NoResource,
                Err(error) => panic!("{error}"),
            }
        };
        to_b.pending_add(Box::new(request)).unwrap();
    }
    let done = CompletionCounter::new();
    until(&[&a, &b], || next.load(Ordering::Relaxed) == sent + 2000);
    assert_eq!(Endpoint::flush(&to_b, FlushKind::Remote, Some(done.token())).unwrap(), Posted::InProgress);
    until(&[&a, &b], || done.outstanding() == 0);
    assert_eq!((done.succeeded(), numbers(&at_b)), (1, (0..sent + 2000).collect()));
    assert!(Interface::flush(&a));
    let refused = to_b.pending_add(Box::new(|_| PendingStatus::Done));
    assert!(matches!(refused, Err(PendingError::Busy(_))));
}

#[test]
fn pending_requests_are_called_in_order() {
    pending_over(None);
}

#[test]
fn pending_requests_over_a_bad_link() {
    pending_over(Some(FaultConfig { seed: 5, loss: 0.05, duplicate: 0.02, reorder: 0.05, corrupt: 0.0 }));
}

#[test]
fn a_failed_endpoint_ends_what_waits_for_it() {
    let quick = Config { connect_timeout: Duration::from_millis(200), ..Config::default() };
    let (a, _) = open(quick, None);
    let gone = {
        let (b, _) = plain();
        b.address()
    };
    let to_nobody = a.connect(gone).unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    to_nobody.on_failure(Box::new(move |failure| {
        assert_eq!(failure.cause, Cause::ConnectTimeout);
        assert!(failure.evidence.last_receive.unwrap() >= Duration::from_millis(200), "{failure}");
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    fill(&to_nobody, 0);
    for _ in 0..3 {
        to_nobody.pending_add(Box::new(|_| panic!("there were never resources"))).unwrap();
    }
    let done = CompletionCounter::new();
    Endpoint::flush(&to_nobody, FlushKind::Local, Some(done.token())).unwrap();
    let mut back = 0;
    // What there is before the endpoint fails is looked at once, in vain.
    to_nobody.pending_purge(&mut |_| back += 1);
    sleep_until(&a, || done.outstanding() == 0);
    assert_eq!((back, done.failed(), calls.load(Ordering::SeqCst)), (3, 1, 1));
    assert!(matches!(to_nobody.am_short(AM, &[]), Err(OpError::Failed(..))));
    assert!(matches!(to_nobody.pending_add(Box::new(|_| PendingStatus::Done)), Err(PendingError::Over(_, Some(_)))));
    assert!(matches!(Endpoint::check(&to_nobody), Err(OpError::Failed(..))));
    assert_eq!(Endpoint::failure(&to_nobody).unwrap().cause, Cause::ConnectTimeout);
}

#[test]
fn a_canceled_endpoint_is_over_and_nobody_is_told_that_it_failed() {
    let ((a, _), (b, _)) = (plain(), plain());
    let to_b = connect(&a, &b);
    to_b.on_failure(Box::new(|_| panic!("it was canceled")));
    fill(&to_b, 0);
    let done = CompletionCounter::new();
    Endpoint::flush(&to_b, FlushKind::Local, Some(done.token())).unwrap();
    let over = Some(Completion::once(|_| panic!("it was over when it was begun")));
    assert_eq!(Endpoint::flush(&to_b, FlushKind::Cancel, over).unwrap(), Posted::Done);
    assert_eq!((done.canceled(), done.outstanding()), (1, 0));
    until(&[&a, &b], || matches!(to_b.am_short(AM, &[]), Err(OpError::Canceled(_))));
    assert!(matches!(to_b.pending_add(Box::new(|_| PendingStatus::Done)), Err(PendingError::Over(_, None))));
    for _ in 0..100 {
        a.progress().unwrap();
        b.progress().unwrap();
    }
    assert!(Endpoint::failure(&to_b).is_none());
    drop(to_b);
    until(&[&a, &b], || a.counters().endpoints == 0);
}

#[test]
fn a_dropped_endpoint_cancels_flushes_and_drops_requests() {
    let ((a, _), (b, at_b)) = (plain(), plain());
    let to_b = connect(&a, &b);
    let sent = fill(&to_b, 0);
    let (done, held) = (CompletionCounter::new(), Arc::new(()));
    Endpoint::flush(&to_b, FlushKind::Local, Some(done.token())).unwrap();
    let holder = held.clone();
    to_b.pending_add(Box::new(move |_| panic!("{holder:?}: its endpoint is gone"))).unwrap();
    drop(to_b);
    assert_eq!((done.canceled(), done.outstanding(), Arc::strong_count(&held)), (1, 0, 1));
    // What was sent is delivered all the same.
    until(&[&a, &b], || a.counters().endpoints + b.counters().endpoints == 0);
    assert_eq!(numbers(&at_b), (0..sent).collect::<Vec<_>>());
}

#[test]
fn sleepers_wake_each_other() {
    const COUNT: u32 = 1000;
    let ((a, at_a), (b, at_b)) = (plain(), plain());
    let (to_b, to_a) = (connect(&a, &b), connect(&b, &a));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..COUNT {
                sleep_until(&b, || at_b.lock().unwrap().len() > number as usize);
                to_a.am_short(AM, &number.to_be_bytes()).unwrap();
            }
            sleep_until(&b, || Interface::flush(&b));
        });
        for number in 0..COUNT {
            to_b.am_short(AM, &number.to_be_bytes()).unwrap();
            sleep_until(&a, || at_a.lock().unwrap().len() > number as usize);
        }
        sleep_until(&a, || Interface::flush(&a));
    });
    assert_eq!(numbers(&at_a), (0..COUNT).collect::<Vec<_>>());
}

/// While a message is not acknowledged, a few more wait to be sent together; but not for a sender that sleeps, nor without end.
#[test]
fn what_is_gathered_goes_out_when_its_sender_sleeps_and_when_there_is_enough() {
    let ((a, _), (b, at_b)) = (plain(), plain());
    let endpoint = connect(&a, &b);
    let send = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            endpoint.am(AM, &number.to_be_bytes()).unwrap();
        }
    };
    send(0..1);
    until(&[&a, &b], || endpoint.flush().unwrap());
    // From here on nothing makes the sender's progress. The first goes out, for nothing is in flight.
    send(1..2);
    until(&[&b], || numbers(&at_b).len() == 2);
    send(2..4);
    let _ = a.arm().unwrap();
    until(&[&b], || numbers(&at_b).len() == 4);
    // The sender may sleep: what it is given by another thread does not wait.
    send(4..5);
    until(&[&b], || numbers(&at_b).len() == 5);
    a.progress().unwrap();
    until(&[&a, &b], || endpoint.flush().unwrap());
    send(5..6);
    send(6..40);
    // As many as the window allows, which losses on a loaded machine may have closed but for two.
    until(&[&b], || numbers(&at_b).len() > 6);
    until(&[&a, &b], || endpoint.flush().unwrap());
    assert_eq!(numbers(&at_b), (0..40).collect::<Vec<_>>());
}

/// Reports 7527, 7531, 7864: timers wake whoever sleeps (here, those that send again what was lost), and leave it in peace when there is nothing.
#[test]
fn report_7527_timers_wake_and_then_leave_in_peace() {
    let fault = FaultConfig { seed: 11, loss: 0.2, duplicate: 0.0, reorder: 0.0, corrupt: 0.0 };
    let ((a, _), (b, at_b)) = (open(Config::default(), Some(fault)), open(Config::default(), Some(fault)));
    let to_b = connect(&a, &b);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Over(&over);
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                if b.arm().unwrap() == Arm::Armed {
                    readable(&b, 20);
                }
                b.progress().unwrap();
            }
        });
        for number in 0..200_u32 {
            to_b.am_short(AM, &number.to_be_bytes()).unwrap();
            if number % 10 == 0 {
                sleep_until(&a, || Interface::flush(&a));
            }
        }
        sleep_until(&a, || Interface::flush(&a));
    });
    assert_eq!(numbers(&at_b), (0..200).collect::<Vec<_>>());
    while a.next_timeout().is_some_and(|timeout| timeout < Duration::from_secs(5)) {
        if a.arm().unwrap() == Arm::Armed {
            assert!(readable(&a, 30_000));
        }
        a.progress().unwrap();
    }
    while a.arm().unwrap() == Arm::Busy {
        a.progress().unwrap();
    }
    assert!(!readable(&a, 100));
}

#[test]
fn reachability_and_identity() {
    let ((a, _), (b, _)) = (plain(), plain());
    a.is_reachable(&b.address_bytes()).unwrap();
    assert!(matches!(a.is_reachable(&[7; 3]), Err(Unreachable::Malformed { len: 3, .. })));
    let mut six = b.address_bytes();
    six[..16].copy_from_slice(&Gid::from(std::net::Ipv6Addr::LOCALHOST).to_bytes());
    assert!(matches!(a.is_reachable(&six), Err(Unreachable::Family { .. })));
    let to_b = connect(&a, &b);
    to_b.am_short(AM, &[0; 4]).unwrap();
    until(&[&a, &b], || Interface::flush(&a));
    let is = |address: &[u8]| Endpoint::is_connected(&to_b, address);
    assert!(is(&b.address_bytes()) && !is(&a.address_bytes()) && !is(&[]));
}
