//! What is said of queue pairs while a connection is granted, and what does not fit.

use crate::support::bed::Bed;
use crate::support::message;
use ferroce_cm::{ConnParam, Error, EventKind, SetupIn};
use ferroce_verbs::{QpInitAttr, QpState, QpType, SrqInitAttr};
use std::net::SocketAddr;

/// A grant that does not fit changes nothing: the request can still be granted, with what the queue pair then has.
pub(crate) fn a_grant_that_does_not_fit_is_made_again(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let (_listener, addr) = b.listen();
    let active = a.connect(addr, b"");
    let (passive, _) = b.request();
    let too_much = ConnParam { private_data: &[1; 197], responder_resources: Some(1), ..ConnParam::default() };
    assert!(matches!(passive.accept(&too_much), Err(Error::Protocol(_))));
    assert_eq!(passive.qp().unwrap().state(), QpState::Init);
    passive.accept(&ConnParam::default()).unwrap();
    assert!(matches!(passive.accept(&ConnParam::default()), Err(Error::Phase { .. })), "granted once");
    assert!(matches!(a.event().kind(), EventKind::Established));
    assert!(matches!(b.event().kind(), EventKind::Established));
    message((&a, &active), (&b, &passive), b"there");
    message((&b, &passive), (&a, &active), b"and back");
}

/// Each side is told whether the other one has a shared receive queue.
pub(crate) fn shared_receive_queues_are_told_of(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let (_listener, addr) = b.listen();
    for (of_a, of_b) in [(true, false), (false, true)] {
        let active = a.id();
        active.set_options(|options| options.setup_in = SetupIn::Caller).unwrap();
        active.resolve_addr(None, addr).unwrap();
        assert!(matches!(a.event().kind(), EventKind::AddrResolved));
        active.resolve_route().unwrap();
        assert!(matches!(a.event().kind(), EventKind::RouteResolved));
        let equip = |side: &crate::support::Side, id: &ferroce_cm::Id, shared: bool| {
            let srq = shared.then(|| side.pd.create_srq(&SrqInitAttr { max_wr: 8, max_sge: 1 }).unwrap());
            let attr = QpInitAttr::new(QpType::Rc, &side.cq);
            id.create_qp(&side.pd, &QpInitAttr { srq, ..attr }).unwrap();
        };
        equip(&a, &active, of_a);
        active.connect(&ConnParam::default()).unwrap();
        let (_, kind, _) = b.event().into_parts();
        let EventKind::ConnectRequest { id: passive, offer } = kind else { panic!("{kind:?}") };
        assert_eq!(offer.srq, of_a);
        equip(&b, &passive, of_b);
        passive.accept(&ConnParam::default()).unwrap();
        let event = a.event();
        assert!(matches!(event.kind(), EventKind::ConnectResponse(offer) if offer.srq == of_b), "{event:?}");
        active.establish().unwrap();
        assert!(matches!(b.event().kind(), EventKind::Established));
    }
}

/// Of what is destroyed nothing can be asked.
pub(crate) fn a_destroyed_id_has_no_attributes(bed: &Bed) {
    let side = bed.open();
    let id = side.id();
    id.bind_addr(SocketAddr::new(side.ip, 0)).unwrap();
    let bound = id.qp_attr(QpState::Init);
    assert!(bound.is_ok(), "{bound:?}");
    id.destroy();
    for state in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err] {
        assert!(matches!(id.qp_attr(state), Err(Error::Destroyed)), "{state:?}");
    }
}
