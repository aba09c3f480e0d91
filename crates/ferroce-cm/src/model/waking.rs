//! Executors that poll in the waker itself, in whatever thread calls it: it may call anything of this crate.

use super::device::Answer;
use super::search::sample;
use super::{What, World, give_qp, join};
use crate::{ConnParam, Event, EventChannel, EventKind, Result};
use ferroce_verbs::Pd;
use shuttle::thread;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

type Next = Pin<Box<dyn Future<Output = Result<Option<Event>>> + Send>>;

/// A task that handles the events of a channel, and is polled wherever it is woken.
struct Inline {
    channel: EventChannel,
    pd: Pd,
    seen: Mutex<Vec<What>>,
    waits: Mutex<Waits>,
}

/// What it waits with, unless somebody polls that; and whether it was woken meanwhile.
struct Waits {
    next: Option<Next>,
    woken: bool,
}

impl Inline {
    fn begin(world: &World, channel: &EventChannel) -> Arc<Self> {
        let task = Arc::new(Self {
            channel: channel.clone(),
            pd: world.pd.clone(),
            seen: Mutex::default(),
            waits: Mutex::new(Waits { next: Some(next(channel)), woken: false }),
        });
        task.clone().wake();
        task
    }

    fn saw(&self, what: What) -> usize {
        self.seen.lock().unwrap().iter().filter(|&&seen| seen == what).count()
    }

    fn handle(&self, event: &Event) {
        self.seen.lock().unwrap().push(event.kind().into());
        match event.kind() {
            // The locks of the protocol, of ids, and of their queues.
            EventKind::ConnectRequest { id, .. } => {
                give_qp(&self.pd, id);
                id.accept(&ConnParam::default()).unwrap();
                // It lives on; the peer ends it.
                id.set_context(Arc::new(id.clone())).unwrap();
            }
            EventKind::Disconnected(_) => event.id().destroy(),
            _ => drop(event.id().qp_attr(ferroce_verbs::QpState::Rtr)),
        }
    }
}

fn next(channel: &EventChannel) -> Next {
    let channel = channel.clone();
    Box::pin(async move { channel.next_async().await })
}

impl Wake for Inline {
    fn wake(self: Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            let taken = {
                let mut waits = self.waits.lock().unwrap();
                waits.woken = waits.next.is_none();
                waits.next.take()
            };
            // Else whoever polls it does so once more.
            let Some(mut waiting) = taken else { return };
            let came = match waiting.as_mut().poll(&mut context) {
                Poll::Ready(Ok(Some(event))) => Some(event),
                // Nobody wakes this channel, which is closed in the end.
                Poll::Ready(_) => return,
                Poll::Pending => None,
            };
            let woken = {
                let mut waits = self.waits.lock().unwrap();
                waits.next = Some(if came.is_some() { next(&self.channel) } else { waiting });
                std::mem::take(&mut waits.woken)
            };
            match came {
                Some(event) => self.handle(&event),
                None if woken => {}
                None => return,
            }
        }
    }
}

/// A listener that is served in the waker, while the peer asks and ends its connections.
fn served() {
    let world = World::new(Answer::Grant);
    let listener = world.listener();
    let task = Inline::begin(&world, &world.channel);
    world.host.ask();
    world.host.ask();
    // None waits for itself: that would be a deadlock.
    join(vec![world.progress(), world.progress()]);
    while world.host.deliver() {}
    assert_eq!((task.saw(What::Request), task.saw(What::Established)), (2, 2));
    world.host.disconnect_all();
    join(vec![world.progress()]);
    assert_eq!(task.saw(What::Ended), 2);
    world.channel.close();
    drop((task, listener));
    world.finish();
}

#[test]
fn a_listener_is_served_in_the_waker() {
    sample(500, served);
}

/// Calls that bring events wake where they are made: resolving, notifying, migrating, posting.
fn woken_by_calls() {
    let world = World::new(Answer::Grant);
    let (task, other) = (Inline::begin(&world, &world.channel), EventChannel::new().unwrap());
    let listener = world.listener();
    world.ask();
    let child = {
        let id = world.cm.create_id(&world.channel, crate::PortSpace::Tcp);
        id.resolve_addr(None, super::THERE).unwrap();
        id.resolve_route().unwrap();
        world.channel.post(&id, 1).unwrap();
        id
    };
    assert_eq!((task.saw(What::AddrResolved), task.saw(What::RouteResolved), task.saw(What::User)), (1, 1, 1));
    child.migrate(&other).unwrap();
    child.destroy();
    // Unread there, it comes along.
    let unread = world.cm.create_id(&other, crate::PortSpace::Tcp);
    unread.resolve_addr(None, super::THERE).unwrap();
    let mover = thread::spawn({
        let (unread, channel) = (unread.clone(), world.channel.clone());
        move || unread.migrate(&channel).unwrap()
    });
    join(vec![mover, world.progress()]);
    assert_eq!(task.saw(What::AddrResolved), 2);
    world.host.disconnect_all();
    while world.host.deliver() {}
    world.channel.close();
    drop((task, listener, child, unread, other));
    world.finish();
}

#[test]
fn calls_wake_with_no_lock_held() {
    sample(200, woken_by_calls);
}

/// That data has come says that the connection is established, in the waker of who is told.
fn notified() {
    let world = World::new(Answer::Grant);
    let listener = world.listener();
    let id = world.requested();
    id.accept(&ConnParam::default()).unwrap();
    let task = Inline::begin(&world, &world.channel);
    let notifier = {
        let id = id.clone();
        thread::spawn(move || id.notify_established().unwrap())
    };
    join(vec![notifier, world.progress()]);
    assert_eq!(task.saw(What::Established), 1);
    world.channel.close();
    drop((task, listener, id));
    world.finish();
}

#[test]
fn notifying_wakes_with_no_lock_held() {
    sample(50, notified);
}
