//! The same, where the kernel manages connections: its thread reads events while others do what they like.

mod device;
mod multicast;
mod watching;

use super::device::{Answer, HERE, Host, THERE};
use super::search::{exhaust, sample};
use super::{give_qp, join, tolerate};
use crate::backend::Backend;
use crate::kernel::{KernelManager, Limits, Watch};
use crate::{ConnParam, ConnectionManager, Error, EventChannel, EventKind, Id, Phase, PortSpace};
use device::{GUID, Kernel, Told};
use ferroce_verbs::{Pd, QpState};
use shuttle::thread::{self, JoinHandle};
use std::sync::Arc;
use std::time::Duration;

struct World {
    host: Host,
    kernel: Kernel,
    manager: Arc<KernelManager>,
    cm: ConnectionManager,
    channel: EventChannel,
    pd: Pd,
}

impl World {
    fn new() -> Self {
        Self::with(None)
    }

    fn with(watch: Option<Arc<Watch>>) -> Self {
        // Only its queue pairs are of use.
        let host = Host::new(Answer::Grant);
        let context = host.context();
        let kernel = Kernel::new();
        let limits = Limits { responder_resources: 16, initiator_depth: 16 };
        let manager = KernelManager::new(&context, GUID, limits, Arc::new(kernel.clone()), watch);
        Self {
            pd: context.alloc_pd().unwrap(),
            cm: ConnectionManager(Backend::Kernel(manager.clone())),
            channel: EventChannel::new().unwrap(),
            manager,
            kernel,
            host,
        }
    }

    fn id(&self) -> Id {
        self.cm.create_id(&self.channel, PortSpace::Tcp)
    }

    /// What the manager's thread does once.
    fn turn(&self) {
        while self.manager.turn().unwrap().more {}
    }

    fn event(&self) -> EventKind {
        self.turn();
        self.channel.try_next().unwrap().expect("an event").into_parts().1
    }

    /// An id that is about to connect.
    fn resolved(&self) -> Id {
        self.resolved_by(|| self.event())
    }

    /// The same, if this is how events are read.
    fn resolved_by(&self, event: impl Fn() -> EventKind) -> Id {
        let id = self.id();
        id.resolve_addr(None, THERE).unwrap();
        assert!(matches!(event(), EventKind::AddrResolved));
        id.resolve_route().unwrap();
        assert!(matches!(event(), EventKind::RouteResolved));
        give_qp(&self.pd, &id);
        id
    }

    /// An id to which the peer's answer is under way.
    fn connecting(&self) -> Id {
        let id = self.resolved();
        id.connect(&ConnParam::default()).unwrap();
        id
    }

    fn connected(&self) -> Id {
        let id = self.connecting();
        assert!(matches!(self.event(), EventKind::Established));
        id
    }

    fn listener(&self, backlog: usize) -> Id {
        let id = self.id();
        id.bind_addr(HERE).unwrap();
        id.listen(backlog).unwrap();
        id
    }

    /// A peer's request, read.
    fn requested(&self) -> Id {
        assert!(self.kernel.ask());
        let EventKind::ConnectRequest { id, .. } = self.event() else { panic!("no request") };
        give_qp(&self.pd, &id);
        id
    }

    /// The manager's thread, some turns long.
    fn pump(&self) -> JoinHandle<()> {
        let manager = self.manager.clone();
        thread::spawn(move || {
            for _ in 0..2 {
                let _ = manager.turn().unwrap();
            }
        })
    }

    /// A thread that reads the channel until somebody wakes it; no event comes of what is destroyed.
    fn reader(&self, channel: &EventChannel, handle: impl Fn(EventKind) + Send + 'static) -> JoinHandle<()> {
        let channel = channel.clone();
        thread::spawn(move || {
            while let Ok(Some(event)) = channel.next() {
                handle(event.into_parts().1);
            }
        })
    }

    fn join(&self, others: Vec<JoinHandle<()>>, readers: Vec<JoinHandle<()>>) {
        join(others);
        readers.iter().for_each(|_| self.channel.wake());
        join(readers);
    }

    /// All handles are gone: so is all else, once what is on its way has come.
    fn finish(self) {
        self.turn();
        while self.channel.try_next().is_ok_and(|event| event.is_some()) {}
        let usage = self.cm.usage();
        assert_eq!((usage.connections, usage.events, usage.names), (0, 0, 0), "ids or events are left");
        assert_eq!(self.kernel.ids(), 0, "the kernel has ids");
        assert_eq!(self.host.qps(), 0, "queue pairs are left");
        let manager = Arc::downgrade(&self.manager);
        drop((self.cm, self.manager, self.pd, self.channel));
        assert_eq!(manager.strong_count(), 0, "the manager is held");
    }
}

fn destroyer(id: Id) -> JoinHandle<()> {
    thread::spawn(move || {
        id.destroy();
        assert_eq!(id.phase(), Phase::Destroyed);
        assert!(id.qp().is_none());
        assert!(matches!(id.connect(&ConnParam::default()), Err(Error::Destroyed)));
    })
}

/// The peer ends the connection; the manager's thread and a reader read that; two threads destroy the id.
fn two_closers() {
    let world = World::new();
    let id = world.connected();
    world.kernel.end_all();
    let reader = world.reader(&world.channel, drop);
    let others = vec![world.pump(), destroyer(id.clone()), destroyer(id)];
    world.join(others, vec![reader]);
    world.finish();
}

#[test]
fn two_closers_and_the_threads_that_read() {
    exhaust(1, two_closers);
    sample(2000, two_closers);
}

/// The peer has granted a connection: a reader moves the queue pair and confirms, while the id is destroyed and numbers are used again.
fn granted() {
    let world = World::new();
    let id = world.connecting();
    let reader = world.reader(&world.channel, drop);
    let others = vec![world.pump(), destroyer(id)];
    // Whatever was meant for the old id would find this one in no state for it.
    let other = world.id();
    other.bind_addr(HERE).unwrap();
    world.join(others, vec![reader]);
    let third = world.id();
    third.bind_addr(HERE).unwrap();
    assert!(world.kernel.ids() >= 2);
    drop((other, third));
    let told = world.kernel.told();
    assert!(told.is_empty() || told == [Told::Confirmed, Told::Ended], "{told:?}");
    world.finish();
}

#[test]
fn destroyed_while_a_reader_confirms() {
    exhaust(1, granted);
    sample(2000, granted);
}

/// Commands and destruction at once: a command never names an id that is gone, or one that has its number.
fn commanded() {
    let world = World::new();
    let id = world.resolved();
    let (caller, maker) = (id.clone(), world.id());
    let others = vec![
        thread::spawn(move || tolerate(caller.connect(&ConnParam::default()))),
        destroyer(id),
        // It may get the number.
        thread::spawn(move || {
            maker.bind_addr(HERE).unwrap();
            maker.destroy();
        }),
    ];
    join(others);
    world.finish();
}

#[test]
fn destroyed_while_a_command_is_under_way() {
    exhaust(2, commanded);
    sample(2000, commanded);
}

/// A listener is destroyed while a request is on its way to it.
fn requested() {
    let world = World::new();
    let listener = world.listener(0);
    assert!(world.kernel.ask());
    let reader = world.reader(&world.channel, drop);
    let others = vec![world.pump(), destroyer(listener)];
    world.join(others, vec![reader]);
    assert_eq!(world.kernel.told(), [Told::Rejected], "exactly once");
    world.finish();
}

#[test]
fn a_listener_is_destroyed_with_a_request() {
    exhaust(2, requested);
    sample(2000, requested);
}

/// A request is granted while the peer takes it back, and the id is destroyed.
fn accepted() {
    let world = World::new();
    let listener = world.listener(0);
    let id = world.requested();
    let (kernel, accepter) = (world.kernel.clone(), id.clone());
    let others = vec![
        thread::spawn(move || kernel.end_all()),
        thread::spawn(move || tolerate(accepter.accept(&ConnParam::default()))),
        destroyer(id),
        world.pump(),
    ];
    join(others);
    drop(listener);
    world.finish();
}

#[test]
fn accepted_taken_back_and_destroyed() {
    exhaust(1, accepted);
    sample(2000, accepted);
}

/// Both ends disconnect while a reader reads; nobody destroys it but the last handle.
fn both_disconnect() {
    let world = World::new();
    let id = world.connected();
    let (kernel, closer) = (world.kernel.clone(), id.clone());
    let seen = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = seen.clone();
    let reader = world.reader(&world.channel, move |kind| {
        assert!(matches!(kind, EventKind::Disconnected(_)), "{kind:?}");
        count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    });
    let others = vec![
        thread::spawn(move || kernel.end_all()),
        thread::spawn(move || closer.disconnect().unwrap()),
        world.pump(),
    ];
    join(others);
    world.turn();
    world.channel.wake();
    join(vec![reader]);
    while let Some(event) = world.channel.try_next().unwrap() {
        assert!(matches!(event.kind(), EventKind::Disconnected(_)));
        seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }
    assert_eq!(seen.load(std::sync::atomic::Ordering::SeqCst), 1, "exactly once");
    assert_eq!(id.qp().unwrap().state(), QpState::Err);
    drop(id);
    world.finish();
}

#[test]
fn both_ends_disconnect() {
    exhaust(1, both_disconnect);
    sample(2000, both_disconnect);
}

/// An id moves to another channel while its event is on its way there; a reader of the new one waits.
fn moved() {
    let world = World::new();
    let id = world.connected();
    world.kernel.end_all();
    let new = EventChannel::new().unwrap();
    let (mover, channel, end) = (id.clone(), new.clone(), new.clone());
    let reader = thread::spawn(move || {
        let event = end.next().unwrap().expect("the event");
        assert!(matches!(event.kind(), EventKind::Disconnected(_)));
    });
    let others = vec![world.pump(), thread::spawn(move || mover.migrate(&channel).unwrap())];
    join(others);
    // Nothing was lost: it is in the new channel, or was delivered there.
    join(vec![reader]);
    assert!(world.channel.try_next().unwrap().is_none());
    drop((id, new));
    world.finish();
}

#[test]
fn migrating_wakes_the_reader_of_the_new_channel() {
    exhaust(2, moved);
    sample(2000, moved);
}

/// Events that the manager has not read when an id is destroyed are purged by the kernel; those that it has read find nobody.
#[test]
fn unread_events_hold_nobody_up() {
    sample(2, || {
        let world = World::new();
        let id = world.connected();
        world.kernel.end_all();
        id.destroy();
        assert_eq!(world.kernel.ids(), 0, "destroyed at once");
        drop(id);
        let id = world.connected();
        world.kernel.end_all();
        world.turn();
        id.destroy();
        assert!(world.channel.try_next().unwrap().is_none());
        assert_eq!(world.kernel.ids(), 0, "destroyed at once");
        drop(id);
        world.finish();
    });
}

/// What does not fit a backlog is answered at once, and what is read makes room.
#[test]
fn a_full_backlog_is_answered() {
    sample(2, || {
        let world = World::new();
        let listener = world.listener(2);
        for _ in 0..3 {
            assert!(world.kernel.ask());
        }
        world.turn();
        assert_eq!(world.kernel.told(), [Told::Rejected]);
        let EventKind::ConnectRequest { id, .. } = world.event() else { panic!("no request") };
        assert!(world.kernel.ask());
        world.turn();
        assert_eq!(world.kernel.told(), [Told::Rejected]);
        assert!(matches!(world.event(), EventKind::ConnectRequest { .. }));
        assert!(matches!(world.event(), EventKind::ConnectRequest { .. }));
        drop((id, listener));
        world.finish();
    });
}

/// What could not be asked is not waited for.
#[test]
fn an_attempt_that_fails_at_once_leaves_no_deadline() {
    sample(2, || {
        let world = World::new();
        let id = world.resolved();
        world.kernel.take_no_requests();
        assert!(id.connect(&ConnParam::default()).is_err());
        assert_eq!(id.phase(), Phase::RouteResolved);
        assert_eq!(world.manager.turn().unwrap().wake_at, None, "the thread waits for a deadline");
        drop(id);
        world.finish();
    });
}

/// The program's own deadline ends an attempt of which the kernel says nothing.
#[test]
fn an_attempt_ends_in_time() {
    sample(2, || {
        let world = World::new();
        let id = world.resolved();
        id.set_options(|options| options.connect_timeout = Duration::ZERO).unwrap();
        world.kernel.keep_silent();
        id.connect(&ConnParam::default()).unwrap();
        assert!(matches!(world.event(), EventKind::Unreachable { sent: 1 }));
        assert_eq!((id.phase(), world.kernel.ids()), (Phase::Disconnected, 0));
        id.disconnect().unwrap();
        drop(id);
        world.finish();
    });
}

/// What the peer refuses, or takes back, is an event, or the answer to a call.
#[test]
fn refusals_are_told() {
    sample(2, || {
        let world = World::new();
        world.kernel.refuse();
        let id = world.connecting();
        assert!(matches!(world.event(), EventKind::Rejected { .. }));
        assert_eq!(id.qp().unwrap().state(), QpState::Err);
        drop(id);
        let listener = world.listener(0);
        let id = world.requested();
        world.kernel.end_all();
        let taken_back = id.accept(&ConnParam::default());
        assert!(
            matches!(taken_back, Err(Error::Phase { call: "accept", phase: Phase::Disconnected })),
            "{taken_back:?}"
        );
        drop((id, listener));
        world.finish();
    });
}

/// The kernel does not end what the peer has not confirmed, and says that it did: it has to be told again.
#[test]
fn what_is_ended_before_the_peer_confirms_ends_once_it_has() {
    sample(2, || {
        let world = World::new();
        let listener = world.listener(0);
        let id = world.requested();
        id.accept(&ConnParam::default()).unwrap();
        id.disconnect().unwrap();
        assert!(world.kernel.told() == [Told::Granted] && id.phase() == Phase::Disconnecting);
        world.turn();
        assert!(world.channel.try_next().unwrap().is_none(), "it is not said to be established");
        assert_eq!(world.kernel.told(), [Told::Granted, Told::Ended]);
        assert!(matches!(world.event(), EventKind::Disconnected(_)));
        drop((listener, id));
        world.finish();
    });
}

/// Another device has the address, or reaches the peer: what is tried next begins anew, whatever the kernel has made of the id.
#[test]
fn what_was_tried_in_vain_can_be_tried_again() {
    sample(2, || {
        let world = World::new();
        world.kernel.be_elsewhere(true);
        let (bound, resolved) = (world.id(), world.id());
        assert!(matches!(bound.bind_addr(HERE), Err(Error::Address { .. })));
        resolved.resolve_addr(None, THERE).unwrap();
        assert!(matches!(world.event(), EventKind::AddrError(Error::Address { .. })));
        assert_eq!((bound.phase(), resolved.phase(), world.kernel.ids()), (Phase::Idle, Phase::Idle, 0));
        world.kernel.be_elsewhere(false);
        bound.bind_addr(HERE).unwrap();
        resolved.resolve_addr(None, THERE).unwrap();
        assert!(matches!(world.event(), EventKind::AddrResolved));
        assert_eq!((bound.phase(), resolved.phase(), world.kernel.ids()), (Phase::Bound, Phase::AddrResolved, 2));
        // Bound to all addresses, and the peer is behind another device.
        world.kernel.be_elsewhere(true);
        bound.resolve_addr(None, THERE).unwrap();
        assert!(matches!(world.event(), EventKind::AddrError(Error::Address { .. })));
        assert_eq!(bound.phase(), Phase::Idle);
        world.kernel.be_elsewhere(false);
        bound.bind_addr(HERE).unwrap();
        bound.listen(1).unwrap();
        drop((bound, resolved));
        world.finish();
    });
}

/// A bind and a resolution that another device's address makes fail, until somebody says otherwise: whoever succeeds has the kernel's id that the
/// other's failure leaves alone.
fn tried_at_once(healer: fn(Kernel) -> Option<JoinHandle<()>>) {
    let world = World::new();
    world.kernel.be_elsewhere(true);
    let id = world.id();
    let (binder, resolver, kernel) = (id.clone(), id.clone(), world.kernel.clone());
    let mut others = vec![
        thread::spawn(move || drop(binder.bind_addr(HERE))),
        thread::spawn(move || drop(resolver.resolve_addr(None, THERE))),
        world.pump(),
    ];
    others.extend(healer(kernel.clone()));
    let reader = world.reader(&world.channel, move |_| kernel.be_elsewhere(false));
    world.join(others, vec![reader]);
    world.turn();
    while world.channel.try_next().unwrap().is_some() {}
    assert_eq!(world.kernel.ids(), usize::from(id.phase() != Phase::Idle), "{:?}", id.phase());
    drop(id);
    world.finish();
}

#[test]
fn a_failed_call_takes_nobody_elses_id() {
    let by_whoever_is_told_of_a_failure = || tried_at_once(|_| None);
    let at_any_time = || tried_at_once(|kernel| Some(thread::spawn(move || kernel.be_elsewhere(false))));
    exhaust(1, by_whoever_is_told_of_a_failure);
    exhaust(1, at_any_time);
    sample(2000, at_any_time);
}

/// Nobody waits for what can never come.
#[test]
fn all_are_told_when_events_cannot_be_read() {
    sample(2, || {
        let world = World::new();
        let (connected, listener) = (world.connected(), world.listener(1));
        world.kernel.keep_silent();
        let connecting = world.connecting();
        world.kernel.be_unreadable(true);
        for _ in 0..3 {
            assert!(world.manager.turn().is_err());
        }
        for _ in 0..2 {
            let event = world.channel.try_next().unwrap().expect("one for each");
            assert!(matches!(event.into_parts().1, EventKind::DeviceRemoval));
        }
        assert!(world.channel.try_next().unwrap().is_none(), "each is told once");
        assert_eq!((connected.phase(), connected.qp().unwrap().state()), (Phase::Connected, QpState::Rts));
        let late = world.id();
        assert!(matches!(late.bind_addr(HERE), Err(Error::Device { .. })));
        world.kernel.be_unreadable(false);
        drop((connecting, connected, listener));
        world.turn();
        late.bind_addr(HERE).unwrap();
        drop(late);
        world.finish();
    });
}

/// Who answers sends with his own type of service, if he has one, and with the peer's otherwise.
#[test]
fn the_type_of_service_of_who_answers() {
    sample(2, || {
        for (own, sent) in [(0, 4), (0x20, 0x20)] {
            let world = World::new();
            let listener = world.id();
            listener.set_options(|options| options.tos = own).unwrap();
            listener.bind_addr(HERE).unwrap();
            listener.listen(1).unwrap();
            let id = world.requested();
            let attr = id.qp_attr(QpState::Rtr).unwrap();
            assert_eq!(attr.ah_attr.unwrap().grh.unwrap().traffic_class, sent);
            drop((id, listener));
            world.finish();
        }
    });
}

/// Whoever asks while events become unreadable gets an error, or is told.
fn asked_while_events_become_unreadable() {
    let world = World::new();
    let (id, kernel) = (world.id(), world.kernel.clone());
    let resolver = id.clone();
    let manager = world.manager.clone();
    let asked = thread::spawn(move || resolver.resolve_addr(None, THERE).unwrap());
    let pump = thread::spawn(move || {
        kernel.be_unreadable(true);
        assert!(manager.turn().is_err());
    });
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let to = told.clone();
    let reader = world.reader(&world.channel, move |kind| to.lock().unwrap().push(kind));
    world.join(vec![asked, pump], vec![reader]);
    while let Some(event) = world.channel.try_next().unwrap() {
        told.lock().unwrap().push(event.into_parts().1);
    }
    let told = told.lock().unwrap();
    assert!(matches!(told[..], [EventKind::AddrError(_) | EventKind::DeviceRemoval, ..]), "{told:?}");
    world.kernel.be_unreadable(false);
    drop(id);
    world.finish();
}

#[test]
fn nobody_asks_in_vain_while_events_become_unreadable() {
    exhaust(2, asked_while_events_become_unreadable);
    sample(2000, asked_while_events_become_unreadable);
}
