//! Connections from beginning to end, and every way in which they end early.

mod support;

use ferroce_cm::proto::DisconnectCause;
use ferroce_cm::{ConnParam, Error, EventKind, Phase, RejectReason, SetupIn};
use ferroce_soft::LinkMode;
use ferroce_verbs::QpState;
use support::{Host, connected, message};

fn whole_life(link: LinkMode) {
    let host = Host::new(link);
    let (a, b) = (host.open(), host.open());
    let (listener, addr) = b.listen();
    let active = a.connect(addr, b"hello");
    let (passive, private_data) = b.request();
    // Between ferroce and ferroce it is what was given, without padding (ucx #5460).
    assert_eq!(private_data, b"hello");
    assert_eq!(passive.local_addr(), Some(addr));
    assert_eq!(passive.peer_addr(), active.local_addr());
    passive.accept(&ConnParam { private_data: b"welcome", ..ConnParam::default() }).unwrap();
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Established), "{event:?}");
    assert_eq!(event.private_data(), b"welcome");
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

#[test]
fn whole_life_over_shared_memory() {
    whole_life(LinkMode::Auto);
}

#[test]
fn whole_life_over_udp() {
    whole_life(LinkMode::Udp);
}

#[test]
fn the_programs_own_events_end_with_their_id_too() {
    let host = Host::new(LinkMode::Auto);
    let a = host.open();
    let (id, other) = (a.id(), a.id());
    a.channel.post(&id, 1).unwrap();
    a.channel.post(&id, 2).unwrap();
    a.channel.post(&other, 3).unwrap();
    assert!(matches!(a.event().kind(), EventKind::User(1)));
    id.destroy();
    assert!(matches!(a.event().kind(), EventKind::User(3)));
    assert!(matches!(a.channel.post(&id, 4), Err(Error::Destroyed)));
    assert!(a.channel.try_next().unwrap().is_none());
    drop((id, other));
    a.is_clean();
}

#[test]
fn nobody_listens_and_the_user_refuses_are_two_things() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (listener, addr) = b.listen();
    // ucx #7788: the reasons tell them apart.
    let _refused = a.connect(addr, b"");
    let (id, _) = b.request();
    id.reject(b"not you").unwrap();
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Rejected { reason: RejectReason::ConsumerDefined }), "{event:?}");
    assert_eq!(event.private_data(), b"not you");
    assert_eq!(event.id().qp().unwrap().state(), QpState::Err);
    listener.destroy();
    let _unheard = a.connect(addr, b"");
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Rejected { reason: RejectReason::InvalidServiceId }), "{event:?}");
}

#[test]
fn a_request_that_is_dropped_is_rejected() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (listener, addr) = b.listen();
    let first = a.connect(addr, b"");
    drop(b.event());
    assert!(matches!(a.event().kind(), EventKind::Rejected { .. }));
    // Unread ones go with their listener (R11).
    let second = a.connect(addr, b"");
    while b.cm.usage().half_open == 0 {
        std::thread::yield_now();
    }
    listener.destroy();
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Rejected { .. }) && *event.id() == second);
    drop((event, first, second));
    a.is_clean();
    b.is_clean();
    assert!(b.channel.try_next().unwrap().is_none());
}

#[test]
fn the_caller_sets_the_queue_pair_up() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
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

#[test]
fn destroying_an_id_in_the_handler_of_its_own_event_is_ordinary() {
    // spdk #3118, R8: with librdmacm the thread would wait for itself.
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
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

#[test]
fn no_event_comes_after_destroy() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
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

#[test]
fn a_closed_channel_wakes_its_reader() {
    // rdma-core #1622.
    let host = Host::new(LinkMode::Auto);
    let side = host.open();
    let id = side.id();
    let channel = side.channel.clone();
    let reader = std::thread::spawn(move || channel.next());
    std::thread::sleep(std::time::Duration::from_millis(20));
    side.channel.close();
    assert!(matches!(reader.join().unwrap(), Err(Error::ChannelClosed)));
    assert!(matches!(side.channel.try_next(), Err(Error::ChannelClosed)));
    // Ids outlive it.
    id.bind_addr("127.0.0.1:0".parse().unwrap()).unwrap();
}

#[test]
fn migration_takes_unread_events_along_and_wakes_the_new_reader() {
    // R9, rpma #101: with librdmacm the new channel's reader sleeps on.
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
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

#[test]
fn what_is_attached_to_an_id_goes_when_it_is_destroyed() {
    struct Own {
        id: ferroce_cm::Id,
        number: u32,
    }
    let host = Host::new(LinkMode::Auto);
    let side = host.open();
    let id = side.id();
    // The two hold each other.
    let own = std::sync::Arc::new(Own { id: id.clone(), number: 7 });
    id.set_context(own.clone()).unwrap();
    assert_eq!(id.context::<Own>().unwrap().number, 7);
    assert!(id.context::<u32>().is_none());
    let weak = std::sync::Arc::downgrade(&own);
    drop((id, own));
    let own = weak.upgrade().expect("the id holds it");
    own.id.destroy();
    assert!(own.id.context::<Own>().is_none());
    assert!(matches!(own.id.set_context(own.clone()), Err(Error::Destroyed)));
    drop(own);
    assert!(weak.upgrade().is_none());
    side.is_clean();
}

/// A program ends with connections open: what its peers are told has left before the last handle is gone, and nobody waited.
#[test]
fn the_end_of_a_program_ends_its_connections() {
    for link in [LinkMode::Auto, LinkMode::Udp] {
        let host = Host::new(link);
        let (a, b) = (host.open(), host.open());
        let pairs: Vec<_> = (0..50).map(|_| connected(&a, &b)).collect();
        let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        // Without a word by itself: neither `disconnect` nor `destroy`.
        drop((a, ours));
        for _ in 0..theirs.len() {
            let event = b.event();
            assert!(matches!(event.kind(), EventKind::Disconnected(DisconnectCause::Requested)), "{event:?}");
        }
    }
}
