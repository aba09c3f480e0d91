//! What becomes of a connection while it is granted: what each side is told of the other's queue pair, and peers that give up.

mod cases;
mod support;

use cases::deciding;
use ferroce_cm::{ConnParam, Endpoint, Error, EventKind, Id, Listener, Phase, PortSpace, Refusal};
use ferroce_soft::LinkMode;
use ferroce_verbs::{QpInitAttr, QpState, QpType};
use std::net::SocketAddr;
use std::time::Instant;
use support::bed::Bed;
use support::{Host, PATIENCE, Side, message};

#[test]
fn a_grant_that_does_not_fit_is_made_again() {
    deciding::a_grant_that_does_not_fit_is_made_again(&Bed::soft(LinkMode::Auto));
}

#[test]
fn shared_receive_queues_are_told_of() {
    deciding::shared_receive_queues_are_told_of(&Bed::soft(LinkMode::Auto));
}

#[test]
fn a_destroyed_id_has_no_attributes() {
    deciding::a_destroyed_id_has_no_attributes(&Bed::soft(LinkMode::Auto));
}

#[test]
fn what_does_not_fit_is_found_before_the_queue_pair_is_moved() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (_listener, addr) = b.listen();
    let _active = a.connect(addr, b"");
    let (passive, _) = b.request();
    let too_often = ConnParam { rnr_retry_count: Some(8), ..ConnParam::default() };
    assert!(matches!(passive.accept(&too_often), Err(Error::Protocol(_))));
    assert_eq!((passive.phase(), passive.qp().unwrap().state()), (Phase::Requested, QpState::Init));
}

/// B33: who accepts has the timeout of the listener's options; otherwise the peer's.
#[test]
fn b33_the_ack_timeout_is_the_programs_or_the_peers() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (listener, addr) = b.listen();
    for (own, of_peer, in_effect) in [(None, 17, 17), (Some(10), 17, 10)] {
        if let Some(own) = own {
            listener.set_options(|options| options.ack_timeout = own).unwrap();
        }
        let active = a.resolved(addr);
        active.set_options(|options| options.ack_timeout = of_peer).unwrap();
        active.connect(&ConnParam::default()).unwrap();
        let (passive, _) = b.request();
        passive.accept(&ConnParam::default()).unwrap();
        assert!(matches!(a.event().kind(), EventKind::Established));
        assert!(matches!(b.event().kind(), EventKind::Established));
        let too_late = active.set_options(|options| options.ack_timeout = 5);
        assert!(matches!(too_late, Err(Error::Phase { .. })));
        let timeouts = [&active, &passive].map(|id| id.qp().unwrap().query().unwrap().timeout);
        assert_eq!(timeouts, [Some(of_peer), Some(in_effect)]);
    }
}

fn equip(side: &Side, id: &Id, qp_type: QpType) -> Result<(), Error> {
    id.create_qp(&side.pd, &QpInitAttr::new(qp_type, &side.cq)).map(drop)
}

fn resolved(side: &Side, addr: SocketAddr) -> Id {
    let id = side.id_in(PortSpace::Tcp);
    id.resolve_addr(None, addr).unwrap();
    assert!(matches!(side.event().kind(), EventKind::AddrResolved));
    id.resolve_route().unwrap();
    assert!(matches!(side.event().kind(), EventKind::RouteResolved));
    id
}

#[test]
fn unreliable_connections() {
    for link in [LinkMode::Auto, LinkMode::Udp] {
        let host = Host::new(link);
        let (a, b) = (host.open(), host.open());
        let (_listener, addr) = b.listen();
        let active = resolved(&a, addr);
        equip(&a, &active, QpType::Uc).unwrap();
        active.connect(&ConnParam::default()).unwrap();
        let EventKind::ConnectRequest { id: passive, .. } = b.event().into_parts().1 else { panic!("no request") };
        let refused = equip(&b, &passive, QpType::Rc);
        assert!(matches!(refused, Err(Error::Device { .. })), "the peer's is of another type: {refused:?}");
        equip(&b, &passive, QpType::Uc).unwrap();
        passive.accept(&ConnParam::default()).unwrap();
        assert!(matches!(a.event().kind(), EventKind::Established));
        assert!(matches!(b.event().kind(), EventKind::Established));
        message((&a, &active), (&b, &passive), b"there");
        message((&b, &passive), (&a, &active), b"and back");
        active.disconnect().unwrap();
        assert!(matches!(b.event().kind(), EventKind::Disconnected(_)));
        // And the other way round.
        let reliable = resolved(&a, addr);
        assert!(matches!(equip(&a, &reliable, QpType::Ud), Err(Error::Device { .. })));
        equip(&a, &reliable, QpType::Rc).unwrap();
        reliable.connect(&ConnParam::default()).unwrap();
        let EventKind::ConnectRequest { id: passive, .. } = b.event().into_parts().1 else { panic!("no request") };
        assert!(matches!(equip(&b, &passive, QpType::Uc), Err(Error::Device { .. })));
    }
}

/// Waits until the peer's word that it has given up is here, which nobody has read.
fn has_given_up(side: &Side) {
    let deadline = Instant::now() + PATIENCE;
    while side.cm.usage().half_open != 0 {
        assert!(Instant::now() < deadline, "it does not give up");
        std::thread::yield_now();
    }
}

#[test]
fn what_was_taken_back_is_no_longer_there_to_decide() {
    for accepts in [true, false] {
        let host = Host::new(LinkMode::Auto);
        let (a, b) = (host.open(), host.open());
        let (_listener, addr) = b.listen();
        let active = a.connect(addr, b"");
        let (passive, _) = b.request();
        active.destroy();
        has_given_up(&b);
        let decided = if accepts { passive.accept(&ConnParam::default()) } else { passive.reject(b"") };
        assert!(matches!(decided, Err(Error::Phase { .. })), "{decided:?}");
        assert_eq!(passive.phase(), Phase::Disconnected);
        let event = b.event();
        assert!(matches!(event.kind(), EventKind::Rejected { .. }) && *event.id() == passive, "{event:?}");
        assert_eq!(passive.qp().unwrap().state(), QpState::Err, "what is posted is flushed");
    }
}

#[test]
fn the_short_path_says_that_the_peer_has_given_up() {
    for accepts in [true, false] {
        let host = Host::new(LinkMode::Auto);
        let (a, b) = (host.open(), host.open());
        let endpoint = Endpoint { cm: b.cm.clone(), pd: b.pd.clone(), qp: QpInitAttr::new(QpType::Rc, &b.cq) };
        let listener = Listener::bind(&endpoint, SocketAddr::new(b.ip, 0), 0).unwrap();
        let active = a.connect(listener.local_addr().unwrap(), b"");
        let incoming = listener.incoming(PATIENCE).unwrap().expect("a request");
        active.destroy();
        has_given_up(&b);
        if accepts {
            let accepted = incoming.accept(b"", PATIENCE, |_| Ok(()));
            assert!(matches!(accepted, Err(Error::Refused(Refusal::Rejected { .. }))), "{accepted:?}");
        } else {
            let rejected = incoming.reject(b"");
            assert!(matches!(rejected, Err(Error::Phase { .. })), "{rejected:?}");
        }
    }
}
