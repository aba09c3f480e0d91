//! What is done about what was lost, and how the queue ends when that does not help.

use super::super::Cx;
use super::super::emit::{Emitted, emit};
use super::request::response_request;
use super::window::flow;
use super::{PeerLost, Requester, SendFailed};
use crate::engine::{Nanos, PacketTx, count};
use ferroce_verbs::{QpType, WcStatus, WorkCompletion};
use ferroce_wire::{psn_diff, psn_sub};

/// Why a send is sent again.
pub(super) enum Resend {
    Sequence,
    Timeout,
    Implied,
}

/// The peer was silent for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::qp) enum Silence {
    /// The send queue's head failed, as of [`SendFailed`].
    WhileSending,
    /// Nothing was outstanding.
    WhileIdle,
}

/// The longest timeout, as a multiple of what was set. It fires up to one period of the timer late.
const LONGEST_TIMEOUT: Nanos = 3;
/// How long nothing is heard until a packet is sent again, where packets are lost: up to twice that. Each time after that takes twice as
/// long as the one before.
const PROBE: Nanos = 1_000_000;

/// What was set.
fn timeout(cx: &Cx<'_>) -> Nanos {
    4096 << cx.conn.timeout
}

impl Requester {
    pub(super) fn resend(&mut self, cx: &Cx<'_>, why: Resend) -> Result<(), SendFailed> {
        // Packets beyond a gap that arrive twice or out of order make the peer report it more than once before anything sent
        // again can reach it. Only the first report counts as a retry (and as congestion); if going back does not help, the
        // ACK timer counts the rest. Without a timer every report has to, or there would be no end.
        let repeated = matches!(why, Resend::Sequence)
            && self.sequence_at.replace(self.una) == Some(self.una)
            && cx.conn.timeout != 0;
        // Nor does it count if an offer could not be taken: nothing is offered a second time.
        let declined = matches!(why, Resend::Sequence) && std::mem::take(&mut self.offered);
        if !repeated && !declined {
            if !matches!(why, Resend::Implied) {
                if self.retries == 0 {
                    count(&cx.engine.counters.retry_exceeded_err);
                    return self.fail(cx, WcStatus::RetryExcErr);
                }
                self.retries -= 1;
            }
            match (flow(cx), why) {
                (Some(flow), Resend::Timeout) => flow.timed_out(),
                (Some(flow), Resend::Sequence | Resend::Implied) => flow.lost(),
                (None, _) => {}
            }
        }
        self.rewind(cx);
        Ok(())
    }

    /// How long the timer runs: a timeout where nothing is lost, otherwise until a probe.
    pub(super) fn timer_period(&self, cx: &Cx<'_>) -> Nanos {
        if flow(cx).is_some() { timeout(cx).min(PROBE) } else { timeout(cx) }
    }

    /// Whether a probe may be sent, so long after the mark of the timer; something must be in flight.
    fn may_probe(&self, cx: &Cx<'_>, silent: Nanos) -> bool {
        // Each copy of what finds no receive is answered, and each answer that comes after its time is another retry.
        let counts = cx.conn.rnr_retry != 7 && self.queue.get(self.queue.head).takes_receive();
        silent >= PROBE << self.probes.min(32) && (self.probes == 0 || !counts)
    }

    /// Sends one packet again and asks for an acknowledgement. Without this only a timeout would help, which is a hundred times longer or
    /// more. Returns what became of it; `None` if there was nothing to send.
    ///
    /// The first time it is the last one that was sent. If what was lost is that packet, or the acknowledgement, it comes now; if it is the
    /// report of a gap, or what was sent again for it, the peer reports the gap again. Afterwards, or if the last is a read or atomic, it is
    /// the oldest one that is not acknowledged: whatever else was lost (a second probe, or the report of a gap, which the kernel's rxe makes
    /// once only), that one gets on. Reads are left to the timeout.
    pub(super) fn send_probe(&self, cx: &Cx<'_>, tx: &mut dyn PacketTx) -> Option<Emitted> {
        // All of it is to be sent again anyway.
        if self.tx == self.una || self.rnr_until.is_some() {
            return None;
        }
        let begun = self.queue.next != self.queue.tail && self.queue.get(self.queue.next).first_psn != self.tx;
        let newest = if begun { self.queue.next } else { self.queue.next.wrapping_sub(1) };
        let (position, psn) = match self.probes {
            0 | 1 if !self.queue.get(newest).has_response() => (newest, psn_sub(self.tx, 1)),
            _ => (self.queue.head, self.una),
        };
        let wqe = self.queue.get(position);
        // A read is not asked for twice lightly: the peer may have heard, by another way, that it is complete, and have taken its memory away.
        // To it the second request is one for memory that is not there, which ends the connection.
        if wqe.failed.is_some() || wqe.is_read() {
            return None;
        }
        if wqe.has_response() {
            let (header, _) = response_request(cx, wqe, self.queue.sges(position), psn)?;
            Some(emit(tx, cx.conn.peer()?, header, 0, |_| true))
        } else {
            Some(self.emit_part(cx, tx, position, psn_diff(psn, wqe.first_psn) as u32, true))
        }
    }

    /// Everything from the oldest unacknowledged packet on is sent again.
    fn rewind(&mut self, cx: &Cx<'_>) {
        self.release_flow(cx);
        self.tx = self.una;
        self.queue.next = self.queue.head;
        self.reads = 0;
        self.unasked = 0;
    }

    /// No send begins any more. What was sent without asking for an acknowledgement, as more was to follow, is sent again and asks:
    /// otherwise only the ACK timer would tell that it is complete.
    pub(in crate::engine::qp) fn drain(&mut self, cx: &Cx<'_>) {
        let follows = self.queue.next != self.queue.tail && self.tx != self.queue.get(self.queue.next).first_psn;
        if cx.qp.qp_type == QpType::Rc && self.unasked != 0 && !follows {
            self.rewind(cx);
        }
    }

    pub(super) fn on_rnr(&mut self, cx: &Cx<'_>, now: Nanos, timer: u8) -> Result<(), SendFailed> {
        count(&cx.engine.counters.rcvd_rnr_err);
        // The same answer again, as nothing was sent since.
        if self.rnr_until.is_some() {
            return Ok(());
        }
        // 7 means for ever (IBTA 9.7.5.2.8).
        if cx.conn.rnr_retry != 7 {
            if self.rnr_retries == 0 {
                count(&cx.engine.counters.rnr_nak_retry_err);
                return self.fail(cx, WcStatus::RnrRetryExcErr);
            }
            self.rnr_retries -= 1;
        }
        // The peer answers, so the next loss is the first again: a long wait for a receive must not use up the retries
        // one lost answer after the other.
        self.retries = cx.conn.retry_cnt;
        // Packets from before the wait that come twice may look like a gap after it, which is none and uses up no retry.
        self.sequence_at = Some(self.una);
        self.rewind(cx);
        let until = now + ferroce_verbs::rnr_timer(timer).as_nanos() as Nanos;
        self.rnr_until = Some(until);
        // It is silent from then on. How often it was asked before is not forgotten: it may be that answers take that long.
        if self.timer_mark.replace((self.una, until)).is_none_or(|(una, _)| una != self.una) {
            self.probes = 0;
        }
        Ok(())
    }

    /// The timer that [`Requester::deadline`] asked for has expired.
    pub(in crate::engine::qp) fn on_timer(&mut self, cx: &Cx<'_>, now: Nanos) -> Result<(), Silence> {
        if let Some(until) = self.rnr_until {
            if now >= until {
                self.rnr_until = None;
            }
            return Ok(());
        }
        self.active = false;
        if !self.outstanding() {
            self.timer_mark = None;
            return self.on_idle(cx, now).map_err(|PeerLost| Silence::WhileIdle);
        }
        let marked = match self.timer_mark {
            Some((una, at)) if una == self.una => at,
            _ => {
                self.timer_mark = Some((self.una, now));
                self.probes = 0;
                return Ok(());
            }
        };
        // The specification allows one to four times what was set (IBTA 9.7.6.1.3), from the last progress; `marked` is up to a period
        // later. Each timeout after the first, while nothing helps, takes longer: what is sent again to a peer that is only slow
        // makes it slower. Where probes find out what was lost, the first can wait longer, too.
        let timeouts = Nanos::from(cx.conn.retry_cnt.saturating_sub(self.retries));
        let first = if flow(cx).is_some() { 2 } else { 1 };
        if now.saturating_sub(marked) < timeout(cx) * (first + timeouts).min(LONGEST_TIMEOUT) {
            if flow(cx).is_some() && self.tx != self.una && self.may_probe(cx, now.saturating_sub(marked)) {
                self.probes = self.probes.saturating_add(1);
                self.probe = true;
            }
            return Ok(());
        }
        self.timer_mark = Some((self.una, now));
        self.probes = 0;
        count(&cx.engine.counters.local_ack_timeout_err);
        self.implied_at = None;
        self.resend(cx, Resend::Timeout).map_err(|SendFailed| Silence::WhileSending)
    }

    /// Completes the head with `status`.
    pub(super) fn fail(&mut self, cx: &Cx<'_>, status: WcStatus) -> Result<(), SendFailed> {
        if !self.queue.is_empty() {
            let wqe = self.queue.take_head();
            let mut wc = WorkCompletion::new(wqe.wr_id, wqe.wc_opcode(), cx.qp.qpn);
            wc.status = status;
            cx.qp.send_cq.push(wc, true);
        }
        Err(SendFailed)
    }

    /// Completes all that is queued as flushed.
    pub(in crate::engine::qp) fn flush(&mut self, cx: &Cx<'_>) {
        self.grant.renew();
        self.release_flow(cx);
        self.rnr_until = None;
        while !self.queue.is_empty() {
            let _ = self.fail(cx, WcStatus::WrFlushErr);
        }
        self.queue.next = self.queue.head;
        self.una = self.next_psn;
        self.tx = self.next_psn;
        self.sent = self.next_psn;
        self.reads = 0;
        self.active = false;
    }

    pub(super) fn release_flow(&mut self, cx: &Cx<'_>) {
        let bytes = std::mem::take(&mut self.in_flight);
        if let Some(flow) = flow(cx) {
            flow.left(bytes);
        }
    }
}
