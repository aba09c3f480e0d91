use super::config::{Config, FIRST_RTO, MAX_RTO};
use super::endpoint::{Endpoint, State};
use super::rx::Taken;
use super::table::{EndpointId, Table};
use super::wire::{Header, Kind};
use super::{AM_IDS, Cause, Event, Nanos, PeerAddress};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

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
    /// Sessions by peer and nonce, and whether this end began them: an interface may talk to itself.
    sessions: HashMap<(PeerAddress, u64, bool), EndpointId>,
    /// Endpoints that wait for an answer, oldest first.
    connecting: HashMap<PeerAddress, VecDeque<EndpointId>>,
    /// Endpoints that peers made and nobody owns, oldest first.
    unclaimed: HashMap<PeerAddress, VecDeque<EndpointId>>,
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
            sessions: HashMap::new(),
            connecting: HashMap::new(),
            unclaimed: HashMap::new(),
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

    /// An endpoint to the interface at `peer`: one that the peer made and nobody owns yet, or a new one, which begins to connect. It can be
    /// sent to at once.
    ///
    /// # Errors
    ///
    /// [`SendError::Full`].
    pub fn connect(&mut self, now: Nanos, peer: PeerAddress) -> Result<EndpointId, SendError> {
        if let Some(id) = self.claim(peer) {
            self.events.push_back(Event::Connected(id));
            return Ok(id);
        }
        let nonce = (self.random)();
        let deadline = now + self.config.connect_timeout.as_nanos() as Nanos;
        let state = State::Connecting { tries: 0, next: now, deadline };
        let random = (self.random)();
        let id =
            self.endpoints.insert(random, |_| Endpoint::new(now, peer, nonce, state, true)).ok_or(SendError::Full)?;
        self.sessions.insert((peer, nonce, true), id);
        self.connecting.entry(peer).or_default().push_back(id);
        self.update(now, id);
        Ok(id)
    }

    /// The oldest endpoint that `peer` made, that is known to be alive, and that nobody owns.
    fn claim(&mut self, peer: PeerAddress) -> Option<EndpointId> {
        let list = self.unclaimed.get_mut(&peer)?;
        let open = |id: &EndpointId| self.endpoints.get(*id).is_some_and(|endpoint| endpoint.state == State::Open);
        let at = list.iter().position(open)?;
        let id = list.remove(at)?;
        if list.is_empty() {
            self.unclaimed.remove(&peer);
        }
        self.endpoints.get_mut(id)?.owned = true;
        Some(id)
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
        let endpoint = self.endpoints.get_mut(id).filter(|it| it.owned).ok_or(SendError::NoEndpoint(id))?;
        if endpoint.state == State::Dead {
            return Err(SendError::Failed(id));
        }
        if !endpoint.tx.has_room() {
            return Err(SendError::Busy(id));
        }
        if endpoint.tx.is_empty() {
            endpoint.progress = now;
        }
        endpoint.tx.push(Kind::Data { am }, payload.to_vec());
        self.update(now, id);
        Ok(())
    }

    /// Whether all that was sent on an endpoint was acknowledged.
    ///
    /// # Errors
    ///
    /// [`SendError::NoEndpoint`], or [`SendError::Failed`] if that will never be.
    pub fn is_flushed(&self, id: EndpointId) -> Result<bool, SendError> {
        let endpoint = self.endpoints.get(id).filter(|it| it.owned).ok_or(SendError::NoEndpoint(id))?;
        if endpoint.state == State::Dead { Err(SendError::Failed(id)) } else { Ok(endpoint.tx.is_empty()) }
    }

    /// Asks the peer for a sign of life; if none comes in time the endpoint fails.
    ///
    /// # Errors
    ///
    /// [`SendError::NoEndpoint`] or [`SendError::Failed`].
    pub fn check(&mut self, now: Nanos, id: EndpointId) -> Result<(), SendError> {
        let endpoint = self.endpoints.get_mut(id).filter(|it| it.owned).ok_or(SendError::NoEndpoint(id))?;
        match endpoint.state {
            State::Dead => return Err(SendError::Failed(id)),
            State::Open if endpoint.tx.is_empty() => endpoint.ask(now),
            // Something is on its way that has to be answered.
            _ => {}
        }
        self.update(now, id);
        Ok(())
    }

    /// Whether an endpoint is connected to the interface at `peer`.
    pub fn is_connected(&self, id: EndpointId, peer: PeerAddress) -> bool {
        self.endpoints.get(id).is_some_and(|it| it.owned && it.state == State::Open && it.peer == peer)
    }

    /// Lets go of an endpoint. What was sent before is still delivered, if the peer takes it in time; [`Event::Gone`] says when it is over.
    /// No other event comes for it.
    ///
    /// # Errors
    ///
    /// [`SendError::NoEndpoint`] if it was closed before.
    pub fn close(&mut self, now: Nanos, id: EndpointId) -> Result<(), SendError> {
        let deadline = now + self.config.linger.as_nanos() as Nanos;
        let endpoint = self.endpoints.get_mut(id).filter(|it| it.owned).ok_or(SendError::NoEndpoint(id))?;
        endpoint.owned = false;
        match endpoint.state {
            // What was queued while connecting is to be delivered, too.
            State::Connecting { .. } if !endpoint.tx.is_empty() => {
                endpoint.tx.push(Kind::Fin, Vec::new());
            }
            State::HalfOpen { .. } | State::Open => {
                if endpoint.tx.is_empty() {
                    endpoint.progress = now;
                }
                endpoint.state = State::Closing { deadline };
                endpoint.tx.push(Kind::Fin, Vec::new());
            }
            State::Connecting { .. } | State::Dead | State::Closing { .. } => {
                self.remove(id);
                return Ok(());
            }
        }
        self.update(now, id);
        Ok(())
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
        match header.kind {
            Kind::Accept { nonce } => self.on_accept(now, id, &header, nonce),
            Kind::Reset => {
                if from_peer {
                    self.fail(now, id, Cause::Reset, 0);
                }
            }
            // The answer to our CONNECT was lost: it comes again, and then this does.
            _ if matches!(endpoint.state, State::Connecting { .. }) => {}
            _ if !from_peer => {
                self.counters.wrong_source += 1;
                self.reset(from, &header);
            }
            _ if endpoint.state == State::Dead => self.reset(from, &header),
            _ => self.on_session(now, id, &header, body, deliver),
        }
    }

    fn on_connect(&mut self, now: Nanos, from: PeerAddress, src: u64, nonce: u64) {
        if src == 0 {
            self.counters.malformed += 1;
            return;
        }
        let remote = EndpointId::from_wire(src);
        if let Some(id) = self.sessions.get(&(from, nonce, false)).copied() {
            // It came twice, or the answer was lost.
            if let Some(endpoint) = self.endpoints.get_mut(id).filter(|it| it.remote == Some(remote)) {
                endpoint.accept = true;
                self.counters.duplicates += 1;
                self.update(now, id);
            }
            return;
        }
        // An endpoint that its owner has closed is not worth being connected to.
        let eligible = |id: &EndpointId| *id != remote && self.endpoints.get(*id).is_some_and(|it| it.owned);
        let own = self.connecting.get(&from).and_then(|list| list.iter().copied().find(eligible));
        if let Some(id) = own {
            let ours = self.endpoints.get(id).map_or(0, |endpoint| endpoint.nonce);
            // Both ends compare the same two numbers. If ours wins, the peer answers it.
            if ours > nonce {
                self.adopt(now, id, remote, nonce);
            }
            return;
        }
        if self.half_open >= self.config.max_half_open {
            self.counters.refused += 1;
            return;
        }
        let deadline = now + self.config.connect_timeout.as_nanos() as Nanos;
        let state = State::HalfOpen { tries: 0, next: now, deadline };
        let random = (self.random)();
        let Some(id) = self.endpoints.insert(random, |_| Endpoint::new(now, from, nonce, state, false)) else {
            self.counters.refused += 1;
            return;
        };
        self.half_open += 1;
        self.sessions.insert((from, nonce, false), id);
        self.unclaimed.entry(from).or_default().push_back(id);
        if let Some(endpoint) = self.endpoints.get_mut(id) {
            endpoint.remote = Some(remote);
        }
        self.update(now, id);
    }

    /// An endpoint that was connecting takes the peer's session instead of its own.
    fn adopt(&mut self, now: Nanos, id: EndpointId, remote: EndpointId, nonce: u64) {
        self.forget(id);
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        endpoint.nonce = nonce;
        endpoint.accept = true;
        self.sessions.insert((endpoint.peer, nonce, false), id);
        self.established(now, id, remote);
    }

    fn on_accept(&mut self, now: Nanos, id: EndpointId, header: &Header, nonce: u64) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let remote = EndpointId::from_wire(header.src);
        if nonce != endpoint.nonce || header.src == 0 {
            self.counters.wrong_source += 1;
            return;
        }
        match endpoint.state {
            State::Connecting { .. } => {
                self.unlist(id);
                self.established(now, id, remote);
            }
            _ if endpoint.remote == Some(remote) => {
                // The peer may wait for a sign that its answer came.
                self.counters.duplicates += 1;
                endpoint.rx.ask(now);
                self.update(now, id);
            }
            _ => {
                // A CONNECT that was long on its way made another endpoint there.
                let from = endpoint.peer;
                self.reset(from, header);
            }
        }
    }

    fn established(&mut self, now: Nanos, id: EndpointId, remote: EndpointId) {
        let linger = now + self.config.linger.as_nanos() as Nanos;
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        endpoint.remote = Some(remote);
        endpoint.heard = now;
        endpoint.progress = now;
        if endpoint.owned {
            endpoint.state = State::Open;
            self.events.push_back(Event::Connected(id));
        } else {
            endpoint.state = State::Closing { deadline: linger };
        }
        // What tells the peer that its answer came, unless data does.
        endpoint.rx.ask(now);
        self.update(now, id);
    }

    fn on_session(
        &mut self,
        now: Nanos,
        id: EndpointId,
        header: &Header,
        body: &[u8],
        deliver: &mut dyn FnMut(Delivery<'_>),
    ) {
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        let sack = if header.kind == Kind::Ack { body } else { &[] };
        let before = endpoint.tx.base();
        if !endpoint.tx.acknowledge(now, header.ack, sack) {
            self.counters.wrong_ack += 1;
            return;
        }
        if endpoint.tx.base() != before {
            endpoint.progress = now;
        }
        if matches!(endpoint.state, State::HalfOpen { .. }) {
            self.half_open -= 1;
        }
        endpoint.hear(now);
        let closing = matches!(endpoint.state, State::Closing { .. });
        match header.kind {
            Kind::Ack => {
                if header.ack_request {
                    endpoint.rx.ask(now);
                }
            }
            // Nobody is left to take it. Both ends are closing if it is FIN, and then nobody needs to be waited for.
            Kind::Data { .. } | Kind::Fin if closing => {
                if header.kind == Kind::Fin {
                    let from = endpoint.peer;
                    self.reset(from, header);
                    self.remove(id);
                    return;
                }
            }
            _ => {
                let mut finished = false;
                let peer = endpoint.peer;
                let taken =
                    endpoint.rx.receive(now, (header.psn, header.kind, header.ack_request), body, |kind, payload| {
                        match kind {
                            // Nothing comes after FIN; a peer that sends it all the same is not listened to.
                            Kind::Data { am } if !finished => deliver(Delivery { endpoint: id, peer, am, payload }),
                            Kind::Fin => finished = true,
                            _ => {}
                        }
                    });
                match taken {
                    Taken::Yes => {}
                    Taken::Duplicate => self.counters.duplicates += 1,
                    Taken::Beyond => self.counters.beyond += 1,
                }
                if finished {
                    self.answer_fin(id);
                    self.fail(now, id, Cause::Closed, 0);
                    return;
                }
            }
        }
        if closing && self.endpoints.get(id).is_some_and(|endpoint| endpoint.tx.is_empty()) {
            self.remove(id);
            return;
        }
        self.update(now, id);
    }

    /// Acknowledges all up to FIN.
    fn answer_fin(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get(id) else { return };
        let Some(remote) = endpoint.remote else { return };
        let ack = Header {
            kind: Kind::Ack,
            ack_request: false,
            psn: 0,
            dest: remote.to_wire(),
            src: id.to_wire(),
            ack: endpoint.rx.expected(),
        };
        let to = endpoint.peer;
        self.push_control(Transmit { to, endpoint: None, packet: ack.emit(&[]) });
    }

    /// Tells whoever sent a packet that its endpoint's peer does not exist.
    fn reset(&mut self, to: PeerAddress, cause: &Header) {
        if cause.src == 0 || cause.kind == Kind::Reset {
            return;
        }
        let reset = Header { kind: Kind::Reset, ack_request: false, psn: 0, dest: cause.src, src: cause.dest, ack: 0 };
        self.push_control(Transmit { to, endpoint: None, packet: reset.emit(&[]) });
    }

    fn push_control(&mut self, transmit: Transmit) {
        if self.control.len() < MAX_CONTROL {
            self.control.push_back(transmit);
        }
    }

    // ---- what goes out ----

    /// The next packet to be sent, if there is one now.
    pub fn poll_transmit(&mut self, now: Nanos) -> Option<Transmit> {
        if let Some(control) = self.control.pop_front() {
            return Some(control);
        }
        while let Some(id) = self.ready.pop_front() {
            let jitter = (self.random)();
            let Some(endpoint) = self.endpoints.get_mut(id) else { continue };
            endpoint.ready = false;
            let packet = emit(endpoint, id, now, jitter);
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
                Event::Connected(id) | Event::Failed(id, _) if !self.endpoints.get(id).is_some_and(|it| it.owned) => {}
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
        match endpoint.state {
            State::Connecting { deadline, .. } if deadline <= now => {
                self.fail(now, id, Cause::ConnectTimeout, late);
                return;
            }
            State::HalfOpen { deadline, .. } | State::Closing { deadline } if deadline <= now => {
                // Whoever is there learns that nobody is here any more.
                self.abandon(id);
                self.remove(id);
                return;
            }
            _ => {}
        }
        if endpoint.talks() && endpoint.silence(config).is_some_and(|at| at <= now) {
            self.abandon(id);
            self.fail(now, id, Cause::PeerTimeout, late);
            return;
        }
        if endpoint.keepalive(config).is_some_and(|at| at <= now) {
            endpoint.ask(now);
        }
        endpoint.tx.on_timeout(now);
        self.update(now, id);
    }

    /// Tells the peer that this end is over.
    fn abandon(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get(id) else { return };
        let Some(remote) = endpoint.remote else { return };
        let reset =
            Header { kind: Kind::Reset, ack_request: false, psn: 0, dest: remote.to_wire(), src: id.to_wire(), ack: 0 };
        let to = endpoint.peer;
        self.push_control(Transmit { to, endpoint: None, packet: reset.emit(&[]) });
    }

    // ---- housekeeping ----

    /// Something about an endpoint changed: sees to it that it is looked at in time, and sends.
    fn update(&mut self, now: Nanos, id: EndpointId) {
        let config = &self.config;
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        if !endpoint.ready && endpoint.wants(now) {
            endpoint.ready = true;
            self.ready.push_back(id);
        }
        if let Some(mut at) = endpoint.deadline(config) {
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
    }

    /// An endpoint is over, for a reason that its owner did not make.
    fn fail(&mut self, now: Nanos, id: EndpointId, cause: Cause, late: Nanos) {
        if self.endpoints.get(id).is_some_and(|endpoint| !endpoint.owned) {
            self.remove(id);
            return;
        }
        self.forget(id);
        let Some(endpoint) = self.endpoints.get_mut(id) else { return };
        if endpoint.state == State::Dead {
            return;
        }
        let failure = endpoint.failure(cause, late);
        let (peer, nonce) = (endpoint.peer, endpoint.nonce);
        let remote = endpoint.remote;
        // What is left needs no memory for packets.
        *endpoint = Endpoint { remote, ..Endpoint::new(now, peer, nonce, State::Dead, true) };
        self.events.push_back(Event::Failed(id, failure));
    }

    /// Takes an endpoint out of the maps by which peers find it, and what counts it.
    fn forget(&mut self, id: EndpointId) {
        self.unlist(id);
        let Some(endpoint) = self.endpoints.get(id) else { return };
        if matches!(endpoint.state, State::HalfOpen { .. }) {
            self.half_open -= 1;
        }
        for began in [true, false] {
            let key = (endpoint.peer, endpoint.nonce, began);
            if self.sessions.get(&key) == Some(&id) {
                self.sessions.remove(&key);
            }
        }
    }

    /// Takes an endpoint out of the lists in which it waits for a peer or for an owner.
    fn unlist(&mut self, id: EndpointId) {
        let Some(endpoint) = self.endpoints.get(id) else { return };
        for lists in [&mut self.connecting, &mut self.unclaimed] {
            if let Some(list) = lists.get_mut(&endpoint.peer) {
                list.retain(|known| *known != id);
                if list.is_empty() {
                    lists.remove(&endpoint.peer);
                }
            }
        }
    }

    fn remove(&mut self, id: EndpointId) {
        self.forget(id);
        if self.endpoints.remove(id).is_some() {
            self.events.push_back(Event::Gone(id));
        }
    }
}

/// The next packet of an endpoint.
fn emit(endpoint: &mut Endpoint, id: EndpointId, now: Nanos, jitter: u64) -> Option<Vec<u8>> {
    let ack = endpoint.rx.expected();
    let src = id.to_wire();
    let mut repeats = false;
    if let State::Connecting { tries, next, deadline } | State::HalfOpen { tries, next, deadline } = &mut endpoint.state
        && *next <= now
    {
        let wait = (FIRST_RTO << (*tries).min(16)).min(MAX_RTO);
        *tries += 1;
        // Up to a quarter longer, so that those who began together do not go on together.
        *next = (now + wait + jitter % (wait / 4)).min(*deadline);
        repeats = true;
    }
    if let State::Connecting { .. } = endpoint.state {
        let kind = Kind::Connect { nonce: endpoint.nonce };
        let header = Header { kind, ack_request: false, psn: 0, dest: 0, src, ack };
        return repeats.then(|| header.emit(&[]));
    }
    let dest = endpoint.remote?.to_wire();
    if std::mem::take(&mut endpoint.accept) || repeats {
        let kind = Kind::Accept { nonce: endpoint.nonce };
        return Some(Header { kind, ack_request: false, psn: 0, dest, src, ack }.emit(&[]));
    }
    let due = endpoint.rx.deadline().is_some_and(|at| at <= now);
    let sack = if due { endpoint.rx.sack() } else { Vec::new() };
    // Data carries no bits; if some are due they go first.
    if sack.is_empty()
        && let Some(out) = endpoint.tx.next(now)
    {
        let header = Header { kind: out.kind, ack_request: out.ack_request, psn: out.psn, dest, src, ack };
        let packet = header.emit(out.body);
        endpoint.rx.acknowledged(false);
        return Some(packet);
    }
    let probe = std::mem::take(&mut endpoint.probe);
    if !due && !probe {
        return None;
    }
    endpoint.rx.acknowledged(true);
    Some(Header { kind: Kind::Ack, ack_request: probe, psn: 0, dest, src, ack }.emit(&sack))
}
