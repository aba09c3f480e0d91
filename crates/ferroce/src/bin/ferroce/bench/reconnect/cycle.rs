//! Two interfaces of one machine, and the endpoints that come and go between them.

use crate::failure::{Failure, Result};
use ferroce::ah_cache::{AhResolver, Resolution};
use ferroce::transport::ud::SendError;
use ferroce::transport::ud_verbs::{UdOptions, UdVerbs};
use ferroce::{Ah, AhAttr, AhCache, AhCacheConfig, AhCacheOptions, Context, Pd, Ttl};
use hdrhistogram::Histogram;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a cycle may take: longer ones are a fault.
const LIMIT: Duration = Duration::from_secs(10);
const AM: u8 = 0;

/// What cycles took, in nanoseconds.
pub(super) struct Times {
    pub(super) cycles: Histogram<u64>,
    /// From the end of a cycle until nothing is left.
    pub(super) gone: Histogram<u64>,
    /// Of all cycles, what was waited for address handles.
    pub(super) ah_nanos: u64,
    pub(super) resolutions: u64,
}

impl Times {
    pub(super) fn new() -> Result<Self> {
        let histogram = || {
            Histogram::new_with_bounds(1, 2 * LIMIT.as_nanos() as u64, 3)
                .map_err(|error| Failure::run(format!("no room for a histogram: {error}")))
        };
        Ok(Self { cycles: histogram()?, gone: histogram()?, ah_nanos: 0, resolutions: 0 })
    }
}

/// The device's resolution, whose answer comes later. It blocks nobody, as one by messages to the kernel would not.
#[derive(Clone)]
struct Slowed(Arc<SlowedState>);

struct SlowedState {
    delay: Duration,
    waiting: Mutex<VecDeque<(Instant, Resolution)>>,
    nanos: AtomicU64,
    count: AtomicU64,
}

impl Slowed {
    fn new(delay: Duration) -> Self {
        let (nanos, count) = (AtomicU64::new(0), AtomicU64::new(0));
        Self(Arc::new(SlowedState { delay, waiting: Mutex::default(), nanos, count }))
    }

    fn finish(&self, begin: Instant, resolution: Resolution) {
        let ah = resolution.pd().create_ah(resolution.attr());
        self.0.nanos.fetch_add(begin.elapsed().as_nanos() as u64, Relaxed);
        self.0.count.fetch_add(1, Relaxed);
        resolution.finish(ah);
    }

    /// Ends those whose time has come.
    fn progress(&self) {
        loop {
            let mut waiting = self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            let due = waiting.front().is_some_and(|(begin, _)| begin.elapsed() >= self.0.delay);
            let Some((begin, resolution)) = due.then(|| waiting.pop_front()).flatten() else { return };
            drop(waiting);
            self.finish(begin, resolution);
        }
    }
}

impl AhResolver for Slowed {
    fn resolve(&self, pd: &Pd, attr: &AhAttr) -> ferroce::Result<Ah> {
        std::thread::sleep(self.0.delay);
        pd.create_ah(attr)
    }

    fn start(&self, resolution: Resolution) {
        let begin = Instant::now();
        if self.0.delay.is_zero() {
            return self.finish(begin, resolution);
        }
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).push_back((begin, resolution));
    }
}

/// Both ends.
pub(super) struct Ends {
    here: UdVerbs,
    there: UdVerbs,
    arrived: Arc<AtomicU64>,
    resolvers: [Slowed; 2],
    _caches: [AhCache; 2],
}

impl Ends {
    pub(super) fn new(contexts: [&Context; 2], ip: IpAddr, ttl: Ttl, delay: Duration) -> Result<Self> {
        let resolvers = [Slowed::new(delay), Slowed::new(delay)];
        let cache = |which: usize| {
            let config = AhCacheConfig { ttl, ..AhCacheConfig::default() };
            contexts[which].ah_cache_with(AhCacheOptions::new(config).resolver(resolvers[which].clone()))
        };
        let caches = [cache(0)?, cache(1)?];
        let open = |context| UdVerbs::open(context, UdOptions { address: Some(ip), ..UdOptions::default() });
        let (here, there) = (open(contexts[0])?, open(contexts[1])?);
        let arrived = Arc::new(AtomicU64::new(0));
        let count = arrived.clone();
        let handler = move |_: ferroce::transport::ud_verbs::Message<'_>| {
            count.fetch_add(1, Relaxed);
        };
        there.set_am_handler(AM, handler).map_err(refused)?;
        Ok(Self { here, there, arrived, resolvers, _caches: caches })
    }

    fn resolved(&self) -> (u64, u64) {
        let sum = |of: fn(&SlowedState) -> &AtomicU64| self.resolvers.iter().map(|it| of(&it.0).load(Relaxed)).sum();
        (sum(|state| &state.nanos), sum(|state| &state.count))
    }

    /// Does the work of both ends until something is so.
    fn until(&self, what: &str, is_so: impl Fn() -> bool) -> Result<()> {
        let begin = Instant::now();
        while !is_so() {
            for (interface, resolver) in [(&self.here, &self.resolvers[0]), (&self.there, &self.resolvers[1])] {
                resolver.progress();
                interface.progress()?;
            }
            if begin.elapsed() > LIMIT {
                return Err(Failure::run(format!("{what}: not within {} s", LIMIT.as_secs())));
            }
        }
        Ok(())
    }

    /// So many cycles.
    pub(super) fn cycles(&self, count: u32, times: &mut Times) -> Result<()> {
        for _ in 0..count {
            let before = self.resolved();
            let messages = self.arrived.load(Relaxed);
            let begin = Instant::now();
            let endpoint = self.here.connect(self.there.address()).map_err(refused)?;
            endpoint.am(AM, b"first").map_err(refused)?;
            self.until("the first message arrives", || self.arrived.load(Relaxed) != messages)?;
            drop(endpoint);
            let end = Instant::now();
            let after = self.resolved();
            times.cycles.saturating_record((end - begin).as_nanos() as u64);
            times.ah_nanos += after.0 - before.0;
            times.resolutions += after.1 - before.1;
            let nothing = |interface: &UdVerbs| interface.counters().endpoints == 0;
            self.until("the endpoint is gone", || nothing(&self.here) && nothing(&self.there))?;
            times.gone.saturating_record(end.elapsed().as_nanos() as u64);
        }
        Ok(())
    }
}

fn refused(error: SendError) -> Failure {
    Failure::run(format!("the transport refuses: {error}"))
}
