use super::drain::Drain;
use super::end::{End, RECEIVE};
use super::op::{Kind, Op};
use super::world::World;
use crate::failure::{Checked, Failure, ensure};
use crate::pattern::CONSUMED;
use ferroce_verbs::{QpState, WcFlags, WcOpcode, WcStatus, WorkCompletion};

impl World {
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
        let found = self.ends.iter().find(|end| end.context == context && end.qp.qp_num() == wc.qp_num);
        let Some(index) = found.map(|end| end.index) else {
            let mut gone = self.gone.iter_mut();
            let Some(gone) = gone.find(|gone| gone.context == context && gone.qpn == wc.qp_num) else {
                return Err(Failure::new(format!("a completion for a queue pair that is not there: {wc:?}")));
            };
            let own = gone.complete(wc).map_err(|Failure(why)| Failure(format!("{wc:?}: {why}")))?;
            let shared = wc.wr_id & RECEIVE != 0 && !own;
            return match &mut self.contexts[context].receives {
                Some(receives) if shared => receives.flushed(wc.wr_id, false),
                _ if shared => Err(Failure::new(format!("a receive that is not posted: {wc:?}"))),
                _ => Ok(()),
            };
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
                ensure!(self.ends[index].drain != Drain::Done, "a success after the send queue was drained");
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
            ensure!(end.qp.state() == QpState::Err, "a send failed and the queue pair is in {}", end.qp.state());
            self.may_fail(index, op, wc.status)?;
        }
        self.outcome.failed += 1;
        if let Some(host) = self.contexts.get_mut(self.ends[index].peer_context) {
            host.words.failed(op.kind);
        }
        let slot_len = self.plan.slot_len();
        self.ends[index].local.fill(op.slot * slot_len..(op.slot + 1) * slot_len, CONSUMED)
    }

    /// `op` is complete: that it did what it says.
    fn finish(&mut self, index: usize, op: &Op) -> Checked {
        self.outcome.completed += 1;
        self.outcome.bytes += op.len as u64;
        let slot_len = self.plan.slot_len();
        let end = &self.ends[index];
        let base = op.slot * slot_len;
        let result = match op.kind {
            Kind::Read(offset) => End::source_of(end.peer, 2 * self.plan.max_len)[offset..offset + op.len].to_vec(),
            Kind::Add { .. } | Kind::Swap { .. } => end.local.read(base..base + 8)?,
            _ => End::message_of(index, op.id, op.len),
        };
        end.check_local(op, slot_len, &result)?;
        if let Some(host) = self.contexts.get_mut(end.peer_context) {
            match op.kind {
                Kind::Add { word, add } => host.words.added(word, word_of(&result), add),
                Kind::Swap { word, compare, swap } => {
                    let old = word_of(&result);
                    host.words.swapped(word, old, compare, swap);
                    host.last_seen[word] = if old == compare { swap } else { old };
                }
                _ => {}
            }
        }
        let Some(peer) = self.ends.get_mut(self.ends[index].peer) else { return Ok(()) };
        if let (Kind::Write(offset) | Kind::WriteImm(offset, _), false) = (op.kind, op.consumed) {
            peer.check_target(op.slot, slot_len, offset, &result)?;
        }
        if let Some(message) = peer.expected.iter_mut().find(|message| message.id == op.id) {
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
        let bytes = End::message_of(peer_index, message.id, message.len);
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
            let peer = self.ends.get_mut(peer_index);
            if let Some(op) = peer.and_then(|peer| peer.outstanding.iter_mut().find(|op| op.id == message.id)) {
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

fn word_of(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_ne_bytes)
}
