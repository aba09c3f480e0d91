use super::Cx;
use super::message::{Fault, Incoming};
use crate::engine::count;
use crate::engine::payload::Payload;
use ferroce_verbs::{QpType, WcStatus};
use ferroce_wire::{Headers, Position, psn_add, psn_sub};

/// UC takes what comes: a packet out of sequence ends the message that is under way, unreported, and the next message
/// begins at the next first packet (IBTA 9.8.2.2).
///
/// The specification knows only networks that keep packets in order. UDP repeats and reorders them, so what comes late is
/// ignored as well: otherwise a message would be delivered twice, or after one that was sent later.
#[derive(Debug, Default)]
pub(super) struct UcReceiver {
    /// The PSN that comes next.
    expected: u32,
    /// A packet came in.
    established: bool,
    pub(super) incoming: Incoming,
}

/// A packet with one of this many PSNs before the expected one is late. Any other is ahead: all between was lost. A receiver that
/// was cut off for so long that the sequence came round to here ignores this many packets more.
const LATE: u32 = 1 << 16;

impl UcReceiver {
    pub(super) fn reset(&mut self, rq_psn: u32) {
        self.expected = rq_psn;
        self.established = false;
        self.incoming.reset();
    }

    /// Takes in one packet; returns how the receive of its message failed, if that breaks the queue pair.
    pub(super) fn on_request(&mut self, cx: &Cx<'_>, headers: &Headers, payload: Payload<'_>) -> Option<WcStatus> {
        debug_assert_eq!(cx.qp.qp_type, QpType::Uc);
        let behind = psn_sub(self.expected, headers.bth.psn);
        if (1..=LATE).contains(&behind) && self.established {
            count(&cx.engine.counters.duplicate_request);
            return None;
        }
        self.established = true;
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
            Err(Fault::RemoteAccess | Fault::InvalidRequest | Fault::Lost) => {
                self.incoming.abandon();
                None
            }
        }
    }
}
