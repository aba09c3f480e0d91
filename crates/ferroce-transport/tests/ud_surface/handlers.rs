//! Whoever is called may do as he likes, and is not called for what is gone.

use crate::support::{AM, connect, fill, numbers, open, plain};
use crate::waiting::until;
use ferroce_transport::uct::{Arm, Endpoint, Interface, PendingStatus};
use ferroce_transport::ud::Config;
use ferroce_transport::ud_verbs::{UdEndpoint, UdVerbs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn impatient() -> Config {
    Config { connect_timeout: Duration::from_millis(5), ..Config::default() }
}

/// Report 6520: two endpoints fail at once; whose handler comes first drops the other, and itself. The other's is not called.
#[test]
fn report_6520_a_failure_is_not_told_after_the_drop() {
    // It makes no progress, and so does not answer.
    let (silent, _) = plain();
    for _ in 0..20 {
        let (a, _) = open(impatient(), None);
        let ends = vec![connect(&a, &silent), connect(&a, &silent)];
        let (owners, calls) = (Arc::new(Mutex::new(ends)), Arc::new(AtomicU32::new(0)));
        for endpoint in owners.lock().unwrap().iter() {
            let (own, counted) = (owners.clone(), calls.clone());
            endpoint.on_failure(Box::new(move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                let all = std::mem::take(&mut *own.lock().unwrap());
                assert!(!all.is_empty(), "both were dropped before");
                drop::<Vec<UdEndpoint>>(all);
            }));
        }
        // Both are due before anybody looks.
        std::thread::sleep(Duration::from_millis(10));
        until(&[&a], || calls.load(Ordering::SeqCst) != 0 && a.counters().endpoints == 0);
        a.progress().unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    }
}

/// Who asks to be told while it fails is told, once: then, or at once.
#[test]
fn a_failure_is_told_once_whenever_it_is_asked_for() {
    let ((silent, _), (a, _)) = (plain(), open(impatient(), None));
    for round in 0..300 {
        let to_nobody = connect(&a, &silent);
        let (told, over) = (Arc::new(AtomicU32::new(0)), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    a.progress().unwrap();
                }
            });
            // Somewhere about the failure.
            std::thread::sleep(Duration::from_micros(4900 + round));
            let tell = told.clone();
            to_nobody.on_failure(Box::new(move |_| _ = tell.fetch_add(1, Ordering::SeqCst)));
            while Endpoint::failure(&to_nobody).is_none() {
                std::thread::yield_now();
            }
            over.store(true, Ordering::SeqCst);
        });
        a.progress().unwrap();
        assert_eq!(told.load(Ordering::SeqCst), 1, "round {round}");
    }
}

/// Requests that make others do not keep progress for ever.
#[test]
fn progress_is_bounded_whatever_requests_do() {
    let ((a, _), (b, _)) = (plain(), plain());
    let to_b = connect(&a, &b);
    fill(&to_b, 0);
    let calls = Arc::new(AtomicU32::new(0));
    fn request(calls: Arc<AtomicU32>) -> ferroce_transport::uct::PendingRequest {
        Box::new(move |endpoint| {
            if calls.fetch_add(1, Ordering::SeqCst) < 100_000 {
                // Never refused: another one waits, too.
                let _ = endpoint.pending_add(request(calls.clone()));
            }
            PendingStatus::Done
        })
    }
    for _ in 0..2 {
        to_b.pending_add(request(calls.clone())).unwrap();
    }
    for round in 1..=10 {
        a.progress().unwrap();
        let so_far = calls.load(Ordering::SeqCst);
        assert!(so_far <= 100 * round, "round {round}: {so_far}");
    }
    // It goes on in the next turn, without anything that comes.
    assert!(calls.load(Ordering::SeqCst) > 100);
    to_b.pending_purge(&mut drop);
    a.progress().unwrap();
    let calls = Arc::new(AtomicU32::new(0));
    for _ in 0..100 {
        let counted = calls.clone();
        let request = move |_: &dyn Endpoint| {
            counted.fetch_add(1, Ordering::SeqCst);
            PendingStatus::Done
        };
        to_b.pending_add(Box::new(request)).unwrap();
    }
    for called in [32, 64, 96, 100] {
        assert_eq!(a.arm().unwrap(), Arm::Busy);
        a.progress().unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), called);
    }
}

/// Requests are called when their own endpoint has room, however much others receive: else `n` that wait cost `n` calls for each datagram.
#[test]
fn those_that_wait_are_called_for_what_concerns_them() {
    let ((a, _), (silent, _), (b, at_b)) = (plain(), plain(), plain());
    let calls = Arc::new(AtomicU32::new(0));
    let waiting: Vec<_> = (0..50).map(|_| connect(&a, &silent)).collect();
    for endpoint in &waiting {
        let sent = fill(endpoint, 0);
        let counted = calls.clone();
        let request = move |endpoint: &dyn Endpoint| {
            counted.fetch_add(1, Ordering::SeqCst);
            match endpoint.am_short(AM, &sent.to_be_bytes()) {
                Ok(()) => PendingStatus::Done,
                Err(_) => PendingStatus::NoResource,
            }
        };
        endpoint.pending_add(Box::new(request)).unwrap();
    }
    a.progress().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 50, "each is tried once");
    let to_b = connect(&a, &b);
    for number in 0..300_u32 {
        to_b.am_short(AM, &number.to_be_bytes()).unwrap();
        until(&[&a, &b], || to_b.flush().unwrap());
    }
    assert_eq!((numbers(&at_b).len(), calls.load(Ordering::SeqCst)), (300, 50));
    until(&[&a, &b, &silent], || waiting.iter().all(|endpoint| endpoint.flush().unwrap()));
    assert_eq!(calls.load(Ordering::SeqCst), 100, "and once more when there is room");
}

/// A handler that panics takes nothing with it but its own message.
#[test]
fn a_panicking_handler_loses_nothing_of_the_others() {
    let ((a, _), (b, _)) = (plain(), plain());
    let to_b = connect(&a, &b);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let to = seen.clone();
    b.set_am_handler(AM, move |message| {
        let number = u32::from_be_bytes(message.payload.try_into().unwrap());
        to.lock().unwrap().push(number);
        assert!(number % 3 != 0, "as it is meant to");
    })
    .unwrap();
    for number in 0..100_u32 {
        to_b.am_short(AM, &number.to_be_bytes()).unwrap();
    }
    let mut panics = 0;
    until(&[&a], || {
        panics += usize::from(catch_unwind(AssertUnwindSafe(|| b.progress().unwrap())).is_err());
        seen.lock().unwrap().len() == 100
    });
    assert_eq!((panics, *seen.lock().unwrap() == (0..100).collect::<Vec<_>>()), (34, true));
    // Nor does a request: the others are called.
    b.set_am_handler(AM, |_| {}).unwrap();
    until(&[&a, &b], || to_b.flush().unwrap());
    fill(&to_b, 0);
    let calls = Arc::new(AtomicU32::new(0));
    for number in 0..5 {
        let counted = calls.clone();
        let request = move |_: &dyn Endpoint| {
            counted.fetch_add(1, Ordering::SeqCst);
            assert!(number != 1, "as it is meant to");
            PendingStatus::Done
        };
        to_b.pending_add(Box::new(request)).unwrap();
    }
    assert!(catch_unwind(AssertUnwindSafe(|| a.progress().unwrap())).is_err());
    // Nothing comes, and who sleeps has to know all the same.
    assert_eq!((calls.load(Ordering::SeqCst), a.arm().unwrap()), (2, Arm::Busy));
    a.progress().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 5);
}

/// What a handler owns goes when another takes its place, and may do as it likes then.
#[test]
fn a_handler_that_goes_may_set_handlers() {
    struct Setter(UdVerbs, Arc<AtomicU32>);
    impl Drop for Setter {
        fn drop(&mut self) {
            self.0.set_am_handler(AM + 1, |_| {}).unwrap();
            self.0.set_am(AM, None).unwrap();
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let ((a, _), gone) = (plain(), Arc::new(AtomicU32::new(0)));
    let setter = || {
        let setter = Setter(a.clone(), gone.clone());
        move |_: ferroce_transport::ud_verbs::Message<'_>| _ = &setter
    };
    for round in 1..4 {
        a.set_am_handler(AM, setter()).unwrap();
        a.set_am_handler(AM, |_| {}).unwrap();
        assert_eq!(gone.load(Ordering::SeqCst), round);
    }
    assert!(numbers(&Arc::default()).is_empty());
}
