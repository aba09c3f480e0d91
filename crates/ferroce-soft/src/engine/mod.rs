//! The protocol: RC, UC and UD as the InfiniBand specification has them, without any I/O.
//!
//! Time and packets come in as arguments; packets go out through [`PacketTx`], completions to completion queues, events to
//! an [`EventSink`]. That is what lets one engine run over UDP, over shared memory, inside a simulator and inside a
//! fuzzer.
//!
//! Locks, in the order in which they are taken: a queue pair, then a receive queue, a completion queue or a
//! lane of the link. None is shared by
//! all queue pairs on the data path.

mod counters;
mod cq;
mod gsi;
mod mr;
mod payload;
mod qp;
mod recv;
mod sendq;
mod sgl;
mod table;
mod timer;
mod tx;

pub(crate) use counters::{Counters, count};
pub(crate) use cq::{CompletionQueue, CqObserver};
pub(crate) use gsi::{GsiQp, HEADERS as GSI_HEADERS, mad_of};
pub(crate) use mr::{MAX_MR, MemoryRegion, MrTable};
pub(crate) use payload::{GrantName, Offer, PeerMemory};
pub(crate) use qp::{QpParts, QueuePair, Wants};
pub(crate) use recv::{RecvQueue, Taken};
pub(crate) use sendq::Datagram;
pub(crate) use table::Table;
pub(crate) use tx::{Av, Offered, PacketTx, PeerFlow, To};

use ferroce_verbs::{Error, EventType, Gid, Result};
use ferroce_wire::{GSI_QPN, Headers, IpPair, Packet};
use parking_lot::{Mutex, RwLock};
use payload::{MAX_OFFERED, Payload};
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use timer::Timers;

/// Time, in nanoseconds since some fixed moment.
pub(crate) type Nanos = u64;

/// The largest message, in bytes (2^30; IBTA allows 2^31).
pub(crate) const MAX_MSG_SIZE: u32 = 1 << 30;

/// Queue pairs of one context: the low 16 bits of a QPN.
pub(crate) const MAX_QP: u32 = 1 << 16;

/// The queue pair number that datagrams to a multicast group carry.
pub(crate) const MULTICAST_QPN: u32 = 0xff_ffff;

/// Where a packet came from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// A context on this machine, through shared memory: its slot, which is the high byte of its queue pair numbers.
    Host {
        /// The slot.
        slot: u8,
    },
    /// The network, or a datagram from a context on this machine.
    Net {
        /// Source address.
        src: IpAddr,
        /// Destination address.
        dst: IpAddr,
        /// IPv4 TOS or IPv6 traffic class.
        tos: u8,
        /// TTL or hop limit.
        ttl: u8,
    },
}

impl Origin {
    /// Whether this is where a queue pair connected to `dest_qpn` at `av` expects its packets from.
    #[inline]
    fn is_from(&self, av: &Av, dest_qpn: u32) -> bool {
        match *self {
            // Shared memory leads only to contexts of the same user on the same machine, whatever address they use.
            Self::Host { slot } => u32::from(slot) == dest_qpn >> 16,
            Self::Net { src, dst, .. } => src == av.remote && dst == av.local,
        }
    }
}

/// Who is told about asynchronous events. Called with locks of the engine held: it must only note them.
pub(crate) trait EventSink: Send + Sync {
    /// Something happened to a queue pair.
    fn qp(&self, event: EventType, qpn: u32);
    /// Something happened to a shared receive queue.
    fn srq(&self, event: EventType, srq: &Arc<SharedRecvQueue>);
    /// Something happened to the port.
    fn port(&self, event: EventType);
    /// A timer is due at `deadline`, earlier than all that were known.
    fn wake_at(&self, deadline: Nanos);
    /// A queue pair has something to send and nobody is at it.
    fn wake_to_send(&self);
}

/// A shared receive queue.
pub(crate) struct SharedRecvQueue {
    pub(crate) id: u32,
    pub(crate) pd: u32,
    pub(crate) queue: Arc<RecvQueue>,
}

/// The protocol state of one open device.
pub(crate) struct Engine {
    /// The high byte of all queue pair numbers.
    slot: u8,
    pub(crate) mrs: MrTable,
    qps: Table<QueuePair>,
    groups: RwLock<HashMap<Gid, Vec<u32>>>,
    timers: Timers,
    ready: Mutex<VecDeque<Arc<QueuePair>>>,
    has_ready: AtomicBool,
    /// All that are ready wait for their link.
    link_full: AtomicBool,
    pub(crate) gsi: GsiQp,
    pub(crate) counters: Counters,
    pub(crate) sink: Box<dyn EventSink>,
    /// How long the peer of an idle connection may be silent until it is asked for a sign of life.
    keepalive: Option<Nanos>,
}

impl Engine {
    pub(crate) fn new(slot: u8, sink: Box<dyn EventSink>, keepalive: Option<Duration>) -> Self {
        Self {
            keepalive: keepalive.map(|patience| u64::try_from(patience.as_nanos()).unwrap_or(Nanos::MAX / 4)),
            slot,
            mrs: MrTable::new(),
            // 0 and 1 are the management queue pairs.
            qps: Table::new(2, MAX_QP),
            groups: RwLock::new(HashMap::new()),
            timers: Timers::default(),
            ready: Mutex::new(VecDeque::new()),
            has_ready: AtomicBool::new(false),
            link_full: AtomicBool::new(false),
            gsi: GsiQp::default(),
            counters: Counters::default(),
            sink,
        }
    }

    /// The high byte of all queue pair numbers.
    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    // ---- queue pairs ----

    pub(crate) fn create_qp(&self, parts: QpParts) -> Result<Arc<QueuePair>> {
        self.qps
            .insert(|index| Arc::new(QueuePair::new(u32::from(self.slot) << 16 | index, parts)))
            .ok_or(Error::Exhausted { what: "queue pairs", limit: u64::from(MAX_QP - 2) })
    }

    /// Takes `qp` out of the table and flushes it. Packets for its number are dropped from now on. Returns the multicast
    /// groups that have no member here any more.
    pub(crate) fn destroy_qp(&self, qp: &QueuePair) -> Vec<Gid> {
        self.qps.remove(qp.qpn & 0xffff);
        let mut left = Vec::new();
        if qp.qp_type == ferroce_verbs::QpType::Ud {
            self.groups.write().retain(|gid, members| {
                members.retain(|&member| member != qp.qpn);
                if members.is_empty() {
                    left.push(*gid);
                }
                !members.is_empty()
            });
        }
        qp.destroy(self);
        left
    }

    pub(crate) fn qp_count(&self) -> u32 {
        self.qps.len()
    }

    // ---- multicast ----

    /// Adds `qpn` to a group; returns whether it is the group's first member here.
    pub(crate) fn attach(&self, gid: Gid, qpn: u32) -> bool {
        let mut groups = self.groups.write();
        let members = groups.entry(gid).or_default();
        let first = members.is_empty();
        if !members.contains(&qpn) {
            members.push(qpn);
        }
        first
    }

    /// Takes `qpn` out of a group; `None` if it was not in it, else whether it was the last member here.
    pub(crate) fn detach(&self, gid: Gid, qpn: u32) -> Option<bool> {
        let mut groups = self.groups.write();
        let members = groups.get_mut(&gid)?;
        let at = members.iter().position(|&member| member == qpn)?;
        members.swap_remove(at);
        let last = members.is_empty();
        if last {
            groups.remove(&gid);
        }
        Some(last)
    }

    // ---- packets ----

    /// Takes in one packet: BTH to pad, its ICRC checked and removed. Queue pairs that want to send because of it are
    /// reported to `wants`.
    #[inline]
    pub(crate) fn receive(
        &self,
        origin: &Origin,
        bytes: &[u8],
        now: Nanos,
        wants: &mut dyn FnMut(Arc<QueuePair>, Wants),
    ) {
        let Ok(packet) = Packet::parse(bytes) else {
            count(&self.counters.malformed_packets);
            return;
        };
        if !packet.headers.bth.is_of_default_partition() {
            count(&self.counters.pkey_violation);
            return;
        }
        let qpn = packet.headers.bth.dest_qpn;
        if qpn == MULTICAST_QPN {
            self.receive_multicast(origin, &packet, now);
            return;
        }
        if qpn == GSI_QPN {
            if !self.gsi.receive(origin, &packet) {
                count(&self.counters.malformed_packets);
            }
            return;
        }
        self.deliver(origin, &packet.headers, Payload::Here(packet.payload), now, wants);
    }

    /// Takes in a run of packets that begins with `headers`, and whose payload is in `memory`.
    pub(crate) fn receive_offer(
        &self,
        origin: &Origin,
        headers: &Headers,
        offer: &Offer,
        memory: &dyn PeerMemory,
        now: Nanos,
        wants: &mut dyn FnMut(Arc<QueuePair>, Wants),
    ) {
        let possible = (1..=MAX_OFFERED).contains(&offer.packets) && headers.bth.opcode.has_payload();
        if !possible || headers.bth.pad != 0 {
            count(&self.counters.malformed_packets);
            return;
        }
        self.deliver(origin, headers, Payload::offered(offer, memory), now, wants);
    }

    #[inline]
    fn deliver(
        &self,
        origin: &Origin,
        headers: &Headers,
        payload: Payload<'_>,
        now: Nanos,
        wants: &mut dyn FnMut(Arc<QueuePair>, Wants),
    ) {
        let qpn = headers.bth.dest_qpn;
        let guard = self.qps.get(qpn & 0xffff);
        match guard.as_ref() {
            Some(qp) if qp.qpn == qpn => match qp.receive(self, origin, headers, payload, now) {
                Wants::Nothing => {}
                want => wants(qp.clone(), want),
            },
            _ => count(&self.counters.unknown_qp),
        }
    }

    /// Where the queue pair that a packet is for has its peer, if it is connected.
    pub(crate) fn av_of(&self, packet: &[u8]) -> Option<Arc<Av>> {
        let (headers, _) = ferroce_wire::Headers::parse(packet).ok()?;
        let qpn = headers.bth.dest_qpn;
        self.qps.get(qpn & 0xffff).as_ref().filter(|qp| qp.qpn == qpn)?.av()
    }

    fn receive_multicast(&self, origin: &Origin, packet: &Packet<'_>, now: Nanos) {
        let Origin::Net { dst, .. } = *origin else { return };
        let members = match self.groups.read().get(&Gid::from(dst)) {
            Some(members) => members.clone(),
            None => return,
        };
        for qpn in members {
            if let Some(qp) = self.qps.get(qpn & 0xffff).as_ref() {
                qp.receive(self, origin, &packet.headers, Payload::Here(packet.payload), now);
            }
        }
    }

    // ---- sending ----

    /// Puts `qp` at the end of the list of those that have something to send.
    ///
    /// A link that is full wakes the context when it has room again, so nobody else needs to.
    fn schedule(&self, qp: &Arc<QueuePair>, link_full: bool) {
        if !qp.scheduled.swap(true, Ordering::AcqRel) {
            self.ready.lock().push_back(qp.clone());
            self.has_ready.store(true, Ordering::Release);
        }
        if !link_full {
            self.link_full.store(false, Ordering::Release);
            self.sink.wake_to_send();
        }
    }

    /// Gives each queue pair that has something to send one turn; returns whether any sent something.
    pub(crate) fn transmit_ready(&self, tx: &mut dyn PacketTx, now: Nanos) -> bool {
        if !self.has_ready.load(Ordering::Acquire) {
            return false;
        }
        self.link_full.store(true, Ordering::Release);
        let turns = self.ready.lock().len();
        let mut sent = false;
        for _ in 0..turns {
            let Some(qp) = self.ready.lock().pop_front() else { break };
            qp.scheduled.store(false, Ordering::Release);
            sent |= qp.transmit(self, tx, now);
        }
        let ready = self.ready.lock();
        self.has_ready.store(!ready.is_empty(), Ordering::Release);
        sent
    }

    /// Whether a queue pair has something to send and waits for its turn, or for its link.
    pub(crate) fn has_ready(&self) -> bool {
        self.has_ready.load(Ordering::Acquire)
    }

    /// Whether a queue pair waits only for its turn.
    pub(crate) fn can_send_now(&self) -> bool {
        self.has_ready() && !self.link_full.load(Ordering::Acquire)
    }

    // ---- time ----

    /// Looks at `qp` at `deadline`, and no more at `old`.
    fn arm(&self, qp: &QueuePair, old: Option<Nanos>, deadline: Nanos) {
        if self.timers.set(qp.qpn, old, deadline) {
            self.sink.wake_at(deadline);
        }
    }

    fn disarm(&self, qp: &QueuePair, deadline: Nanos) {
        self.timers.cancel(qp.qpn, deadline);
    }

    /// How many timers run.
    pub(crate) fn timer_count(&self) -> usize {
        self.timers.len()
    }

    /// When [`Engine::on_timers`] is next due.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        match (self.timers.next(), self.gsi.deadline()) {
            (Some(timer), Some(gsi)) => Some(timer.min(gsi)),
            (timer, gsi) => timer.or(gsi),
        }
    }

    /// Looks at queue pair 1 at `deadline`.
    pub(crate) fn wake_gsi_at(&self, deadline: Nanos) {
        if self.gsi.wake_at(deadline) {
            self.sink.wake_at(deadline);
        }
    }

    /// Does what is due at `now`.
    pub(crate) fn on_timers(&self, tx: &mut dyn PacketTx, now: Nanos) {
        let mut lost = Vec::new();
        while let Some((deadline, qpn)) = self.timers.pop(now) {
            if let Some(qp) = self.qps.get(qpn & 0xffff).as_ref().filter(|qp| qp.qpn == qpn)
                && qp.on_timer(self, deadline, tx, now)
            {
                lost.push(qpn);
            }
        }
        // Numbers are used again so late that none names another queue pair meanwhile.
        if !lost.is_empty() {
            self.gsi.peers_lost(&lost);
        }
        self.gsi.on_timer(now);
    }
}

/// Both addresses as one pair, if they are of one family.
pub(crate) fn ip_pair(src: IpAddr, dst: IpAddr) -> Option<IpPair> {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Some(IpPair::V4 { src, dst }),
        (IpAddr::V6(src), IpAddr::V6(dst)) => Some(IpPair::V6 { src, dst }),
        _ => None,
    }
}
