//! Queue pairs that are dropped with work outstanding.

use super::*;
use std::time::Duration;

/// The contract: a queue pair that is dropped flushes. The library would take the completions away.
#[test]
fn a_dropped_queue_pair_flushes_before_it_is_destroyed() {
    for full in [false, true] {
        let Bench { context, pd, cq, qp } = bench(QpType::Rc);
        for wr_id in 0..10 {
            qp.post_send(&[SendWr::send(wr_id, &[])]).unwrap();
            qp.post_recv(&[RecvWr::new(100 + wr_id, &[])]).unwrap();
        }
        if full {
            fake::set_room(10);
        }
        drop(qp);
        assert!(fake::live().contains(&"qp"), "destroyed with what it had outstanding");
        let mut seen = polled(&cq);
        seen.sort_unstable_by_key(|&(wr_id, _)| wr_id);
        assert!(seen.iter().map(|&(wr_id, _)| wr_id).eq((0..10).chain(100..110)), "{seen:?}");
        assert!(seen.iter().all(|&(_, status)| status == WcStatus::WrFlushErr));
        // There is room for the markers now.
        fake::settle();
        assert!(polled(&cq).is_empty());
        assert!(!fake::live().contains(&"qp"), "it is kept for ever");
        fake::set_room(usize::MAX);
        drop((context, pd, cq));
        assert!(fake::live().is_empty());
        fake::destroyed();
    }
}

/// Whether a queue pair drains that is dropped after this.
fn drains_after(act: fn(&Bench)) -> bool {
    let bench = bench(QpType::Rc);
    act(&bench);
    let Bench { context, pd, cq, qp } = bench;
    drop(qp);
    let drains = fake::live().contains(&"qp");
    polled(&cq);
    assert!(!fake::live().contains(&"qp"), "it is kept for ever");
    drop((context, pd, cq));
    drains
}

fn post(bench: &Bench) {
    bench.qp.post_send(&[SendWr::send(1, &[]), SendWr::send(2, &[])]).unwrap();
    bench.qp.post_recv(&[RecvWr::new(3, &[])]).unwrap();
}

fn done(bench: &Bench) {
    fake::succeed(bench.qp.qp_num());
}

/// There is nothing to flush, and so nothing to wait for.
#[test]
fn a_queue_pair_of_which_all_is_out_does_not_drain() {
    assert!(!drains_after(|_| {}), "nothing was posted");
    assert!(!drains_after(|bench| {
        post(bench);
        done(bench);
        assert_eq!(polled(&bench.cq).len(), 3);
    }));
    assert!(drains_after(post), "nothing is done");
    assert!(
        drains_after(|bench| {
            post(bench);
            done(bench);
        }),
        "nothing was polled"
    );
    assert!(
        drains_after(|bench| {
            post(bench);
            done(bench);
            assert_eq!(bench.cq.poll(&mut [WorkCompletion::default(); 2]).unwrap(), 2);
        }),
        "not all was polled"
    );
    assert!(
        drains_after(|bench| {
            post(bench);
            done(bench);
            polled(&bench.cq);
            bench.qp.post_recv(&[RecvWr::new(4, &[])]).unwrap();
        }),
        "more was posted"
    );
}

/// Where completions do not tell whether all is out.
#[test]
fn a_queue_pair_drains_in_doubt() {
    assert!(
        drains_after(|bench| {
            let unsignaled = |wr_id| SendWr::send(wr_id, &[]).flags(SendFlags::empty());
            bench.qp.post_send(&[SendWr::send(1, &[])]).unwrap();
            done(bench);
            assert_eq!(polled(&bench.cq).len(), 1);
            bench.qp.post_send(&[unsignaled(2)]).unwrap();
        }),
        "success of some is not reported"
    );
    assert!(
        drains_after(|bench| {
            post(bench);
            fake::fail_qp(bench.qp.qp_num());
            polled(&bench.cq);
        }),
        "requests whose success nobody would have heard of fail, too"
    );
    assert!(
        drains_after(|bench| {
            bench.qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
            // Not all devices take away with a RESET what was not polled.
            done(bench);
            bench.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
            bench.qp.modify(&QpAttr::init(Access::empty())).unwrap();
            bench.qp.post_recv(&[RecvWr::new(2, &[])]).unwrap();
            assert_eq!(polled(&bench.cq).len(), 1, "of what was posted before");
        }),
        "one was polled, but of the life before"
    );
}

/// What a device refuses is not waited for.
#[test]
fn what_was_not_posted_does_not_count() {
    assert!(!drains_after(|bench| {
        fake::set_room(1);
        assert_eq!(bench.qp.post_send(&[SendWr::send(1, &[]), SendWr::send(2, &[])]).unwrap_err().index, 1);
        assert_eq!(bench.qp.post_recv(&[RecvWr::new(3, &[]), RecvWr::new(4, &[])]).unwrap_err().index, 1);
        fake::set_room(usize::MAX);
        done(bench);
        assert_eq!(polled(&bench.cq).len(), 2);
    }));
}

#[test]
fn a_queue_pair_that_nobody_will_poll_for_is_destroyed_at_once() {
    let Bench { context, pd, cq, qp } = bench(QpType::Rc);
    let other = context.create_cq(8, None).unwrap();
    let split = pd
        .create_qp(&QpInitAttr { send_cq: cq.clone(), recv_cq: other.clone(), ..QpInitAttr::new(QpType::Rc, &cq) })
        .unwrap();
    split.modify(&QpAttr::init(Access::empty())).unwrap();
    split.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    qp.post_send(&[SendWr::send(2, &[])]).unwrap();
    drop(cq);
    drop(qp);
    assert_eq!(fake::live().iter().filter(|what| **what == "qp").count(), 2, "`split` holds the queue too");
    drop(split);
    // Its receive is all that is left to be seen.
    assert_eq!(polled(&other), [(1, WcStatus::WrFlushErr)]);
    assert!(!fake::live().contains(&"qp"));
    drop((context, pd, other));
    assert!(fake::live().is_empty());
}

/// A thread that is woken costs more than what it does here: it is woken when both markers of a queue pair are out, and when others wait for the
/// place of one.
#[test]
fn the_thread_is_woken_when_there_is_something_to_do() {
    let Bench { context, pd, cq: sends, qp } = bench(QpType::Rc);
    let receives = context.create_cq(8, None).unwrap();
    let init = QpInitAttr { recv_cq: receives.clone(), ..QpInitAttr::new(QpType::Rc, &sends) };
    // More than there are places for markers.
    let qps: Vec<Qp> = (0..131).map(|_| pd.create_qp(&init).unwrap()).collect();
    let rts = |qp: &Qp| {
        qp.modify(&QpAttr::init(Access::empty())).unwrap();
        qp.modify(&QpAttr::rtr(peer(), Mtu::Mtu1024, 1, 0)).unwrap();
        qp.modify(&QpAttr::rts(0)).unwrap();
        qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
        qp.post_send(&[SendWr::send(2, &[])]).unwrap();
    };
    let wakes = |act: &dyn Fn()| {
        let before = fake::wakes();
        act();
        fake::wakes() - before
    };
    let mut qps = qps.into_iter();
    let mut next = || {
        let qp = qps.next().unwrap();
        rts(&qp);
        qp
    };
    drop(next());
    // The thread, which slept, now looks at the time by itself.
    fake::settle();
    let second = std::cell::Cell::new(Some(next()));
    assert_eq!(wakes(&|| drop(second.take())), 0, "nothing is out yet");
    assert_eq!(wakes(&|| drop(polled(&sends))), 0, "one of two");
    assert_eq!(wakes(&|| drop(polled(&receives))), 2, "once for each");
    fake::settle();
    assert_eq!(fake::live().iter().filter(|what| **what == "qp").count(), 130);
    for _ in 0..64 {
        drop(next());
    }
    fake::settle();
    drop(qp);
    assert_eq!(wakes(&|| drop(polled(&sends))), 0, "nobody waits for a place");
    drop(polled(&receives));
    fake::settle();
    (0..65).for_each(|_| drop(next()));
    fake::settle();
    assert_ne!(wakes(&|| drop(polled(&sends))), 0, "one waits for a place");
    drop((context, pd));
}

/// A bench whose queue pair takes its receives from a shared queue.
fn shared(bench: &Bench) -> (ferroce_verbs::Srq, Qp) {
    let srq = bench.pd.create_srq(&SrqInitAttr { max_wr: 16, max_sge: 1 }).unwrap();
    let qp =
        bench.pd.create_qp(&QpInitAttr { srq: Some(srq.clone()), ..QpInitAttr::new(QpType::Rc, &bench.cq) }).unwrap();
    qp.modify(&QpAttr::init(Access::empty())).unwrap();
    qp.modify(&QpAttr::rtr(peer(), Mtu::Mtu1024, 1, 0)).unwrap();
    (srq, qp)
}

fn live_qps() -> usize {
    fake::live().iter().filter(|what| **what == "qp").count()
}

/// What it has received, and what it had taken from the shared queue, comes out; then it is destroyed. The rest stays in the shared queue.
#[test]
fn receives_from_a_shared_queue_are_not_lost() {
    for (tells, reads) in [(true, true), (true, false), (false, false)] {
        let bench = bench(QpType::Rc);
        let (srq, qp) = shared(&bench);
        let qp_num = qp.qp_num();
        fake::receive(qp_num);
        drop(qp);
        assert_eq!(live_qps(), 2, "destroyed with what it had received");
        if tells {
            // The device takes its time.
            assert_eq!(polled(&bench.cq).len(), 1);
            assert!(polled(&bench.cq).is_empty());
            assert_eq!(live_qps(), 2, "there may be more");
            fake::receive(qp_num);
            fake::raise_of(value::IBV_EVENT_QP_LAST_WQE_REACHED, qp_num);
            if reads {
                assert!(bench.context.next_async_event().unwrap().is_none(), "it is of no use to the user");
            }
        } else {
            fake::settle_in(Duration::from_secs(2));
        }
        assert_eq!(live_qps(), 2, "destroyed with what it had received");
        assert_eq!(polled(&bench.cq).len(), 1);
        assert_eq!(live_qps(), 1, "it is kept for ever");
        drop(srq);
        drop(bench);
        assert!(fake::live().is_empty());
        fake::destroyed();
    }
}

/// Whoever read the event before the queue pair was dropped does not wait for another.
#[test]
fn the_last_wqe_may_be_reached_before() {
    let bench = bench(QpType::Rc);
    let (_srq, qp) = shared(&bench);
    fake::fail_qp(qp.qp_num());
    fake::raise_of(value::IBV_EVENT_QP_LAST_WQE_REACHED, qp.qp_num());
    let event = bench.context.next_async_event().unwrap().unwrap();
    assert_eq!(event.event_type(), EventType::QpLastWqeReached);
    assert_eq!(qp.state(), QpState::Err, "the event says so");
    drop(event);
    fake::receive(qp.qp_num());
    drop(qp);
    assert_eq!(live_qps(), 2);
    assert_eq!(polled(&bench.cq).len(), 1);
    assert_eq!(live_qps(), 1);
}

/// One that could never receive has nothing to wait for.
#[test]
fn a_queue_pair_of_a_shared_queue_that_was_never_connected_is_destroyed_at_once() {
    let bench = bench(QpType::Rc);
    let srq = bench.pd.create_srq(&SrqInitAttr { max_wr: 16, max_sge: 1 }).unwrap();
    let attr = QpInitAttr { srq: Some(srq), ..QpInitAttr::new(QpType::Rc, &bench.cq) };
    let qp = bench.pd.create_qp(&attr).unwrap();
    qp.modify(&QpAttr::init(Access::empty())).unwrap();
    drop(qp);
    assert_eq!(live_qps(), 1);
}

/// The thread reads events when it waits for one, and what is not for it is kept.
#[test]
fn events_that_the_thread_reads_are_kept_for_the_user() {
    let bench = bench(QpType::Rc);
    let readable = || {
        let fd = bench.context.async_fd();
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    let (_srq, qp) = shared(&bench);
    fake::raise(value::IBV_EVENT_GID_CHANGE, "port");
    fake::raise_of(value::IBV_EVENT_QP_ACCESS_ERR, bench.qp.qp_num());
    assert!(!readable(), "the fake's kernel does not tell");
    drop(qp);
    fake::settle();
    assert!(readable());
    let kinds: Vec<EventType> =
        std::iter::from_fn(|| bench.context.next_async_event().unwrap()).map(|event| event.event_type()).collect();
    assert_eq!(kinds, [EventType::GidChange, EventType::QpAccessErr]);
    assert!(!readable());
}

/// There are places for so many markers; more queue pairs than that take turns.
#[test]
fn any_number_of_queue_pairs_can_drain_at_once() {
    let Bench { context, pd, cq, qp } = bench(QpType::Rc);
    drop(qp);
    const COUNT: u64 = 200;
    let qps: Vec<Qp> = (0..COUNT)
        .map(|wr_id| {
            let qp = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq)).unwrap();
            qp.modify(&QpAttr::init(Access::empty())).unwrap();
            qp.post_recv(&[RecvWr::new(wr_id, &[])]).unwrap();
            qp
        })
        .collect();
    drop(qps);
    let mut seen = Vec::new();
    for _ in 0..20 {
        assert!(fake::queued() <= COUNT as usize + 64, "the queue is overrun");
        fake::settle();
        let mut out = [WorkCompletion::default(); 16];
        let got = cq.poll(&mut out).unwrap();
        seen.extend(out[..got].iter().map(|wc| wc.wr_id));
    }
    assert_eq!(fake::live().iter().filter(|what| **what == "qp").count(), 0, "some are kept for ever");
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..COUNT));
    drop((context, pd, cq));
    assert!(fake::live().is_empty());
}

/// Polling leaves word. The kernel is called by others.
#[test]
fn a_poll_calls_the_kernel_for_nothing() {
    let Bench { pd, cq, qp, .. } = bench(QpType::Rc);
    for wr_id in 0..5 {
        qp.post_send(&[SendWr::send(wr_id, &[])]).unwrap();
        qp.post_recv(&[RecvWr::new(wr_id, &[])]).unwrap();
    }
    // No room for markers until something was polled.
    fake::set_room(5);
    drop(qp);
    let other = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq)).unwrap();
    let qp_num = other.qp_num();
    drop(other);
    fake::receive(qp_num);
    let mut out = [WorkCompletion::default(); 1];
    for _ in 0..5 {
        fake::calls();
        assert_eq!(cq.poll(&mut out).unwrap(), 1);
        assert_eq!(fake::calls(), 0);
        fake::settle();
    }
    fake::set_room(usize::MAX);
    loop {
        fake::settle();
        fake::calls();
        let got = cq.poll(&mut out).unwrap();
        assert_eq!(fake::calls(), 0);
        if got == 0 {
            break;
        }
    }
    assert!(!fake::live().contains(&"qp"));
}

/// A device that loses the marker: it is waited for some time, and then until the queue was seen empty.
#[test]
fn a_marker_that_never_comes_is_not_waited_for_for_ever() {
    let Bench { cq, qp, .. } = bench(QpType::Rc);
    qp.post_send(&[SendWr::send(1, &[])]).unwrap();
    drop(qp);
    fake::lose_markers();
    fake::settle_in(Duration::from_secs(1));
    assert!(polled(&cq).iter().map(|&(wr_id, _)| wr_id).eq([1]));
    fake::settle_in(Duration::from_secs(5));
    assert!(polled(&cq).is_empty());
    assert!(fake::live().contains(&"qp"), "it was given no time");
    fake::settle_in(Duration::from_secs(20));
    assert!(fake::live().contains(&"qp"), "nobody looked into the queue");
    assert!(polled(&cq).is_empty());
    assert!(!fake::live().contains(&"qp"), "it is kept for ever");
}

/// A completion queue that failed gives nothing out any more.
#[test]
fn a_queue_that_failed_keeps_nothing() {
    let Bench { context, cq, qp, .. } = bench(QpType::Rc);
    qp.post_send(&[SendWr::send(1, &[])]).unwrap();
    drop(qp);
    assert!(fake::live().contains(&"qp"));
    fake::raise(value::IBV_EVENT_CQ_ERR, "cq");
    let event = context.next_async_event().unwrap().unwrap();
    assert!(matches!(event, AsyncEvent::Cq(EventType::CqErr, of) if of == cq));
    assert!(!fake::live().contains(&"qp"));
}

/// A completion may be polled after its queue pair is gone.
#[test]
fn the_grh_of_a_queue_pair_that_is_gone() {
    let Bench { pd, cq, qp, .. } = bench(QpType::Rc);
    let _datagrams = pd.create_qp(&QpInitAttr::new(QpType::Ud, &cq)).unwrap();
    let qp_num = qp.qp_num();
    qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    fake::receive(qp_num);
    drop(qp);
    let mut out = [WorkCompletion::default()];
    assert_eq!(cq.poll(&mut out).unwrap(), 1);
    assert!(!out[0].flags.contains(WcFlags::GRH));
    polled(&cq);
    assert_eq!(live_qps(), 1);
    // Not all devices take away what a queue pair leaves.
    fake::receive(qp_num);
    assert_eq!(cq.poll(&mut out).unwrap(), 1);
    assert!(!out[0].flags.contains(WcFlags::GRH));
}

/// Room for markers is the device's too: its limit is told smaller.
#[test]
fn the_largest_queue_has_places_for_markers() {
    let context = fake::open();
    let most = context.query_device().unwrap().max_cqe;
    assert_eq!(most, 1000 - 64);
    let cq = context.create_cq(most, None).unwrap();
    assert_eq!(cq.cqe(), most);
    assert!(context.create_cq(most + 1, None).is_err());
}
