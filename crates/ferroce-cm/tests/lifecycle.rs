//! Connections from beginning to end, and every way in which they end early: over each link.

mod cases;
mod support;

use cases::lifecycle;
use ferroce_cm::{Error, EventKind, PortSpace};
use ferroce_soft::LinkMode;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use support::Host;
use support::bed::Bed;

fn over_shared_memory(case: fn(&Bed)) {
    case(&Bed::soft(LinkMode::Auto));
}

fn over_udp(case: fn(&Bed)) {
    case(&Bed::soft(LinkMode::Udp));
}

#[test]
fn whole_life_over_shared_memory() {
    over_shared_memory(lifecycle::whole_life);
}

#[test]
fn whole_life_over_udp() {
    over_udp(lifecycle::whole_life);
}

#[test]
fn an_address_may_be_of_two() {
    over_shared_memory(lifecycle::an_address_may_be_of_two);
}

#[test]
fn whole_life_in_the_port_space_ib() {
    over_shared_memory(|bed| lifecycle::whole_life_in(bed, PortSpace::Ib));
    over_udp(|bed| lifecycle::whole_life_in(bed, PortSpace::Ib));
}

#[test]
fn a_future_that_is_dropped_leaves_no_task_behind() {
    struct Task;
    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }
    let side = Host::new(LinkMode::Auto).open();
    let task = Arc::new(Task);
    let waker = Waker::from(task.clone());
    for _ in 0..3 {
        let mut event = pin!(side.channel.next_async());
        for _ in 0..2 {
            assert!(event.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        assert_eq!(Arc::strong_count(&task), 3, "once for the future, and those of the test");
    }
    assert_eq!(Arc::strong_count(&task), 2);
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

#[test]
fn nobody_listens_and_the_user_refuses_are_two_things() {
    over_shared_memory(lifecycle::nobody_listens_and_the_user_refuses_are_two_things);
}

#[test]
fn a_request_that_is_dropped_is_rejected() {
    over_shared_memory(lifecycle::a_request_that_is_dropped_is_rejected);
}

#[test]
fn the_caller_sets_the_queue_pair_up() {
    over_shared_memory(lifecycle::the_caller_sets_the_queue_pair_up);
}

#[test]
fn destroying_an_id_in_the_handler_of_its_own_event_is_ordinary() {
    over_shared_memory(lifecycle::destroying_an_id_in_the_handler_of_its_own_event_is_ordinary);
}

#[test]
fn no_event_comes_after_destroy() {
    over_shared_memory(lifecycle::no_event_comes_after_destroy);
}

#[test]
fn a_closed_channel_wakes_its_reader() {
    over_shared_memory(lifecycle::a_closed_channel_wakes_its_reader);
}

#[test]
fn migration_takes_unread_events_along_and_wakes_the_new_reader() {
    over_shared_memory(lifecycle::migration_takes_unread_events_along_and_wakes_the_new_reader);
}

#[test]
fn the_end_of_a_program_ends_its_connections() {
    over_shared_memory(lifecycle::the_end_of_a_program_ends_its_connections);
    over_udp(lifecycle::the_end_of_a_program_ends_its_connections);
}

/// B17: an address that cannot be resolved leaves the port as it was, and others may have it, too.
#[test]
fn b17_a_fixed_source_port_can_be_used_again() {
    let host = Host::new(LinkMode::Auto);
    let (a, b) = (host.open(), host.open());
    let (_listener, addr) = b.listen();
    let source = std::net::SocketAddr::new(a.ip, 7001);
    let retried = a.id();
    retried.bind_addr(source).unwrap();
    retried.resolve_addr(None, "0.0.0.0:1".parse().unwrap()).unwrap();
    assert!(matches!(a.event().kind(), EventKind::AddrError(_)));
    let other = a.id();
    for id in [&retried, &other] {
        id.resolve_addr(Some(source), addr).unwrap();
        assert!(matches!(a.event().kind(), EventKind::AddrResolved));
        assert_eq!(id.local_addr(), Some(source));
    }
}
