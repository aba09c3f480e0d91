//! How many objects there are of each kind. Only making and destroying them counts, never the data path.

use std::sync::atomic::{AtomicU64, Ordering};

/// A kind of object.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Pd,
    Ah,
    Mr,
    Cq,
    Qp,
    Srq,
    Channel,
}

impl Kind {
    const ALL: [Self; 7] = [Self::Pd, Self::Ah, Self::Mr, Self::Cq, Self::Qp, Self::Srq, Self::Channel];

    /// What it is in a sentence.
    pub(super) const fn what(self) -> &'static str {
        match self {
            Self::Pd => "a protection domain",
            Self::Ah => "an address handle",
            Self::Mr => "a memory region",
            Self::Cq => "a completion queue",
            Self::Qp => "a queue pair",
            Self::Srq => "a shared receive queue",
            Self::Channel => "a completion channel",
        }
    }

    /// The counter's name: that of the software device, where it has one.
    const fn counter(self) -> &'static str {
        match self {
            Self::Pd => "protection_domains",
            Self::Ah => "address_handles",
            Self::Mr => "memory_regions",
            Self::Cq => "completion_queues",
            Self::Qp => "queue_pairs",
            Self::Srq => "shared_receive_queues",
            Self::Channel => "completion_channels",
        }
    }
}

/// The objects of one context: those in use, those that are about to go (queue pairs that drain), and those that could not be destroyed.
#[derive(Default)]
pub(super) struct Live([AtomicU64; Kind::ALL.len()]);

impl Live {
    pub(super) fn made(&self, kind: Kind) {
        self.0[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn gone(&self, kind: Kind) {
        self.0[kind as usize].fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Kind::ALL.into_iter().map(|kind| (kind.counter(), self.0[kind as usize].load(Ordering::Relaxed)))
    }
}
