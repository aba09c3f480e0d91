use super::drain::Drain;
use super::op::{Expected, Op};
use super::plan::Plan;
use crate::arena::Area;
use crate::failure::{Checked, ensure};
use crate::pattern::{CONSUMED, FRESH, difference, message, pieces, scattered};
use ferroce_soft::memory::Random;
use ferroce_verbs::{Access, Mr, Pd, Qp, RecvWr, Sge, Srq};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// One end of a connection, with its memory and with what it is owed.
pub(super) struct End {
    pub(super) index: usize,
    pub(super) context: usize,
    pub(super) peer: usize,
    /// The peer's context, which may be there when the peer is not.
    pub(super) peer_context: usize,
    pub(super) qp: Qp,
    pub(super) send_cq: usize,
    pub(super) recv_cq: usize,
    /// Source of its sends and destination of its reads.
    pub(super) local: Area,
    /// Where the peer writes.
    pub(super) target: Area,
    /// What the peer reads; never changes.
    pub(super) source: Area,
    pub(super) source_bytes: Vec<u8>,
    /// Its own receives, unless it uses an SRQ.
    pub(super) receives: Option<Receives>,
    /// Memory that the peer may invalidate, by the number of the key that it was told.
    pub(super) invalidable: Vec<Mr>,
    pub(super) posted: u64,
    pub(super) outstanding: VecDeque<Op>,
    pub(super) unsignaled: u32,
    pub(super) expected: VecDeque<Expected>,
    pub(super) drain: Drain,
    /// When its send queue last went on after draining.
    pub(super) resumed: Duration,
    /// It never posts a receive.
    pub(super) starved: bool,
    /// Its queue pair is in the error state.
    pub(super) failed: bool,
}

/// Set in the `wr_id` of every receive; the rest is its slot.
pub(super) const RECEIVE: u64 = 1 << 63;

/// Slots of memory for receives, and which of them are posted.
pub(super) struct Receives {
    pub(super) area: Area,
    slot_len: usize,
    max_len: usize,
    max_sge: u32,
    /// The pieces of each slot that is posted.
    slots: Vec<Option<Vec<Range<usize>>>>,
    /// In the order in which they were posted.
    pub(super) order: VecDeque<usize>,
    /// Where the queue posts them.
    queue: Queue,
}

pub(super) enum Queue {
    Own(Qp),
    Shared(Srq),
}

impl Receives {
    pub(super) fn new(pd: &Pd, plan: &Plan, slots: usize, queue: Queue) -> Checked<Self> {
        let slot_len = plan.slot_len();
        Ok(Self {
            area: Area::new(pd, slots * slot_len, CONSUMED, Access::LOCAL_WRITE)?,
            slot_len,
            max_len: plan.max_len,
            max_sge: plan.max_sge,
            slots: vec![None; slots],
            order: VecDeque::new(),
            queue,
        })
    }

    /// The shared receive queue, if it is one.
    pub(super) fn srq(&self) -> Option<&Srq> {
        match &self.queue {
            Queue::Shared(srq) => Some(srq),
            Queue::Own(_) => None,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.order.len() == self.slots.len()
    }

    /// Posts one more, if there is a free slot.
    pub(super) fn post(&mut self, random: &mut Random) -> Checked {
        let Some(slot) = self.slots.iter().position(Option::is_none) else { return Ok(()) };
        let base = slot * self.slot_len;
        self.area.fill(base..base + self.slot_len, FRESH)?;
        let count = random.within(1, u64::from(self.max_sge)) as usize;
        let pieces = pieces(random, self.max_len, count);
        let sges: Vec<Sge> = pieces.iter().map(|piece| self.area.sge(base + piece.start..base + piece.end)).collect();
        let wr = [RecvWr::new(RECEIVE | slot as u64, &sges)];
        let posted = match &self.queue {
            Queue::Own(qp) => qp.post_recv(&wr),
            Queue::Shared(srq) => srq.post_recv(&wr),
        };
        ensure!(posted.is_ok(), "posting a receive: {posted:?}");
        self.slots[slot] = Some(pieces);
        self.order.push_back(slot);
        Ok(())
    }

    /// The receive `wr_id` completed: that it was posted, in turn where that is known, and holds exactly `bytes`.
    pub(super) fn take(&mut self, wr_id: u64, bytes: &[u8], in_turn: bool) -> Checked {
        let pieces = self.retire(wr_id, in_turn)?;
        let base = (wr_id & !RECEIVE) as usize * self.slot_len;
        let expected = scattered(self.slot_len, FRESH, &pieces, bytes);
        let found = self.area.read(base..base + self.slot_len)?;
        if let Some(difference) = difference(&expected, &found) {
            ensure!(false, "a receive of {} bytes into {pieces:?}: {difference}", bytes.len());
        }
        self.area.fill(base..base + self.slot_len, CONSUMED)
    }

    /// The receive `wr_id` was flushed. What it holds is undefined.
    pub(super) fn flushed(&mut self, wr_id: u64, in_turn: bool) -> Checked {
        self.retire(wr_id, in_turn)?;
        let base = (wr_id & !RECEIVE) as usize * self.slot_len;
        self.area.fill(base..base + self.slot_len, CONSUMED)
    }

    fn retire(&mut self, wr_id: u64, in_turn: bool) -> Checked<Vec<Range<usize>>> {
        let slot = (wr_id & !RECEIVE) as usize;
        let pieces = self.slots.get_mut(slot).and_then(Option::take);
        let at = self.order.iter().position(|&posted| posted == slot);
        match (pieces, at) {
            (Some(pieces), Some(at)) => {
                ensure!(!in_turn || at == 0, "receive {wr_id} completed before {} that were posted earlier", at);
                self.order.remove(at);
                Ok(pieces)
            }
            _ => Err(crate::Failure::new(format!("receive {wr_id} completed and is not posted"))),
        }
    }

    /// That what is not posted was not touched since its owner took it back.
    pub(super) fn check(&self) -> Checked {
        self.area.check_guards()?;
        for (slot, pieces) in self.slots.iter().enumerate() {
            if pieces.is_none() {
                check_untouched(&self.area, slot, self.slot_len, "a receive that is not posted")?;
            }
        }
        Ok(())
    }
}

/// That a slot holds what its owner left there.
pub(super) fn check_untouched(area: &Area, slot: usize, slot_len: usize, what: &str) -> Checked {
    let found = area.read(slot * slot_len..(slot + 1) * slot_len)?;
    match difference(&vec![CONSUMED; slot_len], &found) {
        None => Ok(()),
        Some(difference) => Err(crate::Failure::new(format!("{what} was written to: {difference}"))),
    }
}

impl End {
    /// The bytes of message `id` of end `index`.
    pub(super) fn message_of(index: usize, id: u64, len: usize) -> Vec<u8> {
        message((index as u64 + 1) << 32 | id, len)
    }

    /// What peers of end `index` read.
    pub(super) fn source_of(index: usize, len: usize) -> Vec<u8> {
        message(!(index as u64), len)
    }

    /// That slot `slot` of the local memory is as `op` should leave it, which is complete now; then takes it back.
    pub(super) fn check_local(&self, op: &Op, slot_len: usize, result: &[u8]) -> Checked {
        let range = op.slot * slot_len..(op.slot + 1) * slot_len;
        if !op.inline {
            let expected = scattered(slot_len, FRESH, &op.pieces, result);
            let found = self.local.read(range.clone())?;
            if let Some(difference) = difference(&expected, &found) {
                ensure!(false, "local memory of {op:?}: {difference}");
            }
        }
        self.local.fill(range, CONSUMED)
    }

    /// That the write `id` of the peer, of `len` bytes at `offset` of target slot `slot`, is there and nothing else; then takes
    /// the memory back.
    pub(super) fn check_target(&self, slot: usize, slot_len: usize, offset: usize, bytes: &[u8]) -> Checked {
        let range = slot * slot_len..(slot + 1) * slot_len;
        let written = offset..offset + bytes.len();
        let expected = scattered(slot_len, CONSUMED, std::slice::from_ref(&written), bytes);
        let found = self.target.read(range.clone())?;
        if let Some(difference) = difference(&expected, &found) {
            ensure!(false, "a write of {} bytes at {offset} of slot {slot}: {difference}", bytes.len());
        }
        self.target.fill(range, CONSUMED)
    }
}
