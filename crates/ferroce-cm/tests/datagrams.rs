//! The port space UDP: which queue pair serves a port (SIDR), from beginning to end, and every way in which it ends early.

mod cases;
mod support;

use cases::datagrams::{self, ask};
use ferroce_cm::{ConnParam, Error, EventKind, Phase, PortSpace, UDP_QKEY};
use ferroce_soft::LinkMode;
use ferroce_verbs::{QpInitAttr, QpState, QpType};
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;
use support::bed::Bed;
use support::{Host, Side};

#[test]
fn whole_life_over_shared_memory() {
    datagrams::whole_life(&Bed::soft(LinkMode::Auto));
}

#[test]
fn whole_life_over_udp() {
    datagrams::whole_life(&Bed::soft(LinkMode::Udp));
}

#[test]
fn whole_life_with_ipv6() {
    let host = Host::new(LinkMode::Udp);
    let open = move || Side { ip: Ipv6Addr::LOCALHOST.into(), ..host.open() };
    datagrams::whole_life(&Bed::new(open, false));
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
    let (_listener, addr) = side.listen_in(PortSpace::Udp);
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
fn who_does_not_decide_is_unreachable() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (_listener, addr) = b.listen_in(PortSpace::Udp);
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
    let (listener, addr) = b.listen_in(PortSpace::Udp);
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
    assert!(matches!(server.accept(&ConnParam::default()), Err(Error::Phase { call: "accept", .. })));
    drop((first, second, server, listener));
    b.is_clean();
}

#[test]
fn nobody_listens_and_the_user_refuses_are_two_things() {
    datagrams::nobody_listens_and_the_user_refuses_are_two_things(&Bed::soft(LinkMode::Auto));
}

#[test]
fn a_listener_that_is_destroyed_rejects_what_nobody_has_read() {
    datagrams::a_listener_that_is_destroyed_rejects_what_nobody_has_read(&Bed::soft(LinkMode::Auto));
}

#[test]
fn no_event_comes_after_destroy() {
    datagrams::no_event_comes_after_destroy(&Bed::soft(LinkMode::Auto));
}
