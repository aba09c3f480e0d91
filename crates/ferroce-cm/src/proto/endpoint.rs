//! The endpoint: what it holds, and how messages and time come in and go out.

use super::comm_id::CommIds;
use super::half_open::HalfOpen;
use super::index::{Index, PeerKey, Target};
use super::listen::Listeners;
use super::sidr::Sidrs;
use super::slab::Slab;
use super::timers::Timers;
use super::timewait::Waits;
use super::wire::{Head, Route};
use super::{Address, CmError, Config, Conn, ConnId, Counters, Event, Nanos, State, Usage};
use ferroce_wire::cm::{Answered, CmMad, CmMessage, Rej, RejectReason, attr};
use ferroce_wire::{MAD_LEN, MadError, MadHeader};
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::VecDeque;

/// A message to send, from QP 1 to QP 1.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    /// From where to where.
    pub to: Address,
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The MAD.
    pub mad: [u8; MAD_LEN],
}

/// Communication management for one channel adapter, or for the part of it that one process uses: see the
/// [module](super).
pub struct Endpoint {
    pub(super) config: Config,
    pub(super) rng: StdRng,
    pub(super) comm_ids: CommIds,
    pub(super) conns: Slab<Conn>,
    pub(super) conn_timers: Timers,
    /// Destroyed connections among `conns`.
    pub(super) lingering: usize,
    pub(super) waits: Waits,
    pub(super) index: Index,
    pub(super) listeners: Listeners,
    pub(super) half_open: HalfOpen,
    pub(super) sidrs: Sidrs,
    pub(super) transmits: VecDeque<Transmit>,
    pub(super) events: VecDeque<Event>,
    pub(super) counters: Counters,
}

impl Endpoint {
    /// An endpoint without connections. What it makes up, peers cannot guess, if nobody can guess the state of `rng`;
    /// with a known state, what it does can be repeated.
    #[must_use]
    pub fn new(mut config: Config, mut rng: StdRng) -> Self {
        config.limits.connections = config.limits.connections.min(1 << 23);
        Self {
            comm_ids: CommIds::new(config.comm_id_prefix, &mut rng),
            config,
            rng,
            conns: Slab::new(),
            conn_timers: Timers::default(),
            lingering: 0,
            waits: Waits::default(),
            index: Index::default(),
            listeners: Listeners::default(),
            half_open: HalfOpen::default(),
            sidrs: Sidrs::default(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// A packet sequence number to start from that nobody can guess, 24 bits.
    pub fn random_psn(&mut self) -> u32 {
        self.rng.random_range(0..1 << 24)
    }

    /// Takes what a datagram to QP 1 carried. Any bytes from anywhere are legal. Where several endpoints share an
    /// address, [`Destination::of`](ferroce_wire::cm::Destination::of) says which of them it is for.
    pub fn handle_mad(&mut self, now: Nanos, from: &Address, mad: &[u8]) {
        let (header, data) = match MadHeader::parse(mad) {
            Ok(parts) => parts,
            Err(_) => {
                self.counters.rx_malformed += 1;
                return;
            }
        };
        let message = match CmMad::parse(mad) {
            Ok(mad) => mad.message,
            Err(MadError::ClassVersion(_)) => return self.on_class_version(from, &header, data),
            Err(_) => {
                self.counters.rx_malformed += 1;
                return;
            }
        };
        self.counters.rx_msgs.add(header.attr_id);
        let head = Head::new(&header);
        match &message {
            CmMessage::Req(req) => self.on_req(now, from, &head, req),
            CmMessage::Mra(mra) => self.on_mra(now, from, mra),
            CmMessage::Rej(rej) => self.on_rej(now, from, &head, rej),
            CmMessage::Rep(rep) => self.on_rep(now, from, &head, rep),
            CmMessage::Rtu(rtu) => self.on_rtu(from, &head, rtu),
            CmMessage::Dreq(dreq) => self.on_dreq(now, from, &head, dreq),
            CmMessage::Drep(drep) => self.on_drep(now, from, &head, drep),
            CmMessage::SidrReq(req) => self.on_sidr_req(now, from, &head, req),
            CmMessage::SidrRep(rep) => self.on_sidr_rep(from, &head, rep),
            CmMessage::Lap(lap) => self.on_lap(from, &head, lap),
            // We load no alternate path.
            CmMessage::Apr(_) => self.counters.rx_unexpected.add(header.attr_id),
        }
    }

    /// A request in another version of the protocol is told so, in ours; IBTA 13.4.5 leaves the rest to silence.
    fn on_class_version(&mut self, from: &Address, header: &MadHeader, data: &[u8; 232]) {
        self.counters.rx_class_version += 1;
        let number = u32::from_be_bytes([data[0], data[1], data[2], data[3]]);
        match header.attr_id {
            attr::REQ => {
                self.reply(from, header.tid, refuse_req(number, RejectReason::InvalidClassVersion));
            }
            attr::SIDR_REQ => self.refuse_sidr_version(from, header.tid, number),
            _ => {}
        }
    }

    /// Does what is due. While more messages wait to be taken than [`Limits::transmit`](super::Limits::transmit)
    /// allows, the rest stays due: take them and call again.
    pub fn handle_timeout(&mut self, now: Nanos) {
        while self.transmits.len() < self.config.limits.transmit.max(1)
            && let Some((at, slot)) = self.conn_timers.next()
            && at <= now
        {
            self.on_conn_timer(now, slot);
        }
        while let Some((at, wait)) = self.waits.timers.next()
            && at <= now
        {
            self.remove_wait(wait);
        }
        self.on_sidr_timers(now);
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called next, unless something else happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Nanos> {
        let timers = [&self.conn_timers, &self.waits.timers, &self.sidrs.sent_timers, &self.sidrs.received_timers];
        timers.into_iter().filter_map(|timers| timers.next()).map(|(at, _)| at).min()
    }

    /// The next message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        loop {
            let event = self.events.pop_front()?;
            let conn = |id: &ConnId| self.conns.find(id.0).is_some();
            let is_live = match &event {
                Event::ConnectRequest(request) => conn(&request.conn),
                Event::Response(response) => conn(&response.conn),
                Event::Rejected(rejected) => conn(&rejected.conn),
                Event::Unreachable(unreachable) => conn(&unreachable.conn),
                Event::Established { conn: id, .. }
                | Event::Disconnected { conn: id, .. }
                | Event::TimewaitExit { conn: id, .. } => conn(id),
                Event::SidrRequest(request) => self.sidrs.received.find(request.sidr.0).is_some(),
                Event::SidrResponse(response) => self.sidrs.sent.find(response.sidr.0).is_some(),
                Event::SidrUnreachable { sidr, .. } => self.sidrs.sent.find(sidr.0).is_some(),
                Event::ListenerReleased { .. } => true,
            };
            if is_live {
                return Some(event);
            }
        }
    }

    /// The state of a connection; `None` if the name is stale.
    #[must_use]
    pub fn state(&self, conn: ConnId) -> Option<State> {
        self.conns.find(conn.0).map(|slot| self.conns[slot].state)
    }

    /// What was counted.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// What is held.
    #[must_use]
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.conns.len() - self.lingering,
            lingering: self.lingering,
            half_open: self.half_open.total(),
            timewait: self.waits.slab.len(),
            listeners: self.listeners.len(),
            sidr_sent: self.sidrs.sent.len(),
            sidr_received: self.sidrs.received.len(),
            events: self.events.len(),
            transmits: self.transmits.len(),
            names: self.index.len(),
            connection_slots: self.conns.capacity(),
        }
    }

    pub(super) fn conn_slot(&self, conn: ConnId) -> Result<u32, CmError> {
        self.conns.find(conn.0).ok_or(CmError::Stale)
    }

    pub(super) fn conn_id(&self, slot: u32) -> ConnId {
        ConnId(self.conns.name(slot))
    }

    /// Gives the terminal event, unless it was given or the user does not want to hear.
    pub(super) fn tell(&mut self, slot: u32, event: impl FnOnce(ConnId, u64) -> Event) {
        let id = self.conn_id(slot);
        let conn = &mut self.conns[slot];
        if conn.owned && !conn.told {
            conn.told = true;
            self.events.push_back(event(id, conn.cookie));
        }
    }

    /// The connection that a peer calls by our communication id.
    pub(super) fn called(&self, from: &Address, local_comm_id: u32) -> Option<Target> {
        let target = self.index.by_local(local_comm_id)?;
        let address = match target {
            Target::Conn(slot) => &self.conns[slot].address,
            Target::Wait(wait) => &self.waits.slab[wait].address,
        };
        (address == from).then_some(target)
    }

    /// Likewise, if the peer's own id is right as well.
    pub(super) fn called_by(&self, from: &Address, local_comm_id: u32, remote_comm_id: u32) -> Option<Target> {
        let target = self.called(from, local_comm_id)?;
        let remote = match target {
            Target::Conn(slot) => self.conns[slot].remote_comm_id,
            Target::Wait(wait) => self.waits.slab[wait].remote_comm_id,
        };
        (remote == Some(remote_comm_id)).then_some(target)
    }

    pub(super) fn qpn_key(conn: &Conn) -> PeerKey {
        PeerKey { address: conn.address, ca_guid: conn.remote_ca_guid, number: conn.remote_qpn }
    }

    pub(super) fn release_qpn(&mut self, slot: u32) {
        let conn = &mut self.conns[slot];
        if std::mem::take(&mut conn.holds_qpn) {
            self.index.remove_qpn(&Self::qpn_key(conn));
        }
    }

    pub(super) fn release_half_open(&mut self, slot: u32) {
        let conn = &mut self.conns[slot];
        if let Some(passive) = &mut conn.passive
            && std::mem::take(&mut passive.half_open)
        {
            self.half_open.remove(&conn.address);
            let listener = passive.listener;
            self.request_settled(listener);
        }
    }

    /// The user has read or decided a request: its place in the backlog is free.
    pub(super) fn undecided_no_more(&mut self, now: Nanos, slot: u32) {
        let Some(passive) = &mut self.conns[slot].passive else { return };
        let Some(place) = passive.backlog.take() else { return };
        if let Some((moved, place)) = self.listeners.leave(place, now)
            && let Some(passive) = &mut self.conns[moved].passive
        {
            passive.backlog = Some(place);
        }
    }
}

impl Conn {
    pub(super) const fn route(&self) -> Route {
        Route { to: self.address, traffic_class: self.traffic_class, flow_label: self.flow_label }
    }
}

/// The refusal of a REQ of which nothing is kept.
pub(super) fn refuse_req(comm_id: u32, reason: RejectReason) -> Rej {
    Rej {
        local_comm_id: 0,
        remote_comm_id: comm_id,
        rejected: Answered::Req,
        reason,
        info: Default::default(),
        private_data: Default::default(),
    }
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
