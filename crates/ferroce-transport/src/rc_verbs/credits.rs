//! Flow control: how many messages this side may send, and what it has promised the peer.
//!
//! All counts are running totals modulo 2^32; differences stay far below that.

use super::wire::{HARD, SOFT};

/// Both directions of one connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    /// Messages that this side has sent, and may have sent in all.
    sent: u32,
    limit: u32,
    /// How far the limit is ahead of what the peer has taken.
    peer_window: u32,
    /// Messages that this side has taken, and the total that it last granted.
    taken: u32,
    granted: u32,
    window: u32,
    /// The peer wants a grant with the next message.
    asked: bool,
    /// How often the peer was asked for a grant at once, and may not have granted yet.
    wanted: u32,
}

/// Grants that are asked for within one window, and some.
const LEAST_WANTED: u32 = 4;

/// A message or a grant that no honest peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excess;

impl Credits {
    /// `window` is what this side takes, `peer_window` what the peer does.
    pub(super) const fn new(window: u32, peer_window: u32) -> Self {
        Self { sent: 0, limit: peer_window, peer_window, taken: 0, granted: window, window, asked: false, wanted: 0 }
    }

    /// What the peer takes is known only now. What came before counts.
    pub(super) const fn set_peer_window(&mut self, peer_window: u32) {
        self.peer_window = peer_window;
        self.limit = self.sent.wrapping_add(peer_window);
    }

    /// Messages that may be sent.
    #[inline]
    pub(super) const fn available(&self) -> u32 {
        self.limit.wrapping_sub(self.sent)
    }

    /// What the next message asks for: at half of the window for a grant some time, at a quarter and with the last for one at once.
    #[inline]
    pub(super) const fn asks(&self) -> u8 {
        let left = self.available();
        if left == self.peer_window / 4 || left <= 1 {
            HARD
        } else if left == self.peer_window / 2 {
            SOFT
        } else {
            0
        }
    }

    /// The total to send with the next message, if the peer wants one.
    #[inline]
    pub(super) const fn grant_with(&self) -> Option<u32> {
        if self.asked { Some(self.total()) } else { None }
    }

    /// What the peer may have sent in all.
    #[inline]
    pub(super) const fn total(&self) -> u32 {
        self.taken.wrapping_add(self.window)
    }

    /// A message was sent, which asked for `asks`.
    #[inline]
    pub(super) const fn on_sent(&mut self, asks: u8) {
        self.sent = self.sent.wrapping_add(1);
        // Those that messages granted are not known from others. More than one window's cannot be open: the next begins with a grant.
        if asks & HARD != 0 && (self.wanted < self.peer_window || self.wanted < LEAST_WANTED) {
            self.wanted += 1;
        }
    }

    /// A grant came by itself, which takes a receive and no credit; whether one was asked for.
    pub(super) const fn on_grant_alone(&mut self) -> Result<(), Excess> {
        match self.wanted.checked_sub(1) {
            Some(wanted) => {
                self.wanted = wanted;
                Ok(())
            }
            None => Err(Excess),
        }
    }

    /// The peer was told that it may have sent `total`.
    #[inline]
    pub(super) const fn on_granted(&mut self, total: u32) {
        self.granted = total;
        self.asked = false;
    }

    /// The peer said that this side may have sent `total`; whether that is more than before.
    pub(super) const fn on_grant(&mut self, total: u32) -> Result<bool, Excess> {
        if total.wrapping_sub(self.sent) > self.peer_window {
            // Behind what was sent: it is old. Else it promises what the peer cannot keep.
            return if (total.wrapping_sub(self.sent) as i32) < 0 { Ok(false) } else { Err(Excess) };
        }
        let more = (total.wrapping_sub(self.limit) as i32) > 0;
        if more {
            self.limit = total;
        }
        Ok(more)
    }

    /// A message came, which asks for `asks`; whether the peer kept to what it was granted.
    #[inline]
    pub(super) const fn on_message(&mut self, asks: u8) -> Result<(), Excess> {
        if self.granted.wrapping_sub(self.taken) == 0 {
            return Err(Excess);
        }
        self.taken = self.taken.wrapping_add(1);
        self.asked |= asks != 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two ends; the second takes, and grants as it is asked. `deliver` says how often each grant comes.
    fn stream(window: u32, messages: u32, mut deliver: impl FnMut(u32) -> u32) -> u32 {
        let (mut tx, mut rx) = (Credits::new(window, window), Credits::new(window, window));
        let (mut sent, mut grants, mut waiting) = (0, 0, Vec::new());
        while sent < messages {
            if tx.available() == 0 {
                let total = waiting.pop().expect("a grant was asked for at once");
                assert_eq!(tx.on_grant(total), Ok(true), "what it says is news");
                assert_eq!(tx.on_grant_alone(), Ok(()), "it was asked for");
                waiting.clear();
                continue;
            }
            let asks = tx.asks();
            tx.on_sent(asks);
            rx.on_message(asks).expect("within what was granted");
            sent += 1;
            if asks & HARD != 0 {
                let total = rx.total();
                rx.on_granted(total);
                grants += 1;
                for _ in 0..deliver(grants) {
                    waiting.push(total);
                }
            }
        }
        grants
    }

    #[test]
    fn a_stream_goes_on_with_few_grants() {
        for window in [1, 2, 3, 4, 16, 512] {
            let grants = stream(window, 10_000, |_| 1);
            assert!(window < 8 || grants < 10_000 / (window / 4), "{window}: {grants}");
        }
    }

    /// Report 6850: one grant that is lost stalls nobody, and one that comes twice grants nothing twice.
    #[test]
    fn report_6850_a_lost_or_doubled_grant_is_harmless() {
        // Of each pair, asked for at a quarter and with the last, the first is lost.
        stream(64, 10_000, |grant| u32::from(grant % 2 == 0));
        let mut credits = Credits::new(8, 8);
        for _ in 0..8 {
            credits.on_sent(0);
        }
        assert_eq!(credits.on_grant(12), Ok(true));
        assert_eq!(credits.on_grant(12), Ok(false));
        assert_eq!(credits.on_grant(10), Ok(false), "an old one takes nothing back");
        assert_eq!(credits.available(), 4);
    }

    #[test]
    fn more_than_the_window_is_refused() {
        let mut credits = Credits::new(8, 8);
        assert_eq!(credits.on_grant(9), Err(Excess));
        for _ in 0..8 {
            assert_eq!(credits.on_message(0), Ok(()));
        }
        assert_eq!(credits.on_message(0), Err(Excess), "nine of eight");
        credits.on_granted(credits.total());
        assert_eq!(credits.on_message(0), Ok(()));
    }

    #[test]
    fn grants_that_nobody_asked_for_are_refused() {
        let mut credits = Credits::new(8, 8);
        assert_eq!(credits.on_grant_alone(), Err(Excess));
        for _ in 0..100 {
            credits.on_sent(HARD);
        }
        // Most of these came with messages, as far as this side knows.
        for _ in 0..8 {
            assert_eq!(credits.on_grant_alone(), Ok(()));
        }
        assert_eq!(credits.on_grant_alone(), Err(Excess));
    }

    #[test]
    fn totals_wrap() {
        let mut credits = Credits { sent: u32::MAX, limit: 3, taken: u32::MAX, granted: 7, ..Credits::new(8, 8) };
        assert_eq!(credits.available(), 4);
        assert_eq!(credits.on_grant(7), Ok(true));
        assert_eq!(credits.available(), 8);
        assert_eq!(credits.on_grant(u32::MAX - 5), Ok(false));
        assert_eq!((credits.on_message(SOFT), credits.grant_with()), (Ok(()), Some(8)));
    }
}
