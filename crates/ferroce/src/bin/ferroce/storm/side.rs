//! What both ends of a storm have: a device, a manager of connections, an event thread, IO threads, and a policy of who may close.

use super::conn::{Conn, Pool, Stage};
use super::inbox;
use super::lane::{self, Lane, Work};
use super::memory::Memory;
use super::nic;
use super::plan::{Nic, Plan, Policy, Setup};
use super::result::Leaked;
use super::trouble::Troubles;
use crate::args::Common;
use crate::failure::Result;
use crate::local;
use ferroce::cm::{ConnectionManager, Error, Event, EventChannel};
use ferroce::{Context, Pd, Qp, WorkCompletion};
use parking_lot::{Mutex, ReentrantMutex, ReentrantMutexGuard};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::{Duration, Instant};

/// How long what was closed may take to be gone: peers are asked for ten seconds, and what they answered is remembered for one.
const DRAIN: Duration = Duration::from_secs(20);
/// The same where the kernel manages connections. Its answer to a request that was taken back is answered by nobody if the word of that came
/// before the request itself, which two of its threads may have handled; it says so again fifteen times, every 4.6 s.
pub(super) const KERNEL_DRAIN: Duration = Duration::from_secs(90);
/// How long the device may take to let go of what nobody holds.
const RELEASE: Duration = Duration::from_secs(2);

/// What tells the client from the server.
pub(super) trait End: Sync {
    fn side(&self) -> &Side;
    /// Handles an event, in the event thread.
    fn event(&self, event: Event);
    /// Handles what an IO thread was handed.
    fn work(&self, lane: &Lane, work: Work) -> Result<()>;
    /// Handles a completion, in the connection's IO thread.
    fn completed(&self, conn: &Arc<Conn>, wc: &WorkCompletion);
    /// A connection is destroyed.
    fn destroyed(&self, conn: &Conn);
}

pub(super) struct Side {
    pub(super) plan: Plan,
    pub(super) context: Context,
    pub(super) cm: ConnectionManager,
    pub(super) channel: EventChannel,
    pub(super) lanes: Vec<Lane>,
    pub(super) pool: Arc<Pool>,
    pub(super) troubles: Troubles,
    pub(super) memory: Memory,
    /// See [`inbox::looks`].
    pub(super) looks: u32,
    pd: Pd,
    /// With [`Policy::ChannelLock`]: held for all calls, and while an event is read and handled.
    channel_lock: ReentrantMutex<()>,
    /// With [`Policy::Deferred`]: what the event thread is to tear down.
    deferred: Mutex<VecDeque<Arc<Conn>>>,
    stopping: AtomicBool,
}

impl Side {
    pub(super) fn new(common: &Common, plan: Plan) -> Result<Self> {
        let context = local::open(common, plan.link)?;
        let context = match plan.nic {
            Nic::None => context,
            Nic::Slow => nic::slow(&context, plan.nic_factor),
        };
        let pd = context.alloc_pd()?;
        Ok(Self {
            plan,
            cm: ConnectionManager::new(&context)?,
            channel: EventChannel::new()?,
            lanes: (0..plan.io_threads).map(|_| Lane::new(&context)).collect::<Result<_>>()?,
            pool: Pool::new(pd.clone()),
            troubles: Troubles::default(),
            memory: Memory::default(),
            looks: inbox::looks(context.info().provider),
            pd,
            context,
            channel_lock: ReentrantMutex::new(()),
            deferred: Mutex::default(),
            stopping: AtomicBool::new(false),
        })
    }

    /// Starts the threads. They end after [`Self::stop`].
    pub(super) fn start<'scope, E: End>(end: &'scope E, scope: &'scope Scope<'scope, '_>) {
        spawn(scope, "events".into(), move || event_thread(end));
        spawn(scope, "memory".into(), move || {
            let side = end.side();
            side.memory.watch(|| side.cm.usage().timewait, || side.is_stopping());
        });
        for lane in 0..end.side().lanes.len() {
            spawn(scope, format!("io {lane}"), move || lane::run(end, lane));
        }
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.channel.close();
        for lane in &self.lanes {
            lane.inbox.ring();
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// To be held while calls are made.
    pub(super) fn enter(&self) -> Option<ReentrantMutexGuard<'_, ()>> {
        (self.plan.policy == Policy::ChannelLock).then(|| self.channel_lock.lock())
    }

    pub(super) fn lane(&self, conn: &Conn) -> &Lane {
        &self.lanes[conn.lane]
    }

    /// Gives the connection a queue pair with a receive.
    pub(super) fn equip(&self, conn: &Arc<Conn>) -> Result<Qp, Error> {
        let lane = self.lane(conn);
        let qp = conn.id.create_qp(&self.pd, &lane.queue_pair())?;
        lane.enter(qp.qp_num(), conn);
        if !conn.is(Stage::Closed) {
            if let Err(failure) = conn.post_recv(&qp) {
                self.troubles.note(format!("a receive cannot be posted: {failure}"));
            }
            return Ok(qp);
        }
        // Whoever closed it may have done so before it was entered.
        lane.leave(qp.qp_num());
        Err(Error::Destroyed)
    }

    /// Tears down a connection that the caller has closed, now or when the policy allows.
    pub(super) fn tear_down<E: End>(&self, end: &E, conn: &Arc<Conn>) {
        if self.plan.policy == Policy::Deferred {
            self.deferred.lock().push_back(conn.clone());
            self.channel.wake();
        } else {
            self.destroy(end, conn);
        }
    }

    fn destroy<E: End>(&self, end: &E, conn: &Conn) {
        {
            let _channel = self.enter();
            let qp = conn.id.take_qp();
            if let Some(qp) = &qp {
                self.lane(conn).leave(qp.qp_num());
            }
            conn.id.destroy();
            drop(qp);
        }
        end.destroyed(conn);
    }

    /// How long [`Self::drain`] may take.
    fn drain_limit(&self) -> Duration {
        if self.context.gsi().is_none() { KERNEL_DRAIN } else { DRAIN }
    }

    /// Waits until all that was closed is gone; returns what is left of ids, connections and events then.
    pub(super) fn drain(&self) -> Leaked {
        let deadline = Instant::now() + self.drain_limit();
        loop {
            let usage = self.cm.usage();
            let left = Leaked {
                ids: self.cm.id_count() as u64,
                connections: (usage.connections + usage.lingering + usage.half_open + usage.timewait) as u64,
                events: usage.events as u64,
                ..Leaked::default()
            };
            if left == Leaked::default() || Instant::now() >= deadline {
                tracing::debug!(?usage, counters = ?self.cm.counters(), "drained");
                return left;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets go of everything and counts what the device still has.
    pub(super) fn release(self, leaked: &mut Leaked) {
        let context = self.context.clone();
        while let Ok(Some(_)) = self.channel.try_next() {
            leaked.events += 1;
        }
        drop(self);
        let deadline = Instant::now() + RELEASE;
        loop {
            let counters = context.counters();
            let count = |name| counters.iter().find(|(found, _)| *found == name).map_or(0, |(_, count)| *count);
            leaked.qps = count("queue_pairs");
            leaked.ahs = count("address_handles");
            leaked.mrs = count("memory_regions");
            if leaked.qps + leaked.ahs + leaked.mrs == 0 || Instant::now() >= deadline {
                tracing::debug!(?counters, "released");
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Starts a thread that profilers and debuggers know by name. Like all that cannot be done without one, that there is no room for it ends the
/// program.
pub(super) fn spawn<'scope>(scope: &'scope Scope<'scope, '_>, name: String, run: impl FnOnce() + Send + 'scope) {
    std::thread::Builder::new().name(name).spawn_scoped(scope, run).expect("the system has room for another thread");
}

/// The next event.
fn next(side: &Side) -> Result<Option<Event>, Error> {
    for _ in 0..side.looks {
        if let Some(event) = side.channel.try_next()? {
            return Ok(Some(event));
        }
        // Looking takes the wake that said so, too.
        if !side.deferred.lock().is_empty() {
            return Ok(None);
        }
        std::thread::yield_now();
    }
    side.channel.next()
}

/// Reads events and handles them.
fn event_thread<E: End>(end: &E) {
    let side = end.side();
    loop {
        if side.plan.policy == Policy::Deferred {
            // Not in the loop's head: the lock would be held through its body.
            let closed = std::mem::take(&mut *side.deferred.lock());
            for conn in closed {
                side.destroy(end, &conn);
            }
        }
        let outcome = match side.plan.policy {
            Policy::PerId | Policy::Deferred => next(side).map(|event| {
                if let Some(event) = event {
                    end.event(event);
                }
            }),
            Policy::ChannelLock => {
                if let Ok(fd) = side.channel.fd() {
                    let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None);
                }
                let _channel = side.enter();
                side.channel.try_next().map(|event| {
                    if let Some(event) = event {
                        end.event(event);
                    }
                })
            }
        };
        match outcome {
            Ok(()) => {}
            Err(Error::ChannelClosed) => return,
            Err(error) => {
                side.troubles.note(format!("reading events: {error}"));
            }
        }
    }
}

/// What `setup_in` says about an id that is about to connect or to listen.
pub(super) fn choose_setup(id: &ferroce::cm::Id, setup: Setup) -> Result<(), Error> {
    id.set_options(|options| options.setup_in = setup.option())
}
