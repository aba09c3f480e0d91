use super::port::Node;
use crate::engine::{Nanos, QueuePair};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// A packet in flight.
pub(super) struct Flight {
    pub(super) src: IpAddr,
    /// The address that it carries; a multicast group, perhaps.
    pub(super) dst: IpAddr,
    /// The host that it goes to.
    pub(super) host: IpAddr,
    /// The station that it is addressed to, if it is to one.
    pub(super) mac: Option<[u8; 6]>,
    pub(super) src_port: u16,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    /// BTH up to and including the ICRC.
    pub(super) packet: Vec<u8>,
}

/// Something that happens at a time that is known.
pub(super) enum Event {
    /// A packet arrives.
    Arrive(Flight),
    /// A queue pair sends what a packet led to. What is gone by then sends nothing.
    Answer(Weak<Node>, Weak<QueuePair>),
}

struct Entry {
    at: Nanos,
    /// Events of one time happen in the order in which they were scheduled.
    sequence: u64,
    event: Event,
}

/// What will happen, earliest first.
#[derive(Default)]
pub(super) struct EventQueue {
    heap: BinaryHeap<Entry>,
    sequence: u64,
}

impl EventQueue {
    pub(super) fn push(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.heap.push(Entry { at, sequence: self.sequence, event });
    }

    pub(super) fn push_answer(&mut self, at: Nanos, node: &Arc<Node>, qp: &Arc<QueuePair>) {
        self.push(at, Event::Answer(Arc::downgrade(node), Arc::downgrade(qp)));
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|entry| entry.at)
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|entry| entry.event)
    }
}

impl Ord for Entry {
    /// The heap gives the greatest first, so the earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Entry {}
