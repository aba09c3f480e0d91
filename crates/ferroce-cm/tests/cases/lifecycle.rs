//! Connections from beginning to end, and every way in which they end early.

use crate::support::bed::Bed;
use crate::support::{self, connected, message};
use ferroce_cm::proto::DisconnectCause;
use ferroce_cm::{ConnParam, Error, EventKind, Phase, PortSpace, RejectReason, SetupIn};
use ferroce_verbs::QpState;
use std::net::SocketAddr;

pub(crate) fn whole_life(bed: &Bed) {
    whole_life_in(bed, PortSpace::Tcp);
}

pub(crate) fn whole_life_in(bed: &Bed, port_space: PortSpace) {
    let (a, b) = (bed.open(), bed.open());
    let (listener, addr) = b.listen_in(port_space);
    let active = a.resolved_in(port_space, addr);
    active.connect(&ConnParam { private_data: b"hello", ..ConnParam::default() }).unwrap();
    let (passive, private_data) = b.request();
    // Of this crate's own protocol it is what was given, without padding (ucx #5460).
    bed.same(&private_data, b"hello");
    assert_eq!(passive.local_addr(), Some(addr));
    assert_eq!(passive.peer_addr(), active.local_addr());
    passive.accept(&ConnParam { private_data: b"welcome", ..ConnParam::default() }).unwrap();
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Established), "{event:?}");
    bed.same(event.private_data(), b"welcome");
    assert!(matches!(b.event().kind(), EventKind::Established));
    message((&a, &active), (&b, &passive), b"there");
    message((&b, &passive), (&a, &active), b"and back");
    active.disconnect().unwrap();
    active.disconnect().unwrap();
    assert!(matches!(b.event().kind(), EventKind::Disconnected(_)));
    assert_eq!(active.qp().unwrap().state(), QpState::Err);
    passive.disconnect().unwrap();
    assert!(matches!(a.event().kind(), EventKind::Disconnected(_)));
    drop(event);
    for id in [active, passive, listener] {
        id.destroy();
        id.destroy();
        assert_eq!(id.phase(), Phase::Destroyed);
        assert!(matches!(id.disconnect(), Err(Error::Destroyed)));
    }
    a.is_clean();
    b.is_clean();
}

pub(crate) fn nobody_listens_and_the_user_refuses_are_two_things(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let (listener, addr) = b.listen();
    // ucx #7788: the reasons tell them apart.
    let _refused = a.connect(addr, b"");
    let (id, _) = b.request();
    id.reject(b"not you").unwrap();
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Rejected { reason: RejectReason::ConsumerDefined }), "{event:?}");
    bed.same(event.private_data(), b"not you");
    assert_eq!(event.id().qp().unwrap().state(), QpState::Err);
    listener.destroy();
    let _unheard = a.connect(addr, b"");
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Rejected { reason: RejectReason::InvalidServiceId }), "{event:?}");
}

pub(crate) fn a_request_that_is_dropped_is_rejected(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let (listener, addr) = b.listen();
    let first = a.connect(addr, b"");
    drop(b.event());
    assert!(matches!(a.event().kind(), EventKind::Rejected { .. }));
    // Unread ones go with their listener (R11).
    let second = a.connect(addr, b"");
    b.is_asked(1, 1);
    listener.destroy();
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Rejected { .. }) && *event.id() == second);
    drop((event, first, second));
    a.is_clean();
    b.is_clean();
    assert!(b.channel.try_next().unwrap().is_none());
}

pub(crate) fn the_caller_sets_the_queue_pair_up(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let (_listener, addr) = b.listen();
    let active = a.resolved(addr);
    active.set_options(|options| options.setup_in = SetupIn::Caller).unwrap();
    active.connect(&ConnParam::default()).unwrap();
    assert!(matches!(active.set_options(|_| {}), Err(Error::Phase { .. })), "too late (perftest #275)");
    let (passive, _) = b.request();
    passive.accept(&ConnParam::default()).unwrap();
    let event = a.event();
    assert!(
        matches!(event.kind(), EventKind::ConnectResponse(offer) if offer.qp_num == passive.qp().unwrap().qp_num())
    );
    assert_eq!(active.qp().unwrap().state(), QpState::Init);
    active.establish().unwrap();
    assert!(matches!(b.event().kind(), EventKind::Established));
    message((&a, &active), (&b, &passive), b"there");
    assert!(matches!(active.establish(), Err(Error::Phase { .. })));
}

pub(crate) fn destroying_an_id_in_the_handler_of_its_own_event_is_ordinary(bed: &Bed) {
    // spdk #3118, R8: with librdmacm the thread would wait for itself.
    let (a, b) = (bed.open(), bed.open());
    let (active, passive) = connected(&a, &b);
    active.disconnect().unwrap();
    let event = b.event();
    assert!(matches!(event.kind(), EventKind::Disconnected(_)));
    event.id().destroy();
    assert_eq!(event.id().phase(), Phase::Destroyed);
    drop(passive);
    // The event still holds it.
    assert_eq!(event.id().phase(), Phase::Destroyed);
    drop(event);
    assert!(matches!(a.event().kind(), EventKind::Disconnected(_)));
    // A listener in the handler of a request for it, and the request in the same.
    let (listener, addr) = b.listen();
    let second = a.connect(addr, b"");
    let event = b.event();
    event.id().destroy();
    listener.destroy();
    let EventKind::ConnectRequest { id, .. } = event.kind() else { panic!("{event:?}") };
    id.destroy();
    drop(event);
    assert!(matches!(a.event().kind(), EventKind::Rejected { .. } | EventKind::Disconnected(_)));
    drop((active, second, listener));
    a.is_clean();
    b.is_clean();
}

pub(crate) fn no_event_comes_after_destroy(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    for _ in 0..50 {
        let (active, passive) = connected(&a, &b);
        passive.disconnect().unwrap();
        // The event may be on its way, or here already.
        active.destroy();
        assert!(a.channel.try_next().unwrap().is_none());
        while let Some(event) = b.channel.try_next().unwrap() {
            assert!(*event.id() == passive);
        }
    }
    a.is_clean();
    b.is_clean();
}

pub(crate) fn a_closed_channel_wakes_its_reader(bed: &Bed) {
    // rdma-core #1622.
    let side = bed.open();
    let id = side.id();
    let channel = side.channel.clone();
    let reader = std::thread::spawn(move || channel.next());
    std::thread::sleep(std::time::Duration::from_millis(20));
    side.channel.close();
    assert!(matches!(reader.join().unwrap(), Err(Error::ChannelClosed)));
    assert!(matches!(side.channel.try_next(), Err(Error::ChannelClosed)));
    // Ids outlive it.
    id.bind_addr((side.ip, 0).into()).unwrap();
}

pub(crate) fn migration_takes_unread_events_along_and_wakes_the_new_reader(bed: &Bed) {
    // R9, rpma #101: with librdmacm the new channel's reader sleeps on.
    let (a, b) = (bed.open(), bed.open());
    let (active, passive) = connected(&a, &b);
    passive.disconnect().unwrap();
    while active.phase() != Phase::Connected {
        std::thread::yield_now();
    }
    let other = ferroce_cm::EventChannel::new().unwrap();
    let reader = {
        let other = other.clone();
        std::thread::spawn(move || other.next_timeout(support::PATIENCE).unwrap().expect("an event"))
    };
    std::thread::sleep(std::time::Duration::from_millis(20));
    active.migrate(&other).unwrap();
    let event = reader.join().unwrap();
    assert!(matches!(event.kind(), EventKind::Disconnected(_)) && *event.id() == active);
    assert!(a.channel.try_next().unwrap().is_none());
}

/// A program ends with connections open: what its peers are told has left before the last handle is gone, and nobody waited.
pub(crate) fn the_end_of_a_program_ends_its_connections(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let pairs: Vec<_> = (0..50).map(|_| connected(&a, &b)).collect();
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    // Without a word by itself: neither `disconnect` nor `destroy`.
    drop((a, ours));
    for _ in 0..theirs.len() {
        let event = b.event();
        assert!(matches!(event.kind(), EventKind::Disconnected(DisconnectCause::Requested)), "{event:?}");
    }
}

/// An address is two ids' if both allow it, and a listener's alone.
pub(crate) fn an_address_may_be_of_two(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let addr = SocketAddr::new(b.ip, 7191);
    let bind = |reuse_addr| {
        let id = b.id();
        id.set_options(|options| options.reuse_addr = reuse_addr).unwrap();
        id.bind_addr(addr).map(|()| id)
    };
    let (first, second) = (bind(true).unwrap(), bind(true).unwrap());
    // Others keep an address for listeners only.
    if bed.is_managed_by_kernel() {
        let refused = bind(false);
        assert!(matches!(refused, Err(Error::Address { .. })), "{refused:?}");
        let refused = first.listen(0);
        assert!(matches!(refused, Err(Error::Address { .. })), "{refused:?}");
    }
    second.destroy();
    first.listen(0).unwrap();
    assert!(bind(true).and_then(|id| id.listen(0)).is_err(), "it listens");
    let active = a.connect(addr, b"");
    drop(b.request());
    assert!(matches!(a.event().kind(), EventKind::Rejected { .. }));
    drop((active, first));
    a.is_clean();
}
