use super::emit::{Emitted, Header, emit, emit_bare};
use super::message::{Fault, Incoming};
use super::{Budget, Cx, TxStatus};
use crate::engine::count;
use crate::engine::payload::{LEAST_OFFERED, MAX_OFFERED, Offer, Payload};
use crate::engine::tx::{Offered, PacketTx, To};
use ferroce_verbs::{Access, EventType, WcStatus};
use ferroce_wire::{
    Aeth, AtomicEth, Ext, Headers, NakCode, Opcode, Operation, Reth, Syndrome, psn_add, psn_diff, psn_sub,
};
use std::collections::VecDeque;

/// The side of a reliable connection that executes the peer's requests (IBTA 9.7.3 to 9.7.5).
#[derive(Debug)]
pub(super) struct Responder {
    /// The PSN that comes next.
    expected: u32,
    /// Requests completed, as acknowledgements report it.
    msn: u32,
    pub(super) incoming: Incoming,
    /// An acknowledgement of all before `expected` is owed.
    ack: Ack,
    /// What was acknowledged before is to be acknowledged once more, up to this PSN: the peer has sent some of it again.
    again: Option<u32>,
    /// A negative one is owed for this PSN, after everything before it.
    nak: Option<(Syndrome, u32)>,
    /// The gap at `expected` was reported; the last PSN that was seen beyond it.
    gap: Option<u32>,
    /// Reads and atomics that were executed and may be asked for again, in order. None is forgotten before there is one too many, so the PSN
    /// of one from long ago may be anybody's again: the last one that fits is meant.
    resources: VecDeque<Resource>,
    /// Responses that are not sent yet, in order: at most one for each resource.
    responses: VecDeque<Response>,
    /// The memory of a response went away: the queue pair has yet to hear of it.
    lost_memory: bool,
    established: bool,
}

/// Whether an acknowledgement is owed, and whether it may wait for the program to react to the message: if it answers
/// with one of its own, both travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ack {
    None,
    Patient,
    Now,
}

#[derive(Clone, Copy, Debug)]
struct Resource {
    first_psn: u32,
    packets: u32,
    kind: ResourceKind,
}

#[derive(Clone, Copy, Debug)]
enum ResourceKind {
    Read { reth: Reth },
    Atomic { original: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Response {
    psn: u32,
    msn: u32,
    kind: ResponseKind,
}

#[derive(Clone, Copy, Debug)]
enum ResponseKind {
    Read(ReadResponse),
    Atomic { original: u64 },
}

/// What of a read is still to be sent.
#[derive(Clone, Copy, Debug)]
struct ReadResponse {
    va: u64,
    rkey: u32,
    left: u32,
    /// Nothing of it was sent yet.
    first: bool,
    /// It is sent for the first time. What is asked for again goes in packets: it may be that the peer could not take an offer.
    fresh: bool,
}

/// The queue pair is broken: how its receive completes, and the event that says why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Broken {
    pub(super) recv: WcStatus,
    pub(super) event: EventType,
}

impl Responder {
    pub(super) fn new() -> Self {
        Self {
            expected: 0,
            msn: 0,
            incoming: Incoming::default(),
            ack: Ack::None,
            again: None,
            nak: None,
            gap: None,
            resources: VecDeque::new(),
            responses: VecDeque::new(),
            lost_memory: false,
            established: false,
        }
    }

    pub(super) fn reset(&mut self, rq_psn: u32) {
        self.expected = rq_psn;
        self.msn = 0;
        self.incoming.reset();
        self.ack = Ack::None;
        self.again = None;
        self.nak = None;
        self.gap = None;
        self.resources.clear();
        self.responses.clear();
        self.lost_memory = false;
        self.established = false;
    }

    /// Forgets all that it owes.
    pub(super) fn silence(&mut self) {
        self.ack = Ack::None;
        self.again = None;
        self.nak = None;
        self.responses.clear();
    }

    /// Whether this is the first request since the connection was set up.
    pub(super) fn first_contact(&mut self) -> bool {
        !std::mem::replace(&mut self.established, true)
    }

    /// Says once that the memory of a response went away after its request was checked: the queue pair is broken as if it had
    /// not been there in the first place (IBTA 9.9.3.1, class B faults).
    pub(super) fn take_broken(&mut self) -> Option<Broken> {
        std::mem::take(&mut self.lost_memory)
            .then_some(Broken { recv: WcStatus::LocAccessErr, event: EventType::QpAccessErr })
    }

    /// Whether there is something to send, and whether that may wait until the program had a chance to react.
    pub(super) fn pending(&self) -> Option<bool> {
        if self.nak.is_some() || !self.responses.is_empty() || self.ack == Ack::Now || self.again.is_some() {
            Some(false)
        } else {
            (self.ack == Ack::Patient).then_some(true)
        }
    }

    #[inline]
    pub(super) fn on_request(&mut self, cx: &Cx<'_>, headers: &Headers, payload: Payload<'_>) -> Result<(), Broken> {
        let distance = psn_diff(headers.bth.psn, self.expected);
        if distance == 0 {
            self.execute(cx, headers, payload)
        } else if distance > 0 {
            self.out_of_sequence(cx, headers.bth.psn);
            Ok(())
        } else {
            self.duplicate(cx, headers);
            Ok(())
        }
    }

    /// One NAK goes out for a gap. If PSNs beyond the gap go backwards, the requester has been back at the gap and what it
    /// sent again was lost again: then another one is due, or only its timeout would help.
    fn out_of_sequence(&mut self, cx: &Cx<'_>, psn: u32) {
        count(&cx.engine.counters.out_of_sequence);
        let report = self.gap.is_none_or(|last| psn_diff(psn, last) <= 0);
        self.gap = Some(psn);
        if report && self.nak.is_none() {
            self.nak = Some((Syndrome::Nak(NakCode::PsnSequence), self.expected));
        }
    }

    fn duplicate(&mut self, cx: &Cx<'_>, headers: &Headers) {
        count(&cx.engine.counters.duplicate_request);
        let psn = headers.bth.psn;
        match headers.bth.opcode.operation() {
            Operation::Send | Operation::Write => self.acknowledge_again(psn),
            Operation::ReadRequest => {
                if let Some(reth) = headers.ext.reth() {
                    self.repeat_read(cx, psn, reth);
                }
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                let known = self.resources.iter().rev().find(|resource| resource.first_psn == psn);
                if let Some(&Resource { kind: ResourceKind::Atomic { original }, .. }) = known {
                    self.queue(psn, Response { psn, msn: self.msn, kind: ResponseKind::Atomic { original } });
                }
            }
            _ => {}
        }
    }

    /// A SEND or RDMA write that was executed has come once more: an acknowledgement was lost, or is late.
    ///
    /// It goes no further than the next read or atomic. That one is answered by its response and by nothing else (IBTA 9.7.5.1.2), and
    /// is asked for again next, if the response is missing. A requester must not take the acknowledgement for the response, but the
    /// kernel's rxe does: its work request completes with nothing read (`check_ack` in `rxe_comp.c`).
    fn acknowledge_again(&mut self, psn: u32) {
        // A read from long ago, after which there were none, is not forgotten. Half a turn of the PSNs later it would seem to come next.
        let next = self
            .resources
            .iter()
            .find(|resource| psn_diff(resource.first_psn, psn) > 0 && psn_diff(resource.first_psn, self.expected) < 0);
        let upto = psn_sub(next.map_or(self.expected, |next| next.first_psn), 1);
        if self.again.is_none_or(|again| psn_diff(upto, again) > 0) {
            self.again = Some(upto);
        }
    }

    /// A read that was executed is asked for again, from the beginning or from a packet in its middle (IBTA 9.7.5.1.2).
    fn repeat_read(&mut self, cx: &Cx<'_>, psn: u32, reth: Reth) {
        let mtu = u64::from(cx.conn.mtu.bytes());
        let covers = |resource: &&Resource| {
            let (ResourceKind::Read { reth: original }, Ok(ahead)) =
                (resource.kind, u32::try_from(psn_diff(psn, resource.first_psn)))
            else {
                return false;
            };
            let offset = u64::from(ahead) * mtu;
            ahead < resource.packets
                && reth.rkey == original.rkey
                && reth.va == original.va.wrapping_add(offset)
                && offset + u64::from(reth.len) <= u64::from(original.len)
        };
        if let Some(resource) = self.resources.iter().rev().find(covers) {
            let kind = ResponseKind::Read(ReadResponse::new(reth, false));
            self.queue(resource.first_psn, Response { psn, msn: self.msn, kind });
        }
    }

    /// Queues a response of the resource that begins at `resource`, in order. If one is queued already, what it has not sent
    /// yet is not sent twice.
    fn queue(&mut self, resource: u32, response: Response) {
        let at = self.responses.partition_point(|queued| psn_diff(queued.psn, resource) < 0);
        let end =
            self.resources.iter().rev().find(|known| known.first_psn == resource).map_or(1, |known| known.packets);
        match self.responses.get_mut(at) {
            Some(queued) if psn_diff(queued.psn, psn_add(resource, end)) < 0 => {
                if psn_diff(response.psn, queued.psn) < 0 {
                    *queued = response;
                }
            }
            _ => self.responses.insert(at, response),
        }
    }

    fn execute(&mut self, cx: &Cx<'_>, headers: &Headers, payload: Payload<'_>) -> Result<(), Broken> {
        let done = match headers.bth.opcode.operation() {
            Operation::Send | Operation::Write => self.incoming.accept(cx, headers, payload).map(|ended| {
                self.expected = psn_add(self.expected, payload.packets());
                if ended {
                    self.msn = self.msn.wrapping_add(1) & ferroce_wire::PSN_MASK;
                }
                if headers.bth.ack_request {
                    // A message that the program sees may be answered by it; an RDMA write will not be.
                    let seen =
                        ended && (headers.bth.opcode.operation() == Operation::Send || headers.ext.imm().is_some());
                    self.ack = if seen && self.ack != Ack::Now { Ack::Patient } else { Ack::Now };
                }
            }),
            Operation::ReadRequest => match headers.ext {
                Ext::Reth(reth) => self.execute_read(cx, reth),
                _ => Err(Fault::InvalidRequest),
            },
            Operation::CompareSwap | Operation::FetchAdd => match headers.ext {
                Ext::Atomic(atomic) => self.execute_atomic(cx, headers.bth.opcode, atomic),
                _ => Err(Fault::InvalidRequest),
            },
            _ => Err(Fault::InvalidRequest),
        };
        match done {
            Ok(()) => {
                self.gap = None;
                Ok(())
            }
            Err(fault) => self.refuse(cx, fault),
        }
    }

    fn execute_read(&mut self, cx: &Cx<'_>, reth: Reth) -> Result<(), Fault> {
        if self.incoming.in_message() || cx.conn.max_dest_rd_atomic == 0 {
            return Err(Fault::InvalidRequest);
        }
        if !cx.conn.access.contains(Access::REMOTE_READ) {
            // Not a matter of memory: the queue pair does not take such requests at all (IBTA 9.7.4.1.3).
            return Err(Fault::InvalidRequest);
        }
        let len = u64::from(reth.len);
        if len > u64::from(crate::engine::MAX_MSG_SIZE) {
            return Err(Fault::InvalidRequest);
        }
        if len != 0 {
            cx.mrs
                .with(reth.rkey, cx.qp.pd, reth.va, len, Access::REMOTE_READ, |_, _| ())
                .map_err(|_| Fault::RemoteAccess)?;
        }
        let packets = reth.len.div_ceil(cx.conn.mtu.bytes()).max(1);
        let kind = ResponseKind::Read(ReadResponse::new(reth, true));
        self.executed(cx, packets, ResourceKind::Read { reth }, kind);
        Ok(())
    }

    fn execute_atomic(&mut self, cx: &Cx<'_>, opcode: Opcode, atomic: AtomicEth) -> Result<(), Fault> {
        if self.incoming.in_message() || cx.conn.max_dest_rd_atomic == 0 {
            return Err(Fault::InvalidRequest);
        }
        if !cx.conn.access.contains(Access::REMOTE_ATOMIC) {
            // Not a matter of memory: the queue pair does not take such requests at all (IBTA 9.7.4.1.3).
            return Err(Fault::InvalidRequest);
        }
        if !atomic.va.is_multiple_of(8) {
            return Err(Fault::InvalidRequest);
        }
        let swap = opcode.operation() == Operation::CompareSwap;
        let original = cx
            .mrs
            .with(atomic.rkey, cx.qp.pd, atomic.va, 8, Access::REMOTE_ATOMIC, |region, at| {
                region.update_u64(at, |old| {
                    if !swap {
                        Some(old.wrapping_add(atomic.swap_or_add))
                    } else {
                        (old == atomic.compare).then_some(atomic.swap_or_add)
                    }
                })
            })
            .ok()
            .and_then(Result::ok)
            .ok_or(Fault::RemoteAccess)?;
        self.executed(cx, 1, ResourceKind::Atomic { original }, ResponseKind::Atomic { original });
        Ok(())
    }

    /// Notes a read or atomic that was executed, so that a duplicate finds it, and queues its response.
    ///
    /// The requester has no more of them outstanding than there are resources, so the oldest one is done with when it asks
    /// for one more, even if its response (perhaps one that was asked for again) still waits to be sent.
    fn executed(&mut self, cx: &Cx<'_>, packets: u32, resource: ResourceKind, response: ResponseKind) {
        self.msn = self.msn.wrapping_add(1) & ferroce_wire::PSN_MASK;
        while self.resources.len() >= usize::from(cx.conn.max_dest_rd_atomic) {
            let Some(oldest) = self.resources.pop_front() else { break };
            let of_it = |response: &Response| {
                (0..i64::from(oldest.packets)).contains(&psn_diff(response.psn, oldest.first_psn).into())
            };
            while self.responses.front().is_some_and(of_it) {
                self.responses.pop_front();
            }
        }
        self.resources.push_back(Resource { first_psn: self.expected, packets, kind: resource });
        self.responses.push_back(Response { psn: self.expected, msn: self.msn, kind: response });
        self.expected = psn_add(self.expected, packets);
        // The response acknowledges all that came before.
        self.ack = Ack::None;
        self.again = None;
    }

    fn refuse(&mut self, cx: &Cx<'_>, fault: Fault) -> Result<(), Broken> {
        let code = match fault {
            Fault::NotReady => {
                count(&cx.engine.counters.send_rnr_err);
                self.nak = Some((Syndrome::RnrNak { timer: cx.conn.min_rnr_timer }, self.expected));
                // What follows this request is out of sequence; that it is does not need to be said.
                self.gap = Some(self.expected);
                return Ok(());
            }
            Fault::Lost => {
                count(&cx.engine.counters.cma_lost);
                // The requester sends it again, in packets.
                self.nak = Some((Syndrome::Nak(NakCode::PsnSequence), self.expected));
                self.gap = Some(self.expected);
                return Ok(());
            }
            Fault::TooLong | Fault::InvalidRequest => NakCode::InvalidRequest,
            Fault::LocalProtection => NakCode::RemoteOperational,
            Fault::RemoteAccess => NakCode::RemoteAccess,
        };
        self.nak = Some((Syndrome::Nak(code), self.expected));
        Err(match fault {
            Fault::TooLong => Broken { recv: WcStatus::LocLenErr, event: EventType::QpReqErr },
            Fault::LocalProtection => Broken { recv: WcStatus::LocProtErr, event: EventType::QpFatal },
            Fault::RemoteAccess => Broken { recv: WcStatus::LocAccessErr, event: EventType::QpAccessErr },
            Fault::InvalidRequest | Fault::NotReady | Fault::Lost => {
                Broken { recv: WcStatus::RemInvReqErr, event: EventType::QpReqErr }
            }
        })
    }

    /// Sends what is owed, in order: responses, then the acknowledgement of what came after them, then a NAK.
    pub(super) fn transmit(&mut self, cx: &Cx<'_>, tx: &mut dyn PacketTx, budget: &mut Budget) -> TxStatus {
        while let Some(response) = self.responses.front_mut() {
            if !budget.take() {
                return TxStatus::More;
            }
            let (emitted, finished) = response.transmit_next(cx, tx, budget);
            match emitted {
                Emitted::LinkFull => return TxStatus::LinkFull,
                Emitted::Yes => {}
                Emitted::Unreadable => {
                    // The memory went away since the request was checked.
                    let psn = response.psn;
                    self.responses.clear();
                    self.nak = Some((Syndrome::Nak(NakCode::RemoteAccess), psn));
                    self.lost_memory = true;
                    break;
                }
            }
            if finished {
                self.responses.pop_front();
            }
        }
        let owed = (self.ack != Ack::None).then(|| psn_sub(self.expected, 1));
        if let Some(psn) = owed.or(self.again) {
            let ext = Ext::Aeth(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: self.msn });
            if emit_bare(cx, tx, Header::new(Opcode::RcAck, psn, ext)) == Emitted::LinkFull {
                return TxStatus::LinkFull;
            }
            count(&cx.engine.counters.send_ack);
            self.ack = Ack::None;
            self.again = None;
        }
        if let Some((syndrome, psn)) = self.nak {
            let ext = Ext::Aeth(Aeth { syndrome, msn: self.msn });
            if emit_bare(cx, tx, Header::new(Opcode::RcAck, psn, ext)) == Emitted::LinkFull {
                return TxStatus::LinkFull;
            }
            count(&cx.engine.counters.send_nak);
            self.nak = None;
        }
        TxStatus::Idle
    }
}

impl Response {
    /// Sends the next packet, or offers a run of them; returns whether that was the last.
    fn transmit_next(&mut self, cx: &Cx<'_>, tx: &mut dyn PacketTx, budget: &mut Budget) -> (Emitted, bool) {
        let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: self.msn };
        let ResponseKind::Read(read) = &mut self.kind else {
            let ResponseKind::Atomic { original } = self.kind else { return (Emitted::Yes, true) };
            let header = Header::new(Opcode::RcAtomicAck, self.psn, Ext::AtomicAck(aeth, original));
            return (emit_bare(cx, tx, header), true);
        };
        let Some(to) = cx.conn.peer() else { return (Emitted::Yes, true) };
        let mtu = cx.conn.mtu.bytes();
        let (mut emitted, mut packets) = (None, 1);
        if read.fresh && to.av.same_host && read.left >= LEAST_OFFERED {
            packets = read.left.div_ceil(mtu).min(MAX_OFFERED);
            emitted = read.offer(cx, tx, &to, self.psn, aeth, packets);
        }
        let emitted = emitted.unwrap_or_else(|| {
            packets = 1;
            read.emit(cx, tx, to, self.psn, aeth)
        });
        if emitted == Emitted::Yes {
            budget.take_more(packets - 1);
            let len = read.left.min(packets * mtu);
            self.psn = psn_add(self.psn, packets);
            read.va = read.va.wrapping_add(u64::from(len));
            read.left -= len;
            read.first = false;
        }
        (emitted, read.left == 0)
    }
}

impl ReadResponse {
    fn new(reth: Reth, fresh: bool) -> Self {
        Self { va: reth.va, rkey: reth.rkey, left: reth.len, first: true, fresh }
    }

    /// What a packet with the next `len` bytes is.
    fn header(&self, psn: u32, aeth: Aeth, len: u32) -> Header {
        let (opcode, ext) = match (self.first, self.left == len) {
            (true, true) => (Opcode::RcReadResponseOnly, Ext::Aeth(aeth)),
            (true, false) => (Opcode::RcReadResponseFirst, Ext::Aeth(aeth)),
            (false, false) => (Opcode::RcReadResponseMiddle, Ext::None),
            (false, true) => (Opcode::RcReadResponseLast, Ext::Aeth(aeth)),
        };
        Header::new(opcode, psn, ext)
    }

    /// Sends the next packet.
    fn emit(&self, cx: &Cx<'_>, tx: &mut dyn PacketTx, to: To<'_>, psn: u32, aeth: Aeth) -> Emitted {
        let len = self.left.min(cx.conn.mtu.bytes());
        emit(tx, to, self.header(psn, aeth, len), len as usize, |out| {
            cx.mrs
                .with(self.rkey, cx.qp.pd, self.va, u64::from(len), Access::REMOTE_READ, |region, at| {
                    region.read(at, out).is_ok()
                })
                .unwrap_or(false)
        })
    }

    /// Offers the next `packets` packets; `None` if they must be sent.
    fn offer(
        &self,
        cx: &Cx<'_>,
        tx: &mut dyn PacketTx,
        to: &To<'_>,
        psn: u32,
        aeth: Aeth,
        packets: u32,
    ) -> Option<Emitted> {
        let len = self.left.min(packets * cx.conn.mtu.bytes());
        let region = cx.mrs.grant(self.rkey, cx.qp.pd, self.va, len.into(), Access::REMOTE_READ).ok()?;
        // What is still registered may be read whatever became of the queue pair, so one grant does for both.
        let offer = Offer { packets, len, addr: self.va, region, send: region };
        match tx.offer(to, &self.header(psn, aeth, len).to_packet(to, 0), &offer) {
            Offered::Yes => Some(Emitted::Yes),
            Offered::LinkFull => Some(Emitted::LinkFull),
            Offered::No => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_wire::PSN_MASK;

    /// What a duplicate of `psn` acknowledges where `expected` comes next, after atomics that had these PSNs.
    fn acknowledged(atomics: &[u32], expected: u32, psn: u32) -> Option<u32> {
        let mut responder = Responder::new();
        responder.expected = expected;
        for &first_psn in atomics {
            responder.resources.push_back(Resource {
                first_psn,
                packets: 1,
                kind: ResourceKind::Atomic { original: 0 },
            });
        }
        responder.acknowledge_again(psn);
        responder.again
    }

    #[test]
    fn only_an_atomic_between_a_duplicate_and_what_comes_next_ends_its_acknowledgement() {
        assert_eq!(acknowledged(&[], 10, 7), Some(9));
        assert_eq!(acknowledged(&[8, 9], 10, 7), Some(7));
        assert_eq!(acknowledged(&[5, 9], 10, 7), Some(8));
        assert_eq!(acknowledged(&[7], 10, 7), Some(9), "a question whether it lives");
        // Over the end of the numbers.
        assert_eq!(acknowledged(&[PSN_MASK], 3, PSN_MASK - 1), Some(PSN_MASK - 1));
        assert_eq!(acknowledged(&[1], 3, PSN_MASK), Some(0));
        // Half of all numbers ago, and nearly all.
        for ago in [1 << 22, (1 << 23) - 2, (1 << 23) + 5, (1 << 24) - 10] {
            assert_eq!(
                acknowledged(&[10], (10 + ago) & PSN_MASK, (7 + ago) & PSN_MASK),
                Some((9 + ago) & PSN_MASK),
                "{ago}"
            );
        }
    }
}
