//! The port space UDP: which queue pair serves a port (SIDR), from beginning to end, and every way in which it ends early.

mod support;

use ferroce_cm::proto::CmError;
use ferroce_cm::{ConnParam, Error, Event, EventKind, Id, Phase, PortSpace, RejectReason, UDP_QKEY};
use ferroce_soft::LinkMode;
use ferroce_verbs::{QpInitAttr, QpState, QpType, RecvWr, SendOp, SendWr, UdDest, WcStatus};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use support::{Host, PATIENCE, Side};

/// Bytes before a datagram in its receive buffer.
const GRH: usize = 40;

fn listen(side: &Side) -> (Id, SocketAddr) {
    side.listen_at(PortSpace::Udp, "127.0.0.1:0")
}

fn ask(side: &Side, peer: SocketAddr, private_data: &[u8]) -> Id {
    let id = side.resolved_in(PortSpace::Udp, peer);
    id.connect(&ConnParam { private_data, ..ConnParam::default() }).unwrap();
    id
}

/// Waits until a question has come, which nobody reads.
fn unread(side: &Side, count: usize) {
    let deadline = Instant::now() + PATIENCE;
    while side.cm.usage().sidr_received < count {
        assert!(Instant::now() < deadline, "the question does not come");
        std::thread::yield_now();
    }
}

fn is_rejected(event: &Event, wanted: RejectReason) -> bool {
    matches!(event.kind(), EventKind::Rejected { reason } if *reason == wanted)
}

/// A datagram from `a` to where its event says, and one back to where the first came from.
fn exchange((a, asker): (&Side, &Id), (b, server): (&Side, &Id), established: &Event) {
    let (asker, server) = (asker.qp().unwrap(), server.qp().unwrap());
    let (out, back) = (b"from the client", b"and back, from the server");
    for (side, qp) in [(a, &asker), (b, &server)] {
        assert_eq!((qp.qp_type(), qp.state()), (QpType::Ud, QpState::Rts));
        qp.post_recv(&[RecvWr::new(1, &[side.mr.sge(..1024).unwrap()])]).unwrap();
    }
    let ud = established.ud_param().expect("it says where datagrams go");
    let ah = a.pd.create_ah(&ud.ah_attr).unwrap();
    a.mr.write(2048, out).unwrap();
    let op = SendOp::SendImm(asker.qp_num());
    let to = UdDest { ah: &ah, qpn: ud.qp_num, qkey: ud.qkey };
    asker.post_send(&[SendWr::new(2, op, &[a.mr.sge(2048..2048 + out.len()).unwrap()]).to(to)]).unwrap();
    assert_eq!(a.completion().status, WcStatus::Success);
    let came = b.completion();
    assert_eq!((came.status, came.imm_data(), came.src_qp), (WcStatus::Success, Some(asker.qp_num()), asker.qp_num()));
    assert_eq!(came.byte_len as usize, GRH + out.len());
    let mut got = vec![0; GRH + out.len()];
    b.mr.read(0, &mut got).unwrap();
    let (grh, text) = got.split_first_chunk::<GRH>().unwrap();
    assert_eq!(text, out);
    let ah = b.pd.create_ah_from_wc(&came, grh, 1).unwrap();
    b.mr.write(2048, back).unwrap();
    let to = UdDest { ah: &ah, qpn: came.src_qp, qkey: UDP_QKEY };
    server.post_send(&[SendWr::send(3, &[b.mr.sge(2048..2048 + back.len()).unwrap()]).to(to)]).unwrap();
    assert_eq!(b.completion().status, WcStatus::Success);
    assert_eq!(a.completion().byte_len as usize, GRH + back.len());
    let mut got = vec![0; back.len()];
    a.mr.read(GRH, &mut got).unwrap();
    assert_eq!(got, back);
}

fn whole_life(link: LinkMode, at: &str) {
    let host = Host::new(link);
    let (a, b) = (host.open(), host.open());
    let (listener, addr) = b.listen_at(PortSpace::Udp, at);
    let asker = ask(&a, addr, b"hello");
    let (server, private_data) = b.request();
    assert_eq!(private_data, b"hello");
    assert_eq!((server.local_addr(), server.peer_addr()), (Some(addr), asker.local_addr()));
    server.accept(&ConnParam { private_data: b"welcome", ..ConnParam::default() }).unwrap();
    assert!(matches!(server.accept(&ConnParam::default()), Err(Error::Phase { .. })), "answered once");
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Established), "{event:?}");
    assert_eq!((event.private_data(), event.id() == &asker), (&b"welcome"[..], true));
    let ud = event.ud_param().unwrap();
    assert_eq!((ud.qp_num, ud.qkey), (server.qp().unwrap().qp_num(), UDP_QKEY));
    assert_eq!(ud.ah_attr.grh.unwrap().dgid.ip(), addr.ip());
    assert_eq!((asker.phase(), server.phase()), (Phase::Connected, Phase::Connected));
    exchange((&a, &asker), (&b, &server), &event);
    // There is no connection that could be established at the server, or end.
    assert!(matches!(asker.disconnect(), Err(Error::Phase { .. })));
    assert!(b.channel.try_next().unwrap().is_none());
    drop(event);
    for id in [asker, server, listener] {
        id.destroy();
        id.destroy();
        assert!(matches!(id.accept(&ConnParam::default()), Err(Error::Destroyed)));
        assert!(matches!(id.reject(b""), Err(Error::Destroyed)));
        assert!(matches!(id.connect(&ConnParam::default()), Err(Error::Destroyed)));
    }
    a.is_clean();
    b.is_clean();
    assert!(a.channel.try_next().unwrap().is_none() && b.channel.try_next().unwrap().is_none());
}

#[test]
fn whole_life_over_shared_memory() {
    whole_life(LinkMode::Auto, "127.0.0.1:0");
}

#[test]
fn whole_life_over_udp() {
    whole_life(LinkMode::Udp, "127.0.0.1:0");
}

#[test]
fn whole_life_with_ipv6() {
    whole_life(LinkMode::Udp, "[::1]:0");
}

#[test]
fn queue_pairs_of_the_users_own() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (_listener, addr) = b.listen_at(PortSpace::Udp, "0.0.0.0:0");
    let peer = SocketAddr::new("127.0.0.1".parse().unwrap(), addr.port());
    let asker = a.id_in(PortSpace::Udp);
    asker.resolve_addr(None, peer).unwrap();
    asker.resolve_route().unwrap();
    // It wants to know only, and needs no queue pair for that.
    asker.connect(&ConnParam::default()).unwrap();
    let EventKind::ConnectRequest { id: server, offer } = b.event().into_parts().1 else { panic!("no request") };
    assert_eq!(offer, ferroce_cm::Offer::default());
    assert!(matches!(server.accept(&ConnParam::default()), Err(Error::Phase { .. })), "there is no queue pair");
    server.accept(&ConnParam { qp_num: Some(0x1234), qkey: Some(0x77), ..ConnParam::default() }).unwrap();
    for _ in 0..2 {
        assert!(matches!(a.event().kind(), EventKind::AddrResolved | EventKind::RouteResolved));
    }
    let event = a.event();
    let ud = event.ud_param().unwrap();
    assert_eq!((ud.qp_num, ud.qkey), (0x1234, 0x77));
    // An external queue pair is moved with what the id says.
    let qp = a.pd.create_qp(&QpInitAttr::new(QpType::Ud, &a.cq)).unwrap();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        qp.modify(&asker.qp_attr(state).unwrap()).unwrap();
    }
    assert_eq!(qp.query().unwrap().qkey, Some(UDP_QKEY));
    assert!(matches!(asker.qp_attr(QpState::Err), Err(Error::Phase { .. })));
}

#[test]
fn types_and_sizes_that_do_not_fit() {
    let host = Host::new(LinkMode::Auto);
    let side = host.open();
    let (datagrams, connections) = (side.id_in(PortSpace::Udp), side.id());
    for (id, qp_type) in [(&datagrams, QpType::Rc), (&datagrams, QpType::Uc), (&connections, QpType::Ud)] {
        let refused = id.create_qp(&side.pd, &QpInitAttr::new(qp_type, &side.cq));
        assert!(matches!(refused, Err(Error::Device { .. })), "{qp_type:?}");
        assert!(id.qp().is_none());
    }
    let (_listener, addr) = listen(&side);
    let asker = side.resolved_in(PortSpace::Udp, addr);
    let with = |private_data| ConnParam { private_data, ..ConnParam::default() };
    assert!(matches!(asker.connect(&with(&[1; 181])), Err(Error::Protocol(_))));
    asker.connect(&with(&[1; 180])).unwrap();
    let (server, private_data) = side.request();
    assert_eq!(private_data, [1; 180]);
    assert!(matches!(server.accept(&with(&[2; 137])), Err(Error::Protocol(_))));
    assert!(matches!(server.reject(&[2; 137]), Err(Error::Protocol(_))));
    server.accept(&with(&[2; 136])).unwrap();
    assert_eq!(side.event().private_data(), [2; 136]);
}

#[test]
fn nobody_listens_and_the_user_refuses_are_two_things() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (listener, addr) = listen(&b);
    let refused = ask(&a, addr, b"");
    let (server, _) = b.request();
    server.reject(b"not you").unwrap();
    assert!(matches!(server.accept(&ConnParam::default()), Err(Error::Phase { .. })));
    let event = a.event();
    assert!(is_rejected(&event, RejectReason::ConsumerDefined), "{event:?}");
    assert_eq!((event.private_data(), event.ud_param()), (&b"not you"[..], None));
    assert_eq!(refused.phase(), Phase::Disconnected);
    // It is of use to others.
    assert_eq!(refused.qp().unwrap().state(), QpState::Rts);
    listener.destroy();
    let _unheard = ask(&a, addr, b"");
    assert!(is_rejected(&a.event(), RejectReason::InvalidServiceId));
    // Who grants connections at the port does not grant datagrams, and there may be both.
    let at = addr.to_string();
    let (_connections, _) = b.listen_at(PortSpace::Tcp, &at);
    let _unheard = ask(&a, addr, b"");
    assert!(is_rejected(&a.event(), RejectReason::InvalidServiceId));
    let (_datagrams, _) = b.listen_at(PortSpace::Udp, &at);
    let _heard = ask(&a, addr, b"");
    drop(b.event());
    assert!(is_rejected(&a.event(), RejectReason::ConsumerDefined), "a request that is dropped is rejected");
}

#[test]
fn a_listener_that_is_destroyed_rejects_what_nobody_has_read() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (listener, addr) = listen(&b);
    let read = ask(&a, addr, b"");
    let (server, _) = b.request();
    let pending: Vec<Id> = (0..5).map(|_| ask(&a, addr, b"")).collect();
    unread(&b, 6);
    listener.destroy();
    for _ in 0..5 {
        let event = a.event();
        assert!(is_rejected(&event, RejectReason::ConsumerDefined) && pending.contains(event.id()), "{event:?}");
    }
    assert!(b.channel.try_next().unwrap().is_none());
    // What was read lives on.
    server.accept(&ConnParam::default()).unwrap();
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Established) && *event.id() == read, "{event:?}");
    drop((read, event, pending, server, listener));
    a.is_clean();
    b.is_clean();
}

#[test]
fn who_does_not_decide_is_unreachable() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (_listener, addr) = listen(&b);
    let asker = a.resolved_in(PortSpace::Udp, addr);
    asker.set_options(|options| options.connect_timeout = Duration::from_millis(400)).unwrap();
    asker.connect(&ConnParam::default()).unwrap();
    let (server, _) = b.request();
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Unreachable { sent } if *sent > 1), "{event:?}");
    assert_eq!(asker.phase(), Phase::Disconnected);
    // Too late, which nobody tells.
    server.accept(&ConnParam::default()).unwrap();
    drop((asker, event, server));
    a.is_clean();
    assert!(a.channel.try_next().unwrap().is_none());
}

#[test]
fn a_question_that_nobody_waits_for_is_not_shown_and_cannot_be_answered() {
    /// More than a question is remembered.
    const FORGOTTEN: Duration = Duration::from_millis(400);
    let host = Host::new(LinkMode::Auto);
    let a = host.open();
    let b = host.open_with(|config| config.request_timeout = 300_000_000);
    let (listener, addr) = listen(&b);
    let [first, second] = [&b"first"[..], b"second"].map(|private_data| {
        let id = a.resolved_in(PortSpace::Udp, addr);
        id.set_options(|options| options.connect_timeout = Duration::from_millis(100)).unwrap();
        id.connect(&ConnParam { private_data, ..ConnParam::default() }).unwrap();
        assert!(matches!(a.event().kind(), EventKind::Unreachable { .. }));
        id
    });
    std::thread::sleep(FORGOTTEN);
    // Both are in the queue, and what comes next is what is read next.
    let _third = ask(&a, addr, b"third");
    let (server, private_data) = b.request();
    assert_eq!(private_data, b"third");
    std::thread::sleep(FORGOTTEN);
    assert!(matches!(server.accept(&ConnParam::default()), Err(Error::Protocol(CmError::Stale))));
    drop((first, second, server, listener));
    b.is_clean();
}

#[test]
fn no_event_comes_after_destroy() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (listener, addr) = listen(&b);
    for round in 0..60 {
        let asker = ask(&a, addr, b"");
        let event = b.event();
        let EventKind::ConnectRequest { id: server, .. } = event.kind() else { panic!("{event:?}") };
        match round % 3 {
            // The answer is on its way, or here already.
            0 => server.accept(&ConnParam { qp_num: Some(7), ..ConnParam::default() }).unwrap(),
            1 => server.destroy(),
            _ => {}
        }
        asker.destroy();
        assert!(a.channel.try_next().unwrap().is_none());
    }
    listener.destroy();
    a.is_clean();
    b.is_clean();
    assert!(a.channel.try_next().unwrap().is_none() && b.channel.try_next().unwrap().is_none());
}
