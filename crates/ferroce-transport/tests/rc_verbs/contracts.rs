//! Pending requests, flushes, credits.

use crate::support::{AM, a_while, message, numbers, open, options, pair, until};
use ferroce_transport::rc_verbs::{RcEndpoint, RcOptions};
use ferroce_transport::uct::{
    CompletionCounter, Endpoint, FlushKind, Interface as _, OpError, PendingError, PendingStatus, Posted,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Sends until there are no resources; how many went out.
fn fill(endpoint: &RcEndpoint, from: u32) -> u32 {
    let mut number = from;
    loop {
        match endpoint.am_short(AM, &message(number, 8)) {
            Ok(()) => number += 1,
            Err(OpError::NoResource) => return number,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn pending_requests_are_called_in_order_when_there_are_resources() {
    let ((a, _), (b, at_b)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    // There are resources: trying again is the caller's business.
    let refused = to_b.pending_add(Box::new(|_: &dyn Endpoint| panic!("it was handed back")));
    assert!(matches!(refused, Err(PendingError::Busy(_))));
    let sent = fill(&to_b, 0);
    let next = Arc::new(AtomicUsize::new(sent as usize));
    for number in sent..sent + 2000 {
        let next = next.clone();
        to_b.pending_add(Box::new(move |endpoint| {
            assert_eq!(next.load(Ordering::Relaxed), number as usize, "one after the other");
            match endpoint.am_short(AM, &message(number, 8)) {
                Ok(()) => {
                    next.fetch_add(1, Ordering::Relaxed);
                    PendingStatus::Done
                }
                Err(OpError::NoResource) => PendingStatus::NoResource,
                Err(error) => panic!("{error}"),
            }
        }))
        .unwrap();
    }
    until(&[&a, &b], || numbers(&at_b, &to_a).len() == sent as usize + 2000);
    assert_eq!(numbers(&at_b, &to_a), (0..sent + 2000).collect::<Vec<_>>());
    let refused = to_b.pending_add(Box::new(|_| PendingStatus::Done));
    assert!(matches!(refused, Err(PendingError::Busy(_))), "the queue is empty again");
}

/// An endpoint without operations of its own waits for buffers that others have.
#[test]
fn pending_on_buffers_of_other_endpoints() {
    let ((a, _), (b, at_b)) = (open(RcOptions { buffers: 16, ..options() }), open(options()));
    let ((one, _at), (two, at_two)) = (pair(&a, &b), pair(&a, &b));
    let mut sent = 0;
    while one.am_bcopy(AM, &mut |packer| packer.put(&message(sent, 100)).unwrap()).is_ok() {
        sent += 1;
    }
    // As many as it leaves for others.
    assert_eq!(sent, 8);
    while two.am_bcopy(AM, &mut |packer| packer.put(&message(76, 100)).unwrap()).is_ok() {}
    two.pending_add(Box::new(|endpoint| {
        match endpoint.am_bcopy(AM, &mut |packer| packer.put(&message(77, 100)).unwrap()) {
            Ok(_) => PendingStatus::Done,
            Err(OpError::NoResource) => PendingStatus::NoResource,
            Err(error) => panic!("{error}"),
        }
    }))
    .unwrap();
    until(&[&a, &b], || numbers(&at_b, &at_two).ends_with(&[77]));
    until(&[&a, &b], || a.flush());
    assert_eq!(a.counters().free_buffers, 16);
}

#[test]
fn purging_hands_requests_back_and_dropping_drops_them() {
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, _to_a) = pair(&a, &b);
    let drops = Arc::new(AtomicUsize::new(0));
    let request = |number: usize, order: &Arc<Mutex<Vec<usize>>>| {
        let (count, order) = (Count(drops.clone()), order.clone());
        Box::new(move |_: &dyn Endpoint| {
            let _ = &count;
            order.lock().unwrap().push(number);
            PendingStatus::Done
        })
    };
    let order = Arc::default();
    fill(&to_b, 0);
    for number in 0..3 {
        to_b.pending_add(request(number, &order)).unwrap();
    }
    let mut back = Vec::new();
    to_b.pending_purge(&mut |request| back.push(request));
    assert_eq!((back.len(), drops.load(Ordering::SeqCst)), (3, 0));
    // They are the caller's: called by hand, in the order in which they came.
    for request in &mut back {
        assert_eq!(request(&to_b), PendingStatus::Done);
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
    a_while(&[&a, &b]);
    drop(back);
    assert_eq!((drops.load(Ordering::SeqCst), order.lock().unwrap().len()), (3, 3));
    fill(&to_b, 0);
    to_b.pending_add(request(9, &order)).unwrap();
    drop(to_b);
    assert_eq!(drops.load(Ordering::SeqCst), 4);
    a_while(&[&a, &b]);
    assert_eq!(order.lock().unwrap().len(), 3, "nothing is called after the endpoint was dropped");
}

/// Reports 6356, 6366, 6401: an endpoint goes while its own request is called.
#[test]
fn report_6356_destroyed_from_inside_its_pending_request() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, _to_a) = pair(&a, &b);
    fill(&to_b, 0);
    let owner = Arc::new(Mutex::new(None));
    let (calls, own) = (Arc::new(AtomicUsize::new(0)), owner.clone());
    let counted = calls.clone();
    to_b.pending_add(Box::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        drop::<Option<RcEndpoint>>(own.lock().unwrap().take());
        PendingStatus::NoResource
    }))
    .unwrap();
    to_b.pending_add(Box::new(|_| panic!("its endpoint is gone"))).unwrap();
    *owner.lock().unwrap() = Some(to_b);
    until(&[&a, &b], || calls.load(Ordering::SeqCst) == 1);
    until(&[&a, &b], || a.counters().endpoints == 0);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

/// A receiver that does not make progress stops its sender; nothing is lost when it goes on.
#[test]
fn credits_run_out_and_come_back() {
    for window in [1, 2, 7, 64] {
        let ((a, _), (b, at_b)) = (open(options()), open(RcOptions { window, receive_depth: 128, ..options() }));
        let (to_b, to_a) = pair(&a, &b);
        let mut sent = 0;
        for round in 0..20 {
            // Only this side makes progress: the device acknowledges, the peer's program takes nothing.
            let before = sent;
            for _ in 0..50 {
                sent = fill(&to_b, sent);
                a_while_alone(&a);
            }
            assert!(sent - before <= window, "round {round}: {} of {window}", sent - before);
            assert!(matches!(to_b.am_short(AM, &[]), Err(OpError::NoResource)));
            until(&[&a, &b], || numbers(&at_b, &to_a).len() == sent as usize);
            // The grant is on its way or here.
            until(&[&a, &b], || {
                matches!(to_b.pending_add(Box::new(|_| PendingStatus::Done)), Err(PendingError::Busy(_)))
            });
        }
        assert_eq!(numbers(&at_b, &to_a), (0..sent).collect::<Vec<_>>());
        assert_eq!((a.counters().malformed, b.counters().malformed), (0, 0));
    }
}

fn a_while_alone(interface: &ferroce_transport::rc_verbs::RcVerbs) {
    for _ in 0..20 {
        interface.progress().unwrap();
    }
}

/// Reports 8507, 7938: grants travel with answers, and by themselves where there are none.
#[test]
fn report_8507_grants_travel_with_answers_if_there_are_some() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    let to_a = Arc::new(to_a);
    let (answering, pings) = (to_a.clone(), Arc::new(AtomicUsize::new(0)));
    b.set_am_handler(AM, move |message| answering.am_short(AM, message.payload).unwrap()).unwrap();
    let counted = pings.clone();
    a.set_am_handler(AM, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
    })
    .unwrap();
    for round in 1..=5000 {
        to_b.am_short(AM, &message(round, 8)).unwrap();
        until(&[&a, &b], || pings.load(Ordering::SeqCst) == round as usize);
    }
    assert_eq!((a.counters().grants_sent, b.counters().grants_sent), (0, 0));
    b.set_am_handler(AM, |_| {}).unwrap();
}

#[test]
fn flushes_complete_once() {
    let ((a, _), (b, at_b)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    let done = CompletionCounter::new();
    assert_eq!(to_b.flush(FlushKind::Local, Some(done.token())).unwrap(), Posted::Done);
    done.answered();
    for round in 0..200 {
        to_b.am_short(AM, &message(round, 8)).unwrap();
        for kind in [FlushKind::Local, FlushKind::Remote, FlushKind::Local] {
            if to_b.flush(kind, Some(done.token())).unwrap() == Posted::Done {
                done.answered();
            }
        }
        until(&[&a, &b], || done.outstanding() == 0);
    }
    assert!(done.succeeded() >= 200 && done.canceled() + done.failed() == 0, "{done:?}");
    until(&[&a, &b], || numbers(&at_b, &to_a).len() == 200);
    assert_eq!(to_b.flush(FlushKind::Local, None).unwrap(), Posted::Done);
}

#[test]
fn a_canceled_endpoint_completes_everything_once() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let (to_b, _to_a) = pair(&a, &b);
    let (memory, theirs) = (
        a.pd().alloc_mr(1 << 20, ferroce_verbs::Access::LOCAL_WRITE).unwrap(),
        b.pd().alloc_mr(1 << 20, ferroce_verbs::Access::ALL).unwrap(),
    );
    let remote = ferroce_transport::uct::Remote::of(&theirs);
    let (done, flushed) = (CompletionCounter::new(), CompletionCounter::new());
    for _ in 0..50 {
        let iov = [ferroce_transport::uct::Iov::new(&memory, 0..1 << 20)];
        to_b.put_zcopy(&iov, remote, Some(done.token())).unwrap();
    }
    assert_eq!(to_b.flush(FlushKind::Cancel, Some(flushed.token())).unwrap(), Posted::InProgress);
    assert!(matches!(to_b.am_short(AM, &[]), Err(OpError::Canceled(_))));
    assert!(matches!(to_b.pending_add(Box::new(|_| PendingStatus::Done)), Err(PendingError::Over(_, None))));
    until(&[&a, &b], || flushed.outstanding() == 0);
    assert_eq!((flushed.succeeded(), done.outstanding(), done.failed()), (1, 0, 0));
    assert!(done.canceled() != 0 && done.succeeded() + done.canceled() == 50, "{done:?}");
    assert_eq!(to_b.flush(FlushKind::Cancel, Some(flushed.token())).unwrap(), Posted::Done);
    assert!(to_b.failure().is_none());
    assert!(a.flush(), "it has nothing outstanding any more");
    drop(to_b);
    until(&[&a, &b], || a.counters().endpoints == 0);
    assert_eq!((done.canceled() + done.succeeded(), a.counters().free_buffers), (50, 512));
}

/// Reports 6860, 7760, 11773: what could not be begun takes no credit and no buffer with it.
#[test]
fn report_6860_what_fails_takes_no_credit_and_no_buffer() {
    let ((a, _), (b, at_b)) =
        (open(RcOptions { buffers: 16, ..options() }), open(RcOptions { window: 4, ..options() }));
    let (to_b, to_a) = pair(&a, &b);
    let memory = a.pd().alloc_mr(4096, ferroce_verbs::Access::LOCAL_WRITE).unwrap();
    for _ in 0..100 {
        let beyond = [ferroce_transport::uct::Iov::new(&memory, 4096..4097)];
        assert!(matches!(to_b.am_zcopy(AM, &[], &beyond, None), Err(OpError::Device(_))));
        let long = to_b.am_bcopy(AM, &mut |packer| while packer.put(&[0; 1000]).is_ok() {});
        assert!(matches!(long, Err(OpError::TooLong { .. })));
    }
    assert_eq!(a.counters().free_buffers, 16);
    assert_eq!(fill(&to_b, 0), 4);
    until(&[&a, &b], || numbers(&at_b, &to_a) == [0, 1, 2, 3]);
}
