//! One deadline for each slot of a slab: a binary heap that knows where each slot is, so that a deadline is moved
//! or cleared in place and nothing stale is left behind.

use super::Nanos;

const NONE: u32 = u32::MAX;

#[derive(Default)]
pub(super) struct Timers {
    heap: Vec<(Nanos, u32)>,
    /// Where in the heap a slot is.
    at: Vec<u32>,
}

impl Timers {
    /// The earliest deadline, and whose it is. Of equal ones the lowest slot's, so that runs can be repeated.
    pub(super) fn next(&self) -> Option<(Nanos, u32)> {
        self.heap.first().copied()
    }

    pub(super) fn get(&self, slot: u32) -> Option<Nanos> {
        let at = *self.at.get(slot as usize)?;
        (at != NONE).then(|| self.heap[at as usize].0)
    }

    pub(super) fn set(&mut self, slot: u32, deadline: Nanos) {
        if self.at.len() <= slot as usize {
            self.at.resize(slot as usize + 1, NONE);
        }
        let at = match self.at[slot as usize] {
            NONE => {
                self.heap.push((deadline, slot));
                self.heap.len() - 1
            }
            at => {
                self.heap[at as usize].0 = deadline;
                at as usize
            }
        };
        let at = self.up(at);
        self.down(at);
    }

    pub(super) fn clear(&mut self, slot: u32) {
        let Some(at) = self.at.get(slot as usize).copied().filter(|&at| at != NONE) else { return };
        self.at[slot as usize] = NONE;
        let last = self.heap.pop().expect("the slot is in the heap");
        if (at as usize) < self.heap.len() {
            self.heap[at as usize] = last;
            let at = self.up(at as usize);
            self.down(at);
        }
    }

    /// Moves an entry towards the front and notes where it comes to rest.
    fn up(&mut self, mut at: usize) -> usize {
        let entry = self.heap[at];
        while at > 0 && entry < self.heap[(at - 1) / 2] {
            self.place(at, self.heap[(at - 1) / 2]);
            at = (at - 1) / 2;
        }
        self.place(at, entry);
        at
    }

    fn down(&mut self, mut at: usize) {
        let entry = self.heap[at];
        loop {
            let left = 2 * at + 1;
            let Some(&first) = self.heap.get(left) else { break };
            let (child, least) = match self.heap.get(left + 1) {
                Some(&second) if second < first => (left + 1, second),
                _ => (left, first),
            };
            if entry <= least {
                break;
            }
            self.place(at, least);
            at = child;
        }
        self.place(at, entry);
    }

    fn place(&mut self, at: usize, entry: (Nanos, u32)) {
        self.heap[at] = entry;
        self.at[entry.1 as usize] = at as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::Timers;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn like_a_map(steps in prop::collection::vec((0_u32..40, prop::option::weighted(0.7, 0_u64..50)), 0..400)) {
            let mut timers = Timers::default();
            let mut model = BTreeMap::new();
            for (slot, deadline) in steps {
                match deadline {
                    Some(deadline) => { timers.set(slot, deadline); model.insert(slot, deadline); }
                    None => { timers.clear(slot); model.remove(&slot); }
                }
                prop_assert_eq!(timers.next(), model.iter().map(|(&slot, &at)| (at, slot)).min());
                prop_assert_eq!(timers.get(slot), model.get(&slot).copied());
            }
            // Once in order to the end, as that looks at every place of the heap.
            while let Some((at, slot)) = timers.next() {
                prop_assert_eq!(model.iter().map(|(&slot, &at)| (at, slot)).min(), Some((at, slot)));
                model.remove(&slot);
                timers.clear(slot);
            }
            prop_assert!(model.is_empty());
        }
    }
}
