//! The device goes away under load, while ids of all kinds use it (rdma-core #28, spdk #1184): all are told, at both ends, each call has an answer,
//! and nothing holds the device up.

use crate::support::{PATIENCE, Side, connected};
use ferroce_cm::{ConnParam, Error, EventChannel, EventKind, Id, Membership, Phase, PortSpace};
use ferroce_verbs::{Access, AhAttr, QpAttr, QpInitAttr, QpState, QpType, RecvWr, SendOp, SendWr, WcStatus};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Connections that were made and ended, and messages that were sent, before the device may go.
const LOAD: usize = 5;

/// How far the load is.
#[derive(Default)]
struct Progress {
    connections: AtomicUsize,
    writes: AtomicUsize,
    /// The idle ids are told.
    over: AtomicBool,
}

impl Progress {
    fn is_under_way(&self) -> bool {
        self.connections.load(Ordering::Relaxed) >= LOAD && self.writes.load(Ordering::Relaxed) >= LOAD
    }
}

/// Prints `ready` once connections come and go and messages are sent, and returns once the device is gone and nothing of it is left.
pub(crate) fn run([a, b, client, server]: [&Side; 4]) {
    let (listener, addr) = b.listen();
    let (active, passive) = connected(a, b);
    let resolved = a.resolved(addr);
    let unread = a.connect(addr, b"");
    // Beside the listener and the connection.
    b.is_asked(1, 2);
    let (busy, busy_addr) = server.listen();
    let progress = Progress::default();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(a, b, &active, &progress));
        let acceptor = scope.spawn(|| accept(server, &busy));
        let churners = [(); 3].map(|()| scope.spawn(|| churn(client, busy_addr, &progress)));
        let deadline = Instant::now() + PATIENCE;
        while !progress.is_under_way() {
            assert!(Instant::now() < deadline, "no load");
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("ready");
        told(a, &[&active, &resolved, &unread]);
        told(b, &[&listener, &passive]);
        progress.over.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        acceptor.join().unwrap();
        churners.into_iter().for_each(|churner| churner.join().unwrap());
    });
    for id in [&active, &passive, &resolved, &unread, &listener, &busy] {
        all_calls(id, a, addr);
    }
    all_verbs(a, &active);
    for id in [active, passive, resolved, unread, listener, busy] {
        id.destroy();
        assert!(matches!(id.disconnect(), Err(Error::Destroyed)));
    }
    for side in [a, b, client, server] {
        let error = side.id().bind_addr(addr).expect_err("nobody has the address");
        assert!(says_so(&error), "{error}");
        while let Ok(Some(_)) = side.channel.try_next() {}
        side.is_clean();
    }
}

/// Whether an error says that there is no device any more.
fn says_so(error: &Error) -> bool {
    let text = error.to_string();
    ["the device is gone", "no RDMA device"].iter().any(|what| text.contains(what))
}

/// Waits until all of these ids are told.
fn told(side: &Side, ids: &[&Id]) {
    let mut left = ids.to_vec();
    let deadline = Instant::now() + PATIENCE;
    while !left.is_empty() {
        assert!(Instant::now() < deadline, "{} of {} were not told", left.len(), ids.len());
        let Some(event) = side.channel.next_timeout(PATIENCE).unwrap() else { continue };
        match event.kind() {
            EventKind::DeviceRemoval => left.retain(|id| *id != event.id()),
            // What waits for the other side, or is connected to it, may hear of its end before.
            EventKind::ConnectRequest { .. } | EventKind::Disconnected(_) | EventKind::TimewaitExit => {}
            EventKind::Rejected { .. } | EventKind::Unreachable { .. } => {}
            kind => panic!("{kind:?}"),
        }
    }
}

/// Writes into the peer's memory until that fails, or the ids are told: what is posted has an answer all the time.
fn send(from: &Side, to: &Side, id: &Id, progress: &Progress) {
    let qp = id.qp().unwrap();
    let sge = from.mr.sge(..64).unwrap();
    let into = SendOp::Write { remote_addr: to.mr.addr(), rkey: to.mr.rkey() };
    while !progress.over.load(Ordering::Relaxed) {
        if qp.post_send(&[SendWr::new(1, into, &[sge])]).is_err() || from.completion().status != WcStatus::Success {
            break;
        }
        progress.writes.fetch_add(1, Ordering::Relaxed);
    }
    assert!(progress.writes.load(Ordering::Relaxed) >= LOAD);
}

/// Accepts what comes until the listener is told.
fn accept(side: &Side, listener: &Id) {
    let mut ids: Vec<Id> = Vec::new();
    loop {
        let event = side.event();
        let (of, kind, _) = event.into_parts();
        match kind {
            EventKind::ConnectRequest { id, .. } => {
                let attr = QpInitAttr::new(QpType::Rc, &side.cq);
                let accepted = id.create_qp(&side.pd, &attr).and_then(|_| id.accept(&ConnParam::default()));
                match accepted {
                    Ok(()) => ids.push(id),
                    // The peer has taken it back, or its id went with the device.
                    Err(Error::Phase { .. }) => {}
                    Err(error) => assert!(says_so(&error), "{error}"),
                }
            }
            EventKind::DeviceRemoval if of == *listener => return,
            EventKind::DeviceRemoval | EventKind::Disconnected(_) | EventKind::Rejected { .. } => {
                ids.retain(|id| *id != of);
            }
            EventKind::Established | EventKind::Unreachable { .. } | EventKind::TimewaitExit => {}
            kind => panic!("{kind:?}"),
        }
    }
}

/// Connects and disconnects until the device is gone.
fn churn(side: &Side, addr: SocketAddr, progress: &Progress) {
    let channel = EventChannel::new().unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "it can still be connected");
        let id = side.cm.create_id(&channel, PortSpace::Tcp);
        match life(side, &channel, &id, addr) {
            Ok(End::Told) => return,
            Ok(End::Over) => drop(progress.connections.fetch_add(1, Ordering::Relaxed)),
            Ok(End::Refused) => {}
            Err(error) if says_so(&error) => return,
            // The id may have been told, and not have read it.
            Err(error) => return assert!(is_told(&channel, &id), "{error}"),
        }
    }
}

/// Whether the id hears soon that its device is gone.
fn is_told(channel: &EventChannel, id: &Id) -> bool {
    while let Ok(Some(event)) = channel.next_timeout(PATIENCE) {
        if event.id() == id {
            return matches!(event.kind(), EventKind::DeviceRemoval);
        }
    }
    false
}

enum End {
    /// It was connected, and is not any more.
    Over,
    /// The peer did not want it, or is no more.
    Refused,
    /// Its device is gone.
    Told,
}

/// The whole life of a connection, up to the first thing that goes wrong.
fn life(side: &Side, channel: &EventChannel, id: &Id, addr: SocketAddr) -> Result<End, Error> {
    id.resolve_addr(None, addr)?;
    loop {
        let event = channel.next_timeout(PATIENCE)?.expect("no event came");
        if event.id() != id {
            continue;
        }
        match event.into_parts().1 {
            EventKind::AddrResolved => id.resolve_route()?,
            EventKind::RouteResolved => {
                id.create_qp(&side.pd, &QpInitAttr::new(QpType::Rc, &side.cq))?;
                id.connect(&ConnParam::default())?;
            }
            EventKind::Established => id.disconnect()?,
            EventKind::Disconnected(_) => return Ok(End::Over),
            EventKind::Rejected { .. } | EventKind::Unreachable { .. } | EventKind::ConnectError(_) => {
                return Ok(End::Refused);
            }
            EventKind::DeviceRemoval => return Ok(End::Told),
            EventKind::AddrError(error) | EventKind::RouteError(error) => return Err(error),
            kind => panic!("{kind:?}"),
        }
    }
}

/// Each call of an id that was told has an answer: it is over, or the device is gone.
fn all_calls(id: &Id, side: &Side, addr: SocketAddr) {
    let group = "239.7.7.7".parse().unwrap();
    assert_eq!(id.phase(), Phase::Disconnected);
    assert_eq!(id.port_space(), PortSpace::Tcp);
    let calls = [
        ("bind_addr", id.bind_addr(addr)),
        ("resolve_addr", id.resolve_addr(None, addr)),
        ("resolve_route", id.resolve_route()),
        ("listen", id.listen(0)),
        ("connect", id.connect(&ConnParam::default())),
        ("accept", id.accept(&ConnParam::default())),
        ("reject", id.reject(b"")),
        ("establish", id.establish()),
        ("notify_established", id.notify_established()),
        ("join_multicast", id.join_multicast(group, Membership::Full)),
        ("set_options", id.set_options(|options| options.tos = 4)),
        ("qp_attr", id.qp_attr(QpState::Init).map(drop)),
    ];
    for (call, outcome) in calls {
        match outcome {
            Err(Error::Phase { .. }) => {}
            Err(error) => assert!(says_so(&error), "{call}: {error}"),
            Ok(()) => panic!("{call} worked"),
        }
    }
    // That it is over already is fine; that it is in no group is no matter of the device.
    id.disconnect().unwrap();
    assert!(id.leave_multicast(group).is_err());
    id.set_context(std::sync::Arc::new(7_u8)).unwrap();
    assert_eq!(id.context::<u8>().as_deref(), Some(&7));
    id.migrate(&EventChannel::new().unwrap()).unwrap();
    let _ = (
        id.options(),
        id.local_addr(),
        id.peer_addr(),
        id.qp(),
        id.create_qp(&side.pd, &QpInitAttr::new(QpType::Rc, &side.cq)),
    );
    drop(id.take_qp());
    assert!(id.qp().is_none());
}

/// The same of verbs, of which it is up to the kernel whether they work on: Soft-RoCE goes only once all its programs have.
fn all_verbs(side: &Side, id: &Id) {
    let context = side.cm.context();
    let _ = (context.info(), context.query_device(), context.query_port(1), context.gid_table(1), context.counters());
    let _ = (context.alloc_pd(), context.create_comp_channel(), context.create_cq(8, None), context.next_async_event());
    let (pd, mr, cq) = (&side.pd, &side.mr, &side.cq);
    let to = AhAttr::roce(side.ip.into(), 0);
    let _ =
        (pd.alloc_mr(64, Access::ALL), pd.create_ah(&to), context.ah_cache().map(|cache| cache.get(pd, &to).map(drop)));
    let _ = (mr.write(0, b"x"), cq.req_notify(false), cq.poll(&mut []));
    let Ok(qp) = pd.create_qp(&QpInitAttr::new(QpType::Rc, cq)) else { return };
    assert!(id.qp().is_none_or(|other| other != qp));
    let _ = (qp.query(), qp.state(), qp.modify(&QpAttr::to(QpState::Err)));
    let (sent, received) = (qp.post_send(&[SendWr::send(2, &[])]), qp.post_recv(&[RecvWr::new(3, &[])]));
    for _ in [sent.is_ok(), received.is_ok()].iter().filter(|posted| **posted) {
        assert_ne!(side.completion().status, WcStatus::Success);
    }
}
