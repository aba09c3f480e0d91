//! The measurements.

use super::spinlock::SpinlockMap;
use crate::failure::{Failure, Result};
use ferroce::ah_cache::AhResolver;
use ferroce::{Ah, AhAttr, AhCache, AhCacheConfig, AhCacheOptions, Gid, Pd, Ttl};
use hdrhistogram::Histogram;
use std::hint::black_box;
use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Gets between two looks at the clock.
const BATCH: u32 = 1000;
/// What is compared is measured in turns, so many of each.
const TURNS: u32 = 5;
/// The longest get that is told from longer ones, in nanoseconds.
const LONGEST: u64 = 60_000_000_000;
/// Addresses of others while it does.
const OTHERS: u32 = 1000;

/// The address of peer number `n`. Peers have neighbouring addresses, as in a cluster.
pub(super) fn to(n: u32) -> AhAttr {
    AhAttr::roce(Gid::from(Ipv4Addr::from(0x0a00_0000 + n)), 0)
}

/// Returns the same address handle for every address, so that what is measured is the cache; and for the last one after a while.
struct Ready {
    ah: Ah,
    /// An address, and how long it takes.
    slow: Option<(AhAttr, Duration)>,
}

impl AhResolver for Ready {
    fn resolve(&self, _: &Pd, attr: &AhAttr) -> ferroce::Result<Ah> {
        if let Some((_, time)) = self.slow.filter(|(slow, _)| slow == attr) {
            std::thread::sleep(time);
        }
        Ok(self.ah.clone())
    }
}

/// The cache and what it is asked with.
pub(super) struct Bench {
    pub(super) pd: Pd,
    ah: Ah,
    /// For each figure.
    pub(super) time: Duration,
}

impl Bench {
    pub(super) fn new(pd: &Pd, ah: Ah, time: Duration) -> Self {
        Self { pd: pd.clone(), ah, time }
    }

    /// A cache that has the addresses of `peers` peers.
    fn cache(&self, ttl: Ttl, peers: u32, slow: Option<(AhAttr, Duration)>) -> Result<AhCache> {
        let config = AhCacheConfig { ttl, ..AhCacheConfig::default() };
        let cache = AhCache::detached(AhCacheOptions::new(config).resolver(Ready { ah: self.ah.clone(), slow }))?;
        for n in 0..peers {
            drop(cache.get(&self.pd, &to(n)).map_err(ferroce::Error::from)?);
        }
        Ok(cache)
    }

    /// Nanoseconds of a get and a put over so many peers: of the cache, and of the map under a spinlock.
    pub(super) fn hit(&self, peers: u32) -> Result<(f64, f64)> {
        let cache = self.cache(Ttl::Infinite, peers, None)?;
        let map = SpinlockMap::new((0..peers).map(to));
        let attrs: Vec<AhAttr> = (0..peers).map(to).collect();
        let mut best = (f64::MAX, f64::MAX);
        for _ in 0..TURNS {
            best.0 = best.0.min(self.turn(self.time / TURNS, |n| self.get_put(&cache, &attrs[n % attrs.len()])));
            best.1 = best.1.min(self.turn(self.time / TURNS, |n| Self::spin(&map, &attrs[n % attrs.len()])));
        }
        Ok(best)
    }

    /// Nanoseconds of a get and a put with a TTL.
    pub(super) fn hit_with(&self, ttl: Ttl) -> Result<f64> {
        let cache = self.cache(ttl, 1, None)?;
        let attr = to(0);
        Ok(self.turn(self.time / 2, |_| self.get_put(&cache, &attr)))
    }

    /// How many times as many gets two threads do on different keys as one: of the cache, and of the map.
    pub(super) fn scaling(&self) -> Result<(f64, f64)> {
        let cache = self.cache(Ttl::Infinite, 2, None)?;
        let map = SpinlockMap::new((0..2).map(to));
        let mut best = (0_f64, 0_f64);
        for _ in 0..TURNS {
            let ours = |threads| self.rate(threads, |attr| self.get_put(&cache, attr));
            let theirs = |threads| self.rate(threads, |attr| Self::spin(&map, attr));
            best.0 = best.0.max(ours(2) / ours(1));
            best.1 = best.1.max(theirs(2) / theirs(1));
        }
        Ok(best)
    }

    /// Calls per nanosecond of so many threads, each with an address of its own.
    fn rate(&self, threads: u32, f: impl Fn(&AhAttr) + Sync) -> f64 {
        let barrier = Barrier::new(threads as usize);
        let time = self.time / (TURNS * 2);
        std::thread::scope(|scope| {
            let work = |n: u32| {
                let (f, barrier) = (&f, &barrier);
                scope.spawn(move || {
                    let attr = to(n);
                    barrier.wait();
                    1.0 / self.turn(time, |_| f(&attr))
                })
            };
            let threads: Vec<_> = (0..threads).map(work).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or_default()).sum()
        })
    }

    /// Bytes that an entry takes, and nanoseconds of a get and a put of one at random: among `peers` and among a thousand.
    pub(super) fn many(&self, peers: u32) -> Result<Many> {
        let small = self.cache(Ttl::Infinite, 1000, None)?;
        let before = resident()?;
        let cache = self.cache(Ttl::Infinite, peers, None)?;
        let bytes = resident()?.saturating_sub(before) as f64 / f64::from(peers);
        let map = SpinlockMap::new((0..peers).map(to));
        let among = |count: u32, cache: &AhCache| {
            let mut random = 1_u32;
            self.turn(self.time, |_| self.get_put(cache, &to(next(&mut random) % count)))
        };
        let mut random = 1_u32;
        let spinlock = self.turn(self.time, |_| Self::spin(&map, &to(next(&mut random) % peers)));
        Ok(Many { bytes, get: among(peers, &cache), get_of_1000: among(1000, &small), spinlock })
    }

    /// The p99 of gets of other addresses in nanoseconds: while nothing is resolved, and while one address
    /// is for so long.
    pub(super) fn beside_slow(&self, time: Duration) -> Result<(u64, u64)> {
        let slow = to(OTHERS);
        let cache = self.cache(Ttl::Infinite, OTHERS, Some((slow, time)))?;
        let mut histograms = [(); 2]
            .map(|()| Histogram::<u64>::new_with_bounds(1, LONGEST, 3))
            .map(|made| made.map_err(|error| Failure::run(format!("no room for a histogram: {error}"))));
        let mut fill = |which: usize, time: Duration| {
            if let Ok(histogram) = &mut histograms[which] {
                self.sample(&cache, time, histogram);
            }
        };
        fill(0, time / 2);
        std::thread::scope(|scope| {
            let resolution = scope.spawn(|| cache.get(&self.pd, &slow).map(drop));
            while cache.counters().in_flight == 0 && !resolution.is_finished() {
                std::thread::yield_now();
            }
            fill(1, time.mul_f64(0.9));
            resolution.join()
        })
        .map_err(|_| Failure::run("the thread that resolves ended early"))?
        .map_err(ferroce::Error::from)?;
        fill(0, time / 2);
        let [without, with] = histograms;
        Ok((without?.value_at_quantile(0.99), with?.value_at_quantile(0.99)))
    }

    fn sample(&self, cache: &AhCache, time: Duration, histogram: &mut Histogram<u64>) {
        let begin = Instant::now();
        let (mut random, mut last) = (1_u32, begin);
        while last - begin < time {
            let attr = to(next(&mut random) % OTHERS);
            let before = Instant::now();
            self.get_put(cache, &attr);
            last = Instant::now();
            histogram.saturating_record((last - before).as_nanos() as u64);
        }
    }

    #[inline]
    fn get_put(&self, cache: &AhCache, attr: &AhAttr) {
        if let Ok(lease) = cache.get(&self.pd, black_box(attr)) {
            drop(black_box(lease));
        }
    }

    #[inline]
    fn spin(map: &SpinlockMap, attr: &AhAttr) {
        map.put(black_box(map.get(black_box(attr))));
    }

    /// Nanoseconds of one call, at its best over a hundredth of the time: the machine has other things to do, too.
    fn turn(&self, time: Duration, mut f: impl FnMut(usize)) -> f64 {
        let begin = Instant::now();
        let (mut best, mut n) = (f64::MAX, 0);
        let mut batch_time = |batches: u32| {
            let start = Instant::now();
            for _ in 0..batches * BATCH {
                f(n);
                n = n.wrapping_add(1);
            }
            start.elapsed()
        };
        // How many batches a hundredth of the time is, caches warm.
        batch_time(1);
        let one = batch_time(1).as_nanos().max(1);
        let batches = (time.as_nanos() / 100 / one).clamp(1, 10_000) as u32;
        while begin.elapsed() < time {
            best = best.min(batch_time(batches).as_nanos() as f64 / f64::from(batches * BATCH));
        }
        best
    }
}

/// What a cache with many entries costs.
pub(super) struct Many {
    pub(super) bytes: f64,
    pub(super) get: f64,
    pub(super) get_of_1000: f64,
    pub(super) spinlock: f64,
}

/// A few instructions of randomness (Marsaglia's xorshift).
fn next(state: &mut u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state
}

/// Bytes of memory that the process has.
fn resident() -> Result<u64> {
    let fail = |why: String| Failure::environment(format!("/proc/self/statm cannot be read: {why}"));
    let statm = std::fs::read_to_string("/proc/self/statm").map_err(|error| fail(error.to_string()))?;
    let pages: u64 =
        statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).ok_or_else(|| fail("it has no numbers".into()))?;
    Ok(pages * rustix::param::page_size() as u64)
}
