use super::op::Kind;
use crate::arena::Area;
use crate::failure::{Checked, ensure};
use ferroce_verbs::{Access, Pd};
use std::collections::{HashMap, HashSet};

/// Words that peers work on with atomics, and what each of them got.
///
/// Every operation changes its word to a value that no other one leaves there, so the history can be put together from the old
/// values that were returned: if an operation was executed twice, or not at all, the chain has a hole.
pub(super) struct Words {
    pub(super) area: Area,
    history: Vec<Vec<Step>>,
    /// Operations that failed: whether they were executed is not known.
    unknown: Vec<Vec<Step>>,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    old: u64,
    new: u64,
}

/// Words for fetch-and-add come first, those for compare-and-swap after them.
pub(super) const ADD_WORDS: usize = 2;
pub(super) const SWAP_WORDS: usize = 2;

impl Words {
    pub(super) fn new(pd: &Pd) -> Checked<Self> {
        let count = ADD_WORDS + SWAP_WORDS;
        let area = Area::new(pd, 8 * count, 0, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
        Ok(Self { area, history: vec![Vec::new(); count], unknown: vec![Vec::new(); count] })
    }

    pub(super) fn added(&mut self, word: usize, old: u64, add: u64) {
        self.history[word].push(Step { old, new: old.wrapping_add(add) });
    }

    pub(super) fn swapped(&mut self, word: usize, old: u64, compare: u64, swap: u64) {
        self.history[word].push(Step { old, new: if old == compare { swap } else { old } });
    }

    /// An operation failed, or its end vanished, after it was posted.
    pub(super) fn failed(&mut self, kind: Kind) {
        match kind {
            Kind::Add { word, add } => self.unknown[word].push(Step { old: 0, new: add }),
            Kind::Swap { word, compare, swap } => self.unknown[word].push(Step { old: compare, new: swap }),
            _ => {}
        }
    }

    /// That every operation was executed exactly once, and those that failed at most once.
    pub(super) fn check(&self) -> Checked {
        self.area.check_guards()?;
        for word in 0..self.history.len() {
            let last = self.area.word(word)?;
            if word < ADD_WORDS { self.check_sum(word, last)? } else { self.check_chain(word, last)? }
        }
        Ok(())
    }

    /// From 0 to `last` in steps of which each begins where another ends.
    fn check_chain(&self, word: usize, last: u64) -> Checked {
        let mut next = HashMap::new();
        for step in self.history[word].iter().filter(|step| step.old != step.new) {
            let twice = next.insert(step.old, step.new);
            ensure!(twice.is_none(), "word {word}: two operations both replaced {:#x}", step.old);
        }
        let mut path = vec![0];
        let why = "the operations do not lead there one by one";
        ensure!(
            self.walk(word, &next, 0, last, &mut path),
            "word {word} is {last:#x}: {why}: {:x?}",
            self.history[word]
        );
        for step in &self.history[word] {
            ensure!(path.contains(&step.old), "word {word} was never {:#x}, which an operation found", step.old);
        }
        Ok(())
    }

    /// Goes on from the end of `path` to `last`, with every known step; those that failed may have been executed.
    fn walk(&self, word: usize, next: &HashMap<u64, u64>, used: usize, last: u64, path: &mut Vec<u64>) -> bool {
        let at = path[path.len() - 1];
        if at == last && used == next.len() {
            return true;
        }
        let failed = self.unknown[word].iter().filter(|step| step.old == at).map(|step| (step.new, 0));
        // A value is replaced once: if it is known by whom, nobody else did.
        let known = next.get(&at).map(|&new| (new, 1));
        let candidates: Vec<(u64, usize)> = known.map_or_else(|| failed.collect(), |known| vec![known]);
        candidates.into_iter().any(|(new, more)| {
            if path.contains(&new) {
                return false;
            }
            path.push(new);
            let found = self.walk(word, next, used + more, last, path);
            if !found {
                path.pop();
            }
            found
        })
    }

    /// Additions: a chain as well where all succeeded; otherwise the sum must be explained by some of those that failed.
    fn check_sum(&self, word: usize, last: u64) -> Checked {
        if self.unknown[word].is_empty() {
            return self.check_chain(word, last);
        }
        let known: u64 =
            self.history[word].iter().fold(0, |sum, step| sum.wrapping_add(step.new.wrapping_sub(step.old)));
        let mut sums = HashSet::from([known]);
        for step in &self.unknown[word] {
            // Enough to find an addition that was executed twice; with more the sums would be too many.
            if sums.len() > 1 << 16 {
                return Ok(());
            }
            let more: Vec<u64> = sums.iter().map(|sum| sum.wrapping_add(step.new)).collect();
            sums.extend(more);
        }
        ensure!(
            sums.contains(&last),
            "word {word} is {last:#x}, which no choice of the additions that failed explains"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_soft::memory::{MemoryConfig, MemoryNetwork};
    use ferroce_verbs::provider::Device;

    fn words() -> Words {
        let network = MemoryNetwork::new(MemoryConfig::default());
        let context = network.host("10.0.0.1".parse().unwrap()).open().unwrap();
        Words::new(&context.alloc_pd().unwrap()).unwrap()
    }

    #[test]
    fn an_addition_that_was_executed_twice_is_found() {
        let mut words = words();
        words.added(0, 0, 5);
        words.added(0, 5, 7);
        assert!(words.check().is_err(), "the word says that nothing happened");
        words.area.write(0, &12_u64.to_ne_bytes()).unwrap();
        words.check().unwrap();
        words.added(0, 24, 12);
        words.area.write(0, &36_u64.to_ne_bytes()).unwrap();
        assert!(words.check().is_err(), "somebody added 12 without saying so");
    }

    #[test]
    fn swaps_form_a_chain() {
        let mut words = words();
        let word = ADD_WORDS;
        words.swapped(word, 8, 8, 9);
        words.swapped(word, 0, 0, 8);
        words.swapped(word, 8, 7, 10);
        words.area.write(8 * word, &9_u64.to_ne_bytes()).unwrap();
        words.check().unwrap();
        words.swapped(word, 10, 3, 4);
        assert!(words.check().is_err(), "the word was never 10");
    }

    #[test]
    fn what_failed_was_executed_once_at_most() {
        let mut words = words();
        words.added(0, 0, 5);
        words.failed(Kind::Add { word: 0, add: 16 });
        for (value, ok) in [(5, true), (21, true), (37, false), (16, false)] {
            words.area.write(0, &u64::to_ne_bytes(value)).unwrap();
            assert_eq!(words.check().is_ok(), ok, "{value}");
        }
    }
}
