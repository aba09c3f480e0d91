use super::entry::Entry;
use super::table::Core;
use crate::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::Relaxed;

/// Which entries go next when there is no room: those that nobody holds, least recently put first.
///
/// A list that every put moves an entry in would make all puts wait for each other. Instead all idle entries are looked at once in
/// a while, and those that were put longest ago are remembered in order. One that was used since then has another number and is
/// passed over; those that became idle since are younger than all that are remembered. So the order is exact.
pub(super) struct Eviction {
    /// The next to go comes last.
    candidates: Mutex<Vec<Candidate>>,
}

struct Candidate {
    order: u64,
    hash: u64,
    dgid: [u64; 2],
}

/// One in so many idle entries is remembered, and at least so many.
const PART: usize = 8;
const LEAST: usize = 1024;

impl Eviction {
    pub(super) fn new() -> Self {
        Self { candidates: Mutex::new(Vec::new()) }
    }

    /// Takes the entry that was put longest ago out of the table; `None` if all are held.
    pub(super) fn one(&self, core: &Core) -> Option<Arc<Entry>> {
        let mut candidates = self.candidates.lock();
        loop {
            while let Some(Candidate { order, hash, dgid }) = candidates.pop() {
                if let Some(entry) = core.take_idle(dgid, hash, order) {
                    return Some(entry);
                }
            }
            // Whoever lets go of an entry says so afterwards: if nobody did since the last look, there is nothing to see.
            if !core.shared.let_go.swap(false, Ordering::AcqRel) {
                return None;
            }
            core.each_idle(|entry| {
                candidates.push(Candidate {
                    order: entry.order.load(Relaxed),
                    hash: core.hash(&entry.key),
                    dgid: entry.key.dgid(),
                });
            });
            let keep = (candidates.len() / PART).max(LEAST);
            if candidates.len() > keep {
                candidates.select_nth_unstable_by_key(keep, |candidate| candidate.order);
                candidates.truncate(keep);
                // The others are still there to be found.
                core.shared.let_go.store(true, Ordering::Release);
            }
            candidates.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.order));
        }
    }
}
