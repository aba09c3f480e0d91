use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// What a cache did and what it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AhCacheCounters {
    /// Gets that were answered from the cache.
    pub hits: u64,
    /// Gets that found nothing, and resolved.
    pub misses: u64,
    /// Gets that waited for the resolution of another get.
    pub shared_waits: u64,
    /// Gets that found an entry which had expired, and resolved anew.
    pub requeries: u64,
    /// Gets with TTL 0, which resolved for themselves.
    pub bypasses: u64,
    /// Resolutions that failed.
    pub failures: u64,
    /// Resolutions that were repeated, as the address changed while it was resolved.
    pub repeats: u64,
    /// Gets that were refused, as all entries were held.
    pub refusals: u64,
    /// Entries that went to make room.
    pub evictions: u64,
    /// Entries that were invalidated.
    pub invalidations: u64,
    /// Address handles that exist, in the cache or only with their holders.
    pub live: u64,
    /// Entries in the cache.
    pub entries: u64,
    /// Entries in the cache that nobody holds.
    pub idle: u64,
    /// Addresses that are being resolved.
    pub in_flight: u64,
    /// How long resolutions took.
    pub resolution: ResolutionTimes,
}

impl AhCacheCounters {
    /// All of them by name.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let micros = |time: Option<Duration>| time.map_or(0, |time| time.as_micros() as u64);
        vec![
            ("ah_cache_hits", self.hits),
            ("ah_cache_misses", self.misses),
            ("ah_cache_shared_waits", self.shared_waits),
            ("ah_cache_requeries", self.requeries),
            ("ah_cache_bypasses", self.bypasses),
            ("ah_cache_failures", self.failures),
            ("ah_cache_repeats", self.repeats),
            ("ah_cache_refusals", self.refusals),
            ("ah_cache_evictions", self.evictions),
            ("ah_cache_invalidations", self.invalidations),
            ("ah_cache_live", self.live),
            ("ah_cache_entries", self.entries),
            ("ah_cache_idle", self.idle),
            ("ah_cache_in_flight", self.in_flight),
            ("ah_cache_resolutions", self.resolution.count()),
            ("ah_cache_resolution_p50_us", micros(self.resolution.quantile(0.5))),
            ("ah_cache_resolution_p99_us", micros(self.resolution.quantile(0.99))),
            ("ah_cache_resolution_max_us", micros(self.resolution.quantile(1.0))),
        ]
    }
}

/// Bucket n of a [`ResolutionTimes`] is of less than 2^n microseconds.
const BUCKETS: usize = 32;

/// A histogram of times, by powers of two.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolutionTimes {
    buckets: [u64; BUCKETS],
}

impl ResolutionTimes {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The time within which this part of them was done, from 0 to 1; `None` if there are none. It is the upper limit of a bucket:
    /// at most twice the true time, if that is more than a microsecond.
    #[must_use]
    pub fn quantile(&self, part: f64) -> Option<Duration> {
        let wanted = (self.count() as f64 * part).ceil().max(1.0) as u64;
        let mut sum = 0;
        self.buckets().find_map(|(limit, count)| {
            sum += count;
            (sum >= wanted && count != 0).then_some(limit)
        })
    }

    /// The buckets: what times are below, and how many of them there are that are not in an earlier bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.buckets.iter().enumerate().map(|(n, count)| (Duration::from_micros(1 << n), *count))
    }
}

/// Where [`AhCacheCounters`] come from, except for what is counted where it is.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) misses: AtomicU64,
    pub(super) shared_waits: AtomicU64,
    pub(super) requeries: AtomicU64,
    pub(super) bypasses: AtomicU64,
    pub(super) failures: AtomicU64,
    pub(super) repeats: AtomicU64,
    pub(super) refusals: AtomicU64,
    pub(super) evictions: AtomicU64,
    pub(super) invalidations: AtomicU64,
    pub(super) live: AtomicU64,
    resolution: [AtomicU64; BUCKETS],
}

impl Tally {
    pub(super) fn resolved(&self, nanos: u64) {
        let micros = nanos / 1000;
        let bucket = (u64::BITS - micros.leading_zeros()) as usize;
        self.resolution[bucket.min(BUCKETS - 1)].fetch_add(1, Relaxed);
    }

    /// Those that are counted here.
    pub(super) fn read(&self) -> AhCacheCounters {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        AhCacheCounters {
            misses: read(&self.misses),
            shared_waits: read(&self.shared_waits),
            requeries: read(&self.requeries),
            bypasses: read(&self.bypasses),
            failures: read(&self.failures),
            repeats: read(&self.repeats),
            refusals: read(&self.refusals),
            evictions: read(&self.evictions),
            invalidations: read(&self.invalidations),
            live: read(&self.live),
            resolution: ResolutionTimes { buckets: std::array::from_fn(|n| read(&self.resolution[n])) },
            ..AhCacheCounters::default()
        }
    }
}

/// One more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_sorted_by_powers_of_two() {
        let tally = Tally::default();
        assert_eq!(tally.read().resolution.quantile(0.5), None);
        for micros in [0, 1, 3, 100, 3_000_000] {
            tally.resolved(micros * 1000 + 999);
        }
        tally.resolved(u64::MAX);
        let times = tally.read().resolution;
        assert_eq!(times.count(), 6);
        assert_eq!(times.quantile(0.0), Some(Duration::from_micros(1)));
        assert_eq!(times.quantile(0.5), Some(Duration::from_micros(4)));
        assert_eq!(times.quantile(0.8), Some(Duration::from_micros(1 << 22)));
        assert_eq!(times.quantile(1.0), Some(Duration::from_micros(1 << 31)));
    }
}
