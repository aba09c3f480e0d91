//! What comes in: in order, once.

use super::Nanos;
use super::config::{DELAYED_ACK, MAX_WINDOW};
use super::wire::{Kind, MAX_SACK};
use std::collections::VecDeque;

/// Packets that may go by without an acknowledgement.
const ACK_EVERY: u32 = 16;

/// The receiving side of a session.
#[derive(Debug, Default)]
pub(super) struct RxWindow {
    /// The PSN that comes next.
    expected: u32,
    /// What came of those after it. The first is `expected + 1`.
    held: VecDeque<Option<(Kind, Vec<u8>)>>,
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
    /// It is beyond what may be sent.
    Beyond,
    /// It waits for others, or was handed on with those that waited for it.
    Yes,
}

impl RxWindow {
    pub(super) fn expected(&self) -> u32 {
        self.expected
    }

    /// Takes in a packet of the sequence; hands on what is complete, in order.
    pub(super) fn receive(
        &mut self,
        now: Nanos,
        (psn, kind, ack_request): (u32, Kind, bool),
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
            if self.held.len() <= at {
                self.held.resize_with(at + 1, || None);
            }
            if self.held[at].is_some() {
                return Taken::Duplicate;
            }
            self.held[at] = Some((kind, body.to_vec()));
            return Taken::Yes;
        }
        deliver(kind, body);
        self.expected = self.expected.wrapping_add(1);
        while let Some(next) = self.held.pop_front() {
            let Some((kind, body)) = next else { break };
            deliver(kind, &body);
            self.expected = self.expected.wrapping_add(1);
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

    fn take(rx: &mut RxWindow, psn: u32) -> (Taken, Vec<u8>) {
        let mut got = vec![];
        let taken = rx.receive(0, (psn, Kind::Data { am: 1 }, false), &[psn as u8], |_, body| got.push(body[0]));
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
    fn the_sequence_goes_round() {
        let mut rx = RxWindow { expected: u32::MAX - 1, ..RxWindow::default() };
        assert_eq!(take(&mut rx, 0).1, vec![]);
        assert_eq!(take(&mut rx, u32::MAX).1, vec![]);
        assert_eq!(take(&mut rx, u32::MAX - 1).1, [254, 255, 0]);
        assert_eq!(rx.expected(), 1);
    }
}
