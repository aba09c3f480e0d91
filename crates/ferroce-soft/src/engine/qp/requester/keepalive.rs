//! Whether the peer of an idle connection is still there.
//!
//! Who has nothing to send never hears that its peer is gone: no retry counter runs out, and a reliable connection has no sign of life of its
//! own. So an idle queue pair asks for one: with an empty SEND that has the PSN before its next. To the peer that is a duplicate, which it
//! acknowledges (IBTA 9.7.5.1.2; `duplicate_request` of the kernel's rxe) whatever rights it gave and whether or not it has a receive, and which
//! changes nothing, there or here. Only silence of a peer that is known to answer ends a connection.

use super::super::Cx;
use super::super::emit::{Emitted, Header, emit_bare};
use super::Requester;
use crate::engine::tx::PacketTx;
use crate::engine::{Nanos, count};
use ferroce_verbs::{QpState, QpType};
use ferroce_wire::{Ext, Opcode, psn_sub};

/// Questions without an answer until a peer counts as gone.
const QUESTIONS: u8 = 4;

/// The peer of an idle connection does not answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::qp) struct PeerLost;

/// What is known of an idle peer.
#[derive(Debug, Default)]
pub(super) struct Keepalive {
    /// Something came from it since the last look.
    heard: bool,
    /// Questions that it has not answered.
    unanswered: u8,
    /// One is to be asked.
    ask: bool,
    /// One was asked.
    asked: bool,
    /// When to look next.
    next: Option<Nanos>,
    /// When to find out whether the peer answers, if that is not known yet.
    prove_at: Option<Nanos>,
}

impl Requester {
    /// Something came from the peer.
    #[inline]
    pub(in crate::engine::qp) fn heard(&mut self) {
        self.keepalive.heard = true;
    }

    /// A connection begins: its peer has just been heard of.
    pub(super) fn start_keepalive(&mut self) {
        self.keepalive = Keepalive { heard: true, ..Keepalive::default() };
    }

    /// How long a peer may be silent until it is asked, if it is to be asked at all.
    fn patience(cx: &Cx<'_>) -> Option<Nanos> {
        let asks = cx.qp.qp_type == QpType::Rc && cx.conn.timeout != 0 && cx.conn.state == QpState::Rts;
        cx.engine.keepalive.filter(|_| asks)
    }

    /// When to look whether the peer was heard of, while nothing else is waited for.
    pub(super) fn keepalive_deadline(&self, cx: &Cx<'_>, now: Nanos) -> Option<Nanos> {
        let patience = Self::patience(cx)?;
        Some(self.keepalive.next.unwrap_or(now + patience))
    }

    /// Looks whether the peer was heard of, while nothing else is waited for.
    pub(super) fn on_idle(&mut self, cx: &Cx<'_>, now: Nanos) -> Result<(), PeerLost> {
        let Some(patience) = Self::patience(cx) else { return Ok(()) };
        let answers = cx.conn.av.as_ref().is_some_and(|av| av.answers_keepalive());
        let keepalive = &mut self.keepalive;
        if std::mem::take(&mut keepalive.heard) {
            (keepalive.unanswered, keepalive.next) = (0, Some(now + patience));
            // A connection that is never silent before its peer dies has to have found out as well.
            if !answers && keepalive.prove_at.is_none_or(|at| at <= now) {
                keepalive.ask |= keepalive.prove_at.is_some();
                keepalive.prove_at = Some(now + patience);
            }
        } else if keepalive.next.is_none_or(|next| next <= now) {
            if keepalive.unanswered == QUESTIONS {
                if answers {
                    count(&cx.engine.counters.keepalive_failures);
                    return Err(PeerLost);
                }
                (keepalive.unanswered, keepalive.next) = (0, Some(now + patience));
            } else {
                keepalive.unanswered += 1;
                keepalive.ask = true;
                keepalive.next = Some(now + patience / 4);
            }
        }
        Ok(())
    }

    /// Asks, if it is time to.
    pub(super) fn ask(&mut self, cx: &Cx<'_>, tx: &mut dyn PacketTx) {
        // Alone: what is in flight, or about to be, would be acknowledged along with it.
        if self.keepalive.ask && self.una == self.sent && self.queue.is_empty() {
            self.keepalive.ask = false;
            let psn = psn_sub(self.una, 1);
            let header = Header { ack_request: true, ..Header::new(Opcode::RcSendOnly, psn, Ext::None) };
            if emit_bare(cx, tx, header) == Emitted::Yes {
                self.keepalive.asked = true;
                count(&cx.engine.counters.keepalive_probes);
            }
        }
    }

    /// An acknowledgement of what was acknowledged before came: the answer, if there was a question.
    pub(super) fn on_stale_ack(&mut self, cx: &Cx<'_>, psn: u32) {
        if self.keepalive.asked
            && psn == psn_sub(self.una, 1)
            && let Some(av) = &cx.conn.av
        {
            av.note_keepalive_answer();
        }
    }
}
