use super::end::{End, Queue, RECEIVE, Receives};
use super::op::{Expected, Kind, Op};
use super::plan::Plan;
use super::words::{ADD_WORDS, SWAP_WORDS, Words};
use crate::adversary::BoundedFaults;
use crate::arena::Area;
use crate::failure::{Checked, Failure, ensure};
use crate::pattern::{CONSUMED, FRESH, message, pieces};
use crate::scenario::{Options, Outcome, Scenario};
use crate::watch::Watch;
use ferroce_soft::memory::{MemoryNetwork, Random, RandomFaults};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, CompChannel, Context, Cq, Data, Gid, Pd, QpAttr, QpCap, QpInitAttr, QpState, QpType, SendFlags,
    SendOp, SendWr, Sge, SrqInitAttr, WcFlags, WcOpcode, WcStatus, WorkCompletion,
};
use std::collections::VecDeque;
use std::net::IpAddr;

/// Everything in one run.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) random: Random,
    pub(super) network: MemoryNetwork,
    pub(super) watch: Watch,
    pub(super) contexts: Vec<Host>,
    pub(super) cqs: Vec<CqState>,
    pub(super) ends: Vec<End>,
    pub(super) outcome: Outcome,
}

/// A context and what its ends share.
pub(super) struct Host {
    pub(super) ip: IpAddr,
    pub(super) gid: Gid,
    pub(super) context: Context,
    pub(super) pd: Pd,
    pub(super) words: Words,
    /// The last value that somebody saw in each word, for compare-and-swap.
    last_seen: Vec<u64>,
    pub(super) receives: Option<Receives>,
    shared_cq: Option<usize>,
}

/// A completion queue and what is known of its channel.
pub(super) struct CqState {
    pub(super) cq: Cq,
    channel: CompChannel,
    context: usize,
    /// Armed while it was empty, and nothing was polled since.
    armed: bool,
}

impl World {
    pub(super) fn new(plan: Plan, seed: u64, mut random: Random, options: &Options) -> Checked<Self> {
        let network = MemoryNetwork::new(plan.network.clone());
        let watch = Watch::new(&network, options);
        let mut world = Self {
            contexts: Vec::new(),
            cqs: Vec::new(),
            ends: Vec::new(),
            outcome: Outcome::default(),
            random: random.fork(seed),
            network,
            watch,
            plan,
        };
        for host in 0..world.plan.hosts {
            for _ in 0..world.plan.contexts {
                world.add_context(IpAddr::from([10, 0, 0, host as u8 + 1]))?;
            }
        }
        for _ in 0..world.plan.pairs {
            let contexts = world.contexts.len() as u64;
            let (a, b) = (random.below(contexts) as usize, random.below(contexts) as usize);
            world.add_pair(a, b)?;
        }
        if world.plan.scenario == Scenario::Rc {
            let at = |end: &End| (world.contexts[end.context].ip, end.qp.qp_num());
            let responders = world.ends.iter().map(|end| (at(end), at(&world.ends[end.peer]))).collect();
            let faults = RandomFaults::new(world.plan.network.faults, world.random.fork(1));
            world.network.set_policy(Box::new(BoundedFaults::new(faults, responders)));
        }
        Ok(world)
    }

    pub(super) fn add_context(&mut self, ip: IpAddr) -> Checked<usize> {
        let context = self.network.host(ip).open()?;
        let pd = context.alloc_pd()?;
        let words = Words::new(&pd)?;
        let gid = context.query_gid(1, 0)?.gid;
        let receives = if self.plan.srq {
            let slots = 2 * self.plan.depth;
            let srq = pd.create_srq(&SrqInitAttr { max_wr: slots, max_sge: self.plan.max_sge })?;
            Some(Receives::new(&pd, &self.plan, slots as usize, Queue::Shared(srq))?)
        } else {
            None
        };
        let last_seen = vec![0; ADD_WORDS + SWAP_WORDS];
        self.contexts.push(Host { ip, gid, context, pd, words, last_seen, receives, shared_cq: None });
        Ok(self.contexts.len() - 1)
    }

    fn add_cq(&mut self, context: usize) -> Checked<usize> {
        let host = &mut self.contexts[context];
        if let Some(shared) = host.shared_cq {
            return Ok(shared);
        }
        let channel = host.context.create_comp_channel()?;
        let cq = host.context.create_cq(4096, Some(&channel))?;
        self.cqs.push(CqState { cq, channel, context, armed: false });
        if self.plan.shared_cq {
            host.shared_cq = Some(self.cqs.len() - 1);
        }
        Ok(self.cqs.len() - 1)
    }

    /// Connects a new queue pair of context `a` with one of context `b`.
    pub(super) fn add_pair(&mut self, a: usize, b: usize) -> Checked {
        let first = self.ends.len();
        for (context, peer) in [(a, first + 1), (b, first)] {
            let end = self.make_end(context, peer)?;
            self.ends.push(end);
        }
        let psns = [self.psn(), self.psn()];
        for side in 0..2 {
            let (end, peer) = (&self.ends[first + side], &self.ends[first + 1 - side]);
            let ah_attr = AhAttr::roce(self.contexts[peer.context].gid, 0);
            end.qp.modify(&QpAttr {
                max_dest_rd_atomic: Some(self.plan.rd_atomic),
                min_rnr_timer: Some(self.plan.rnr_timer),
                ..QpAttr::rtr(ah_attr, self.plan.mtu, peer.qp.qp_num(), psns[1 - side])
            })?;
            end.qp.modify(&QpAttr {
                timeout: Some(self.plan.timeout),
                retry_cnt: Some(self.plan.retry_cnt),
                rnr_retry: Some(self.plan.rnr_retry),
                max_rd_atomic: Some(self.plan.rd_atomic),
                ..QpAttr::rts(psns[side])
            })?;
        }
        Ok(())
    }

    /// Where a sequence begins: often shortly before it wraps.
    fn psn(&mut self) -> u32 {
        let psn = self.random.below(1 << 24) as u32;
        if self.random.chance(0.3) { 0xff_ffff - psn % 64 } else { psn }
    }

    fn make_end(&mut self, context: usize, peer: usize) -> Checked<End> {
        let index = self.ends.len();
        let (send_cq, recv_cq) = (self.add_cq(context)?, self.add_cq(context)?);
        let plan = &self.plan;
        let host = &self.contexts[context];
        let cap = QpCap {
            max_send_wr: plan.depth,
            max_recv_wr: plan.depth,
            max_send_sge: plan.max_sge,
            max_recv_sge: plan.max_sge,
            max_inline_data: plan.inline,
        };
        let srq = host.receives.as_ref().and_then(|receives| receives.srq().cloned());
        let qp = host.pd.create_qp(&QpInitAttr {
            srq,
            cap,
            sq_sig_all: plan.sig_all,
            recv_cq: self.cqs[recv_cq].cq.clone(),
            ..QpInitAttr::new(QpType::Rc, &self.cqs[send_cq].cq)
        })?;
        qp.modify(&QpAttr::init(Access::ALL))?;
        let (slot_len, depth) = (plan.slot_len(), plan.depth as usize);
        let receives = match host.receives {
            Some(_) => None,
            None => Some(Receives::new(&host.pd, plan, depth, Queue::Own(qp.clone()))?),
        };
        let source = Area::new(&host.pd, 2 * plan.max_len, 0, Access::REMOTE_READ)?;
        let source_bytes = message(!(index as u64), source.len());
        source.write(0, &source_bytes)?;
        Ok(End {
            index,
            context,
            peer,
            send_cq,
            recv_cq,
            local: Area::new(&host.pd, depth * slot_len, CONSUMED, Access::LOCAL_WRITE)?,
            target: Area::new(&host.pd, depth * slot_len, CONSUMED, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            source,
            source_bytes,
            receives,
            invalidable: Vec::new(),
            posted: 0,
            outstanding: VecDeque::new(),
            unsignaled: 0,
            expected: VecDeque::new(),
            failed: false,
            qp,
        })
    }

    // ---- posting ----

    /// Posts a few sends at `end`, as many as it has room for.
    pub(super) fn post_sends(&mut self, end: usize, burst: u64) -> Checked {
        for _ in 0..burst {
            let state = &self.ends[end];
            let full = state.outstanding.len() == self.plan.depth as usize;
            if state.failed || state.posted == self.plan.ops || full {
                break;
            }
            self.post_send(end)?;
        }
        Ok(())
    }

    fn draw_kind(&mut self, end: usize) -> Kind {
        let imm = self.random.next_u64() as u32;
        let word = |random: &mut Random, from: usize, count: usize| from + random.below(count as u64) as usize;
        match self.random.below(16) {
            0..=3 => Kind::Send,
            4 => Kind::SendImm(imm),
            5 => Kind::SendInv(0),
            6..=8 => Kind::Write(self.random.below(9) as usize),
            9..=10 => Kind::WriteImm(self.random.below(9) as usize, imm),
            11..=12 => Kind::Read(0),
            13..=14 => {
                let word = word(&mut self.random, 0, ADD_WORDS);
                Kind::Add { word, add: 1 + self.random.below(1 << 40) }
            }
            _ => {
                let word = word(&mut self.random, ADD_WORDS, SWAP_WORDS);
                let compare = self.contexts[self.ends[self.ends[end].peer].context].last_seen[word];
                // Unique, and never 0.
                let swap = (end as u64 + 1) << 32 | self.ends[end].posted + 1;
                Kind::Swap { word, compare, swap }
            }
        }
    }

    fn draw_len(&mut self) -> usize {
        let mtu = self.plan.mtu.bytes() as usize;
        let random = &mut self.random;
        let len = match random.below(8) {
            0 => 0,
            1 => random.below(16) as usize,
            2 => mtu - 1,
            3 => mtu,
            4 => mtu + 1,
            5 => mtu * random.within(1, 4) as usize,
            _ => random.below(self.plan.max_len as u64 + 1) as usize,
        };
        len.min(self.plan.max_len)
    }

    fn post_send(&mut self, index: usize) -> Checked {
        let mut kind = self.draw_kind(index);
        let len = if kind.is_atomic() { 8 } else { self.draw_len() };
        let slot_len = self.plan.slot_len();
        let peer_index = self.ends[index].peer;
        match &mut kind {
            Kind::Write(offset) | Kind::WriteImm(offset, _) => *offset = (*offset).min(slot_len - len),
            Kind::Read(offset) => *offset = self.random.below((2 * self.plan.max_len - len) as u64 + 1) as usize,
            Kind::SendInv(rkey) => {
                let peer = &mut self.ends[peer_index];
                let mr = self.contexts[peer.context].pd.alloc_mr(8, Access::ALL)?;
                *rkey = mr.rkey();
                peer.invalidable.push(mr);
            }
            _ => {}
        }
        let count = self.random.within(1, u64::from(self.plan.max_sge)) as usize;
        let (end, peer) = (&self.ends[index], &self.ends[peer_index]);
        let last = end.posted + 1 == self.plan.ops;
        let inline = !kind.returns_data() && len <= self.plan.inline as usize && self.random.chance(0.5);
        let asked = self.random.chance(self.plan.signaled);
        // A queue full of unsignaled sends would never be seen to have room.
        let signaled = self.plan.sig_all || last || asked || end.unsignaled + 1 >= self.plan.depth;
        let op = Op {
            id: end.posted,
            kind,
            len,
            slot: (end.posted % u64::from(self.plan.depth)) as usize,
            pieces: if kind.is_atomic() { vec![0..8] } else { pieces(&mut self.random, len, count) },
            signaled,
            inline,
            consumed: false,
        };
        let bytes = end.message(op.id, len);
        let base = op.slot * slot_len;
        if !inline {
            end.local.fill(base..base + slot_len, FRESH)?;
            if !kind.returns_data() {
                let mut rest = &bytes[..];
                for piece in &op.pieces {
                    let (part, tail) = rest.split_at(piece.len());
                    end.local.write(base + piece.start, part)?;
                    rest = tail;
                }
            }
        }
        let sges: Vec<Sge> =
            op.pieces.iter().map(|piece| end.local.sge(base + piece.start..base + piece.end)).collect();
        let words = &self.contexts[peer.context].words.area;
        let target = |offset: usize| (peer.target.addr() + (op.slot * slot_len + offset) as u64, peer.target.key());
        let word_addr = |word: usize| (words.addr() + 8 * word as u64, words.key());
        let send_op = match kind {
            Kind::Send => SendOp::Send,
            Kind::SendImm(imm) => SendOp::SendImm(imm),
            Kind::SendInv(rkey) => SendOp::SendInv(rkey),
            Kind::Write(offset) => {
                let (remote_addr, rkey) = target(offset);
                SendOp::Write { remote_addr, rkey }
            }
            Kind::WriteImm(offset, imm) => {
                let (remote_addr, rkey) = target(offset);
                SendOp::WriteImm { remote_addr, rkey, imm }
            }
            Kind::Read(offset) => {
                SendOp::Read { remote_addr: peer.source.addr() + offset as u64, rkey: peer.source.key() }
            }
            Kind::Add { word, add } => {
                let (remote_addr, rkey) = word_addr(word);
                SendOp::FetchAdd { remote_addr, rkey, add }
            }
            Kind::Swap { word, compare, swap } => {
                let (remote_addr, rkey) = word_addr(word);
                SendOp::CompareSwap { remote_addr, rkey, compare, swap }
            }
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::FENCE, self.random.chance(0.1));
        flags.set(SendFlags::SOLICITED, self.random.chance(0.2));
        let data = if inline { Data::Inline(&bytes) } else { Data::Sges(&sges) };
        let posted = end.qp.post_send(&[SendWr { wr_id: op.id, op: send_op, data, flags, ud: None }]);
        ensure!(posted.is_ok(), "posting {op:?}: {posted:?}");
        if kind.takes_receive() {
            let expected = Expected { id: op.id, kind, len, slot: op.slot, checked: false };
            self.ends[peer_index].expected.push_back(expected);
        }
        let end = &mut self.ends[index];
        end.posted += 1;
        end.unsignaled = if signaled { 0 } else { end.unsignaled + 1 };
        end.outstanding.push_back(op);
        Ok(())
    }

    /// Posts receives where end `end` takes them from.
    pub(super) fn post_receives(&mut self, end: usize, count: u64) -> Checked {
        let end = &mut self.ends[end];
        if end.failed && end.receives.is_some() {
            return Ok(());
        }
        let receives = match &mut end.receives {
            Some(receives) => receives,
            None => self.contexts[end.context].receives.as_mut().ok_or_else(|| Failure::new("no receives"))?,
        };
        for _ in 0..count {
            receives.post(&mut self.random)?;
        }
        Ok(())
    }

    // ---- completions ----

    /// Polls completion queue `cq` for up to `count` entries; returns how many there were.
    pub(super) fn poll(&mut self, cq: usize, count: usize) -> Checked<usize> {
        let mut wcs = vec![WorkCompletion::default(); count];
        let polled = self.cqs[cq].cq.poll(&mut wcs)?;
        let state = &mut self.cqs[cq];
        if polled != 0 && std::mem::take(&mut state.armed) {
            let event = state.channel.try_event()?;
            ensure!(
                event.is_some_and(|event| event == state.cq),
                "a completion came to an armed queue without an event"
            );
        }
        for wc in &wcs[..polled] {
            self.watch.completion(wc);
            self.complete(cq, wc)?;
        }
        let state = &mut self.cqs[cq];
        if polled == 0 && count != 0 && !state.armed && self.random.chance(0.3) {
            ensure!(state.channel.try_event()?.is_none(), "an event for a queue that was not armed");
            state.cq.req_notify(false)?;
            state.armed = true;
        }
        Ok(polled)
    }

    fn complete(&mut self, cq: usize, wc: &WorkCompletion) -> Checked {
        let context = self.cqs[cq].context;
        let found = self.ends.iter().position(|end| end.context == context && end.qp.qp_num() == wc.qp_num);
        let Some(index) = found else {
            return Err(Failure::new(format!("a completion for a queue pair that is not there: {wc:?}")));
        };
        // Of a failed completion the opcode says nothing; the number does.
        let receive = wc.wr_id & RECEIVE != 0;
        let queue = if receive { self.ends[index].recv_cq } else { self.ends[index].send_cq };
        ensure!(queue == cq, "a completion came to the wrong queue: {wc:?}");
        let done = if receive { self.complete_receive(index, wc) } else { self.complete_send(index, wc) };
        done.map_err(|Failure(why)| Failure(format!("end {index}: {wc:?}: {why}")))
    }

    fn complete_send(&mut self, index: usize, wc: &WorkCompletion) -> Checked {
        loop {
            let Some(op) = self.ends[index].outstanding.pop_front() else {
                return Err(Failure::new("nothing is outstanding that this could complete"));
            };
            if op.id == wc.wr_id {
                if wc.status != WcStatus::Success {
                    return self.fail_send(index, &op, wc);
                }
                ensure!(!self.ends[index].failed, "a success after the queue pair failed");
                ensure!(op.signaled, "{op:?} was not signaled");
                let opcode = match op.kind {
                    Kind::Send | Kind::SendImm(_) | Kind::SendInv(_) => WcOpcode::Send,
                    Kind::Write(_) | Kind::WriteImm(..) => WcOpcode::RdmaWrite,
                    Kind::Read(_) => WcOpcode::RdmaRead,
                    Kind::Add { .. } => WcOpcode::FetchAdd,
                    Kind::Swap { .. } => WcOpcode::CompSwap,
                };
                let expected =
                    WorkCompletion { byte_len: op.len as u32, ..WorkCompletion::new(op.id, opcode, wc.qp_num) };
                ensure!(*wc == expected, "expected {expected:?}");
                return self.finish(index, &op);
            }
            ensure!(!op.signaled && !self.ends[index].failed, "{op:?} is outstanding before it");
            self.finish(index, &op)?;
        }
    }

    /// A send failed: the first one for a reason, all others because of it.
    fn fail_send(&mut self, index: usize, op: &Op, wc: &WorkCompletion) -> Checked {
        let end = &mut self.ends[index];
        if end.failed {
            ensure!(wc.status == WcStatus::WrFlushErr, "after the first failure everything else is flushed");
        } else {
            end.failed = true;
            let expected = match self.plan.scenario {
                Scenario::Rc => return Err(Failure::new("nothing may fail")),
                Scenario::Rnr => wc.status == WcStatus::RnrRetryExcErr || wc.status == WcStatus::RetryExcErr,
                _ => wc.status == WcStatus::RetryExcErr,
            };
            // A failure that this end's owner caused flushes everything.
            ensure!(
                expected || end.qp.state() == QpState::Err && wc.status == WcStatus::WrFlushErr,
                "unexpected status"
            );
            ensure!(end.qp.state() == QpState::Err, "a send failed and the queue pair is in {}", end.qp.state());
        }
        self.outcome.failed += 1;
        let peer = &self.ends[self.ends[index].peer];
        let words = &mut self.contexts[peer.context].words;
        match op.kind {
            Kind::Add { word, add } => words.add_failed(word, add),
            Kind::Swap { word, compare, swap } => words.swap_failed(word, compare, swap),
            _ => {}
        }
        let slot_len = self.plan.slot_len();
        self.ends[index].local.fill(op.slot * slot_len..(op.slot + 1) * slot_len, CONSUMED)
    }

    /// `op` is complete: that it did what it says.
    fn finish(&mut self, index: usize, op: &Op) -> Checked {
        self.outcome.completed += 1;
        self.outcome.bytes += op.len as u64;
        let slot_len = self.plan.slot_len();
        let (end, peer) = (&self.ends[index], &self.ends[self.ends[index].peer]);
        let host = &mut self.contexts[peer.context];
        let base = op.slot * slot_len;
        let result = match op.kind {
            Kind::Read(offset) => peer.source_bytes[offset..offset + op.len].to_vec(),
            Kind::Add { .. } | Kind::Swap { .. } => {
                let bytes = end.local.read(base..base + 8)?;
                let old = u64::from_ne_bytes(bytes[..].try_into().map_err(|_| Failure::new("8 bytes"))?);
                match op.kind {
                    Kind::Add { word, add } => host.words.added(word, old, add),
                    Kind::Swap { word, compare, swap } => {
                        host.words.swapped(word, old, compare, swap);
                        host.last_seen[word] = if old == compare { swap } else { old };
                    }
                    _ => {}
                }
                bytes
            }
            _ => end.message(op.id, op.len),
        };
        if let (Kind::Write(offset) | Kind::WriteImm(offset, _), false) = (op.kind, op.consumed) {
            peer.check_target(op.slot, slot_len, offset, &result)?;
        }
        end.check_local(op, slot_len, &result)?;
        let peer = self.ends[index].peer;
        if let Some(message) = self.ends[peer].expected.iter_mut().find(|message| message.id == op.id) {
            message.checked = true;
        }
        Ok(())
    }

    fn complete_receive(&mut self, index: usize, wc: &WorkCompletion) -> Checked {
        let context = self.ends[index].context;
        if wc.status != WcStatus::Success {
            let end = &mut self.ends[index];
            ensure!(wc.status == WcStatus::WrFlushErr, "unexpected status");
            ensure!(
                end.qp.state() == QpState::Err,
                "a receive was flushed and the queue pair is in {}",
                end.qp.state()
            );
            self.outcome.failed += 1;
            let own = end.receives.is_some();
            let receives = match &mut end.receives {
                Some(receives) => receives,
                None => self.contexts[context].receives.as_mut().ok_or_else(|| Failure::new("no receives"))?,
            };
            return receives.flushed(wc.wr_id, own);
        }
        let Some(message) = self.ends[index].expected.pop_front() else {
            return Err(Failure::new("no message was sent that this could be"));
        };
        let peer_index = self.ends[index].peer;
        let bytes = self.ends[peer_index].message(message.id, message.len);
        let (opcode, flags, imm) = match message.kind {
            Kind::SendImm(imm) => (WcOpcode::Recv, WcFlags::WITH_IMM, imm),
            Kind::SendInv(rkey) => (WcOpcode::Recv, WcFlags::WITH_INV, rkey),
            Kind::WriteImm(_, imm) => (WcOpcode::RecvRdmaWithImm, WcFlags::WITH_IMM, imm),
            _ => (WcOpcode::Recv, WcFlags::empty(), 0),
        };
        let byte_len = message.len as u32;
        let expected = WorkCompletion { byte_len, imm, flags, ..WorkCompletion::new(wc.wr_id, opcode, wc.qp_num) };
        ensure!(*wc == expected, "expected {expected:?} for {message:?}");
        let received: &[u8] = if let Kind::WriteImm(offset, _) = message.kind {
            if !message.checked {
                self.ends[index].check_target(message.slot, self.plan.slot_len(), offset, &bytes)?;
            }
            if let Some(op) = self.ends[peer_index].outstanding.iter_mut().find(|op| op.id == message.id) {
                op.consumed = true;
            }
            &[]
        } else {
            &bytes
        };
        let end = &mut self.ends[index];
        match &mut end.receives {
            Some(receives) => receives.take(wc.wr_id, received, true),
            None => match &mut self.contexts[context].receives {
                Some(receives) => receives.take(wc.wr_id, received, false),
                None => Err(Failure::new("no receives")),
            },
        }
    }
}
