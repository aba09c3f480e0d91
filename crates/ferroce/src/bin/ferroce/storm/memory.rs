//! How much memory a process takes while a storm goes on.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How often one looks.
const LOOK: Duration = Duration::from_millis(20);
/// Looks that are remembered; of longer runs every second one is forgotten, and again.
const MOST: usize = 4096;

/// The most resident memory that was seen in each half of a run, in KiB. The second is not more than the first if nothing piles up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Halves {
    pub(super) first_half: u64,
    pub(super) second_half: u64,
}

/// What was seen of this process.
#[derive(Default)]
pub(super) struct Memory(Mutex<Seen>);

struct Seen {
    /// The most of so many looks each.
    kib: Vec<u64>,
    looks: u32,
    /// Of those since the last entry.
    now: (u32, u64),
}

impl Default for Seen {
    fn default() -> Self {
        Self { kib: Vec::new(), looks: 1, now: (0, 0) }
    }
}

impl Seen {
    fn add(&mut self, kib: u64) {
        self.now = (self.now.0 + 1, self.now.1.max(kib));
        if self.now.0 < self.looks {
            return;
        }
        self.kib.push(self.now.1);
        self.now = (0, 0);
        if self.kib.len() == MOST {
            self.kib = self.kib.chunks(2).map(|two| two.iter().copied().max().unwrap_or(0)).collect();
            self.looks *= 2;
        }
    }

    fn halves(&self) -> Halves {
        let (first, second) = self.kib.split_at(self.kib.len() / 2);
        let most = |half: &[u64]| half.iter().copied().max().unwrap_or(0);
        Halves { first_half: most(first), second_half: most(second) }
    }
}

impl Memory {
    /// Looks until it `is_over`.
    pub(super) fn watch(&self, is_over: impl Fn() -> bool) {
        // Where that cannot be read there is nothing to be said.
        let statm = Statm::open();
        while !is_over() {
            if let Some(kib) = statm.as_ref().and_then(Statm::resident_kib) {
                self.0.lock().add(kib);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Begins anew.
    pub(super) fn begin(&self) {
        *self.0.lock() = Seen::default();
    }

    pub(super) fn halves(&self) -> Halves {
        self.0.lock().halves()
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
                seen.add(if look == count / 4 { 1_000_000 } else { look });
            }
            let Halves { first_half, second_half } = seen.halves();
            assert_eq!(first_half, 1_000_000, "{count}");
            assert!((count * 9 / 10..count).contains(&second_half) || count == 2, "{count}: {second_half}");
            assert!(seen.kib.len() < MOST);
        }
        assert_eq!(Seen::default().halves(), Halves::default());
    }

    #[test]
    fn this_process_has_some() {
        assert!(Statm::open().unwrap().resident_kib().unwrap() > 500);
    }
}
