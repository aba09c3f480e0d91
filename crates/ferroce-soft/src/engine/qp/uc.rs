use super::Cx;
use super::message::{Fault, Incoming};
use crate::engine::count;
use ferroce_verbs::{QpType, WcStatus};
use ferroce_wire::{Headers, Position, psn_add};

/// UC takes what comes: a packet out of sequence ends the message that is under way, unreported, and the next message
/// begins at the next first packet (IBTA 9.8.2.2).
#[derive(Debug, Default)]
pub(super) struct UcReceiver {
    /// The PSN that comes next.
    expected: u32,
    pub(super) incoming: Incoming,
}

impl UcReceiver {
    pub(super) fn reset(&mut self, rq_psn: u32) {
        self.expected = rq_psn;
        self.incoming.reset();
    }

    /// Takes in one packet; returns how the receive of its message failed, if that breaks the queue pair.
    pub(super) fn on_request(&mut self, cx: &Cx<'_>, headers: &Headers, payload: &[u8]) -> Option<WcStatus> {
        debug_assert_eq!(cx.qp.qp_type, QpType::Uc);
        let in_sequence = headers.bth.psn == self.expected;
        self.expected = psn_add(headers.bth.psn, 1);
        let begins = matches!(headers.bth.opcode.position(), Position::First | Position::Only);
        if begins || !in_sequence {
            self.incoming.abandon();
        }
        if !begins && !self.incoming.in_message() {
            return None;
        }
        match self.incoming.accept(cx, headers, payload) {
            Ok(_) => None,
            Err(Fault::NotReady) => {
                count(&cx.engine.counters.no_recv_dropped);
                self.incoming.abandon();
                None
            }
            Err(Fault::TooLong) => Some(WcStatus::LocLenErr),
            Err(Fault::LocalProtection) => Some(WcStatus::LocProtErr),
            Err(Fault::RemoteAccess | Fault::InvalidRequest) => {
                self.incoming.abandon();
                None
            }
        }
    }
}
