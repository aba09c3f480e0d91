use super::acceptor::Acceptor;
use super::config::Config;
use super::endpoint::{Endpoint, Life, Role};
use super::initiator::{Initiator, State};
use super::rx::Taken;
use super::table::{EndpointId, Table};
use super::wire::{Header, Kind};
use super::{AM_IDS, Cause, Event, Nanos, PeerAddress};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;

/// Answers to packets for endpoints that do not exist, which wait to be sent. More are dropped: whoever asked will ask again.
const MAX_CONTROL: usize = 256;

/// When to look again at what is due and not sent.
const STALLED: Nanos = 1_000_000;

/// A packet to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub to: PeerAddress,
    /// Whose packet it is: its address handle leads there. `None`: it answers something that came for no endpoint.
    pub endpoint: Option<EndpointId>,
    /// What is to be sent.
    pub packet: Vec<u8>,
}

/// A message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// The endpoint that it came to.
    pub endpoint: EndpointId,
    /// Who sent it.
    pub peer: PeerAddress,
    /// The active message id.
    pub am: u8,
    /// What was sent.
    pub payload: &'a [u8],
}

/// A message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no such endpoint, or it was closed.
    #[error("there is no endpoint {0}")]
    NoEndpoint(EndpointId),
    /// The endpoint failed; close it.
    #[error("endpoint {0} has failed: close it")]
    Failed(EndpointId),
    /// As much waits to be acknowledged as can: try again when some is.
    #[error("the window of endpoint {0} is full: try again when something was acknowledged")]
    Busy(EndpointId),
    /// The message does not fit a packet.
    #[error("a message of {len} bytes is more than the {most} that fit a packet")]
    TooLong {
        /// Its length.
        len: usize,
        /// The most that is possible.
        most: usize,
    },
    /// Active message ids are below 32.
    #[error("active message id {0} is not below 32")]
    AmId(u8),
    /// The table of endpoints is full.
    #[error("the interface has as many endpoints as it can have")]
    Full,
}

/// What an interface has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets that are none of this protocol.
    pub malformed: u64,
    /// Packets for an endpoint that does not exist.
    pub no_endpoint: u64,
    /// Packets for an endpoint that has another peer, or another session with it.
    pub wrong_source: u64,
    /// Acknowledgements of what was never sent.
    pub wrong_ack: u64,
    /// Packets that came twice.
    pub duplicates: u64,
    /// Packets beyond the window.
    pub beyond: u64,
    /// CONNECTs for which there was no room.
    pub refused: u64,
}

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
        let endpoint = Endpoint { peer, nonce, remote, ready: false, timer: None, life: Life::new(now), role };
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
        let most = self.config.max_message();
        if payload.len() > most {
            return Err(SendError::TooLong { len: payload.len(), most });
        }
        if am >= AM_IDS {
            return Err(SendError::AmId(am));
        }
        let (initiator, _) = self.owned(id)?;
        if initiator.state == State::Dead {
            return Err(SendError::Failed(id));
        }
        if !initiator.tx.has_room() {
            return Err(SendError::Busy(id));
        }
        initiator.push(now, Kind::Data { am }, payload.to_vec());
        self.update(now, id);
        Ok(())
    }

    /// Whether all that was sent on an endpoint was acknowledged. If not, the peer is asked to say what it has.
    ///
    /// # Errors
    ///
    /// [`SendError::NoEndpoint`], or [`SendError::Failed`] if that will never be.
    pub fn flush(&mut self, now: Nanos, id: EndpointId) -> Result<bool, SendError> {
        let (initiator, life) = self.owned(id)?;
        match initiator.state {
            State::Dead => return Err(SendError::Failed(id)),
            _ if initiator.tx.is_empty() => return Ok(true),
            State::Open if !initiator.tx.can_send() => life.probe = true,
            _ => {}
        }
        self.update(now, id);
        Ok(false)
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

    /// There is no way to the peer of an endpoint: it fails at once.
    pub fn unreachable(&mut self, now: Nanos, id: EndpointId) {
        self.fail(now, id, Cause::Unreachable, 0);
    }

    /// Ends everything. Peers are told, as far as [`Interface::poll_transmit`] is still called; no more than that is remembered.
    pub fn shut_down(&mut self) {
        let ids: Vec<EndpointId> = self.endpoints.ids().collect();
        for id in ids {
            if self.endpoints.get(id).is_some_and(|endpoint| endpoint.remote.is_some()) {
                self.say(id, Kind::Reset, 0);
            }
            self.remove(id);
        }
    }

    // ---- what comes in ----

    /// Takes in what came from `from`, and hands on the messages that are complete by that.
    pub fn receive(&mut self, now: Nanos, from: PeerAddress, packet: &[u8], deliver: &mut dyn FnMut(Delivery<'_>)) {
        let Some((header, body)) = Header::parse(packet) else {
            self.counters.malformed += 1;
            return;
        };
        if let Kind::Connect { nonce } = header.kind {
            self.on_connect(now, from, header.src, nonce);
            return;
        }
        let id = EndpointId::from_wire(header.dest);
        let Some(endpoint) = self.endpoints.get_mut(id) else {
            self.counters.no_endpoint += 1;
            self.reset(from, &header);
            return;
        };
        if endpoint.peer != from {
            self.counters.wrong_source += 1;
            return;
        }
        let from_peer = endpoint.remote == Some(EndpointId::from_wire(header.src));
        match (&endpoint.role, header.kind) {
            (Role::Initiator(_), Kind::Accept { nonce }) => self.on_accept(now, id, &header, nonce),
            (_, Kind::Reset) => {
                if from_peer {
                    self.fail(now, id, Cause::Reset, 0);
                }
            }
            // The answer to CONNECT was lost: it comes again, and then this does.
            (Role::Initiator(Initiator { state: State::Connecting(_), .. }), _) => {}
            _ if !from_peer => {
                self.counters.wrong_source += 1;
                self.reset(from, &header);
            }
            (Role::Initiator(Initiator { state: State::Dead, .. }), _) => self.reset(from, &header),
            (Role::Initiator(_), Kind::Ack) => self.on_ack(now, id, &header, body),
            (Role::Acceptor(_), Kind::Data { .. } | Kind::Fin | Kind::Ack) => {
                self.on_sequence(now, id, &header, body, deliver);
            }
            // An initiator is sent no data, and an acceptor no answer.
            _ => self.counters.malformed += 1,
        }
    }

    fn on_connect(&mut self, now: Nanos, from: PeerAddress, src: u64, nonce: u64) {
        if src == 0 {
            self.counters.malformed += 1;
            return;
        }
        let remote = EndpointId::from_wire(src);
        if let Some(id) = self.accepted.get(&(from, nonce)).copied() {
            self.counters.duplicates += 1;
            if let Some(endpoint) = self.endpoints.get_mut(id).filter(|it| it.remote == Some(remote))
                && let Role::Acceptor(acceptor) = &mut endpoint.role
            {
                acceptor.answer = true;
                self.update(now, id);
            }
            return;
        }
        let role = Role::Acceptor(Acceptor::new(now, &self.config));
        let room = self.half_open < self.config.max_half_open;
        match room.then(|| self.insert(now, from, nonce, Some(remote), role)).flatten() {
            Some(id) => {
                self.half_open += 1;
                self.accepted.insert((from, nonce), id);
            }
            None => self.counters.refused += 1,
        }
    }

    fn on_accept(&mut self, now: Nanos, id: EndpointId, header: &Header, nonce: u64) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let Role::Initiator(initiator) = &mut endpoint.role else { return };
        if nonce != endpoint.nonce || header.src == 0 {
            self.counters.wrong_source += 1;
            return;
        }
        let remote = EndpointId::from_wire(header.src);
        match initiator.state {
            State::Connecting(_) => {
                endpoint.remote = Some(remote);
                initiator.state = State::Open;
                initiator.progress = now;
                if initiator.closed.is_none() {
                    self.events.push_back(Event::Connected(id));
                }
            }
            State::Open if endpoint.remote == Some(remote) => self.counters.duplicates += 1,
            // A CONNECT that was long on its way made another acceptor; or this end is over.
            State::Open | State::Dead => {
                let from = endpoint.peer;
                self.reset(from, header);
                return;
            }
        }
        endpoint.life.hear(now);
        // What tells the peer that its answer came, unless data does.
        endpoint.life.probe |= !initiator.tx.can_send();
        self.update(now, id);
    }

    fn on_ack(&mut self, now: Nanos, id: EndpointId, header: &Header, sack: &[u8]) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let Role::Initiator(initiator) = &mut endpoint.role else { return };
        let before = initiator.tx.base();
        if !initiator.tx.acknowledge(now, header.ack, sack) {
            self.counters.wrong_ack += 1;
            return;
        }
        if initiator.tx.base() != before {
            initiator.progress = now;
        }
        endpoint.life.hear(now);
        if header.ack_request {
            endpoint.life.probe |= !initiator.tx.can_send();
        }
        if initiator.closed.is_some() && initiator.tx.is_empty() {
            self.remove(id);
        } else {
            self.update(now, id);
        }
    }

    fn on_sequence(
        &mut self,
        now: Nanos,
        id: EndpointId,
        header: &Header,
        body: &[u8],
        deliver: &mut dyn FnMut(Delivery<'_>),
    ) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let Role::Acceptor(acceptor) = &mut endpoint.role else { return };
        endpoint.life.hear(now);
        if acceptor.half_open.take().is_some() {
            self.half_open -= 1;
        }
        if header.kind == Kind::Ack {
            if header.ack_request {
                acceptor.rx.ask(now);
            }
            self.update(now, id);
            return;
        }
        let mut finished = false;
        let peer = endpoint.peer;
        let packet = (header.psn, header.kind, header.ack_request);
        let taken = acceptor.rx.receive(now, packet, body, |kind, payload| match kind {
            // Nothing comes after FIN; a peer that sends it all the same is not listened to.
            Kind::Data { am } if !finished => deliver(Delivery { endpoint: id, peer, am, payload }),
            Kind::Fin => finished = true,
            _ => {}
        });
        match taken {
            Taken::Yes => {}
            Taken::Duplicate => self.counters.duplicates += 1,
            Taken::Beyond => self.counters.beyond += 1,
        }
        if finished {
            let ack = acceptor.rx.expected();
            // If this is lost, RESET says the same.
            self.say(id, Kind::Ack, ack);
            self.remove(id);
        } else {
            self.update(now, id);
        }
    }

    /// Sends the peer of an endpoint something that does not need the endpoint any more.
    fn say(&mut self, id: EndpointId, kind: Kind, ack: u32) {
        let Some(endpoint) = self.endpoints.get(id) else { return };
        let Some(remote) = endpoint.remote else { return };
        let header = Header { kind, ack_request: false, psn: 0, dest: remote.to_wire(), src: id.to_wire(), ack };
        // Of these there is at most one for each endpoint, so no bound is needed.
        self.control.push_back(Transmit { to: endpoint.peer, endpoint: None, packet: header.emit(&[]) });
    }

    /// Tells whoever sent a packet that the endpoint which it is for does not exist.
    fn reset(&mut self, to: PeerAddress, cause: &Header) {
        if cause.src == 0 || cause.kind == Kind::Reset {
            return;
        }
        let reset = Header { kind: Kind::Reset, ack_request: false, psn: 0, dest: cause.src, src: cause.dest, ack: 0 };
        if self.control.len() < MAX_CONTROL {
            self.control.push_back(Transmit { to, endpoint: None, packet: reset.emit(&[]) });
        }
    }

    // ---- what goes out ----

    /// The next packet to be sent, if there is one now.
    pub fn poll_transmit(&mut self, now: Nanos) -> Option<Transmit> {
        if let Some(control) = self.control.pop_front() {
            return Some(control);
        }
        while let Some(id) = self.ready.pop_front() {
            let random = (self.random)();
            let Some(endpoint) = self.endpoints.get_mut(id) else { continue };
            endpoint.ready = false;
            let packet = emit(endpoint, id, now, random);
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
                Event::Connected(id) | Event::Failed(id, _) if self.owned(id).is_err() => {}
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
                }
                over.then_some(Cause::PeerTimeout)
            }
            Role::Acceptor(acceptor) => {
                if acceptor.half_open.is_none() && acceptor.probe_at(life, config) <= now {
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
        }
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
            self.accepted.remove(&(endpoint.peer, endpoint.nonce));
        }
        self.events.push_back(Event::Gone(id));
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
fn emit(endpoint: &mut Endpoint, id: EndpointId, now: Nanos, random: u64) -> Option<Vec<u8>> {
    let nonce = endpoint.nonce;
    let dest = endpoint.remote.map_or(0, EndpointId::to_wire);
    let header = |kind| Header { kind, ack_request: false, psn: 0, dest, src: id.to_wire(), ack: 0 };
    let life = &mut endpoint.life;
    match &mut endpoint.role {
        Role::Initiator(initiator) => {
            match &mut initiator.state {
                State::Connecting(retry) => {
                    return retry.due(now, random).then(|| header(Kind::Connect { nonce }).emit(&[]));
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
            let again = acceptor.half_open.as_mut().is_some_and(|retry| retry.due(now, random));
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
