//! How much memory a process takes while a storm goes on, and how much of it is to remember connections that are over.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How often one looks.
const LOOK: Duration = Duration::from_millis(20);
/// Looks that are remembered; of longer runs every second one is forgotten, and again.
const MOST: usize = 4096;

/// The most that was seen of something in each half of a run. The second is not more than the first if nothing piles up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Halves {
    pub(super) first_half: u64,
    pub(super) second_half: u64,
}

impl Halves {
    fn of(values: impl ExactSizeIterator<Item = u64> + Clone) -> Self {
        let half = values.len() / 2;
        let most = |half: &mut dyn Iterator<Item = u64>| half.max().unwrap_or(0);
        Self { first_half: most(&mut values.clone().take(half)), second_half: most(&mut values.skip(half)) }
    }
}

/// What an end took while a run went on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Taken {
    /// Resident memory.
    pub(super) kib: Halves,
    /// Connections that are over and remembered for a second, so that nothing late of them is taken for new. How many there are is a
    /// matter of how fast connections end: who is twice as fast in the second half than in the first takes more memory then, though
    /// nothing piles up.
    pub(super) timewait: Halves,
}

/// What was seen of this process.
#[derive(Default)]
pub(super) struct Memory(Mutex<Seen>);

/// Of one look, or the most of several.
#[derive(Clone, Copy, Default)]
struct Look {
    kib: u64,
    timewait: u64,
}

impl Look {
    fn most(self, other: Self) -> Self {
        Self { kib: self.kib.max(other.kib), timewait: self.timewait.max(other.timewait) }
    }
}

struct Seen {
    /// The most of so many looks each.
    entries: Vec<Look>,
    looks: u32,
    /// Of those since the last entry.
    now: (u32, Look),
}

impl Default for Seen {
    fn default() -> Self {
        Self { entries: Vec::new(), looks: 1, now: Default::default() }
    }
}

impl Seen {
    fn add(&mut self, look: Look) {
        self.now = (self.now.0 + 1, self.now.1.most(look));
        if self.now.0 < self.looks {
            return;
        }
        self.entries.push(self.now.1);
        self.now = Default::default();
        if self.entries.len() == MOST {
            let most = |two: &[Look]| two.iter().copied().fold(Look::default(), Look::most);
            self.entries = self.entries.chunks(2).map(most).collect();
            self.looks *= 2;
        }
    }

    fn taken(&self) -> Taken {
        let looks = self.entries.iter();
        Taken {
            kib: Halves::of(looks.clone().map(|look| look.kib)),
            timewait: Halves::of(looks.map(|look| look.timewait)),
        }
    }
}

impl Memory {
    /// Looks until it `is_over`; asks for the connections that are remembered.
    pub(super) fn watch(&self, timewait: impl Fn() -> usize, is_over: impl Fn() -> bool) {
        // Where that cannot be read there is nothing to be said.
        let statm = Statm::open();
        while !is_over() {
            if let Some(kib) = statm.as_ref().and_then(Statm::resident_kib) {
                self.0.lock().add(Look { kib, timewait: timewait() as u64 });
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Begins anew.
    pub(super) fn begin(&self) {
        *self.0.lock() = Seen::default();
    }

    pub(super) fn taken(&self) -> Taken {
        self.0.lock().taken()
    }
}

/// Where the kernel says how much memory this process takes. Kept open: to look is one short system call, and what is measured goes on beside it.
struct Statm(File);

impl Statm {
    fn open() -> Option<Self> {
        File::open("/proc/self/statm").ok().map(Self)
    }

    /// The resident memory of this process. What it shares with others, as the rings of the software device, counts.
    fn resident_kib(&self) -> Option<u64> {
        let mut text = [0; 128];
        let length = self.0.read_at(&mut text, 0).ok()?;
        let pages: u64 = std::str::from_utf8(&text[..length]).ok()?.split(' ').nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64 / 1024)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_halves_however_long_it_takes() {
        for count in [2, 1000, MOST as u64 - 1, 10 * MOST as u64] {
            let mut seen = Seen::default();
            for look in 0..count {
                // Once much, in the first half; then it grows.
                seen.add(Look { kib: if look == count / 4 { 1_000_000 } else { look }, timewait: count - look });
            }
            let Taken { kib: Halves { first_half, second_half }, timewait } = seen.taken();
            assert_eq!(first_half, 1_000_000, "{count}");
            assert!((count * 9 / 10..count).contains(&second_half) || count == 2, "{count}: {second_half}");
            assert_eq!(timewait.first_half, count);
            assert!((count * 4 / 10..=count * 6 / 10).contains(&timewait.second_half), "{count}: {timewait:?}");
            assert!(seen.entries.len() < MOST);
        }
        assert_eq!(Seen::default().taken(), Taken::default());
    }

    #[test]
    fn this_process_has_some() {
        assert!(Statm::open().unwrap().resident_kib().unwrap() > 500);
    }
}
