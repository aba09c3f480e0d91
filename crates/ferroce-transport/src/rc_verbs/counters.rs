use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What an interface has and has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RcCounters {
    /// Endpoints that exist, those included whose queue pair still gives back what was posted.
    pub endpoints: usize,
    /// The transport's own buffers that are free.
    pub free_buffers: usize,
    /// Messages that are none of this protocol, or more than their sender was granted.
    pub malformed: u64,
    /// Messages whose id has no handler.
    pub no_handler: u64,
    /// Completions of endpoints that are gone.
    pub no_endpoint: u64,
    /// Grants that were sent by themselves.
    pub grants_sent: u64,
    /// Signs of life that were asked for.
    pub probes: u64,
    /// Endpoints that failed.
    pub failures: u64,
}

/// The same while they are counted.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) malformed: AtomicU64,
    pub(super) no_handler: AtomicU64,
    pub(super) no_endpoint: AtomicU64,
    pub(super) grants_sent: AtomicU64,
    pub(super) probes: AtomicU64,
    pub(super) failures: AtomicU64,
}

impl Counters {
    pub(super) fn snapshot(&self, endpoints: usize, free_buffers: usize) -> RcCounters {
        RcCounters {
            endpoints,
            free_buffers,
            malformed: self.malformed.load(Relaxed),
            no_handler: self.no_handler.load(Relaxed),
            no_endpoint: self.no_endpoint.load(Relaxed),
            grants_sent: self.grants_sent.load(Relaxed),
            probes: self.probes.load(Relaxed),
            failures: self.failures.load(Relaxed),
        }
    }
}

/// Adds one.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
