//! The end of endpoints and interfaces, with anything outstanding.

use crate::support::{AM, a_while, message, numbers, open, options, pair, until};
use ferroce_transport::rc_verbs::RcOptions;
use ferroce_transport::uct::{
    CompletionCounter, Endpoint as _, FlushKind, Interface as _, Iov, OpError, Posted, Remote,
};
use ferroce_verbs::Access;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Reports 7080, 8461, 4815, 5754: endpoints go with everything outstanding, again and again. Each token is called once, every buffer
/// comes back, the completion queue never overruns, and slots are used again.
#[test]
fn report_7080_dropped_with_operations_outstanding() {
    let options = RcOptions { max_endpoints: 4, send_depth: 32, ..options() };
    let ((a, _), (b, _)) = (open(options.clone()), open(options));
    let theirs = b.pd().alloc_mr(1 << 20, Access::ALL).unwrap();
    let mine = a.pd().alloc_mr(1 << 20, Access::LOCAL_WRITE).unwrap();
    let (done, remote) = (CompletionCounter::new(), Remote::of(&theirs));
    let mut begun = 0;
    for round in 0..200 {
        until(&[&a, &b], || a.counters().endpoints < 4 && b.counters().endpoints < 4);
        let (to_b, to_a) = pair(&a, &b);
        for number in 0..40 {
            let iov = [Iov::new(&mine, 0..(round * 997) % (1 << 20))];
            let token = done.token();
            let posted = match number % 4 {
                0 => to_b.put_zcopy(&iov, remote, Some(token)),
                1 => to_b.get_zcopy(&iov, remote, Some(token)),
                2 => to_b.get_bcopy(100, remote, token),
                _ => to_b.flush(FlushKind::Remote, Some(token)),
            };
            match posted {
                Ok(Posted::InProgress) => begun += 1,
                Ok(Posted::Done) | Err(OpError::NoResource) => done.answered(),
                Err(error) => panic!("{error}"),
            }
            let _ = to_b.am_bcopy(AM, &mut |packer| packer.put(&message(number, 500)).unwrap());
        }
        for _ in 0..round % 7 {
            a.progress().unwrap();
        }
        if round % 2 == 0 {
            drop(to_a);
            drop(to_b);
        } else {
            drop(to_b);
            drop(to_a);
        }
    }
    until(&[&a, &b], || a.counters().endpoints + b.counters().endpoints == 0);
    assert!(begun > 1000);
    assert_eq!((done.outstanding(), done.succeeded() + done.canceled() + done.failed()), (0, begun));
    assert_eq!((a.counters().free_buffers, b.counters().free_buffers), (512, 512));
    assert_eq!((a.counters().no_endpoint, b.counters().malformed), (0, 0));
    assert!(a.create_endpoint().is_ok());
}

/// The last handle to the interface goes with operations outstanding: their tokens say so, at once.
#[test]
fn an_interface_goes_with_operations_outstanding() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, _to_a) = pair(&a, &b);
    let theirs = b.pd().alloc_mr(1 << 20, Access::ALL).unwrap();
    let mine = a.pd().alloc_mr(1 << 20, Access::LOCAL_WRITE).unwrap();
    let done = CompletionCounter::new();
    for _ in 0..10 {
        to_b.put_zcopy(&[Iov::new(&mine, 0..1 << 20)], Remote::of(&theirs), Some(done.token())).unwrap();
    }
    drop(a);
    assert_eq!(done.outstanding(), 10, "the endpoint holds it");
    drop(to_b);
    assert_eq!((done.outstanding(), done.canceled()), (0, 10));
}

/// Report 6520: after an endpoint was dropped nobody is told anything about it; not even by what was taken in before.
#[test]
fn report_6520_nothing_is_begun_after_the_drop() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    let (owner, seen) = (Arc::new(Mutex::new(Some(to_a))), Arc::new(AtomicUsize::new(0)));
    let (own, counted) = (owner.clone(), seen.clone());
    owner.lock().unwrap().as_ref().unwrap().on_failure(Box::new(|_| panic!("it was dropped")));
    b.set_am_handler(AM, move |_| {
        // The rest of the batch came with this one.
        drop(own.lock().unwrap().take());
        counted.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    for number in 0..10 {
        to_b.am_short(AM, &message(number, 8)).unwrap();
    }
    until(&[&a], || a.flush());
    until(&[&a, &b], || to_b.failure().is_some());
    a_while(&[&a, &b]);
    assert_eq!((seen.load(Ordering::SeqCst), b.counters().endpoints), (1, 0));
}

/// A completion that drops its endpoint, and makes progress, from inside.
#[test]
fn completions_may_do_as_they_like() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, _to_a) = pair(&a, &b);
    let theirs = b.pd().alloc_mr(4096, Access::ALL).unwrap();
    let (interface, peer) = (a.clone(), b.clone());
    let owner = Arc::new(Mutex::new(None));
    let (own, done) = (owner.clone(), Arc::new(AtomicBool::new(false)));
    let over = done.clone();
    let token = ferroce_transport::uct::Completion::once(move |outcome| {
        assert_eq!(outcome.unwrap().len(), 4096);
        assert_eq!(interface.progress().unwrap(), 0, "one thread makes progress, and it is in this completion");
        drop::<Option<ferroce_transport::rc_verbs::RcEndpoint>>(own.lock().unwrap().take());
        let (to, _of) = pair(&interface, &peer);
        to.am_short(AM, &[1]).unwrap();
        over.store(true, Ordering::SeqCst);
    });
    to_b.get_bcopy(4096, Remote::of(&theirs), token).unwrap();
    *owner.lock().unwrap() = Some(to_b);
    until(&[&a, &b], || done.load(Ordering::SeqCst));
    until(&[&a, &b], || a.counters().endpoints + b.counters().endpoints == 1);
}

/// Two threads send and make progress at both ends while others connect and drop.
#[test]
fn threads_do_as_they_like() {
    const EACH: u32 = 3000;
    let ((a, at_a), (b, at_b)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    let churned = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (interface, endpoint, log, other) in [(&a, &to_b, &at_a, &b), (&b, &to_a, &at_b, &a)] {
            scope.spawn(move || {
                for number in 0..EACH {
                    let payload = message(number, number as usize % 200);
                    until(&[interface], || match endpoint.am_short(AM, &payload) {
                        Ok(()) => true,
                        Err(OpError::NoResource) => false,
                        Err(error) => panic!("{error}"),
                    });
                }
                until(&[interface, other], || numbers(log, endpoint).len() == EACH as usize);
            });
        }
        let (a, b, churned) = (&a, &b, &churned);
        scope.spawn(move || {
            for number in 0..100 {
                let (one, two) = pair(a, b);
                for _ in 0..number % 20 {
                    let _ = one.am_short(AM, &message(number, 8));
                    let _ = two.am_bcopy(AM, &mut |packer| packer.put(&message(number, 3000)).unwrap());
                }
                drop(two);
                let _ = one.am_short(AM, &message(number, 8));
                drop(one);
                until(&[a, b], || a.counters().endpoints < 20 && b.counters().endpoints < 20);
                churned.fetch_add(1, Ordering::SeqCst);
            }
        });
    });
    assert_eq!(churned.load(Ordering::SeqCst), 100);
    assert_eq!(numbers(&at_b, &to_a), (0..EACH).collect::<Vec<_>>());
    assert_eq!(numbers(&at_a, &to_b), (0..EACH).collect::<Vec<_>>());
    drop((to_a, to_b));
    until(&[&a, &b], || a.counters().endpoints + b.counters().endpoints == 0);
    assert_eq!((a.counters().free_buffers, b.counters().free_buffers), (512, 512));
    assert_eq!((a.counters().malformed, b.counters().malformed), (0, 0));
}

/// Reports 11107, 8743: a slot is used again, an id never is.
#[test]
fn report_11107_ids_never_come_again() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let mut ids = std::collections::HashSet::new();
    for _ in 0..100 {
        let (to_b, to_a) = pair(&a, &b);
        assert!(ids.insert(to_b.id()), "{} came again", to_b.id());
        assert!(to_b.id().slot() < 64);
        drop((to_a, to_b));
        until(&[&a, &b], || a.counters().endpoints + b.counters().endpoints == 0);
    }
}
