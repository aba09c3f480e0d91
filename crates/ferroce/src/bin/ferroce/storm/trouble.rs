//! What went wrong in a run: how much of it, and the first few in words.

use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// So many are told in words.
const SAMPLES: usize = 5;
/// After so many the storm is given up.
const TOO_MANY: u64 = 1000;

#[derive(Default)]
pub(super) struct Troubles {
    count: AtomicU64,
    samples: Mutex<Vec<String>>,
}

impl Troubles {
    /// Notes an error; returns whether there are so many that going on makes no sense.
    pub(super) fn note(&self, what: impl fmt::Display) -> bool {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let mut samples = self.samples.lock();
        if samples.len() < SAMPLES {
            samples.push(what.to_string());
        }
        count >= TOO_MANY
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn samples(&self) -> Vec<String> {
        self.samples.lock().clone()
    }
}
