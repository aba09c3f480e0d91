use super::end::End;
use super::op::{Expected, Kind, Op};
use super::words::{ADD_WORDS, SWAP_WORDS};
use super::world::World;
use crate::failure::{Checked, Failure, ensure};
use crate::pattern::{FRESH, pieces};
use ferroce_soft::memory::Random;
use ferroce_verbs::{Access, Data, SendFlags, SendOp, SendWr, Sge};

impl World {
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
        let Some(peer) = self.ends.get(self.ends[end].peer) else { return Kind::Send };
        let peer_context = peer.context;
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
                let compare = self.contexts[peer_context].last_seen[word];
                // Unique, and never 0.
                let swap = ((end as u64 + 1) << 32) | (self.ends[end].posted + 1);
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
                let Some(peer) = self.ends.get_mut(peer_index) else { return Err(Failure::new("the peer is gone")) };
                let mr = self.contexts[peer.context].pd.alloc_mr(8, Access::ALL)?;
                *rkey = mr.rkey();
                peer.invalidable.push(mr);
            }
            _ => {}
        }
        let count = self.random.within(1, u64::from(self.plan.max_sge)) as usize;
        let end = &self.ends[index];
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
            pieces: if kind.is_atomic() {
                std::iter::once(0..8).collect()
            } else {
                pieces(&mut self.random, len, count)
            },
            signaled,
            inline,
            consumed: false,
            at: self.network.now(),
        };
        let bytes = End::message_of(index, op.id, len);
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
        let send_op = self.send_op(&op, peer_index);
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, signaled);
        flags.set(SendFlags::FENCE, self.random.chance(0.1));
        flags.set(SendFlags::SOLICITED, self.random.chance(0.2));
        let data = if inline { Data::Inline(&bytes) } else { Data::Sges(&sges) };
        let posted = end.qp.post_send(&[SendWr { wr_id: op.id, op: send_op, data, flags, ud: None }]);
        ensure!(posted.is_ok(), "posting {op:?}: {posted:?}");
        if let Some(peer) = self.ends.get_mut(peer_index).filter(|_| kind.takes_receive()) {
            peer.expected.push_back(Expected { id: op.id, kind, len, slot: op.slot, checked: false });
        }
        let end = &mut self.ends[index];
        end.posted += 1;
        end.unsignaled = if signaled { 0 } else { end.unsignaled + 1 };
        end.outstanding.push_back(op);
        Ok(())
    }

    /// What `op` asks the device for. A peer that is gone is only sent to.
    fn send_op(&self, op: &Op, peer: usize) -> SendOp {
        let Some(peer) = self.ends.get(peer) else { return SendOp::Send };
        let words = &self.contexts[peer.context].words.area;
        let target = peer.target.addr() + (op.slot * self.plan.slot_len()) as u64;
        let target_key = peer.target.key();
        let word_addr = |word: usize| words.addr() + 8 * word as u64;
        match op.kind {
            Kind::Send => SendOp::Send,
            Kind::SendImm(imm) => SendOp::SendImm(imm),
            Kind::SendInv(rkey) => SendOp::SendInv(rkey),
            Kind::Write(offset) => SendOp::Write { remote_addr: target + offset as u64, rkey: target_key },
            Kind::WriteImm(offset, imm) => {
                SendOp::WriteImm { remote_addr: target + offset as u64, rkey: target_key, imm }
            }
            Kind::Read(offset) => {
                SendOp::Read { remote_addr: peer.source.addr() + offset as u64, rkey: peer.source.key() }
            }
            Kind::Add { word, add } => SendOp::FetchAdd { remote_addr: word_addr(word), rkey: words.key(), add },
            Kind::Swap { word, compare, swap } => {
                SendOp::CompareSwap { remote_addr: word_addr(word), rkey: words.key(), compare, swap }
            }
        }
    }

    /// Posts receives where end `end` takes them from.
    pub(super) fn post_receives(&mut self, end: usize, count: u64) -> Checked {
        let end = &mut self.ends[end];
        if end.failed && end.receives.is_some() || end.starved {
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
}
