//! What comes in: in order, once.

use super::Nanos;
use super::config::{DELAYED_ACK, MAX_WINDOW};
use super::wire::{Kind, MAX_SACK};
use std::collections::VecDeque;

/// Packets that may go by without an acknowledgement.
const ACK_EVERY: u32 = 16;
/// A packet that has come, or a gap.
type Slot = Option<(Kind, Vec<u8>)>;

/// The receiving side of a session.
#[derive(Debug, Default)]
pub(super) struct RxWindow {
    /// The PSN that comes next.
    expected: u32,
    /// What came of those after it. The first is `expected + 1`.
    held: VecDeque<Slot>,
    /// Bytes that those take.
    held_bytes: usize,
    /// Packets since the last acknowledgement.
    unacked: u32,
    /// When one is due.
    ack_at: Option<Nanos>,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// It came before.
    Duplicate,
    /// It is beyond what may be sent, or there is no room to keep it until those before it come.
    Beyond,
    /// It waits for others, or was handed on with those that waited for it.
    Yes,
}

impl RxWindow {
    pub(super) fn expected(&self) -> u32 {
        self.expected
    }

    /// Bytes of what waits for others.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Takes in a packet of the sequence; hands on what is complete, in order. What must wait for others may take `room` more bytes.
    pub(super) fn receive(
        &mut self,
        now: Nanos,
        (psn, kind, ack_request): (u32, Kind, bool),
        room: usize,
        body: &[u8],
        mut deliver: impl FnMut(Kind, &[u8]),
    ) -> Taken {
        let ahead = psn.wrapping_sub(self.expected) as i32;
        if ahead < 0 {
            // The acknowledgement was lost.
            self.ack_at = Some(now);
            return Taken::Duplicate;
        }
        if ahead >= MAX_WINDOW as i32 {
            return Taken::Beyond;
        }
        self.unacked += 1;
        let due = if ack_request || ahead != 0 || self.unacked >= ACK_EVERY { now } else { now + DELAYED_ACK };
        self.ack_at = Some(self.ack_at.map_or(due, |at| at.min(due)));
        if ahead != 0 {
            let at = ahead as usize - 1;
            if self.held.get(at).is_some_and(Option::is_some) {
                return Taken::Duplicate;
            }
            let slots = (at + 1).saturating_sub(self.held.len());
            let more = slots * size_of::<Slot>() + body.len();
            if more > room {
                return Taken::Beyond;
            }
            if slots != 0 {
                self.held.resize_with(at + 1, || None);
            }
            self.held[at] = Some((kind, body.to_vec()));
            self.held_bytes += more;
            return Taken::Yes;
        }
        deliver(kind, body);
        self.expected = self.expected.wrapping_add(1);
        while let Some(next) = self.held.pop_front() {
            self.held_bytes -= size_of::<Slot>();
            let Some((kind, body)) = next else { break };
            self.held_bytes -= body.len();
            deliver(kind, &body);
            self.expected = self.expected.wrapping_add(1);
        }
        if self.held.is_empty() {
            // A session that is idle needs no room.
            self.held = VecDeque::new();
        }
        Taken::Yes
    }

    /// When an acknowledgement is due that nothing else carries.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.ack_at
    }

    /// An acknowledgement is asked for.
    pub(super) fn ask(&mut self, now: Nanos) {
        self.ack_at = Some(now);
    }

    /// One is being sent.
    pub(super) fn acknowledged(&mut self) {
        self.unacked = 0;
        self.ack_at = None;
    }

    /// A bit for each PSN after the expected one: whether it came.
    pub(super) fn sack(&self) -> Vec<u8> {
        let bytes = self.held.len().div_ceil(8).min(MAX_SACK);
        let mut bits = vec![0; bytes];
        for (at, held) in self.held.iter().enumerate().take(8 * bytes) {
            if held.is_some() {
                bits[at / 8] |= 1 << (at % 8);
            }
        }
        bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;

    fn take(rx: &mut RxWindow, psn: u32) -> (Taken, Vec<u8>) {
        let mut got = vec![];
        let taken = rx.receive(0, (psn, Kind::Data { am: 1 }, false), ROOM, &[psn as u8], |_, body| got.push(body[0]));
        (taken, got)
    }

    #[test]
    fn order_is_made_and_nothing_comes_twice() {
        let mut rx = RxWindow::default();
        assert_eq!(take(&mut rx, 0), (Taken::Yes, vec![0]));
        assert_eq!(take(&mut rx, 2), (Taken::Yes, vec![]));
        assert_eq!(take(&mut rx, 4), (Taken::Yes, vec![]));
        assert_eq!(take(&mut rx, 4), (Taken::Duplicate, vec![]));
        assert_eq!((rx.sack(), rx.expected()), (vec![0b101], 1));
        assert_eq!(take(&mut rx, 1), (Taken::Yes, vec![1, 2]));
        assert_eq!((rx.sack(), rx.expected()), (vec![0b1], 3));
        assert_eq!(take(&mut rx, 2), (Taken::Duplicate, vec![]));
        assert_eq!(take(&mut rx, 3), (Taken::Yes, vec![3, 4]));
        assert_eq!((rx.sack(), rx.expected()), (vec![], 5));
        assert_eq!(take(&mut rx, 5 + MAX_WINDOW), (Taken::Beyond, vec![]));
        assert_eq!(take(&mut rx, 5 + MAX_WINDOW - 1), (Taken::Yes, vec![]));
        assert_eq!(rx.sack().len(), MAX_SACK);
    }

    #[test]
    fn what_is_held_is_counted_and_bounded() {
        let mut rx = RxWindow::default();
        let mut hold = |psn: u32, len: usize, room: usize| {
            let taken = rx.receive(0, (psn, Kind::Data { am: 1 }, false), room, &vec![0; len], |_, _| {});
            (taken, rx.held_bytes())
        };
        let slot = size_of::<Slot>();
        assert_eq!(hold(2, 100, 100 + 2 * slot - 1), (Taken::Beyond, 0));
        assert_eq!(hold(2, 100, 100 + 2 * slot), (Taken::Yes, 100 + 2 * slot));
        assert_eq!(hold(2, 200, 0).0, Taken::Duplicate);
        // In its place, which is there already.
        assert_eq!(hold(1, 50, 50), (Taken::Yes, 150 + 2 * slot));
        assert_eq!(hold(5, 7, ROOM), (Taken::Yes, 157 + 5 * slot));
        // What is in order needs no room.
        assert_eq!(hold(0, 4000, 0), (Taken::Yes, 7 + 2 * slot));
        assert_eq!(hold(3, 4000, 0), (Taken::Yes, 7 + slot));
        assert_eq!(hold(4, 4000, 0), (Taken::Yes, 0));
        assert_eq!(rx.held.capacity(), 0);
    }

    #[test]
    fn the_sequence_goes_round() {
        let mut rx = RxWindow { expected: u32::MAX - 1, ..RxWindow::default() };
        assert_eq!(take(&mut rx, 0).1, vec![]);
        assert_eq!(take(&mut rx, u32::MAX).1, vec![]);
        assert_eq!(take(&mut rx, u32::MAX - 1).1, [254, 255, 0]);
        assert_eq!(rx.expected(), 1);
    }
}
