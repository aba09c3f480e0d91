//! Endpoints that the connection manager connects.

use crate::support::{AM, context, message, numbers, open_on, options, shm, until, when_possible};
use ferroce_cm::{Connection, ConnectionManager, Listener};
use ferroce_transport::rc_verbs::{ConnectError, RcEndpoint, RcListener, RcVerbs};
use ferroce_transport::uct::{Arm, Cause, Endpoint as _, Interface as _};
use ferroce_verbs::{Context, QpInitAttr, QpType};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

struct Side {
    context: Context,
    interface: RcVerbs,
    log: crate::support::Log,
    cm: ConnectionManager,
}

fn side() -> Side {
    let context = context(shm());
    let (interface, log) = open_on(&context, options());
    let cm = ConnectionManager::new(&context).unwrap();
    Side { context, interface, log, cm }
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn connect(a: &Side, b: &Side) -> (RcEndpoint, RcEndpoint) {
    let listener = RcListener::bind(&b.interface, &b.cm, any(), 8).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let incoming = listener.incoming(PATIENCE).unwrap().unwrap();
            assert!(incoming.peer_addr().is_some());
            incoming.accept(PATIENCE).unwrap()
        });
        let connected = a.interface.connect(&a.cm, at, PATIENCE).unwrap();
        (connected, accepted.join().unwrap())
    })
}

#[test]
fn connected_by_socket_address() {
    let (a, b) = (side(), side());
    let (to_b, to_a) = connect(&a, &b);
    let both = [&a.interface, &b.interface];
    for number in 0..1000 {
        when_possible(&both, || to_b.am_short(AM, &message(number, 8)));
        when_possible(&both, || to_a.am_bcopy(AM, &mut |packer| packer.put(&message(number, 5000)).unwrap()));
    }
    until(&both, || numbers(&b.log, &to_a).len() == 1000 && numbers(&a.log, &to_b).len() == 1000);
    assert_eq!(to_b.peer().unwrap().1, to_a.qpn());
    drop(to_b);
    // The connection manager says so, and the transport.
    until(&both, || to_a.failure().is_some());
    assert_eq!(to_a.failure().unwrap().cause, Cause::Closed);
    drop(to_a);
    until(&both, || a.interface.counters().endpoints + b.interface.counters().endpoints == 0);
}

/// A peer whose program ends without a word from the transport: the connection manager tells, and wakes whoever sleeps.
#[test]
fn the_connection_manager_says_that_the_peer_is_gone() {
    let (a, b) = (side(), side());
    let (to_b, to_a) = connect(&a, &b);
    while a.interface.arm().unwrap() == Arm::Busy {
        a.interface.progress().unwrap();
    }
    drop((to_a, b));
    until(&[&a.interface], || to_b.failure().is_some());
    assert_eq!(to_b.failure().unwrap().cause, Cause::Closed);
    assert!(a.context.info().name.len() > 1);
}

#[test]
fn refused_and_not_understood() {
    let (a, b) = (side(), side());
    let listener = RcListener::bind(&b.interface, &b.cm, any(), 8).unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| listener.incoming(PATIENCE).unwrap().unwrap().reject().unwrap());
        assert!(matches!(a.interface.connect(&a.cm, at, PATIENCE), Err(ConnectError::Cm(_))));
    });
    // Somebody else's protocol, at either end.
    let pd = a.context.alloc_pd().unwrap();
    let cq = a.context.create_cq(64, None).unwrap();
    let plain = ferroce_cm::Endpoint { cm: a.cm.clone(), pd, qp: QpInitAttr::new(QpType::Rc, &cq) };
    std::thread::scope(|scope| {
        let refused = scope.spawn(|| listener.incoming(PATIENCE).unwrap().unwrap().accept(PATIENCE));
        assert!(Connection::connect(&plain, at, &[0; 8], PATIENCE, |_| Ok(())).is_err());
        assert!(matches!(refused.join().unwrap(), Err(ConnectError::Terms(_))));
    });
    let strange = Listener::bind(&plain, any(), 8).unwrap();
    let at = strange.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let incoming = strange.incoming(PATIENCE).unwrap().unwrap();
            drop(incoming.accept(&[0; 3], PATIENCE, |_| Ok(())));
        });
        assert!(matches!(b.interface.connect(&b.cm, at, PATIENCE), Err(ConnectError::Terms(_))));
    });
    assert!(matches!(
        a.interface.connect(&a.cm, listener_gone(listener), Duration::from_secs(5)),
        Err(ConnectError::Cm(_))
    ));
    let both = [&a.interface, &b.interface];
    until(&both, || a.interface.counters().endpoints + b.interface.counters().endpoints == 0);
}

fn listener_gone(listener: RcListener) -> SocketAddr {
    listener.local_addr().unwrap()
}

/// Many connections that come and go, from several threads.
#[test]
fn connections_come_and_go() {
    let (a, b) = (side(), side());
    let both = [&a.interface, &b.interface];
    for round in 0..30 {
        let (to_b, to_a) = connect(&a, &b);
        let _ = to_b.am_short(AM, &message(round, 8));
        if round % 2 == 0 {
            drop((to_b, to_a));
        } else {
            drop((to_a, to_b));
        }
        until(&both, || a.interface.counters().endpoints < 40 && b.interface.counters().endpoints < 40);
    }
    until(&both, || a.interface.counters().endpoints + b.interface.counters().endpoints == 0);
    assert_eq!((a.interface.counters().malformed, b.interface.counters().malformed), (0, 0));
}

/// Ends a thread that goes on until it is told, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A peer that sends before this side knows that it is connected, as much as it was granted: it is granted more as soon as that is known.
#[test]
fn a_peer_that_is_quicker_than_the_connection() {
    let (a, b) = (side(), side());
    let listener = RcListener::bind(&b.interface, &b.cm, any(), 8).unwrap();
    let at = listener.local_addr().unwrap();
    for _ in 0..10 {
        b.log.lock().unwrap().clear();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (over, b) = (&over, &b);
            let _over = Over(over);
            // Takes messages in while the other thread accepts.
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    b.interface.progress().unwrap();
                }
            });
            let accepted = scope.spawn(|| listener.incoming(PATIENCE).unwrap().unwrap().accept(PATIENCE).unwrap());
            let to_b = a.interface.connect(&a.cm, at, PATIENCE).unwrap();
            for number in 0..2000 {
                when_possible(&[&a.interface], || to_b.am_short(AM, &message(number, 8)));
            }
            until(&[&a.interface], || b.log.lock().unwrap().len() == 2000);
            drop((to_b, accepted.join().unwrap()));
        });
    }
}
