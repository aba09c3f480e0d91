use super::emit::{Emitted, Header, emit};
use super::{Budget, Cx, TxStatus};
use crate::engine::sendq::{Datagram, SendQueue, SendWqe};
use crate::engine::tx::{PacketTx, PeerFlow, To};
use crate::engine::{Nanos, count, sgl};
use ferroce_verbs::{Access, Error, QpCap, QpState, QpType, SendFlags, SendOp, SendWr, WcStatus, WorkCompletion};
use ferroce_wire::{AtomicEth, Ext, Opcode, Reth, psn_add, psn_diff};

/// The side of a queue pair that executes its own send queue (IBTA 9.7.2 to 9.7.7, 9.8, 9.9).
pub(super) struct Requester {
    pub(super) queue: SendQueue,
    /// The PSN that the next work request gets.
    next_psn: u32,
    /// The oldest PSN that is not acknowledged; inside the send at the queue's head.
    una: u32,
    /// The next PSN to send; inside the send at the queue's `next`.
    tx: u32,
    /// One past the highest PSN that was ever sent.
    sent: u32,
    /// Reads and atomics that wait for their response.
    reads: u8,
    /// Bytes in flight, as the peer's flow counts them.
    in_flight: u32,
    /// Packets sent since one asked for an acknowledgement.
    unasked: u32,
    retries: u8,
    rnr_retries: u8,
    /// Nothing is sent before this time.
    rnr_until: Option<Nanos>,
    /// The oldest PSN when a lost response was last inferred: one inference for each.
    implied_at: Option<u32>,
    /// The oldest PSN when the peer last reported a sequence error.
    sequence_at: Option<u32>,
    /// The oldest PSN when the ACK timer last fired.
    timer_mark: Option<u32>,
    /// Something was sent since the ACK timer last fired.
    active: bool,
}

/// Packets that may go by without one that asks for an acknowledgement.
const ACK_INTERVAL: u32 = 16;
/// Packets of response that one read request asks for. A longer read is asked for in pieces, so that what is in flight
/// towards us is bounded like what is in flight from us.
const READ_CHUNK: u32 = 64;

/// The send queue's head failed; its completion is already pushed, and the queue pair is to stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendFailed;

/// Why a send is sent again.
enum Resend {
    Sequence,
    Timeout,
    Implied,
}

impl Requester {
    pub(super) fn new(cap: &QpCap) -> Self {
        Self {
            queue: SendQueue::new(cap),
            next_psn: 0,
            una: 0,
            tx: 0,
            sent: 0,
            reads: 0,
            in_flight: 0,
            unasked: 0,
            retries: 0,
            rnr_retries: 0,
            rnr_until: None,
            implied_at: None,
            sequence_at: None,
            timer_mark: None,
            active: false,
        }
    }

    /// Starts at `psn`, with an empty queue.
    pub(super) fn reset(&mut self, cx: &Cx<'_>, psn: u32) {
        self.queue.clear();
        self.start(cx, psn);
    }

    /// Takes on the attributes that RTS brings.
    pub(super) fn start(&mut self, cx: &Cx<'_>, psn: u32) {
        self.release_flow(cx);
        (self.next_psn, self.una, self.tx, self.sent) = (psn, psn, psn, psn);
        self.reads = 0;
        self.unasked = 0;
        self.rnr_until = None;
        self.implied_at = None;
        self.sequence_at = None;
        self.timer_mark = None;
        self.reload(cx);
    }

    pub(super) fn reload(&mut self, cx: &Cx<'_>) {
        self.retries = cx.conn.retry_cnt;
        self.rnr_retries = cx.conn.rnr_retry;
    }

    #[inline]
    pub(super) fn post(&mut self, cx: &Cx<'_>, wr: &SendWr<'_>, dest: Option<Datagram>) -> Result<(), Error> {
        let shift = if cx.qp.qp_type == QpType::Ud { 31 } else { cx.conn.mtu.shift() };
        if cx.qp.qp_type == QpType::Rc && cx.conn.max_rd_atomic == 0 {
            let reads = matches!(wr.op, SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
            if reads {
                return Err(Error::invalid("operation", "max_rd_atomic is 0, so no read or atomic can be outstanding"));
            }
        }
        let packets = self.queue.push(cx.qp.qp_type, wr, dest, self.next_psn, shift)?;
        self.next_psn = psn_add(self.next_psn, packets);
        Ok(())
    }

    /// Whether anything is sent and not acknowledged.
    fn outstanding(&self) -> bool {
        self.una != self.sent
    }

    /// Whether all that was begun is complete.
    pub(super) fn drained(&self) -> bool {
        self.una == self.tx && !self.outstanding()
    }

    /// When the queue pair next wants [`Requester::on_timer`], from `now`; `None` while it has nothing to wait for.
    pub(super) fn deadline(&self, cx: &Cx<'_>, now: Nanos) -> Option<Nanos> {
        if let Some(until) = self.rnr_until {
            return Some(until);
        }
        // Kept running while the queue pair is active, so that sending does not have to start it each time.
        let running = self.outstanding() || self.active;
        (running && cx.conn.timeout != 0).then(|| now + (4096_u64 << cx.conn.timeout))
    }

    /// Whether there is something to send; whether it may be sent is for [`Requester::transmit`] to find out.
    pub(super) fn wants_transmit(&self) -> bool {
        self.queue.next != self.queue.tail
    }

    // ---- sending ----

    /// Sends what the state, the peer's flow and the link allow.
    pub(super) fn transmit(&mut self, cx: &Cx<'_>, tx: &mut dyn PacketTx, budget: &mut Budget) -> TxStatus {
        if cx.qp.qp_type != QpType::Rc && self.wants_transmit() {
            let to = match &self.queue.get(self.queue.next).dest {
                Some(dest) => Some(To { av: &dest.av, dest_qpn: dest.qpn, datagram: true }),
                None => cx.conn.peer(),
            };
            if to.is_some_and(|to| !tx.is_writable(&to)) {
                return TxStatus::LinkFull;
            }
        }
        loop {
            if self.queue.next == self.queue.tail || self.rnr_until.is_some() {
                return TxStatus::Idle;
            }
            let position = self.queue.next;
            let wqe = self.queue.get(position);
            if wqe.failed.is_some() {
                return TxStatus::Idle;
            }
            let begins = self.tx == wqe.first_psn;
            if begins {
                let fenced = wqe.flags.contains(SendFlags::FENCE) && self.reads != 0;
                // Draining: what was begun is sent again as often as it takes, but nothing new begins.
                let drains = cx.conn.state == QpState::Sqd && self.tx == self.sent;
                if drains || fenced {
                    return TxStatus::Idle;
                }
            }
            if wqe.has_response() && self.reads >= cx.conn.max_rd_atomic {
                return TxStatus::Idle;
            }
            // Only an acknowledgement wakes up a queue pair that a closed flow stops, so it stops once one is asked for.
            if flow_closed(cx) && self.in_flight != 0 && self.unasked == 0 {
                return TxStatus::Idle;
            }
            if !budget.take() {
                return TxStatus::More;
            }
            let emitted = match cx.qp.qp_type {
                QpType::Ud => self.send_datagram(cx, tx, position),
                QpType::Rc | QpType::Uc => self.send_packet(cx, tx, position),
            };
            match emitted {
                Emitted::Yes => {}
                Emitted::LinkFull => {
                    budget.give_back();
                    return TxStatus::LinkFull;
                }
                Emitted::Unreadable => {
                    if self.queue.get(position).failed.is_none() {
                        self.queue.get_mut(position).failed = Some(WcStatus::LocProtErr);
                    }
                    return TxStatus::Idle;
                }
            }
        }
    }

    /// Reports the head if it failed by itself and all before it are complete.
    pub(super) fn reap_failed(&mut self, cx: &Cx<'_>) -> Result<(), SendFailed> {
        if self.queue.is_empty() {
            return Ok(());
        }
        match self.queue.get(self.queue.head).failed {
            Some(status) => self.fail(cx, status),
            None => Ok(()),
        }
    }

    fn send_packet(&mut self, cx: &Cx<'_>, tx: &mut dyn PacketTx, position: u32) -> Emitted {
        let Some(to) = cx.conn.peer() else { return Emitted::Unreadable };
        let wqe = self.queue.get(position);
        let mtu = cx.conn.mtu.bytes();
        let index = psn_diff(self.tx, wqe.first_psn) as u32;
        let offset = u64::from(index) * u64::from(mtu);
        let pd = cx.qp.pd;
        if wqe.has_response() {
            let header = match self.response_request(cx, wqe, index, offset) {
                Some((header, packets)) => (header, packets),
                None => return Emitted::Unreadable,
            };
            let emitted = emit(tx, to, header.0, 0, |_| true);
            if emitted == Emitted::Yes {
                self.reads += 1;
                self.unasked = 0;
                self.advance_tx(cx, position, header.1);
            }
            return emitted;
        }
        let len = (u64::from(wqe.len) - offset).min(u64::from(mtu)) as usize;
        let last = index + 1 == wqe.packets;
        let (opcode, ext) = request_header(cx.qp.qp_type, wqe, index == 0, last);
        let rc = cx.qp.qp_type == QpType::Rc;
        let ends = last && position.wrapping_add(1) == self.queue.tail;
        let header = Header {
            opcode,
            psn: self.tx,
            ack_request: rc && (ends || self.ask_now(cx, position, last)),
            solicited: last && wqe.flags.contains(SendFlags::SOLICITED),
            ext,
        };
        let queue = &self.queue;
        let emitted = emit(tx, to, header, len, |out| match queue.inline(position) {
            Some(bytes) => {
                out.copy_from_slice(&bytes[offset as usize..offset as usize + len]);
                true
            }
            None => sgl::gather(&cx.engine.mrs, pd, queue.sges(position), offset, out).is_ok(),
        });
        if emitted == Emitted::Yes {
            self.unasked = if header.ack_request { 0 } else { self.unasked + 1 };
            self.advance_tx(cx, position, 1);
            if !rc && last {
                self.retire_unreliable(cx);
            }
        }
        emitted
    }

    /// Whether the packet about to be sent must ask for an acknowledgement though more is queued: enough went by without, or
    /// what follows may have to wait for it.
    fn ask_now(&self, cx: &Cx<'_>, position: u32, last: bool) -> bool {
        if self.unasked + 1 >= ACK_INTERVAL || cx.conn.state == QpState::Sqd || flow_closed(cx) {
            return true;
        }
        last && {
            let next = self.queue.get(position.wrapping_add(1));
            next.flags.contains(SendFlags::FENCE) || next.has_response()
        }
    }

    /// The request packet of a read (from packet `index` on) or atomic, and how many PSNs it covers. `None` if the local
    /// buffers cannot take the result.
    fn response_request(&self, cx: &Cx<'_>, wqe: &SendWqe, index: u32, offset: u64) -> Option<(Header, u32)> {
        let sges = self.queue.sges(self.queue.next);
        if index == 0 && wqe.len != 0 && sgl::check(&cx.engine.mrs, cx.qp.pd, sges, Access::LOCAL_WRITE).is_err() {
            return None;
        }
        let (opcode, ext, packets) = match wqe.op {
            SendOp::Read { remote_addr, rkey } => {
                // A piece that is asked for again from its middle ends where it ended before: the responder has no resource
                // that covers more (IBTA 9.7.5.1.2).
                let packets = (wqe.packets - index).min(READ_CHUNK - index % READ_CHUNK);
                let len = (u64::from(wqe.len) - offset).min(u64::from(packets) * u64::from(cx.conn.mtu.bytes())) as u32;
                let reth = Reth { va: remote_addr.wrapping_add(offset), rkey, len };
                (Opcode::RcReadRequest, Ext::Reth(reth), packets)
            }
            SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
                let atomic = AtomicEth { va: remote_addr, rkey, swap_or_add: swap, compare };
                (Opcode::RcCompareSwap, Ext::Atomic(atomic), 1)
            }
            SendOp::FetchAdd { remote_addr, rkey, add } => {
                let atomic = AtomicEth { va: remote_addr, rkey, swap_or_add: add, compare: 0 };
                (Opcode::RcFetchAdd, Ext::Atomic(atomic), 1)
            }
            _ => return None,
        };
        let header = Header { ack_request: true, ..Header::new(opcode, self.tx, ext) };
        Some((header, packets))
    }

    fn advance_tx(&mut self, cx: &Cx<'_>, position: u32, packets: u32) {
        let wqe = self.queue.get(position);
        let index = psn_diff(self.tx, wqe.first_psn) as u32;
        if cx.qp.qp_type == QpType::Rc
            && let Some(flow) = flow(cx)
        {
            let bytes = flow_bytes(cx, wqe, index, index + packets);
            self.in_flight += bytes;
            flow.sent(bytes);
        }
        let done = index + packets == wqe.packets;
        if psn_diff(self.tx, self.sent) < 0 {
            cx.engine.counters.retransmitted_packets.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        self.tx = psn_add(self.tx, packets);
        if psn_diff(self.tx, self.sent) > 0 {
            self.sent = self.tx;
        }
        self.active = true;
        if done {
            self.queue.next = position.wrapping_add(1);
        }
    }

    fn send_datagram(&mut self, cx: &Cx<'_>, tx: &mut dyn PacketTx, position: u32) -> Emitted {
        let wqe = self.queue.get(position);
        let Some(dest) = &wqe.dest else { return Emitted::Unreadable };
        let len = wqe.len as usize;
        if wqe.len > dest.av.mtu.bytes() {
            self.queue.get_mut(position).failed = Some(WcStatus::LocLenErr);
            return Emitted::Unreadable;
        }
        // With the top bit set the queue pair's own Q_Key is sent (IBTA 10.2.5).
        let qkey = if dest.qkey & 0x8000_0000 != 0 { cx.conn.qkey } else { dest.qkey };
        let deth = ferroce_wire::Deth { qkey, src_qpn: cx.qp.qpn };
        let (opcode, ext) = match wqe.op {
            SendOp::SendImm(imm) => (Opcode::UdSendOnlyImm, Ext::DethImm(deth, imm)),
            _ => (Opcode::UdSendOnly, Ext::Deth(deth)),
        };
        let solicited = wqe.flags.contains(SendFlags::SOLICITED);
        let header = Header { solicited, ..Header::new(opcode, self.tx, ext) };
        let queue = &self.queue;
        let to = To { av: &dest.av, dest_qpn: dest.qpn, datagram: true };
        let emitted = emit(tx, to, header, len, |out| match queue.inline(position) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                true
            }
            None => sgl::gather(&cx.engine.mrs, cx.qp.pd, queue.sges(position), 0, out).is_ok(),
        });
        if emitted == Emitted::Yes {
            self.advance_tx(cx, position, 1);
            self.retire_unreliable(cx);
        }
        emitted
    }

    /// UC and UD: a send is complete once it is in the link.
    fn retire_unreliable(&mut self, cx: &Cx<'_>) {
        while self.queue.head != self.queue.next {
            self.complete_head(cx);
        }
        self.una = self.tx;
        self.active = false;
    }

    // ---- responses ----

    /// Takes an acknowledgement, a read response or an atomic acknowledgement (IBTA 9.7.5.1, 9.7.6.1).
    #[inline]
    pub(super) fn on_response(
        &mut self,
        cx: &Cx<'_>,
        now: Nanos,
        opcode: Opcode,
        psn: u32,
        ext: &Ext,
        payload: &[u8],
    ) -> Result<(), SendFailed> {
        use ferroce_wire::{NakCode, Operation, Syndrome};
        if psn_diff(psn, self.una) < 0 || psn_diff(psn, self.sent) >= 0 {
            count(&cx.engine.counters.stale_response);
            return Ok(());
        }
        match (opcode.operation(), ext) {
            (Operation::Ack, Ext::Aeth(aeth)) => match aeth.syndrome {
                Syndrome::Ack { .. } => self.advance(cx, psn_add(psn, 1)),
                Syndrome::RnrNak { timer } => {
                    self.advance(cx, psn)?;
                    if self.una == psn { self.on_rnr(cx, now, timer) } else { Ok(()) }
                }
                Syndrome::Nak(code) => {
                    self.advance(cx, psn)?;
                    if self.una != psn {
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
                if sgl::scatter(&cx.engine.mrs, cx.qp.pd, self.queue.sges(head), 0, &bytes).is_err() {
                    return self.fail(cx, WcStatus::LocProtErr);
                }
                self.reads = self.reads.saturating_sub(1);
                self.progress_to(cx, psn_add(psn, 1));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn on_read_response(&mut self, cx: &Cx<'_>, opcode: Opcode, psn: u32, payload: &[u8]) -> Result<(), SendFailed> {
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
        let expected = (u64::from(wqe.len) - offset).min(u64::from(cx.conn.mtu.bytes()));
        if payload.len() as u64 != expected {
            return self.fail(cx, WcStatus::BadRespErr);
        }
        if !payload.is_empty()
            && sgl::scatter(&cx.engine.mrs, cx.qp.pd, self.queue.sges(head), offset, payload).is_err()
        {
            return self.fail(cx, WcStatus::LocProtErr);
        }
        if matches!(opcode.position(), Position::Last | Position::Only) {
            self.reads = self.reads.saturating_sub(1);
        }
        self.progress_to(cx, psn_add(psn, 1));
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

    fn complete_head(&mut self, cx: &Cx<'_>) {
        let head = self.queue.head;
        let wqe = self.queue.get_mut(head);
        wqe.dest = None;
        if wqe.flags.contains(SendFlags::SIGNALED) || cx.qp.sq_sig_all {
            let mut wc = WorkCompletion::new(wqe.wr_id, wqe.wc_opcode(), cx.qp.qpn);
            wc.byte_len = wqe.len;
            cx.qp.send_cq.push(wc, false);
        }
        self.queue.head = head.wrapping_add(1);
    }

    // ---- recovery ----

    fn resend(&mut self, cx: &Cx<'_>, why: Resend) -> Result<(), SendFailed> {
        // Packets beyond a gap that arrive twice or out of order make the peer report it more than once before anything sent
        // again can reach it. Only the first report counts as a retry (and as congestion); if going back does not help, the
        // ACK timer counts the rest. Without a timer every report has to, or there would be no end.
        let repeated = matches!(why, Resend::Sequence)
            && self.sequence_at.replace(self.una) == Some(self.una)
            && cx.conn.timeout != 0;
        if !repeated {
            if !matches!(why, Resend::Implied) {
                if self.retries == 0 {
                    count(&cx.engine.counters.retry_exceeded_err);
                    return self.fail(cx, WcStatus::RetryExcErr);
                }
                self.retries -= 1;
            }
            if let Some(flow) = flow(cx) {
                flow.lost();
            }
        }
        self.rewind(cx);
        Ok(())
    }

    /// Everything from the oldest unacknowledged packet on is sent again.
    fn rewind(&mut self, cx: &Cx<'_>) {
        self.release_flow(cx);
        self.tx = self.una;
        self.queue.next = self.queue.head;
        self.reads = 0;
        self.unasked = 0;
    }

    fn on_rnr(&mut self, cx: &Cx<'_>, now: Nanos, timer: u8) -> Result<(), SendFailed> {
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
        self.rewind(cx);
        self.rnr_until = Some(now + ferroce_verbs::rnr_timer(timer).as_nanos() as Nanos);
        Ok(())
    }

    /// The timer that [`Requester::deadline`] asked for has expired.
    pub(super) fn on_timer(&mut self, cx: &Cx<'_>, now: Nanos) -> Result<(), SendFailed> {
        if let Some(until) = self.rnr_until {
            if now >= until {
                self.rnr_until = None;
            }
            return Ok(());
        }
        self.active = false;
        if !self.outstanding() {
            self.timer_mark = None;
            return Ok(());
        }
        // Two expiries without progress in between make a timeout: it lies between one and two times what was set, where the
        // specification allows one to four (IBTA 9.7.6.1.3).
        if self.timer_mark.replace(self.una) != Some(self.una) {
            return Ok(());
        }
        count(&cx.engine.counters.local_ack_timeout_err);
        self.implied_at = None;
        self.resend(cx, Resend::Timeout)
    }

    /// Completes the head with `status`.
    fn fail(&mut self, cx: &Cx<'_>, status: WcStatus) -> Result<(), SendFailed> {
        if !self.queue.is_empty() {
            let head = self.queue.head;
            let wqe = self.queue.get_mut(head);
            wqe.dest = None;
            let mut wc = WorkCompletion::new(wqe.wr_id, wqe.wc_opcode(), cx.qp.qpn);
            wc.status = status;
            cx.qp.send_cq.push(wc, true);
            self.queue.head = head.wrapping_add(1);
        }
        Err(SendFailed)
    }

    /// Completes all that is queued as flushed.
    pub(super) fn flush(&mut self, cx: &Cx<'_>) {
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

    fn release_flow(&mut self, cx: &Cx<'_>) {
        let bytes = std::mem::take(&mut self.in_flight);
        if let Some(flow) = cx.conn.av.as_ref().and_then(|av| av.flow.as_ref()) {
            flow.left(bytes);
        }
    }
}

/// The flow that bounds what is sent to the peer of a reliable connection. Datagrams are not bounded: nothing tells when
/// they arrived.
fn flow<'a>(cx: &'a Cx<'_>) -> Option<&'a PeerFlow> {
    cx.conn.av.as_ref()?.flow.as_deref()
}

fn flow_closed(cx: &Cx<'_>) -> bool {
    flow(cx).is_some_and(|flow| !flow.is_open())
}

/// What packets `from..to` of a send cost in flight.
fn flow_bytes(cx: &Cx<'_>, wqe: &SendWqe, from: u32, to: u32) -> u32 {
    let mtu = u64::from(cx.conn.mtu.bytes());
    let upto = |packets: u32| (u64::from(packets) * mtu).min(u64::from(wqe.len)) as u32;
    upto(to) - upto(from) + (to - from) * PeerFlow::PACKET_OVERHEAD
}

/// Opcode and extension headers of a packet of a send or RDMA write.
#[inline]
fn request_header(qp_type: QpType, wqe: &SendWqe, first: bool, last: bool) -> (Opcode, Ext) {
    use Opcode as O;
    let rc = qp_type == QpType::Rc;
    let pick = |rc_opcode, uc_opcode| if rc { rc_opcode } else { uc_opcode };
    let reth = |remote_addr, rkey| Reth { va: remote_addr, rkey, len: wqe.len };
    match (wqe.op, first, last) {
        (SendOp::Send, true, true) => (pick(O::RcSendOnly, O::UcSendOnly), Ext::None),
        (SendOp::Send, false, true) => (pick(O::RcSendLast, O::UcSendLast), Ext::None),
        (SendOp::SendImm(imm), true, true) => (pick(O::RcSendOnlyImm, O::UcSendOnlyImm), Ext::Imm(imm)),
        (SendOp::SendImm(imm), false, true) => (pick(O::RcSendLastImm, O::UcSendLastImm), Ext::Imm(imm)),
        (SendOp::SendInv(rkey), true, true) => (O::RcSendOnlyInv, Ext::Inv(rkey)),
        (SendOp::SendInv(rkey), false, true) => (O::RcSendLastInv, Ext::Inv(rkey)),
        (SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_), true, false) => {
            (pick(O::RcSendFirst, O::UcSendFirst), Ext::None)
        }
        (SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_), false, false) => {
            (pick(O::RcSendMiddle, O::UcSendMiddle), Ext::None)
        }
        (SendOp::Write { remote_addr, rkey }, true, true) => {
            (pick(O::RcWriteOnly, O::UcWriteOnly), Ext::Reth(reth(remote_addr, rkey)))
        }
        (SendOp::WriteImm { remote_addr, rkey, imm }, true, true) => {
            (pick(O::RcWriteOnlyImm, O::UcWriteOnlyImm), Ext::RethImm(reth(remote_addr, rkey), imm))
        }
        (SendOp::Write { remote_addr, rkey } | SendOp::WriteImm { remote_addr, rkey, .. }, true, false) => {
            (pick(O::RcWriteFirst, O::UcWriteFirst), Ext::Reth(reth(remote_addr, rkey)))
        }
        (SendOp::Write { .. } | SendOp::WriteImm { .. }, false, false) => {
            (pick(O::RcWriteMiddle, O::UcWriteMiddle), Ext::None)
        }
        (SendOp::Write { .. }, false, true) => (pick(O::RcWriteLast, O::UcWriteLast), Ext::None),
        (SendOp::WriteImm { imm, .. }, false, true) => (pick(O::RcWriteLastImm, O::UcWriteLastImm), Ext::Imm(imm)),
        // Reads and atomics have requests of their own.
        (SendOp::Read { .. } | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }, ..) => {
            (O::RcReadRequest, Ext::None)
        }
    }
}
