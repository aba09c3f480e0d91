//! What is on its way between the hosts of a network, and who gets it.

use super::config::MemoryConfig;
use super::faults::{FaultPolicy, InFlight, RandomFaults};
use super::port::Node;
use super::queue::{Event, EventQueue, Flight};
use super::trace::{MemoryStats, TraceEvent, TraceKind};
use crate::engine::{Nanos, mad_of};
use crate::random::Random;
use ferroce_verbs::Gid;
use ferroce_wire::cm::{Destination, ServiceId};
use ferroce_wire::{Flow, FlowIcrc, IpPair, ROCE_UDP_PORT};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

type Observer = Box<dyn FnMut(&TraceEvent<'_>) + Send>;

/// A host's address on the link layer.
pub(super) type Mac = [u8; 6];

/// What a network consists of at one instant.
pub(super) struct Inner {
    pub(super) queue: EventQueue,
    pub(super) nodes: BTreeMap<(IpAddr, u8), Arc<Node>>,
    pub(super) slots: Slots,
    pub(super) groups: HashMap<IpAddr, BTreeSet<(IpAddr, u8)>>,
    /// Which context of a host has a service.
    pub(super) services: HashMap<(IpAddr, u64), u8>,
    pub(super) policy: Policy,
    /// Directions that are blocked, and hosts that are cut off.
    pub(super) blocked: HashSet<(IpAddr, IpAddr)>,
    /// How often a host has moved.
    pub(super) moves: HashMap<IpAddr, u16>,
    pub(super) isolated: HashSet<IpAddr>,
    /// When each host's link is done with what it was given.
    pub(super) busy_until: HashMap<IpAddr, Nanos>,
    pub(super) random: Random,
    pub(super) stats: MemoryStats,
    pub(super) observer: Option<Observer>,
}

pub(super) enum Policy {
    Random(RandomFaults),
    Custom(Box<dyn FaultPolicy>),
}

/// Which slots of which hosts are taken. They are given out round robin, so that a number is reused as late as possible.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) taken: BTreeSet<(IpAddr, u8)>,
    next: HashMap<IpAddr, u8>,
}

impl Inner {
    pub(super) fn mac_of(&self, ip: IpAddr) -> Mac {
        let [high, low] = self.moves.get(&ip).copied().unwrap_or_default().to_be_bytes();
        let [.., a, b, c] = Gid::from(ip).to_bytes();
        [2, high, low, a, b, c]
    }

    fn is_blocked(&self, src: IpAddr, dst: IpAddr) -> bool {
        let isolated = src != dst && (self.isolated.contains(&src) || self.isolated.contains(&dst));
        isolated || self.blocked.contains(&(src, dst))
    }

    /// Sends one packet to one host, as the policy has it.
    pub(super) fn send(&mut self, config: &MemoryConfig, now: Nanos, leaves: Nanos, flight: Flight) {
        self.stats.sent += 1;
        self.observe(now, TraceKind::Sent, &flight);
        if self.is_blocked(flight.src, flight.host) {
            self.stats.blocked += 1;
            self.observe(now, TraceKind::Lost, &flight);
            return;
        }
        let in_flight =
            InFlight { at: Duration::from_nanos(leaves), src: flight.src, dst: flight.host, packet: &flight.packet };
        let fate = match &mut self.policy {
            Policy::Random(policy) => policy.fate(&in_flight),
            Policy::Custom(policy) => policy.fate(&in_flight),
        };
        let mut copies = fate.copies.iter().flatten();
        let Some(first) = copies.next() else {
            self.stats.lost += 1;
            self.observe(now, TraceKind::Lost, &flight);
            return;
        };
        let mut arrivals = vec![(*first, flight)];
        for copy in copies {
            self.stats.duplicated += 1;
            let flight = &arrivals[0].1;
            arrivals.push((*copy, Flight { packet: flight.packet.clone(), ..*flight }));
        }
        for (arrival, mut flight) in arrivals {
            if arrival.flips.any() {
                self.stats.corrupted += 1;
                arrival.flips.apply(&mut flight.packet);
            }
            let at = leaves.saturating_add(arrival.delay.as_nanos() as Nanos);
            self.launch(config, now, at, flight);
        }
    }

    /// Lets a packet arrive at `at`, unless too many are in flight.
    pub(super) fn launch(&mut self, config: &MemoryConfig, now: Nanos, at: Nanos, flight: Flight) {
        if self.stats.in_flight >= config.max_in_flight as u64 {
            self.stats.overflowed += 1;
            self.observe(now, TraceKind::Lost, &flight);
            return;
        }
        self.stats.in_flight += 1;
        self.stats.max_in_flight = self.stats.max_in_flight.max(self.stats.in_flight);
        self.queue.push(at, Event::Arrive(flight));
    }

    /// A packet is at its host: returns the contexts that get it.
    pub(super) fn arrive(&mut self, now: Nanos, flight: &Flight) -> Vec<Arc<Node>> {
        self.stats.in_flight -= 1;
        if self.is_blocked(flight.src, flight.host) {
            self.stats.blocked += 1;
            self.observe(now, TraceKind::Lost, flight);
            return Vec::new();
        }
        let packet = &flight.packet;
        let right = IpPair::new(flight.src, flight.dst).is_some_and(|ip| {
            let flow = Flow { ip, src_port: flight.src_port, dst_port: ROCE_UDP_PORT };
            FlowIcrc::new(&flow).check_exact(0, packet)
        });
        if !right {
            self.stats.rejected += 1;
            self.observe(now, TraceKind::Rejected, flight);
            return Vec::new();
        }
        if flight.mac.is_some_and(|mac| mac != self.mac_of(flight.host)) {
            // The station that it is for does not have the address any more.
            self.stats.unroutable += 1;
            self.observe(now, TraceKind::Unroutable, flight);
            return Vec::new();
        }
        let mad = mad_of(&packet[..packet.len() - ferroce_wire::ICRC_LEN]);
        let nodes: Vec<Arc<Node>> = match *packet.as_slice() {
            // To queue pair 1, which all contexts of the host share.
            _ if mad.is_some() => mad.map(|mad| self.mad_owners(flight.host, mad)).unwrap_or_default(),
            // To a multicast group: all members of the host get it.
            [_, _, _, _, _, 0xff, 0xff, 0xff, ..] if flight.dst.is_multicast() => {
                let members = self.groups.get(&flight.dst).into_iter().flatten();
                members.filter(|(ip, _)| *ip == flight.host).filter_map(|key| self.nodes.get(key).cloned()).collect()
            }
            [_, _, _, _, _, slot, ..] => self.nodes.get(&(flight.host, slot)).cloned().into_iter().collect(),
            _ => Vec::new(),
        };
        let kind = if nodes.is_empty() { TraceKind::Unroutable } else { TraceKind::Delivered };
        match kind {
            TraceKind::Unroutable => self.stats.unroutable += 1,
            _ => self.stats.delivered += 1,
        }
        if let Policy::Custom(policy) = &mut self.policy {
            policy.arrived(&InFlight { at: Duration::from_nanos(now), src: flight.src, dst: flight.host, packet });
        }
        self.observe(now, kind, flight);
        nodes
    }

    /// The contexts of a host that a management datagram is for.
    fn mad_owners(&self, host: IpAddr, mad: &[u8]) -> Vec<Arc<Node>> {
        let all = || {
            let nodes = self.nodes.range((host, 0)..=(host, u8::MAX)).map(|(_, node)| node);
            nodes.filter(|node| node.engine.gsi.has_handler()).cloned()
        };
        let slot = match Destination::of(mad) {
            Some(Destination::All) => return all().collect(),
            Some(Destination::Prefix(slot)) => Some(slot),
            Some(Destination::Service(ServiceId(id))) => self.services.get(&(host, id)).copied(),
            None => None,
        };
        let owner = slot.and_then(|slot| self.nodes.get(&(host, slot)).cloned());
        // Somebody has to say that nobody has the service or the connection.
        owner.or_else(|| all().next()).into_iter().collect()
    }

    pub(super) fn observe(&mut self, now: Nanos, kind: TraceKind, flight: &Flight) {
        if let Some(observer) = &mut self.observer {
            let at = Duration::from_nanos(now);
            observer(&TraceEvent { at, kind, src: flight.src, dst: flight.host, packet: &flight.packet });
        }
    }

    pub(super) fn observe_timer(&mut self, now: Nanos, ip: IpAddr) {
        if let Some(observer) = &mut self.observer {
            let at = Duration::from_nanos(now);
            observer(&TraceEvent { at, kind: TraceKind::Timer, src: ip, dst: ip, packet: &[] });
        }
    }
}

impl Slots {
    pub(super) fn take(&mut self, ip: IpAddr) -> Option<u8> {
        let next = self.next.entry(ip).or_default();
        // 0xff would make multicast's queue pair number an ordinary one.
        let slot = (0..u8::MAX).map(|ahead| ((u16::from(*next) + u16::from(ahead)) % 255) as u8);
        let slot = slot.into_iter().find(|&slot| !self.taken.contains(&(ip, slot)))?;
        *next = (slot + 1) % u8::MAX;
        self.taken.insert((ip, slot));
        Some(slot)
    }

    /// What was given out at a host is forgotten: the next one is the first again.
    pub(super) fn restart(&mut self, ip: IpAddr) {
        self.next.remove(&ip);
    }
}

/// The UDP source port: as with the kernel's Soft-RoCE, packets to one queue pair have one.
pub(super) fn src_port(packet: &[u8]) -> u16 {
    match *packet {
        [_, _, _, _, _, _, high, low, ..] => 0xc000 | u16::from_be_bytes([high, low]) & 0x3fff,
        _ => 0xc000,
    }
}

/// Appends the ICRC to a packet from BTH to pad.
pub(super) fn append_icrc(ip: IpPair, src_port: u16, packet: &mut Vec<u8>) {
    let flow = Flow { ip, src_port, dst_port: ROCE_UDP_PORT };
    let icrc = FlowIcrc::new(&flow).icrc(0, packet);
    packet.extend_from_slice(&icrc.to_le_bytes());
}
