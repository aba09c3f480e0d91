use std::sync::OnceLock;
use std::time::Instant;

/// Where the cache has the time from.
pub trait Clock: Send + Sync {
    /// Nanoseconds since some fixed moment. Never goes back.
    fn now(&self) -> u64;
}

/// The machine's monotonic clock: what is used unless another is given.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now(&self) -> u64 {
        static EPOCH: OnceLock<Instant> = OnceLock::new();
        u64::try_from(EPOCH.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}
