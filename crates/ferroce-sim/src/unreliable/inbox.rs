use crate::arena::Area;
use crate::failure::{Checked, ensure};
use crate::pattern::{FRESH, GAP, difference, pieces};
use ferroce_soft::memory::Random;
use ferroce_verbs::{Access, Pd, Qp, RecvWr, Sge};
use std::collections::VecDeque;
use std::ops::Range;

/// Set in the `wr_id` of every receive; the rest is its slot.
pub(super) const RECEIVE: u64 = 1 << 63;

/// The receives of one queue pair.
pub(super) struct Inbox {
    area: Area,
    slot_len: usize,
    max_len: usize,
    max_sge: u32,
    slots: Vec<Option<Vec<Range<usize>>>>,
    order: VecDeque<usize>,
}

impl Inbox {
    pub(super) fn new(pd: &Pd, slots: usize, max_len: usize, max_sge: u32) -> Checked<Self> {
        let slot_len = (max_len + GAP * max_sge as usize).next_multiple_of(8);
        let area = Area::new(pd, slots * slot_len, FRESH, Access::LOCAL_WRITE)?;
        Ok(Self { area, slot_len, max_len, max_sge, slots: vec![None; slots], order: VecDeque::new() })
    }

    /// Posts all that are not.
    pub(super) fn post_all(&mut self, qp: &Qp, random: &mut Random) -> Checked {
        for slot in 0..self.slots.len() {
            if self.slots[slot].is_some() {
                continue;
            }
            let base = slot * self.slot_len;
            self.area.fill(base..base + self.slot_len, FRESH)?;
            let count = random.within(1, u64::from(self.max_sge)) as usize;
            let pieces = pieces(random, self.max_len, count);
            let sge = |piece: &Range<usize>| self.area.sge(base + piece.start..base + piece.end);
            let sges: Vec<Sge> = pieces.iter().map(sge).collect();
            let posted = qp.post_recv(&[RecvWr::new(RECEIVE | slot as u64, &sges)]);
            ensure!(posted.is_ok(), "posting a receive: {posted:?}");
            self.slots[slot] = Some(pieces);
            self.order.push_back(slot);
        }
        Ok(())
    }

    /// The receive `wr_id` completed with `len` bytes: that it was its turn, and the bytes. What follows them is undefined, but
    /// nothing outside of its pieces was written.
    pub(super) fn take(&mut self, wr_id: u64, len: usize) -> Checked<Vec<u8>> {
        let slot = (wr_id & !RECEIVE) as usize;
        ensure!(self.order.front() == Some(&slot), "receive {slot} is not the oldest that is posted");
        self.order.pop_front();
        let pieces = self.slots[slot].take().unwrap_or_default();
        let base = slot * self.slot_len;
        let found = self.area.read(base..base + self.slot_len)?;
        let mut outside = found.clone();
        let mut bytes = Vec::new();
        for piece in &pieces {
            outside[piece.clone()].fill(FRESH);
            bytes.extend_from_slice(&found[piece.clone()]);
        }
        if let Some(difference) = difference(&vec![FRESH; self.slot_len], &outside) {
            ensure!(false, "outside of a receive: {difference}");
        }
        ensure!(len <= bytes.len(), "{len} bytes in a receive of {}", bytes.len());
        bytes.truncate(len);
        Ok(bytes)
    }

    /// How many are posted.
    pub(super) fn posted(&self) -> usize {
        self.order.len()
    }

    /// The queue pair was flushed: forgets what was posted, the oldest of which was `wr_id`.
    pub(super) fn flushed(&mut self, wr_id: u64) -> Checked {
        let slot = (wr_id & !RECEIVE) as usize;
        ensure!(self.order.pop_front() == Some(slot), "receive {slot} was flushed out of turn");
        self.slots[slot] = None;
        Ok(())
    }

    pub(super) fn check_guards(&self) -> Checked {
        self.area.check_guards()
    }
}
