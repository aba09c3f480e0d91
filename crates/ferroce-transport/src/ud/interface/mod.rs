mod receive;
mod types;

pub use types::{Counters, Delivery, SendError, Sent, Transmit, Usage};

use super::config::Config;
use super::endpoint::{Endpoint, Life, Role};
use super::initiator::{Initiator, State};
use super::table::{EndpointId, Table};
use super::tx::TxWindow;
use super::wire::{Header, Kind};
use super::{AM_IDS, Cause, Event, Nanos, PeerAddress};
use ferroce_verbs::ah_cache::ResolveCause;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;

/// Answers to packets for endpoints that do not exist, which wait to be sent. More are dropped: whoever asked will ask again.
const MAX_CONTROL: usize = 256;

/// Timers that nobody waits for any more and that are kept, for they cost less than looking for them.
const FORGOTTEN_TIMERS: usize = 64;

/// When to look again at what is due and not sent.
const STALLED: Nanos = 1_000_000;

/// One UD interface: what stands behind one queue pair.
///
/// It does nothing by itself. After any call, what [`Interface::poll_transmit`] and [`Interface::poll_event`] have is to be taken, and
/// [`Interface::on_timeout`] is to be called when [`Interface::next_timeout`] says. Not to be shared between threads without a lock.
pub struct Interface {
    config: Config,
    random: Box<dyn FnMut() -> u64 + Send>,
    endpoints: Table<Endpoint>,
    /// Acceptors by peer and nonce.
    accepted: HashMap<(PeerAddress, u64), EndpointId>,
    half_open: usize,
    /// Bytes of packets that came before others, of all acceptors.
    held: usize,
    ready: VecDeque<EndpointId>,
    control: VecDeque<Transmit>,
    events: VecDeque<Event>,
    timers: BinaryHeap<Reverse<(Nanos, EndpointId)>>,
    counters: Counters,
}

impl Interface {
    /// An interface. `random` must be unpredictable: who can guess ids and nonces can end other people's sessions.
    pub fn new(config: Config, random: impl FnMut() -> u64 + Send + 'static) -> Self {
        Self {
            config,
            random: Box::new(random),
            endpoints: Table::new(),
            accepted: HashMap::new(),
            half_open: 0,
            held: 0,
            ready: VecDeque::new(),
            control: VecDeque::new(),
            events: VecDeque::new(),
            timers: BinaryHeap::new(),
            counters: Counters::default(),
        }
    }

    /// How it behaves.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it has seen.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Endpoints that exist, those included that linger or that peers made.
    pub fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// Whether there is no endpoint.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it holds at the moment.
    pub fn usage(&self) -> Usage {
        Usage {
            endpoints: self.endpoints.len(),
            accepted: self.accepted.len(),
            half_open: self.half_open,
            held: self.held,
            ready: self.ready.len(),
            control: self.control.len(),
            events: self.events.len(),
            timers: self.timers.len(),
        }
    }

    /// Whether the peer of an endpoint is where it says: the program asked for it, or it answered. Anybody can send CONNECT in anybody's
    /// name.
    pub fn is_proven(&self, id: EndpointId) -> bool {
        self.endpoints.get(id).is_some_and(|endpoint| match &endpoint.role {
            Role::Initiator(_) => true,
            Role::Acceptor(acceptor) => acceptor.half_open.is_none(),
        })
    }

    // ---- what the owner asks for ----

    /// An endpoint that sends to the interface at `peer`. It begins to connect, and can be sent to at once.
    ///
    /// # Errors
    ///
    /// [`SendError::Full`].
    pub fn connect(&mut self, now: Nanos, peer: PeerAddress) -> Result<EndpointId, SendError> {
        let role = Role::Initiator(Initiator::new(now, &self.config));
        let nonce = (self.random)();
        self.insert(now, peer, nonce, None, role).ok_or(SendError::Full)
    }

    fn insert(
        &mut self,
        now: Nanos,
        peer: PeerAddress,
        nonce: u64,
        remote: Option<EndpointId>,
        role: Role,
    ) -> Option<EndpointId> {
        let endpoint =
            Endpoint { peer, nonce, remote, ready: false, saying: false, timer: None, life: Life::new(now), role };
        let id = self.endpoints.insert((self.random)(), endpoint)?;
        self.update(now, id);
        Some(id)
    }

    /// The initiator that the program has under `id`.
    fn owned(&mut self, id: EndpointId) -> Result<(&mut Initiator, &mut Life), SendError> {
        match self.endpoints.get_mut(id) {
            Some(Endpoint { role: Role::Initiator(initiator), life, .. }) if initiator.closed.is_none() => {
                Ok((initiator, life))
            }
            _ => Err(SendError::NoEndpoint(id)),
        }
    }

    /// Queues an active message. It is sent as soon as the endpoint is connected and its window allows.
    ///
    /// # Errors
    ///
    /// [`SendError`]; nothing was queued then.
    pub fn send(&mut self, now: Nanos, id: EndpointId, am: u8, payload: &[u8]) -> Result<(), SendError> {
        self.queue(now, id, am, payload.len(), || payload.to_vec())
    }

    /// The same with a message that need not be copied: it is kept until it is acknowledged.
    ///
    /// # Errors
    ///
    /// As [`Interface::send`]; the message is lost then.
    pub fn send_owned(&mut self, now: Nanos, id: EndpointId, am: u8, payload: Vec<u8>) -> Result<(), SendError> {
        self.queue(now, id, am, payload.len(), || payload)
    }

    #[inline]
    fn queue(
        &mut self,
        now: Nanos,
        id: EndpointId,
        am: u8,
        len: usize,
        payload: impl FnOnce() -> Vec<u8>,
    ) -> Result<(), SendError> {
        let most = self.config.max_message();
        if len > most {
            return Err(SendError::TooLong { len, most });
        }
        if am >= AM_IDS {
            return Err(SendError::AmId(am));
        }
        let (initiator, _) = self.owned(id)?;
        if initiator.state == State::Dead {
            return Err(SendError::Failed(id));
        }
        if !initiator.tx.has_room() {
            initiator.refused = true;
            return Err(SendError::Busy(id));
        }
        initiator.push(now, Kind::Data { am }, payload());
        self.update(now, id);
        Ok(())
    }

    /// Whether what was just queued on an endpoint can wait for more to be sent with: for another message, or for the next time that
    /// [`Interface::poll_transmit`] is called anyway.
    pub fn gathers(&self, id: EndpointId) -> bool {
        self.endpoints.get(id).is_some_and(|endpoint| match &endpoint.role {
            Role::Initiator(initiator) => initiator.tx.gathers(),
            Role::Acceptor(_) => false,
        })
    }

    /// Whether all that was sent on an endpoint was acknowledged. If not, the peer is asked, once, to say what it has.
    ///
    /// # Errors
    ///
    /// [`SendError::NoEndpoint`], or [`SendError::Failed`] if that will never be.
    pub fn flush(&mut self, now: Nanos, id: EndpointId) -> Result<bool, SendError> {
        let (initiator, life) = self.owned(id)?;
        match initiator.state {
            State::Dead => return Err(SendError::Failed(id)),
            _ if initiator.tx.is_empty() => return Ok(true),
            _ => life.probe |= initiator.tx.ask(),
        }
        self.update(now, id);
        Ok(false)
    }

    /// How much was sent on an endpoint: what [`Interface::is_acknowledged`] is to be asked about. Nothing is sent.
    ///
    /// # Errors
    ///
    /// As [`Interface::flush`].
    pub fn sent(&self, id: EndpointId) -> Result<Sent, SendError> {
        self.window(id).map(|tx| Sent(tx.tail()))
    }

    /// Whether all that had been sent on an endpoint at some time was acknowledged, whatever was sent since.
    ///
    /// # Errors
    ///
    /// As [`Interface::flush`].
    pub fn is_acknowledged(&self, id: EndpointId, sent: Sent) -> Result<bool, SendError> {
        self.window(id).map(|tx| tx.is_acknowledged(sent.0))
    }

    fn window(&self, id: EndpointId) -> Result<&TxWindow, SendError> {
        match self.endpoints.get(id).map(|endpoint| &endpoint.role) {
            Some(Role::Initiator(it)) if it.closed.is_none() && it.state == State::Dead => Err(SendError::Failed(id)),
            Some(Role::Initiator(it)) if it.closed.is_none() => Ok(&it.tx),
            _ => Err(SendError::NoEndpoint(id)),
        }
    }

    /// Asks the peer for a sign of life; if none comes in time the endpoint fails.
    ///
    /// # Errors
    ///
    /// [`SendError::NoEndpoint`] or [`SendError::Failed`].
    pub fn check(&mut self, now: Nanos, id: EndpointId) -> Result<(), SendError> {
        let (initiator, life) = self.owned(id)?;
        match initiator.state {
            State::Dead => return Err(SendError::Failed(id)),
            State::Open if initiator.tx.is_empty() => life.ask(now),
            // Something is on its way that has to be answered.
            _ => {}
        }
        self.update(now, id);
        Ok(())
    }

    /// Whether an endpoint is connected to the interface at `peer`.
    pub fn is_connected(&self, id: EndpointId, peer: PeerAddress) -> bool {
        self.endpoints.get(id).is_some_and(|endpoint| match &endpoint.role {
            Role::Initiator(it) => it.state == State::Open && it.closed.is_none() && endpoint.peer == peer,
            Role::Acceptor(_) => false,
        })
    }

    /// Lets go of an endpoint. What was sent before is still delivered, if the peer takes it in time; [`Event::Gone`] says when it is over.
    /// No other event comes for it.
    ///
    /// # Errors
    ///
    /// [`SendError::NoEndpoint`] if it was closed before.
    pub fn close(&mut self, now: Nanos, id: EndpointId) -> Result<(), SendError> {
        let linger = now + self.config.linger.as_nanos() as Nanos;
        let (initiator, _) = self.owned(id)?;
        initiator.closed = Some(linger);
        match initiator.state {
            State::Dead => self.remove(id),
            // The peer finds out when it answers.
            State::Connecting(_) if initiator.tx.is_empty() => self.remove(id),
            State::Connecting(_) | State::Open => {
                initiator.push(now, Kind::Fin, Vec::new());
                self.update(now, id);
            }
        }
        Ok(())
    }

    /// The address of the peer of an endpoint is resolved: whatever becomes of it has another cause.
    pub fn resolved(&mut self, id: EndpointId) {
        if let Some(Endpoint { role: Role::Initiator(initiator), .. }) = self.endpoints.get_mut(id) {
            initiator.resolution = None;
        }
    }

    /// The address of the peer of an endpoint could not be resolved. There is no way to it: the endpoint fails at once; but if that may be
    /// over when something is sent again ([`ResolveCause::NoResources`]), only if it lasts for too long.
    pub fn unresolved(&mut self, now: Nanos, id: EndpointId, cause: ResolveCause) {
        if let Some(Endpoint { role: Role::Initiator(initiator), .. }) = self.endpoints.get_mut(id) {
            initiator.resolution = Some(cause);
        }
        if cause != ResolveCause::NoResources {
            self.fail(now, id, Cause::Unreachable, 0);
        }
    }

    /// Forgets what an endpoint has to deliver: it is over at once, which its peer is told and its owner knows.
    pub fn cancel(&mut self, now: Nanos, id: EndpointId) {
        let is_alive = self.owned(id).is_ok_and(|(initiator, _)| initiator.state != State::Dead);
        if !is_alive {
            return;
        }
        self.say(id, Kind::Reset, 0);
        if let Ok((initiator, _)) = self.owned(id) {
            *initiator = Initiator::dead(now);
        }
    }

    /// Ends everything. Peers are told, as far as [`Interface::poll_transmit`] is still called; no more than that is remembered.
    pub fn shut_down(&mut self) {
        let ids: Vec<EndpointId> = self.endpoints.ids().collect();
        for id in ids {
            self.say(id, Kind::Reset, 0);
            self.remove(id);
        }
    }

    // ---- what goes out ----

    /// Whether [`Interface::poll_transmit`] may have something.
    pub fn has_transmit(&self) -> bool {
        !(self.control.is_empty() && self.ready.is_empty())
    }

    /// The next packet to be sent, if there is one now.
    pub fn poll_transmit(&mut self, now: Nanos) -> Option<Transmit> {
        if let Some(control) = self.control.pop_front() {
            if let Some(id) = control.endpoint {
                match self.endpoints.get_mut(id) {
                    Some(endpoint) => endpoint.saying = false,
                    // Only now its address handle can go.
                    None => self.events.push_back(Event::Gone(id)),
                }
            }
            return Some(control);
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(endpoint) = self.endpoints.get_mut(id) else { continue };
            endpoint.ready = false;
            let packet = emit(endpoint, id, now, &mut *self.random);
            let to = endpoint.peer;
            self.update(now, id);
            if let Some(packet) = packet {
                return Some(Transmit { to, endpoint: Some(id), packet });
            }
        }
        None
    }

    /// The next event, if there is one.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let event = self.events.pop_front()?;
            match event {
                // Its owner let go of it meanwhile, and wants to hear only when it is gone.
                Event::Connected(id) | Event::Room(id) | Event::Failed(id, _) if self.owned(id).is_err() => {}
                event => return Some(event),
            }
        }
    }

    // ---- time ----

    /// When [`Interface::on_timeout`] is due.
    pub fn next_timeout(&self) -> Option<Nanos> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Does what is due at `now`.
    pub fn on_timeout(&mut self, now: Nanos) {
        while let Some(&Reverse((at, id))) = self.timers.peek() {
            if at > now {
                break;
            }
            self.timers.pop();
            let Some(endpoint) = self.endpoints.get_mut(id).filter(|it| it.timer == Some(at)) else { continue };
            endpoint.timer = None;
            self.look(now, id, now - at);
        }
    }

    fn look(&mut self, now: Nanos, id: EndpointId, late: Nanos) {
        let config = &self.config;
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let life = &mut endpoint.life;
        let past = |at: Option<Nanos>| at.is_some_and(|at| at <= now);
        let over = match &mut endpoint.role {
            Role::Initiator(Initiator { state: State::Connecting(retry), .. }) => {
                (retry.deadline <= now).then_some(Cause::ConnectTimeout)
            }
            Role::Initiator(initiator) => {
                if past(initiator.probe_at(life, config)) {
                    life.ask(now);
                }
                let over = past(initiator.closed) || past(initiator.silent_at(life, config));
                if !over {
                    initiator.tx.on_timeout(now);
                    initiator.tx.rest();
                }
                over.then_some(Cause::PeerTimeout)
            }
            Role::Acceptor(acceptor) => {
                if past(acceptor.probe_at(life, config)) {
                    life.ask(now);
                }
                let over = past(acceptor.half_open.map(|retry| retry.deadline)) || past(life.given_up(config));
                over.then_some(Cause::PeerTimeout)
            }
        };
        match over {
            Some(cause) => {
                // Whoever is there learns that nobody is here any more.
                self.say(id, Kind::Reset, 0);
                self.fail(now, id, cause, late);
            }
            None => self.update(now, id),
        }
    }

    // ---- housekeeping ----

    /// Something about an endpoint changed: sees to it that it is looked at in time, and sends.
    fn update(&mut self, now: Nanos, id: EndpointId) {
        let config = &self.config;
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let life = &endpoint.life;
        let (wants, deadline) = match &endpoint.role {
            Role::Initiator(it) => (it.wants(now, life), it.deadline(life, config)),
            Role::Acceptor(it) => (it.wants(now, life), it.deadline(life, config)),
        };
        if wants && !endpoint.ready {
            endpoint.ready = true;
            self.ready.push_back(id);
        }
        let Some(mut at) = deadline else { return };
        // What is due waits only for [`Interface::poll_transmit`]; that it is called late must not make time stand still.
        if at <= now {
            at = now + STALLED;
        }
        // An earlier look will see to the rest.
        if endpoint.timer.is_none_or(|timer| at < timer) {
            endpoint.timer = Some(at);
            self.timers.push(Reverse((at, id)));
            self.forget_timers();
        }
    }

    /// Takes out what no endpoint waits for any more, once that is the larger part. A timer that an earlier one came before stays until then, and a busy endpoint has
    /// an earlier one all the time.
    fn forget_timers(&mut self) {
        if self.timers.len() <= 2 * self.endpoints.len() + FORGOTTEN_TIMERS {
            return;
        }
        let mut timers = std::mem::take(&mut self.timers).into_vec();
        timers.retain(|Reverse((at, id))| self.endpoints.get(*id).is_some_and(|it| it.timer == Some(*at)));
        timers.sort_unstable();
        timers.dedup();
        self.timers = BinaryHeap::from(timers);
    }

    /// An endpoint is over, for a reason that its owner did not make.
    fn fail(&mut self, now: Nanos, id: EndpointId, cause: Cause, late: Nanos) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        match &mut endpoint.role {
            Role::Initiator(initiator) if initiator.closed.is_none() => {
                if initiator.state != State::Dead {
                    self.events.push_back(Event::Failed(id, initiator.failure(&endpoint.life, cause, late)));
                    *initiator = Initiator::dead(now);
                }
            }
            Role::Initiator(_) | Role::Acceptor(_) => self.remove(id),
        }
    }

    fn remove(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.remove(id) else { return };
        if let Role::Acceptor(acceptor) = endpoint.role {
            self.half_open -= usize::from(acceptor.half_open.is_some());
            self.held -= acceptor.rx.held_bytes();
            self.accepted.remove(&(endpoint.peer, endpoint.nonce));
        }
        if !endpoint.saying {
            self.events.push_back(Event::Gone(id));
        }
        self.forget_timers();
    }
}

impl fmt::Debug for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoints: Vec<_> = self.endpoints.ids().filter_map(|id| Some((id, self.endpoints.get(id)?))).collect();
        f.debug_struct("Interface")
            .field("endpoints", &endpoints)
            .field("ready", &self.ready)
            .field("control", &self.control.len())
            .field("timers", &self.timers.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

/// The next packet of an endpoint.
fn emit(endpoint: &mut Endpoint, id: EndpointId, now: Nanos, random: &mut dyn FnMut() -> u64) -> Option<Vec<u8>> {
    let nonce = endpoint.nonce;
    let dest = endpoint.remote.map_or(0, EndpointId::to_wire);
    let header = |kind| Header { kind, ack_request: false, psn: 0, dest, src: id.to_wire(), ack: 0 };
    let life = &mut endpoint.life;
    match &mut endpoint.role {
        Role::Initiator(initiator) => {
            match &mut initiator.state {
                State::Connecting(retry) => {
                    return retry.due(now, random()).then(|| header(Kind::Connect { nonce }).emit(&[]));
                }
                State::Open => {}
                State::Dead => return None,
            }
            if let Some(out) = initiator.tx.next(now) {
                let asks = std::mem::take(&mut life.probe) || out.ack_request;
                return Some(Header { psn: out.psn, ack_request: asks, ..header(out.kind) }.emit(out.body));
            }
            let asks = std::mem::take(&mut life.probe);
            asks.then(|| Header { ack_request: true, ..header(Kind::Ack) }.emit(&[]))
        }
        Role::Acceptor(acceptor) => {
            let again = acceptor.half_open.as_mut().is_some_and(|retry| retry.due(now, random()));
            if std::mem::take(&mut acceptor.answer) || again {
                return Some(header(Kind::Accept { nonce }).emit(&[]));
            }
            let asks = std::mem::take(&mut life.probe);
            if !asks && acceptor.rx.deadline().is_none_or(|at| at > now) {
                return None;
            }
            acceptor.rx.acknowledged();
            let ack = acceptor.rx.expected();
            Some(Header { ack, ack_request: asks, ..header(Kind::Ack) }.emit(&acceptor.rx.sack()))
        }
    }
}
