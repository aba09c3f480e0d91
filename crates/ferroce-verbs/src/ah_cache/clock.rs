use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};
use std::time::Duration;

/// Where the cache has the time from.
pub trait Clock: Send + Sync {
    /// Nanoseconds since some fixed moment. Never goes back.
    fn now(&self) -> u64;

    /// The same in a way that may cost less: never ahead of [`Self::now`], and behind it by no more than [`Self::coarseness`].
    /// Never goes back either. The cache uses it for times that are long against that.
    fn coarse(&self) -> u64 {
        self.now()
    }

    /// How far [`Self::coarse`] may be behind. Always the same.
    fn coarseness(&self) -> Duration {
        Duration::ZERO
    }
}

/// The machine's monotonic clock (`CLOCK_MONOTONIC`): what is used unless another is given. Coarse (`CLOCK_MONOTONIC_COARSE`) it is
/// behind by a tick of the kernel, which is 1 to 10 ms, and by as long as something keeps the processor that has the tick from running it.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> u64 {
        nanos(clock_gettime(ClockId::Monotonic))
    }

    #[inline]
    fn coarse(&self) -> u64 {
        nanos(clock_gettime(ClockId::MonotonicCoarse))
    }

    fn coarseness(&self) -> Duration {
        Duration::from_nanos(nanos(clock_getres(ClockId::MonotonicCoarse)))
    }
}

/// Of a clock that counts from when the machine started.
#[inline]
fn nanos(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarse_clock_is_behind_the_other() {
        let clock = MonotonicClock;
        let mut last = 0;
        for _ in 0..1000 {
            let coarse = clock.coarse();
            assert!((last..=clock.now()).contains(&coarse));
            last = coarse;
        }
        assert!((Duration::from_millis(1)..=Duration::from_millis(10)).contains(&clock.coarseness()));
    }
}
