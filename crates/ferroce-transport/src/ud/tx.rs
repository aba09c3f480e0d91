//! What goes out: how much may be in flight, what was lost, and when to say so.

use super::Nanos;
use super::config::{FIRST_RTO, FIRST_WINDOW, MAX_RTO, MAX_WINDOW, MIN_RTO, MIN_WINDOW};
use super::wire::Kind;
use std::collections::VecDeque;

/// A packet counts as lost once so many that were sent after it have arrived.
const REORDERING: u64 = 3;
/// Packets that may go by without one that asks for an acknowledgement.
const ASK_EVERY: u8 = 16;
/// Of how many packets that arrived the window grows by one, at least, once it does not grow fast any more: what a loss took away is back after
/// three round trips. One packet for each round trip would make up for it only after as many round trips as packets were taken away: where
/// one packet in a hundred is lost for other reasons than congestion, no more than seventeen would be in flight. Of a queue that overflows
/// this loses a few packets in a hundred. Senders that lose together keep the proportion of their windows: fairness among them is given up.
const GROW_EVERY: u32 = 8;
/// Packets that are gathered while others are in flight, to be sent together.
const GATHER: usize = 16;

#[derive(Debug)]
struct Packet {
    kind: Kind,
    body: Vec<u8>,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Not sent yet.
    Queued,
    /// Sent, as the `order`th of all, and not heard of.
    Sent { order: u64, at: Nanos, again: bool },
    /// To be sent again.
    Lost,
    /// It arrived, before others.
    Arrived,
}

/// The sending side of a session.
#[derive(Debug)]
pub(super) struct TxWindow {
    /// The PSN of the first of `packets`.
    base: u32,
    packets: VecDeque<Packet>,
    /// How many of `packets` were sent at least once.
    begun: usize,
    in_flight: u32,
    /// The most that were in flight in the last round trip, and in this one, which is over once so many have arrived.
    most: [u16; 2],
    round: u16,
    /// How many of `packets` are to be sent again.
    lost: u32,
    /// How many packets were ever sent.
    order: u64,
    /// Packets that may be in flight, in 256ths.
    window: u32,
    /// Where the window stops growing fast.
    threshold: u32,
    /// Losses among what was sent before this are part of the last one.
    cut_before: u64,
    rtt: Option<Rtt>,
    /// Timeouts since something was acknowledged.
    backoff: u8,
    /// When the retransmission timer fires.
    rto_at: Option<Nanos>,
    unasked: u8,
    /// The packet before this PSN asks for an acknowledgement, or one was asked for in its place.
    asked: u32,
    retransmissions: u64,
}

#[derive(Clone, Copy, Debug)]
struct Rtt {
    smoothed: Nanos,
    variation: Nanos,
}

const ONE: u32 = 256;

/// A packet to be sent now.
pub(super) struct Outgoing<'a> {
    pub(super) psn: u32,
    pub(super) kind: Kind,
    pub(super) body: &'a [u8],
    pub(super) ack_request: bool,
}

impl TxWindow {
    pub(super) fn new() -> Self {
        Self {
            base: 0,
            packets: VecDeque::new(),
            begun: 0,
            in_flight: 0,
            most: [0; 2],
            round: 0,
            lost: 0,
            order: 0,
            window: FIRST_WINDOW * ONE,
            threshold: MAX_WINDOW * ONE,
            cut_before: 0,
            rtt: None,
            backoff: 0,
            rto_at: None,
            unasked: 0,
            asked: 0,
            retransmissions: 0,
        }
    }

    /// The PSN of what is queued next.
    pub(super) fn tail(&self) -> u32 {
        self.base.wrapping_add(self.packets.len() as u32)
    }

    /// Whether all before `psn` was acknowledged. It must have been the tail once.
    pub(super) fn is_acknowledged(&self, psn: u32) -> bool {
        self.base.wrapping_sub(psn) as i32 >= 0
    }

    /// The peer is to say that it has all that is queued, once for each tail; whether it has to be asked by itself, as the last packet has left without
    /// asking. Should that be lost, retransmissions ask.
    pub(super) fn ask(&mut self) -> bool {
        let tail = self.tail();
        let news = self.asked != tail;
        self.asked = tail;
        news && self.begun == self.packets.len()
    }

    /// Whether nothing waits to be sent or acknowledged.
    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Whether one more can be queued.
    pub(super) fn has_room(&self) -> bool {
        self.packets.len() < MAX_WINDOW as usize
    }

    /// Packets sent again.
    pub(super) fn retransmissions(&self) -> u64 {
        self.retransmissions
    }

    /// The PSN of the oldest packet that is not acknowledged.
    pub(super) fn base(&self) -> u32 {
        self.base
    }

    /// Queues a packet; returns its PSN.
    pub(super) fn push(&mut self, kind: Kind, body: Vec<u8>) -> u32 {
        let psn = self.tail();
        self.packets.push_back(Packet { kind, body, fate: Fate::Queued });
        psn
    }

    /// Whether something may be sent now.
    pub(super) fn can_send(&self) -> bool {
        (self.lost != 0 || self.begun != self.packets.len()) && self.in_flight < self.window / ONE
    }

    /// Whether what may be sent is better sent together with what may follow: others are in flight, so there is an acknowledgement to come that
    /// sees to it, and there are few.
    pub(super) fn gathers(&self) -> bool {
        self.in_flight != 0 && self.lost == 0 && self.packets.len() - self.begun < GATHER
    }

    /// The next packet to send; it counts as sent.
    pub(super) fn next(&mut self, now: Nanos) -> Option<Outgoing<'_>> {
        if !self.can_send() {
            return None;
        }
        let again = self.lost != 0;
        let at = match again {
            true => self.packets.iter().position(|packet| packet.fate == Fate::Lost)?,
            false => self.begun,
        };
        if again {
            self.lost -= 1;
            self.retransmissions += 1;
        } else {
            self.begun += 1;
        }
        self.order += 1;
        self.in_flight += 1;
        self.most[1] = self.most[1].max(self.in_flight as u16);
        self.unasked += 1;
        // The last that may be sent before an answer has to ask for one; the last for now can wait for the peer to say what arrived.
        let full = self.in_flight >= self.window / ONE;
        let psn = self.base.wrapping_add(at as u32);
        let ack_request = again || self.unasked >= ASK_EVERY || full || psn.wrapping_add(1) == self.asked;
        if ack_request {
            self.unasked = 0;
        }
        let deadline = now + self.rto();
        self.rto_at.get_or_insert(deadline);
        let packet = &mut self.packets[at];
        packet.fate = Fate::Sent { order: self.order, at: now, again };
        Some(Outgoing { psn, kind: packet.kind, body: &packet.body, ack_request })
    }

    /// All before `ack` arrived, and of those after it what `sack` says. False if that was never sent: the acknowledgement is a lie,
    /// or of another session, and nothing was done.
    pub(super) fn acknowledge(&mut self, now: Nanos, ack: u32, sack: &[u8]) -> bool {
        let count = ack.wrapping_sub(self.base) as i32;
        if count < 0 {
            // It was overtaken by a later one.
            return true;
        }
        let count = count as usize;
        let last_bit =
            sack.iter().rposition(|byte| *byte != 0).map(|at| 8 * at + 7 - sack[at].leading_zeros() as usize);
        if count > self.begun || last_bit.is_some_and(|bit| count + 1 + bit >= self.begun) {
            return false;
        }
        let (mut newest, mut arrived, mut sample) = (0, 0, None);
        let mut note = |fate: Fate, in_flight: &mut u32, lost: &mut u32| match fate {
            Fate::Sent { order, at, again } => {
                *in_flight -= 1;
                arrived += 1;
                newest = newest.max(order);
                if !again {
                    sample = Some(now.saturating_sub(at));
                }
            }
            // It was only late.
            Fate::Lost => {
                *lost -= 1;
                arrived += 1;
            }
            Fate::Queued | Fate::Arrived => {}
        };
        for packet in self.packets.drain(..count) {
            note(packet.fate, &mut self.in_flight, &mut self.lost);
        }
        self.begun -= count;
        self.base = ack;
        let bits = (0..8 * sack.len()).filter(|bit| sack[bit / 8] >> (bit % 8) & 1 != 0);
        for bit in bits {
            let packet = &mut self.packets[bit + 1];
            note(packet.fate, &mut self.in_flight, &mut self.lost);
            packet.fate = Fate::Arrived;
        }
        if let Some(sample) = sample {
            self.measure(sample);
        }
        if arrived != 0 {
            self.backoff = 0;
            self.round = self.round.saturating_sub(arrived as u16);
            if self.round == 0 {
                self.most = [self.most[1], self.in_flight as u16];
                self.round = self.in_flight as u16;
            }
            // A window that is not used says nothing of what the path takes (RFC 7661).
            let used = self.most[0].max(self.most[1]);
            if 2 * u32::from(used) >= self.window / ONE {
                self.grow(arrived);
            }
        }
        self.find_losses(newest);
        if arrived != 0 || self.in_flight == 0 {
            self.rto_at = (self.in_flight != 0).then(|| now + self.rto());
        }
        true
    }

    fn find_losses(&mut self, newest: u64) {
        let mut cut = false;
        for packet in self.packets.iter_mut().take(self.begun) {
            if let Fate::Sent { order, .. } = packet.fate
                && order + REORDERING <= newest
            {
                packet.fate = Fate::Lost;
                self.lost += 1;
                self.in_flight -= 1;
                cut |= order > self.cut_before;
            }
        }
        if cut {
            self.cut_before = self.order;
            self.window = (self.window / 10 * 7).max(MIN_WINDOW * ONE);
            self.threshold = self.window;
        }
    }

    fn grow(&mut self, packets: u32) {
        let by = match self.window < self.threshold {
            true => packets * ONE,
            // At least one in each round trip.
            false => (packets * ONE / GROW_EVERY).max(packets * ONE * ONE / self.window),
        };
        self.window = (self.window + by).min(MAX_WINDOW * ONE);
    }

    fn measure(&mut self, sample: Nanos) {
        // RFC 6298.
        self.rtt = Some(match self.rtt {
            None => Rtt { smoothed: sample, variation: sample / 2 },
            Some(Rtt { smoothed, variation }) => Rtt {
                smoothed: (7 * smoothed + sample) / 8,
                variation: (3 * variation + smoothed.abs_diff(sample)) / 4,
            },
        });
    }

    fn rto(&self) -> Nanos {
        let rto = self.rtt.map_or(FIRST_RTO, |rtt| (rtt.smoothed + 4 * rtt.variation).clamp(MIN_RTO, MAX_RTO));
        (rto << self.backoff.min(16)).min(MAX_RTO)
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.rto_at
    }

    /// Gives back the room of a burst that is over: an idle endpoint needs none.
    pub(super) fn rest(&mut self) {
        if self.packets.is_empty() {
            self.packets = VecDeque::new();
        }
    }

    /// The retransmission timer fired: what is in flight is lost, and the peer may be slow.
    pub(super) fn on_timeout(&mut self, now: Nanos) {
        if self.rto_at.is_none_or(|at| at > now) {
            return;
        }
        self.backoff = self.backoff.saturating_add(1);
        self.rto_at = None;
        for packet in self.packets.iter_mut().take(self.begun) {
            if matches!(packet.fate, Fate::Sent { .. }) {
                packet.fate = Fate::Lost;
                self.lost += 1;
            }
        }
        self.in_flight = 0;
        self.cut_before = self.order;
        self.threshold = (self.window / 2).max(MIN_WINDOW * ONE);
        self.window = MIN_WINDOW * ONE;
    }
}

#[cfg(test)]
mod tests {
    use super::super::rx::RxWindow;
    use super::*;

    const MS: Nanos = 1_000_000;

    fn window(packets: u8) -> TxWindow {
        let mut tx = TxWindow::new();
        for body in 0..packets {
            tx.push(Kind::Data { am: 0 }, vec![body]);
        }
        tx
    }

    fn drain(tx: &mut TxWindow, now: Nanos) -> Vec<u32> {
        std::iter::from_fn(|| tx.next(now).map(|out| out.psn)).collect()
    }

    #[test]
    fn three_later_arrivals_make_a_loss_and_one_cut() {
        let mut tx = window(10);
        assert_eq!(drain(&mut tx, 0), (0..10).collect::<Vec<_>>());
        let before = tx.window;
        // 1 and 3 are missing; two after 3 are not enough.
        assert!(tx.acknowledge(MS, 1, &[0b1101]));
        assert_eq!(drain(&mut tx, MS), [1]);
        assert!(tx.window < before + 4 * ONE);
        let cut = tx.window;
        assert!(tx.acknowledge(MS, 1, &[0b1_1101]));
        assert_eq!(drain(&mut tx, MS), [3]);
        assert!(tx.window > cut, "one loss event, one cut");
        // What was sent again is lost again when later ones arrive.
        tx.push(Kind::Data { am: 0 }, vec![]);
        tx.push(Kind::Data { am: 0 }, vec![]);
        assert_eq!(drain(&mut tx, MS), [10, 11]);
        assert!(tx.acknowledge(2 * MS, 2, &[0b1111_1110]));
        assert_eq!(drain(&mut tx, MS), vec![0_u32; 0]);
        assert!(tx.acknowledge(2 * MS, 12, &[]));
        assert!(tx.is_empty() && tx.deadline().is_none() && tx.in_flight == 0 && tx.lost == 0);
    }

    #[test]
    fn what_was_never_sent_cannot_be_acknowledged() {
        let mut tx = window(4);
        assert!(!tx.acknowledge(0, 1, &[]));
        drain(&mut tx, 0);
        assert!(!tx.acknowledge(0, 5, &[]));
        assert!(!tx.acknowledge(0, 0, &[0b1000]));
        assert!(!tx.acknowledge(0, 1 << 31, &[]) || tx.base == 0);
        assert!(tx.acknowledge(0, 0, &[0b100]));
        assert!(tx.acknowledge(0, 2, &[]));
        assert!(tx.acknowledge(0, 1, &[]), "an old one is no lie");
        assert_eq!(tx.base(), 2);
        assert!(tx.acknowledge(0, 4, &[0; 100]));
        assert!(tx.is_empty());
    }

    #[test]
    fn timeouts_come_later_each_time() {
        let mut tx = window(2);
        let mut now = 0;
        let mut waited = vec![];
        for _ in 0..8 {
            drain(&mut tx, now);
            let at = tx.deadline().unwrap();
            waited.push(at - now);
            tx.on_timeout(at - 1);
            assert_eq!(tx.lost, 0);
            tx.on_timeout(at);
            assert_eq!((tx.in_flight, tx.window), (0, MIN_WINDOW * ONE));
            now = at;
        }
        assert!(waited.is_sorted() && waited[1] == 2 * waited[0] && *waited.last().unwrap() == MAX_RTO, "{waited:?}");
    }

    /// Sends through a network that has a round trip of one millisecond, and loses what `loses` says of the nth of all packets and the nth of its
    /// round trip. How many packets arrived, and how many were sent, in each of the last hundred round trips, on average.
    fn over(loses: impl Fn(usize, usize) -> bool) -> (usize, usize) {
        const ROUNDS: usize = 1000;
        const LAST: usize = 100;
        let (mut tx, mut rx) = (TxWindow::new(), RxWindow::default());
        let (mut nth, mut sent, mut arrived) = (0, 0, 0);
        for round in 0..ROUNDS {
            round_trip(&mut tx, &mut rx, round, usize::MAX, |at| {
                nth += 1;
                let arrives = !loses(nth, at);
                if round >= ROUNDS - LAST {
                    sent += 1;
                    arrived += usize::from(arrives);
                }
                arrives
            });
        }
        (arrived / LAST, sent / LAST)
    }

    /// One round trip of a millisecond, with `most` packets more if there is room; `arrives` says which of those that are sent do.
    fn round_trip(
        tx: &mut TxWindow,
        rx: &mut RxWindow,
        round: usize,
        most: usize,
        mut arrives: impl FnMut(usize) -> bool,
    ) {
        let now = round as Nanos * MS;
        for _ in 0..most {
            if !tx.has_room() {
                break;
            }
            tx.push(Kind::Data { am: 0 }, vec![]);
        }
        tx.on_timeout(now);
        for (at, psn) in drain(tx, now).into_iter().enumerate() {
            if arrives(at) {
                rx.receive(now, (psn, Kind::Data { am: 0 }, false), usize::MAX, &[], |_, _| {});
            }
        }
        assert!(tx.acknowledge(now + MS, rx.expected(), &rx.sack()));
    }

    #[test]
    fn losses_that_are_no_congestion_leave_a_window_to_work_with() {
        let (arrived, _) = over(|nth, _| nth % 100 == 0);
        assert!(arrived >= 25, "{arrived} packets a round trip");
        let (arrived, _) = over(|nth, _| nth % 1000 == 0);
        assert!(arrived >= 200, "{arrived} packets a round trip");
    }

    #[test]
    fn a_queue_that_overflows_is_kept_full_and_not_flooded() {
        for room in [4, 20, 100, 500] {
            let (arrived, sent) = over(|_, at| at >= room);
            assert!(arrived >= room * 3 / 4, "{arrived} packets of {room}");
            assert!(sent <= room * 21 / 20, "{sent} packets where there is room for {room}");
        }
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let (mut tx, mut rx) = (TxWindow::new(), RxWindow::default());
        let mut grown = |rounds: std::ops::Range<usize>, most: usize| {
            // One is lost, early on.
            rounds.for_each(|round| round_trip(&mut tx, &mut rx, round, most, |at| (round, at) != (3, 0)));
            tx.window / ONE
        };
        let used = grown(0..10, 1000);
        let later = grown(10..1000, 4);
        assert!(used >= 20 && later < 2 * used, "{used} packets, and {later} without any use of them");
    }

    #[test]
    fn the_window_bounds_what_is_in_flight() {
        let mut tx = window(200);
        assert_eq!(drain(&mut tx, 0).len(), FIRST_WINDOW as usize);
        assert!(tx.acknowledge(MS, FIRST_WINDOW, &[]));
        assert_eq!(drain(&mut tx, MS).len(), 2 * FIRST_WINDOW as usize);
        for _ in 0..2000 {
            tx.push(Kind::Fin, vec![]);
        }
        assert!(!tx.has_room());
    }
}
