//! ud_verbs: reliable active messages over one UD queue pair.
//!
//! [`UdVerbs`] is an interface; [`UdVerbs::connect`] makes an endpoint that sends to another one. The protocol is [`crate::ud`]; here are
//! its queue pair, its clock and its address handles. Each endpoint leases its address handle from the context's
//! [`AhCache`](ferroce_verbs::AhCache) until it is really gone, lingering included, and each posted datagram holds one until it is sent:
//! so neither expiry nor eviction nor a teardown takes one from under a sender, whatever the cache's time to live.
//!
//! # When messages go out
//!
//! A message goes out at once if nothing of its endpoint is in flight, if it is the first of the interface since progress was made, or if the
//! interface is armed. Otherwise it may wait for up to 15 more, to be handed to the device with them, but no longer than until the next
//! progress, flush, arming or close: without progress nothing is certain to happen.
//!
//! # Threads
//!
//! Every call may be made from any thread. One thread at a time makes progress; another that tries meanwhile finds nothing to do. Handlers are
//! called by that thread with no lock held: they may send, connect and close. Messages of one endpoint are handed over in order.

mod endpoint;
mod links;
mod options;
mod queue;
mod surface;
mod turn;
mod waiting;

pub use endpoint::UdEndpoint;
pub use options::{InterfaceAddress, UdOptions};

use crate::local;
use crate::uct;
use crate::ud::{self, AM_IDS, EndpointId, Event, Failure, Nanos, PeerAddress, SendError};
use arc_swap::ArcSwap;
use ferroce_verbs::ah_cache::{Clock, MonotonicClock, Resolution};
use ferroce_verbs::{AhError, Context, Error, Result};
use links::{Links, Route};
use parking_lot::{Mutex, MutexGuard};
use queue::{BATCH, Datagram, Queue};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use turn::{Inbox, Turn};
use waiting::Waiting;

/// A message that arrived, for the handler of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Who sent it.
    pub peer: InterfaceAddress,
    /// What was sent.
    pub payload: &'a [u8],
}

/// Who is handed messages.
#[derive(Clone)]
enum Handler {
    Own(Arc<dyn Fn(Message<'_>) + Send + Sync>),
    /// As all transports hand them over.
    Uct(uct::AmHandler),
}

/// Those of all ids.
type Handlers = [Option<Handler>; AM_IDS as usize];

/// Who is told that an endpoint failed, and when it did.
type FailureHandler = Box<dyn FnOnce(Failure, Nanos) + Send>;

/// An interface: one UD queue pair, and the endpoints that use it. Clones are handles to the same; endpoints hold it.
#[derive(Clone)]
pub struct UdVerbs(Arc<Shared>);

struct Shared {
    local: PeerAddress,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Set with the state locked.
    progressing: AtomicBool,
    attr: uct::InterfaceAttr,
    wakeup: uct::Wakeup,
    /// Messages whose id had no handler.
    no_handler: AtomicU64,
    /// Whoever calls one keeps all while he does; who changes one makes them anew.
    handlers: ArcSwap<Handlers>,
}

struct State {
    protocol: ud::Interface,
    queue: Queue,
    links: Links,
    /// Whom to tell when an endpoint fails.
    told: HashMap<EndpointId, FailureHandler>,
    failures: HashMap<EndpointId, (Failure, Nanos)>,
    /// Those of them of which nobody was told yet.
    failed: VecDeque<EndpointId>,
    /// The program's endpoints, and where they send.
    peers: HashMap<EndpointId, InterfaceAddress>,
    /// Who waits for resources, or for the end of what was sent.
    waiting: Waiting,
    /// What could be sent but for the queue, which was full.
    overflow: VecDeque<Datagram>,
    /// Empty; kept, so that it costs no allocation.
    list: Vec<Datagram>,
    /// Of failed resolutions, the last.
    no_way: Option<AhError>,
    send_errors: u64,
    receive_errors: u64,
    other_address: u64,
    /// `None` while a turn has it, or before the first.
    inbox: Option<Box<Inbox>>,
    /// Nothing was sent since somebody last made progress.
    fresh: bool,
    /// Turns in a row that found more to read than they read.
    behind: u32,
}

/// Timers wait for what came before them, but not for more turns than this.
const MOST_BEHIND: u32 = 64;

/// What an interface has and has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdCounters {
    /// Endpoints that exist, those included that linger or that peers made.
    pub endpoints: usize,
    /// Address handles that they lease.
    pub leases: usize,
    /// Datagrams that the device did not send.
    pub send_errors: u64,
    /// Received datagrams that the device reported as failed.
    pub receive_errors: u64,
    /// Received datagrams that were for another address of the port.
    pub other_address: u64,
    /// Messages whose id has no handler.
    pub no_handler: u64,
    /// The protocol's.
    pub protocol: ud::Counters,
}

impl UdVerbs {
    /// Makes an interface of `context`.
    ///
    /// # Errors
    ///
    /// What the device says: no address, no resources.
    pub fn open(context: &Context, options: UdOptions) -> Result<Self> {
        Self::open_with(context, options, MonotonicClock, rand::random)
    }

    /// The same with another clock, and other random numbers: for simulations. `random` must be unpredictable where peers may be hostile.
    ///
    /// # Errors
    ///
    /// As [`Self::open`].
    pub fn open_with(
        context: &Context,
        options: UdOptions,
        clock: impl Clock + 'static,
        random: impl FnMut() -> u64 + Send + 'static,
    ) -> Result<Self> {
        let entry = local::choose(context, options.port, options.address)?;
        let port = context.query_port(options.port)?;
        let mut protocol = options.protocol.clone();
        protocol.mtu = protocol.mtu.min(port.active_mtu.bytes() as usize).min(entry.mtu.bytes() as usize);
        if protocol.mtu < 256 {
            return Err(Error::invalid(
                "mtu",
                format!("{} bytes are less than the 256 of the least MTU", protocol.mtu),
            ));
        }
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let queue = Queue::open(context, &pd, &channel, &options, protocol.mtu)?;
        let attr = surface::attributes(&protocol, queue.inline());
        let local = PeerAddress { gid: entry.gid, qpn: queue.qpn() };
        let state = State {
            protocol: ud::Interface::new(protocol, random),
            queue,
            links: Links::new(context.ah_cache()?, pd, options.port, entry.index),
            told: HashMap::new(),
            failures: HashMap::new(),
            failed: VecDeque::new(),
            peers: HashMap::new(),
            waiting: Waiting::default(),
            overflow: VecDeque::new(),
            list: Vec::with_capacity(BATCH),
            no_way: None,
            send_errors: 0,
            receive_errors: 0,
            other_address: 0,
            inbox: None,
            fresh: true,
            behind: 0,
        };
        Ok(Self(Arc::new(Shared {
            local,
            clock: Arc::new(clock),
            state: Mutex::new(state),
            progressing: AtomicBool::new(false),
            attr,
            wakeup: uct::Wakeup::new(channel, &[])?,
            no_handler: AtomicU64::new(0),
            handlers: ArcSwap::from_pointee([const { None }; AM_IDS as usize]),
        })))
    }

    /// Where peers reach it.
    pub fn address(&self) -> InterfaceAddress {
        InterfaceAddress(self.0.local)
    }

    /// Most bytes of a message.
    pub fn max_message(&self) -> usize {
        self.0.state.lock().protocol.config().max_message()
    }

    /// Has messages with this id handed to `handler` from now on. Messages whose id has no handler are dropped and counted.
    ///
    /// # Errors
    ///
    /// [`SendError::AmId`].
    pub fn set_am_handler(
        &self,
        am: u8,
        handler: impl Fn(Message<'_>) + Send + Sync + 'static,
    ) -> Result<(), SendError> {
        self.0.set_handler(am, Some(Handler::Own(Arc::new(handler)))).ok_or(SendError::AmId(am))
    }

    /// An endpoint that sends to the interface at `peer`. It can be sent to at once; whether the peer answers shows later, see
    /// [`UdEndpoint::failure`].
    ///
    /// # Errors
    ///
    /// [`SendError::Full`].
    pub fn connect(&self, peer: InterfaceAddress) -> Result<UdEndpoint, SendError> {
        self.connect_with(peer, None)
    }

    /// The same; if the endpoint fails before it is closed, `failed` is called, once, by the thread that makes progress.
    ///
    /// # Errors
    ///
    /// [`SendError::Full`].
    pub fn connect_or(
        &self,
        peer: InterfaceAddress,
        failed: impl FnOnce(Failure) + Send + 'static,
    ) -> Result<UdEndpoint, SendError> {
        self.connect_with(peer, Some(Box::new(|failure, _| failed(failure))))
    }

    fn connect_with(
        &self,
        peer: InterfaceAddress,
        mut failed: Option<FailureHandler>,
    ) -> Result<UdEndpoint, SendError> {
        let id = self.0.with(|state, now| {
            let id = state.protocol.connect(now, peer.0)?;
            if let Some(failed) = failed.take() {
                state.told.insert(id, failed);
            }
            state.peers.insert(id, peer);
            Ok(id)
        })?;
        Ok(UdEndpoint::new(self.clone(), id, peer))
    }

    /// Takes in what came, sends what is due, and calls the handlers. Returns how many datagrams it took in. Never blocks; to be called
    /// again and again, as nothing else makes progress.
    ///
    /// # Errors
    ///
    /// What the device says. What the call had taken in by then has been handed over.
    pub fn progress(&self) -> Result<usize> {
        let mut state = self.0.state.lock();
        if self.0.progressing.load(Ordering::Acquire) {
            return Ok(0);
        }
        let mut inbox = state.inbox.take().unwrap_or_default();
        // What a handler left that panicked comes first.
        let taken = match inbox.left() {
            0 => state.take_in(&self.0, &mut inbox),
            left => Ok(left),
        };
        if inbox.left() == 0 && state.failed.is_empty() && state.waiting.due() == 0 && !state.links.has_begun() {
            // There is nobody to call.
            state.inbox = Some(inbox);
            return taken;
        }
        let mut turn = Turn::begin(&self.0, inbox);
        let mut state = self.0.resolve(state);
        // An endpoint to which there is no way has nothing to flush.
        state.settle_flushes(turn.flushed());
        let failed = state.failed.len();
        drop(state);
        turn.hand_over(failed);
        taken
    }

    /// How long [`Self::progress`] need not be called if nothing comes; `None`: until something comes. While an address is being resolved that
    /// is not long: nobody is woken for it.
    pub fn next_timeout(&self) -> Option<Duration> {
        let state = self.0.state.lock();
        state.sleeps_for(self.0.now()).map(Duration::from_nanos)
    }

    /// What it has and has seen.
    pub fn counters(&self) -> UdCounters {
        let state = self.0.state.lock();
        UdCounters {
            endpoints: state.protocol.len(),
            leases: state.links.len(),
            send_errors: state.send_errors,
            receive_errors: state.receive_errors,
            other_address: state.other_address,
            no_handler: self.0.no_handler.load(Ordering::Relaxed),
            protocol: state.protocol.counters(),
        }
    }

    /// Why the last address could not be resolved, if one could not, of whatever endpoint. What concerns one is in its
    /// [`Evidence`](crate::ud::Evidence).
    pub fn last_resolution_error(&self) -> Option<AhError> {
        self.0.state.lock().no_way.clone()
    }
}

impl Shared {
    /// Does what the program asks for; what comes of it leaves, and whoever sleeps looks anew.
    fn with<T>(&self, act: impl FnOnce(&mut State, Nanos) -> T) -> T {
        let mut state = self.state.lock();
        let now = self.now();
        let answer = act(&mut state, now);
        state.pump(now);
        self.stir();
        drop(self.resolve(state));
        answer
    }

    /// Has the addresses resolved that turned out to be needed, and sends what can leave then. The resolver is somebody else's code, so the state
    /// is not locked while it is called.
    #[inline]
    fn resolve<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while state.links.has_begun() {
            let begun = state.links.take_begun();
            drop(state);
            begun.into_iter().for_each(Resolution::start);
            state = self.state.lock();
            state.proceed(self.now());
            self.stir();
        }
        state
    }

    /// `None`: there is no such id.
    fn set_handler(&self, am: u8, handler: Option<Handler>) -> Option<()> {
        let at = usize::from(am);
        if at >= self.handlers.load().len() {
            return None;
        }
        // What is replaced goes with the last who calls it; its destructor may set handlers, too.
        self.handlers.rcu(|before| {
            let mut handlers = Handlers::clone(before);
            handlers[at].clone_from(&handler);
            handlers
        });
        Some(())
    }

    fn now(&self) -> Nanos {
        self.clock.now()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let now = self.now();
        let state = self.state.get_mut();
        state.protocol.shut_down();
        state.pump(now);
        while state.links.has_begun() {
            state.links.take_begun().into_iter().for_each(Resolution::start);
            state.proceed(now);
        }
    }
}

impl State {
    fn take_in(&mut self, shared: &Shared, inbox: &mut Inbox) -> Result<usize> {
        let now = shared.now();
        self.fresh = true;
        if self.has_due() {
            // Its peer waits for it, and nothing that came changes it.
            self.pump(now);
        }
        let Inbox { messages, bytes, flushed } = inbox;
        let protocol = &mut self.protocol;
        let (found, received) = self.queue.receive(shared.local.gid, |from, packet| {
            protocol.receive(now, from, packet, &mut |delivery| {
                let start = bytes.len();
                bytes.extend_from_slice(delivery.payload);
                messages.push_back((delivery.endpoint, delivery.peer, delivery.am, start..bytes.len()));
            });
        });
        let outcome = self.reap().and(received);
        self.receive_errors += found.errors as u64;
        self.other_address += found.elsewhere as u64;
        self.settle(now);
        // A timer must not end what an answer says that was only not read yet; nor must who sends on and on keep timers from being due.
        let behind = found.datagrams == BATCH && self.behind < MOST_BEHIND;
        self.behind = if behind { self.behind + 1 } else { 0 };
        if !behind && self.protocol.next_timeout().is_some_and(|at| at <= now) {
            self.protocol.on_timeout(now);
        }
        self.pump(now);
        if found.datagrams != 0 {
            self.waiting.stir();
        }
        self.settle_flushes(flushed);
        outcome.map(|()| found.datagrams)
    }

    /// What the protocol has to say.
    fn heed(&mut self, now: Nanos) {
        while let Some(event) = self.protocol.poll_event() {
            match event {
                Event::Connected(_) => {}
                Event::Room(id) => self.waiting.unblock(id),
                // Whoever canceled it knows.
                Event::Failed(id, _) if self.waiting.is_canceled(id) => {}
                Event::Failed(id, failure) => {
                    self.failures.insert(id, (failure, now));
                    self.failed.push_back(id);
                }
                Event::Gone(id) => self.links.release(id),
            }
        }
    }

    fn reap(&mut self) -> Result<()> {
        let found = self.queue.reap()?;
        self.send_errors += found.errors as u64;
        Ok(())
    }

    /// Address handles that were waited for.
    fn settle(&mut self, now: Nanos) {
        if !self.links.waits() {
            return;
        }
        let Self { links, overflow, protocol, no_way, .. } = self;
        links.settle(|id, to, outcome| match outcome {
            Ok((lease, waiting)) => {
                id.into_iter().for_each(|id| protocol.resolved(id));
                overflow.extend(waiting.into_iter().map(|packet| (lease.clone(), to, packet)));
            }
            Err(error) => {
                if let Some(id) = id {
                    protocol.unresolved(now, id, error.cause());
                }
                *no_way = Some(error);
            }
        });
    }

    /// Goes on with what waited for address handles.
    fn proceed(&mut self, now: Nanos) {
        self.settle(now);
        self.pump(now);
    }

    /// Sends what is due, as far as the queue has room, and takes in what comes of it: an endpoint to which there is no way has failed.
    fn pump(&mut self, now: Nanos) {
        self.send_due(now);
        self.heed(now);
    }

    /// Whether something is to be sent.
    fn has_due(&self) -> bool {
        !self.overflow.is_empty() || self.protocol.has_transmit()
    }

    fn send_due(&mut self, now: Nanos) {
        if !self.has_due() {
            return;
        }
        let mut list = std::mem::take(&mut self.list);
        let mut next = self.next_datagram(now);
        while let Some(datagram) = next {
            if self.queue.room() < BATCH && (self.reap().is_err() || !self.queue.has_room()) {
                self.overflow.push_front(datagram);
                break;
            }
            let most = self.queue.room().min(BATCH);
            list.push(datagram);
            next = loop {
                match self.next_datagram(now) {
                    Some(datagram) if list.len() < most => list.push(datagram),
                    next => break next,
                }
            };
            // As if the network had lost them: the protocol sends them again, and gives up in time.
            self.send_errors += self.queue.post(&mut list, next.is_some()) as u64;
        }
        self.list = list;
    }

    /// What to send next, if there is something and a way for it.
    fn next_datagram(&mut self, now: Nanos) -> Option<Datagram> {
        if let Some(next) = self.overflow.pop_front() {
            return Some(next);
        }
        loop {
            let transmit = self.protocol.poll_transmit(now)?;
            let proven = || transmit.endpoint.is_some_and(|id| self.protocol.is_proven(id));
            match self.links.route(transmit.endpoint, transmit.to, proven, transmit.packet) {
                Route::Ready(lease, packet) => {
                    if self.no_way.is_some()
                        && let Some(id) = transmit.endpoint
                    {
                        self.protocol.resolved(id);
                    }
                    return Some((lease, transmit.to, packet));
                }
                Route::Later => {}
                Route::None(error) => {
                    if let Some(id) = transmit.endpoint {
                        self.protocol.unresolved(now, id, error.cause());
                    }
                    self.no_way = Some(error);
                }
            }
        }
    }
}

impl fmt::Debug for UdVerbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        f.debug_struct("UdVerbs")
            .field("address", &self.address())
            .field("now", &self.0.now())
            .field("protocol", &state.protocol)
            .field("overflow", &state.overflow.len())
            .finish_non_exhaustive()
    }
}
