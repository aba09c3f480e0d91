//! What the peer answers (IBTA 9.7.5.1, 9.7.6.1).

use super::super::Cx;
use super::recovery::Resend;
use super::request::request_packets;
use super::window::{flow, flow_bytes};
use super::{Requester, SendFailed};
use crate::engine::payload::Payload;
use crate::engine::sgl::{self, ScatterError};
use crate::engine::{Nanos, count};
use ferroce_verbs::{SendFlags, SendOp, WcStatus, WorkCompletion};
use ferroce_wire::{Ext, Headers, Opcode, psn_add, psn_diff};

impl Requester {
    /// Takes an acknowledgement, a read response or an atomic acknowledgement (IBTA 9.7.5.1, 9.7.6.1).
    #[inline]
    pub(in crate::engine::qp) fn on_response(
        &mut self,
        cx: &Cx<'_>,
        now: Nanos,
        headers: &Headers,
        payload: Payload<'_>,
    ) -> Result<(), SendFailed> {
        use ferroce_wire::{NakCode, Operation, Syndrome};
        let (opcode, psn) = (headers.bth.opcode, headers.bth.psn);
        if psn_diff(psn, self.una) < 0 || psn_diff(psn, self.sent) >= 0 {
            count(&cx.engine.counters.stale_response);
            if opcode.operation() == Operation::Ack {
                self.on_stale_ack(cx, psn);
            }
            return Ok(());
        }
        match (opcode.operation(), &headers.ext) {
            (Operation::Ack, Ext::Aeth(aeth)) => match aeth.syndrome {
                Syndrome::Ack { .. } => self.advance(cx, psn_add(psn, 1)),
                Syndrome::RnrNak { timer } => {
                    self.advance(cx, psn)?;
                    if self.una == psn { self.on_rnr(cx, now, timer) } else { Ok(()) }
                }
                Syndrome::Nak(code) => {
                    self.advance(cx, psn)?;
                    if self.una != psn {
                        // Memory that went away was found missing first by the copy of what had been offered of it, and only then by
                        // the peer, which says so of a later request and is silent from now on.
                        if code == NakCode::RemoteAccess && self.lost_read == Some(self.una) {
                            return self.fail(cx, WcStatus::RemAccessErr);
                        }
                        return Ok(());
                    }
                    match code {
                        // It will be sent again anyway, after the time that the peer asked for.
                        NakCode::PsnSequence if self.rnr_until.is_some() => Ok(()),
                        NakCode::PsnSequence => {
                            count(&cx.engine.counters.packet_seq_err);
                            self.resend(cx, Resend::Sequence)
                        }
                        NakCode::InvalidRequest => self.fail(cx, WcStatus::RemInvReqErr),
                        NakCode::RemoteAccess => self.fail(cx, WcStatus::RemAccessErr),
                        NakCode::RemoteOperational => self.fail(cx, WcStatus::RemOpErr),
                        NakCode::InvalidRdRequest => self.fail(cx, WcStatus::BadRespErr),
                    }
                }
                Syndrome::Reserved(_) => self.fail(cx, WcStatus::BadRespErr),
            },
            (Operation::ReadResponse, _) => self.on_read_response(cx, opcode, psn, payload),
            (Operation::AtomicAck, &Ext::AtomicAck(_, original)) => {
                self.advance(cx, psn)?;
                if self.una != psn {
                    return Ok(());
                }
                let head = self.queue.head;
                if !matches!(self.queue.get(head).op, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) {
                    return self.fail(cx, WcStatus::BadRespErr);
                }
                let bytes = original.to_ne_bytes();
                if sgl::scatter(&cx.mrs, cx.qp.pd, self.queue.sges(head), 0, Payload::Here(&bytes)).is_err() {
                    return self.fail(cx, WcStatus::LocProtErr);
                }
                self.reads = self.reads.saturating_sub(1);
                self.progress_to(cx, psn_add(psn, 1));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_read_response(
        &mut self,
        cx: &Cx<'_>,
        opcode: Opcode,
        psn: u32,
        payload: Payload<'_>,
    ) -> Result<(), SendFailed> {
        use ferroce_wire::Position;
        // A response acknowledges all requests before its own.
        self.advance(cx, psn)?;
        if self.una != psn {
            return Ok(());
        }
        let head = self.queue.head;
        let wqe = self.queue.get(head);
        if !wqe.is_read() {
            return self.fail(cx, WcStatus::BadRespErr);
        }
        let index = psn_diff(psn, wqe.first_psn) as u32;
        let offset = u64::from(index) * u64::from(cx.conn.mtu.bytes());
        let packets = payload.packets();
        // Each piece of a read is a request of its own, and its responses end where it does.
        let left = request_packets(wqe, index);
        if packets > left {
            return self.fail(cx, WcStatus::BadRespErr);
        }
        let expected = (u64::from(wqe.len) - offset).min(u64::from(packets) * u64::from(cx.conn.mtu.bytes()));
        let ends = packets == left;
        if payload.len() as u64 != expected || ends != matches!(opcode.position(), Position::Last | Position::Only) {
            return self.fail(cx, WcStatus::BadRespErr);
        }
        if !payload.is_empty() {
            match sgl::scatter(&cx.mrs, cx.qp.pd, self.queue.sges(head), offset, payload) {
                Ok(()) => {}
                Err(ScatterError::Key) => return self.fail(cx, WcStatus::LocProtErr),
                Err(ScatterError::Lost) => {
                    // Asked for again it comes in packets, or the peer says why not. That is no loss, so it costs no retry.
                    count(&cx.engine.counters.cma_lost);
                    self.lost_read = Some(self.una);
                    return self.resend(cx, Resend::Implied);
                }
            }
        }
        if ends {
            self.reads = self.reads.saturating_sub(1);
        }
        self.progress_to(cx, psn_add(psn, packets));
        Ok(())
    }

    /// All before `to` is acknowledged. Stops at a read or atomic whose response did not come: it was lost.
    fn advance(&mut self, cx: &Cx<'_>, to: u32) -> Result<(), SendFailed> {
        while psn_diff(to, self.una) > 0 && self.queue.head != self.queue.tail {
            let wqe = self.queue.get(self.queue.head);
            if wqe.has_response() {
                if self.implied_at != Some(self.una) && self.tx != self.una {
                    count(&cx.engine.counters.implied_nak_seq_err);
                    self.implied_at = Some(self.una);
                    return self.resend(cx, Resend::Implied);
                }
                return Ok(());
            }
            let end = psn_add(wqe.first_psn, wqe.packets);
            let step = if psn_diff(to, end) < 0 { to } else { end };
            self.progress_to(cx, step);
        }
        Ok(())
    }

    /// The head is done up to `psn`, which is inside it or its end.
    fn progress_to(&mut self, cx: &Cx<'_>, psn: u32) {
        let wqe = self.queue.get(self.queue.head);
        let end = psn_add(wqe.first_psn, wqe.packets);
        if let Some(flow) = flow(cx) {
            let from = psn_diff(self.una, wqe.first_psn) as u32;
            let to = psn_diff(psn, wqe.first_psn) as u32;
            let bytes = flow_bytes(cx, wqe, from, to).min(self.in_flight);
            self.in_flight -= bytes;
            flow.left(bytes);
            flow.acked(bytes);
        }
        self.una = psn;
        if psn_diff(self.una, self.tx) > 0 {
            // The peer had more than we were about to send again.
            self.tx = self.una;
            self.queue.next = self.queue.head;
            self.reads = 0;
        }
        self.retries = cx.conn.retry_cnt;
        self.rnr_retries = cx.conn.rnr_retry;
        if psn == end {
            let behind = self.queue.next == self.queue.head;
            self.complete_head(cx);
            if behind {
                self.queue.next = self.queue.head;
            }
        }
    }

    /// Completes the head with success.
    pub(super) fn complete_head(&mut self, cx: &Cx<'_>) {
        let wqe = self.queue.take_head();
        if wqe.flags.contains(SendFlags::SIGNALED) || cx.qp.sq_sig_all {
            let mut wc = WorkCompletion::new(wqe.wr_id, wqe.wc_opcode(), cx.qp.qpn);
            wc.byte_len = wqe.len;
            cx.qp.send_cq.push(wc, false);
        }
    }
}
