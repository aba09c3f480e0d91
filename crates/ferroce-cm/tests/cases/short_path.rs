//! Connect, listen, accept: in three lines, blocking and async.

use crate::support::bed::Bed;
use crate::support::{PATIENCE, Side};
use ferroce_cm::{Connection, Endpoint, Error, Listener, Refusal, RejectReason};
use ferroce_verbs::{QpInitAttr, QpState, QpType, RecvWr, SendWr};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

fn endpoint(side: &Side) -> Endpoint {
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

/// Runs a future in this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park_timeout(PATIENCE),
        }
    }
}

pub(crate) fn as_futures(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let listener = Listener::bind(&endpoint(&b), (b.ip, 0).into(), 0).unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            block_on(async {
                let connection = listener.incoming_async().await.unwrap().accept_async(b"", |_| Ok(())).await.unwrap();
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
