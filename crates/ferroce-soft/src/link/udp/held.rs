//! Carrying out [`faults`](crate::link::fault) on the sending side.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use ferroce_wire::ICRC_LEN;
use parking_lot::Mutex;

use super::tx::UdpDst;
use crate::link::fault::{BitFlip, FaultInjector, FaultPlan, Verdict};

/// Most packets that are held back at a time; more are lost, as in a switch with a full queue.
const MAX_HELD: usize = 16_384;

/// The faults of one port and the packets that they hold back. Only there if faults were asked for: its lock is on
/// nobody's path otherwise.
#[derive(Debug)]
pub(super) struct Faults {
    state: Mutex<State>,
    epoch: Instant,
}

#[derive(Debug)]
struct State {
    injector: FaultInjector,
    held: BinaryHeap<Reverse<Held>>,
    /// Keeps packets that are due at the same time in order.
    next: u64,
}

/// A packet that is held back.
#[derive(Debug)]
pub(super) struct Held {
    due: Duration,
    number: u64,
    pub(super) dst: UdpDst,
    pub(super) corrupt: Option<BitFlip>,
    /// BTH to pad.
    pub(super) bytes: Vec<u8>,
}

impl Held {
    fn key(&self) -> (Duration, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// What is to be done with a packet now.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// Nothing: it was lost.
    Lost,
    /// Nothing: a copy was put aside.
    Held,
    /// Send it so often, the first copy with this fault.
    Send(u8, Option<BitFlip>),
}

impl Faults {
    pub(super) fn new(plan: FaultPlan) -> Self {
        Self {
            state: Mutex::new(State { injector: FaultInjector::new(plan), held: BinaryHeap::new(), next: 0 }),
            epoch: Instant::now(),
        }
    }

    /// Decides what becomes of a packet, BTH to pad, and puts it aside if it is to be late.
    pub(super) fn decide(&self, dst: &UdpDst, packet: &[u8]) -> Fate {
        let now = self.epoch.elapsed();
        let mut state = self.state.lock();
        let Verdict { copies, delay, corrupt } = state.injector.decide(now, packet.len() + ICRC_LEN);
        if copies == 0 || (!delay.is_zero() && state.held.len() >= MAX_HELD) {
            return Fate::Lost;
        }
        if delay.is_zero() {
            return Fate::Send(copies, corrupt);
        }
        for copy in 0..copies {
            let number = state.next;
            state.next += 1;
            state.held.push(Reverse(Held {
                due: now + delay,
                number,
                dst: *dst,
                corrupt: corrupt.filter(|_| copy == 0),
                bytes: packet.to_vec(),
            }));
        }
        Fate::Held
    }

    /// The next packet that is due, or else when the next one will be.
    pub(super) fn due(&self) -> Result<Held, Option<Instant>> {
        let mut state = self.state.lock();
        match state.held.peek() {
            None => Err(None),
            Some(Reverse(first)) if first.due > self.epoch.elapsed() => Err(Some(self.epoch + first.due)),
            Some(_) => state.held.pop().map(|Reverse(held)| held).ok_or(None),
        }
    }
}
