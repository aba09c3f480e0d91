//! The clock of evidence and of signs of life: exact to some milliseconds, and cheap to read.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Nanoseconds since some moment before the process began.
pub(super) type Nanos = u64;

#[inline]
pub(super) fn now() -> Nanos {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(super) fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX / 4)
}
