//! Connect, listen, accept: in three lines, blocking and async.

use crate::support::bed::Bed;
use crate::support::{PATIENCE, Side};
use ferroce_cm::{ConnParam, Connection, Endpoint, Error, EventKind, Listener, Refusal, RejectReason, SetupIn};
use ferroce_verbs::{QpInitAttr, QpState, QpType, RecvWr, SendWr};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

pub(crate) fn endpoint(side: &Side) -> Endpoint {
    Endpoint { cm: side.cm.clone(), pd: side.pd.clone(), qp: QpInitAttr::new(QpType::Rc, &side.cq) }
}

pub(crate) fn blocking(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let listener = Listener::bind(&endpoint(&b), (b.ip, 0).into(), 0).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let incoming = listener.incoming(PATIENCE).unwrap().expect("nobody asks");
            bed.same(incoming.private_data(), b"who");
            let receive = |qp: &ferroce_verbs::Qp| {
                qp.post_recv(&[RecvWr::new(1, &[b.mr.sge(..64).unwrap()])]).unwrap();
                Ok(())
            };
            let connection = incoming.accept(b"me", PATIENCE, receive).unwrap();
            assert!(b.completion().is_ok());
            assert!(connection.wait_closed(PATIENCE).unwrap());
        });
        let connection = Connection::connect(&endpoint(&a), addr, b"who", PATIENCE, |_| Ok(())).unwrap();
        bed.same(connection.private_data(), b"me");
        connection.qp().post_send(&[SendWr::send(2, &[a.mr.sge(..64).unwrap()])]).unwrap();
        assert!(a.completion().is_ok());
        let qp = connection.qp().clone();
        connection.close();
        assert_eq!(qp.state(), QpState::Err);
        server.join().unwrap();
    });
    drop(listener);
    a.is_clean();
    b.is_clean();
}

/// Runs a future in this thread, which polls only when it is woken.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread, AtomicBool);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.store(true, Ordering::Release);
            self.0.unpark();
        }
    }
    let task = Arc::new(Unpark(std::thread::current(), AtomicBool::new(true)));
    let waker = Waker::from(task.clone());
    let mut future = pin!(future);
    let mut deadline = Instant::now() + PATIENCE;
    loop {
        if task.1.swap(false, Ordering::Acquire) {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return value;
            }
            deadline = Instant::now() + PATIENCE;
        }
        assert!(Instant::now() < deadline, "the task is not woken");
        std::thread::park_timeout(PATIENCE);
    }
}

pub(crate) fn as_futures(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let listener = Listener::bind(&endpoint(&b), (b.ip, 0).into(), 0).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block_on(async {
                let incoming = listener.incoming_async(PATIENCE).await.unwrap().expect("nobody asks");
                let connection = incoming.accept_async(b"", PATIENCE, |_| Ok(())).await.unwrap();
                assert_eq!(connection.qp().state(), QpState::Rts);
                assert!(connection.wait_closed(PATIENCE).unwrap());
            });
        });
        let endpoint = endpoint(&a);
        let connect = Connection::connect_async(&endpoint, addr, b"", PATIENCE, |_| Ok(()));
        assert_eq!(block_on(connect).unwrap().qp().state(), QpState::Rts);
    });
}

pub(crate) fn refusals_are_values(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let listener = Listener::bind(&endpoint(&b), (b.ip, 0).into(), 0).unwrap();
    let addr = listener.local_addr().unwrap();
    // A port has one owner on a host.
    assert!(matches!(Listener::bind(&endpoint(&a), addr, 0), Err(Error::Address { .. })));
    std::thread::scope(|scope| {
        scope.spawn(|| listener.incoming(PATIENCE).unwrap().unwrap().reject(b"no").unwrap());
        let refused = Connection::connect(&endpoint(&a), addr, b"", PATIENCE, |_| Ok(())).unwrap_err();
        let Error::Refused(Refusal::Rejected { reason: RejectReason::ConsumerDefined, private_data }) = refused else {
            panic!("{refused}")
        };
        bed.same(&private_data, b"no");
    });
    // A waiter is woken when the listener closes.
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| listener.incoming(PATIENCE).map(|incoming| incoming.is_some()));
        std::thread::sleep(std::time::Duration::from_millis(10));
        listener.close();
        assert!(matches!(waiter.join().unwrap(), Err(Error::ChannelClosed)));
    });
    let refused = Connection::connect(&endpoint(&a), addr, b"", PATIENCE, |_| Ok(())).unwrap_err();
    let invalid = RejectReason::InvalidServiceId;
    assert!(matches!(&refused, Error::Refused(Refusal::Rejected { reason, .. }) if *reason == invalid), "{refused}");
    let nowhere = "0.0.0.0:1".parse().unwrap();
    assert!(matches!(
        Connection::connect(&endpoint(&a), nowhere, b"", PATIENCE, |_| Ok(())),
        Err(Error::Address { .. })
    ));
    drop(listener);
    a.is_clean();
    b.is_clean();
}

/// A peer that does not confirm what it is granted, and nobody who asks: waiting ends, blocking and as futures.
pub(crate) fn waiting_ends(bed: &Bed) {
    const SOON: Duration = Duration::from_millis(50);
    let (a, b) = (bed.open(), bed.open());
    let listener = Listener::bind(&endpoint(&b), (b.ip, 0).into(), 0).unwrap();
    assert!(listener.incoming(SOON).unwrap().is_none());
    assert!(block_on(listener.incoming_async(SOON)).unwrap().is_none());
    for as_future in [false, true] {
        let silent = a.resolved(listener.local_addr().unwrap());
        silent.set_options(|options| options.setup_in = SetupIn::Caller).unwrap();
        silent.connect(&ConnParam::default()).unwrap();
        let incoming = listener.incoming(PATIENCE).unwrap().expect("nobody asks");
        let accepted = if as_future {
            block_on(incoming.accept_async(b"", SOON, |_| Ok(())))
        } else {
            incoming.accept(b"", SOON, |_| Ok(()))
        };
        assert!(matches!(accepted, Err(Error::TimedOut { .. })), "{accepted:?}");
        assert!(matches!(a.event().kind(), EventKind::ConnectResponse(_)));
        // It was given up, of which the peer hears.
        assert!(matches!(a.event().kind(), EventKind::Rejected { .. } | EventKind::Disconnected(_)));
    }
}

/// Some programs do not want to give up.
pub(crate) fn waiting_for_ever(bed: &Bed) {
    let ever = Duration::MAX;
    let (a, b) = (bed.open(), bed.open());
    let listener = Listener::bind(&endpoint(&b), (b.ip, 0).into(), 0).unwrap();
    let addr = listener.local_addr().unwrap();
    for as_future in [false, true] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let connection = if as_future {
                    let incoming = block_on(listener.incoming_async(ever)).unwrap().expect("nobody asks");
                    block_on(incoming.accept_async(b"", ever, |_| Ok(()))).unwrap()
                } else {
                    listener.incoming(ever).unwrap().expect("nobody asks").accept(b"", ever, |_| Ok(())).unwrap()
                };
                assert!(connection.wait_closed(ever).unwrap());
            });
            let endpoint = endpoint(&a);
            drop(if as_future {
                block_on(Connection::connect_async(&endpoint, addr, b"", ever, |_| Ok(()))).unwrap()
            } else {
                Connection::connect(&endpoint, addr, b"", ever, |_| Ok(())).unwrap()
            });
        });
    }
}
