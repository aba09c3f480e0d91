//! All orders in which threads may treat ids, within bounds: nothing is used after it is freed, no terminal event is lost or comes
//! twice, none comes after [`Id::destroy`] has returned, nobody waits for ever, and nothing is left.
//!
//! Shuttle (`sync`) decides which thread runs, and the rest is the crate itself over a device that does nothing (`device`).

mod closing;
mod connecting;
mod datagrams;
mod device;
mod kernel;
mod listening;
mod moving;
mod polling;
mod search;
mod short;
mod waiting;
mod waking;

use crate::backend::Backend;
use crate::id::IdCore;
use crate::{ConnParam, ConnectionManager, Error, Event, EventChannel, EventKind, Id, Phase, PortSpace};
use device::{Answer, HERE, Host, THERE};
use ferroce_verbs::{Pd, Qp, QpInitAttr, QpType};
use rand::SeedableRng;
use rand::rngs::StdRng;
use shuttle::thread::{self, JoinHandle};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, Weak};

/// A program with its peer.
struct World {
    host: Host,
    pd: Pd,
    cm: ConnectionManager,
    channel: EventChannel,
    story: Arc<Mutex<Story>>,
}

/// What readers saw.
#[derive(Default)]
struct Story {
    /// Whom it happened to, and what; in the order in which readers say so.
    seen: Vec<(Weak<IdCore>, What)>,
    /// Of this id no event may come once destroying it has returned.
    watched: Option<Weak<IdCore>>,
    /// All ids that there were.
    ids: Vec<Weak<IdCore>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    AddrResolved,
    RouteResolved,
    Request,
    Response,
    Established,
    /// Terminal.
    Ended,
    TimewaitExit,
    User,
    Joined,
}

impl From<&EventKind> for What {
    fn from(kind: &EventKind) -> Self {
        match kind {
            EventKind::AddrResolved => Self::AddrResolved,
            EventKind::RouteResolved => Self::RouteResolved,
            EventKind::ConnectRequest { .. } => Self::Request,
            EventKind::ConnectResponse(_) => Self::Response,
            EventKind::Established => Self::Established,
            EventKind::ConnectError(_)
            | EventKind::Unreachable { .. }
            | EventKind::Rejected { .. }
            | EventKind::Disconnected(_) => Self::Ended,
            EventKind::TimewaitExit => Self::TimewaitExit,
            EventKind::User(_) => Self::User,
            EventKind::MulticastJoin { .. } => Self::Joined,
            kind => panic!("{kind:?}"),
        }
    }
}

impl World {
    fn new(answer: Answer) -> Self {
        let host = Host::new(answer);
        let context = host.context();
        Self {
            pd: context.alloc_pd().unwrap(),
            cm: ConnectionManager::with_rng(&context, StdRng::seed_from_u64(1), |_| {}).unwrap(),
            channel: EventChannel::new().unwrap(),
            story: Arc::default(),
            host,
        }
    }

    fn id(&self, addr: SocketAddr) -> Id {
        let id = self.cm.create_id(&self.channel, PortSpace::Tcp);
        self.meet(&id);
        id.bind_addr(addr).unwrap();
        id
    }

    fn meet(&self, id: &Id) {
        self.story.lock().unwrap().ids.push(Arc::downgrade(id.core()));
    }

    /// An id with a queue pair, and its events unread.
    fn unread(&self) -> Id {
        let id = self.id(SocketAddr::new(HERE.ip(), 1));
        id.resolve_addr(None, THERE).unwrap();
        id.resolve_route().unwrap();
        give_qp(&self.pd, &id);
        id
    }

    /// An id that is about to connect.
    fn resolved(&self) -> Id {
        let id = self.unread();
        assert!(matches!(self.channel.try_next().unwrap().unwrap().kind(), EventKind::AddrResolved));
        assert!(matches!(self.channel.try_next().unwrap().unwrap().kind(), EventKind::RouteResolved));
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
        assert!(self.host.deliver());
        assert!(matches!(self.channel.try_next().unwrap().unwrap().kind(), EventKind::Established));
        assert_eq!(self.host.established(), 1);
        id
    }

    fn listener(&self) -> Id {
        let id = self.id(HERE);
        id.listen(0).unwrap();
        id
    }

    /// The peer asks; its request is in the listener's queue.
    fn ask(&self) {
        self.host.ask();
        assert!(self.host.deliver());
    }

    /// The next request, read, with a queue pair.
    fn requested(&self) -> Id {
        self.ask();
        let (_, kind, _) = self.channel.try_next().unwrap().unwrap().into_parts();
        let EventKind::ConnectRequest { id, .. } = kind else { panic!("{kind:?}") };
        self.meet(&id);
        give_qp(&self.pd, &id);
        id
    }

    fn watch(&self, id: &Id) {
        self.story.lock().unwrap().watched = Some(Arc::downgrade(id.core()));
    }

    /// Takes down what a reader was given.
    fn tell(story: &Mutex<Story>, event: &Event) {
        let id = Arc::downgrade(event.id().core());
        let mut story = story.lock().unwrap();
        if let EventKind::ConnectRequest { id, .. } = event.kind() {
            story.ids.push(Arc::downgrade(id.core()));
        }
        story.seen.push((id, event.kind().into()));
    }

    /// A thread that reads `channel` until somebody wakes it or the channel is closed.
    fn reader(&self, channel: &EventChannel, handle: impl Fn(Event) + Send + 'static) -> JoinHandle<()> {
        let (host, channel, story) = (self.host.clone(), channel.clone(), self.story.clone());
        thread::spawn(move || {
            loop {
                let _ = host.was_late();
                let was_destroyed = host.is_destroyed();
                let event = match channel.next() {
                    Ok(Some(event)) => event,
                    Ok(None) | Err(Error::ChannelClosed) => break,
                    Err(error) => panic!("{error}"),
                };
                let id = Arc::downgrade(event.id().core());
                if story.lock().unwrap().watched.as_ref().is_some_and(|watched| watched.ptr_eq(&id)) {
                    assert!(!was_destroyed, "an event came after destroy had returned: {event:?}");
                    assert!(!host.was_late(), "it was prepared after destroy had returned, and came: {event:?}");
                }
                Self::tell(&story, &event);
                handle(event);
            }
        })
    }

    /// A thread that delivers what the peer has sent.
    fn progress(&self) -> JoinHandle<()> {
        let host = self.host.clone();
        thread::spawn(move || while host.deliver() {})
    }

    /// A thread that destroys an id.
    fn destroyer(&self, id: Id) -> JoinHandle<()> {
        let host = self.host.clone();
        thread::spawn(move || {
            id.destroy();
            host.set_destroyed();
            assert_eq!(id.phase(), Phase::Destroyed);
            assert!(id.qp().is_none());
            assert!(matches!(id.connect(&ConnParam::default()), Err(Error::Destroyed)));
        })
    }

    /// Joins `others`, and `readers` of `channel` once they have read what came.
    fn join(&self, others: Vec<JoinHandle<()>>, channel: &EventChannel, readers: Vec<JoinHandle<()>>) {
        join(others);
        readers.iter().for_each(|_| channel.wake());
        join(readers);
        self.drain(channel);
    }

    /// Reads and delivers until there is nothing.
    fn drain(&self, channel: &EventChannel) {
        loop {
            while self.host.deliver() {}
            match channel.try_next() {
                Ok(Some(event)) => Self::tell(&self.story, &event),
                Ok(None) | Err(_) => break,
            }
        }
    }

    /// How often that happened to the id.
    fn seen(&self, id: &Id, what: What) -> usize {
        let story = self.story.lock().unwrap();
        let id = Arc::downgrade(id.core());
        story.seen.iter().filter(|(who, seen)| who.ptr_eq(&id) && *seen == what).count()
    }

    /// All that happened to the id.
    fn all(&self, id: &Id) -> Vec<What> {
        let story = self.story.lock().unwrap();
        let id = Arc::downgrade(id.core());
        story.seen.iter().filter(|(who, _)| who.ptr_eq(&id)).map(|(_, what)| *what).collect()
    }

    /// All handles are gone: so is all else, once both sides have forgotten what was.
    fn finish(self) {
        let cm = self.cm.clone();
        self.host.settle(|| {
            let usage = cm.usage();
            let connections = usage.connections + usage.lingering + usage.half_open + usage.listeners + usage.timewait;
            connections + usage.sidr_sent + usage.sidr_received == 0
        });
        self.drain(&self.channel);
        assert_eq!(cm.id_count(), 0, "ids are left");
        assert_eq!(self.host.qps(), 0, "queue pairs are left");
        assert_eq!(self.host.services(), 0, "services are left");
        let usage = cm.usage();
        assert_eq!((usage.events, usage.transmits, usage.names), (0, 0, 0));
        let story = self.story.lock().unwrap();
        assert!(story.ids.iter().all(|id| id.strong_count() == 0), "an id is held");
        for id in &story.ids {
            let seen = story.seen.iter().filter(|(who, what)| who.ptr_eq(id) && *what == What::Ended).count();
            assert!(seen <= 1, "{seen} terminal events");
        }
        drop(story);
        let Backend::Native(manager) = &cm.0 else { panic!("the kernel's") };
        let manager = Arc::downgrade(manager);
        drop((cm, self.cm, self.pd, self.channel));
        assert_eq!(manager.strong_count(), 0, "the manager is held");
    }
}

fn give_qp(pd: &Pd, id: &Id) -> Qp {
    id.create_qp(pd, &QpInitAttr::new(QpType::Rc, &device::cq())).unwrap()
}

fn join(threads: Vec<JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// What a call may say of an id that another thread may have destroyed, or whose peer may have ended it.
fn tolerate<T>(result: crate::Result<T>) {
    match result {
        Ok(_) | Err(Error::Destroyed | Error::Phase { .. } | Error::Device { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}
