mod keepalive;
mod offer;
mod recovery;
mod request;
mod response;
mod window;

use super::emit::{Emitted, Header, emit};
use super::{Budget, Cx, TxStatus};
use crate::engine::payload::Grant;
use crate::engine::sendq::{Datagram, SendQueue};
use crate::engine::tx::{PacketTx, To};
use crate::engine::{Nanos, count, sgl};
use ferroce_verbs::{Error, QpCap, QpState, QpType, SendFlags, SendOp, SendWr, WcStatus};
use ferroce_wire::{Ext, Opcode, psn_add, psn_diff};
use keepalive::Keepalive;
use keepalive::PeerLost;
pub(in crate::engine::qp) use recovery::Silence;
use request::{request_header, response_request};
use window::{flow, flow_bytes, flow_closed};

/// The side of a queue pair that executes its own send queue (IBTA 9.7.2 to 9.7.7, 9.8, 9.9).
pub(in crate::engine::qp) struct Requester {
    pub(in crate::engine::qp) queue: SendQueue,
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
    /// The oldest PSN when the timer last fired and found another one, or when the last timeout was; and the time.
    timer_mark: Option<(u32, Nanos)>,
    /// How often a packet was sent again since then, to hear of the rest.
    probes: u8,
    /// One is to be sent again.
    probe: bool,
    /// Something was sent since the ACK timer last fired.
    active: bool,
    /// Something was offered since the peer last reported a sequence error.
    offered: bool,
    /// The oldest PSN when what was offered of a read could not be copied.
    lost_read: Option<u32>,
    /// Holds as long as what was offered is still to be sent.
    grant: Grant,
    keepalive: Keepalive,
}

/// Packets that may go by without one that asks for an acknowledgement.
const ACK_INTERVAL: u32 = 16;
/// The send queue's head failed; its completion is already pushed, and the queue pair is to stop.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::qp) struct SendFailed;

impl Requester {
    pub(in crate::engine::qp) fn new(cap: &QpCap) -> Self {
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
            probes: 0,
            probe: false,
            active: false,
            offered: false,
            lost_read: None,
            grant: Grant::new(),
            keepalive: Keepalive::default(),
        }
    }

    /// Starts at `psn`, with an empty queue.
    pub(in crate::engine::qp) fn reset(&mut self, cx: &Cx<'_>, psn: u32) {
        self.queue.clear();
        self.start(cx, psn);
    }

    /// Takes on the attributes that RTS brings.
    pub(in crate::engine::qp) fn start(&mut self, cx: &Cx<'_>, psn: u32) {
        self.grant.renew();
        self.release_flow(cx);
        (self.next_psn, self.una, self.tx, self.sent) = (psn, psn, psn, psn);
        self.reads = 0;
        self.unasked = 0;
        self.rnr_until = None;
        self.implied_at = None;
        self.sequence_at = None;
        self.lost_read = None;
        self.timer_mark = None;
        self.start_keepalive();
        self.reload(cx);
    }

    pub(in crate::engine::qp) fn reload(&mut self, cx: &Cx<'_>) {
        self.retries = cx.conn.retry_cnt;
        self.rnr_retries = cx.conn.rnr_retry;
    }

    #[inline]
    pub(in crate::engine::qp) fn post(
        &mut self,
        cx: &Cx<'_>,
        wr: &SendWr<'_>,
        dest: Option<Datagram>,
    ) -> Result<(), Error> {
        let shift = if cx.qp.qp_type == QpType::Ud { 31 } else { cx.conn.mtu.shift() };
        if cx.qp.qp_type == QpType::Rc && cx.conn.max_rd_atomic == 0 && wr.op.has_response() {
            return Err(Error::invalid("operation", "max_rd_atomic is 0, so no read or atomic can be outstanding"));
        }
        let packets = self.queue.push(cx.qp.qp_type, wr, dest, self.next_psn, shift)?;
        self.next_psn = psn_add(self.next_psn, packets);
        Ok(())
    }

    /// Whether anything is sent and not acknowledged.
    fn outstanding(&self) -> bool {
        self.una != self.sent
    }

    /// Whether all that was begun is complete. Between two pieces of a long read, or packets of a message for which the link
    /// had no room, nothing is outstanding either.
    pub(in crate::engine::qp) fn drained(&self) -> bool {
        let between = self.queue.is_empty() || self.una == self.queue.get(self.queue.head).first_psn;
        between && self.una == self.tx && !self.outstanding()
    }

    /// When the queue pair next wants [`Requester::on_timer`], from `now`; `None` while it has nothing to wait for.
    pub(in crate::engine::qp) fn deadline(&self, cx: &Cx<'_>, now: Nanos) -> Option<Nanos> {
        if let Some(until) = self.rnr_until {
            return Some(until);
        }
        // Kept running while the queue pair is active, so that sending does not have to start it each time.
        let running = self.outstanding() || self.active;
        if running {
            (cx.conn.timeout != 0).then(|| now + self.timer_period(cx))
        } else {
            self.keepalive_deadline(cx, now)
        }
    }

    /// Whether there is something to send; whether it may be sent is for [`Requester::transmit`] to find out.
    pub(in crate::engine::qp) fn wants_transmit(&self) -> bool {
        self.queue.next != self.queue.tail
    }

    /// Sends what the state, the peer's flow and the link allow.
    pub(in crate::engine::qp) fn transmit(
        &mut self,
        cx: &Cx<'_>,
        tx: &mut dyn PacketTx,
        budget: &mut Budget,
    ) -> TxStatus {
        if std::mem::take(&mut self.probe) {
            match self.send_probe(cx, tx) {
                Some(Emitted::Yes) => {
                    count(&cx.engine.counters.tail_loss_probes);
                    budget.take();
                }
                Some(Emitted::LinkFull) => {
                    self.probe = true;
                    return TxStatus::LinkFull;
                }
                Some(Emitted::Unreadable) | None => {}
            }
        }
        self.ask(cx, tx);
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
                QpType::Rc | QpType::Uc => match self.send_offer(cx, tx, position, budget) {
                    Some(emitted) => emitted,
                    None => self.send_packet(cx, tx, position),
                },
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
    pub(in crate::engine::qp) fn reap_failed(&mut self, cx: &Cx<'_>) -> Result<(), SendFailed> {
        if self.queue.is_empty() {
            return Ok(());
        }
        match self.queue.get(self.queue.head).failed {
            Some(status) => self.fail(cx, status),
            None => Ok(()),
        }
    }

    fn send_packet(&mut self, cx: &Cx<'_>, tx: &mut dyn PacketTx, position: u32) -> Emitted {
        let wqe = self.queue.get(position);
        let index = psn_diff(self.tx, wqe.first_psn) as u32;
        if wqe.has_response() {
            let Some(to) = cx.conn.peer() else { return Emitted::Unreadable };
            let sges = self.queue.sges(position);
            let Some((header, packets)) = response_request(cx, wqe, sges, self.tx) else { return Emitted::Unreadable };
            let emitted = emit(tx, to, header, 0, |_| true);
            if emitted == Emitted::Yes {
                self.reads += 1;
                self.unasked = 0;
                self.advance_tx(cx, position, packets);
            }
            return emitted;
        }
        let last = index + 1 == wqe.packets;
        let rc = cx.qp.qp_type == QpType::Rc;
        let ends = last && position.wrapping_add(1) == self.queue.tail;
        let ack_request = rc && (ends || self.ask_now(cx, position, 1, last));
        let emitted = self.emit_part(cx, tx, position, index, ack_request);
        if emitted == Emitted::Yes {
            self.unasked = if ack_request { 0 } else { self.unasked + 1 };
            self.advance_tx(cx, position, 1);
            if !rc && last {
                self.retire_unreliable(cx);
            }
        }
        emitted
    }

    /// Sends packet `index` of a send or write.
    fn emit_part(&self, cx: &Cx<'_>, tx: &mut dyn PacketTx, position: u32, index: u32, ack_request: bool) -> Emitted {
        let Some(to) = cx.conn.peer() else { return Emitted::Unreadable };
        let wqe = self.queue.get(position);
        let mtu = u64::from(cx.conn.mtu.bytes());
        let offset = u64::from(index) * mtu;
        let len = (u64::from(wqe.len) - offset).min(mtu) as usize;
        let last = index + 1 == wqe.packets;
        let (opcode, ext) = request_header(cx.qp.qp_type, wqe, index == 0, last);
        let solicited = last && wqe.flags.contains(SendFlags::SOLICITED);
        let header = Header { opcode, psn: psn_add(wqe.first_psn, index), ack_request, solicited, ext };
        emit(tx, to, header, len, |out| self.fill(cx, position, offset, out))
    }

    /// Copies what lies `offset` bytes into the message to `out`; false if the local buffers may not be read.
    #[inline]
    fn fill(&self, cx: &Cx<'_>, position: u32, offset: u64, out: &mut [u8]) -> bool {
        match self.queue.inline(position) {
            Some(bytes) => {
                out.copy_from_slice(&bytes[offset as usize..offset as usize + out.len()]);
                true
            }
            None => sgl::gather(&cx.mrs, cx.qp.pd, self.queue.sges(position), offset, out).is_ok(),
        }
    }

    /// Whether the packets about to be sent must ask for an acknowledgement though more is queued: enough went by without, or
    /// what follows may have to wait for it.
    fn ask_now(&self, cx: &Cx<'_>, position: u32, packets: u32, last: bool) -> bool {
        if self.unasked + packets >= ACK_INTERVAL || cx.conn.state == QpState::Sqd || flow_closed(cx) {
            return true;
        }
        last && {
            let next = self.queue.get(position.wrapping_add(1));
            next.flags.contains(SendFlags::FENCE) || next.has_response()
        }
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
            count(&cx.engine.counters.retransmitted_packets);
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
        let to = To { av: &dest.av, dest_qpn: dest.qpn, datagram: true };
        let emitted = emit(tx, to, header, len, |out| self.fill(cx, position, 0, out));
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
}
