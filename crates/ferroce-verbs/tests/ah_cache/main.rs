//! The address-handle cache, over a device that counts. Tests that begin with `t` and a number are findings of the same number about
//! caches before this one; ARCHITECTURE.md says which of them types rule out.

mod basics;
mod close;
mod device;
mod expiry;
mod resolution;
mod support;
mod watch;

use device::Device;
use ferroce_verbs::{AhCache, AhCacheConfig, AhCacheOptions, Context, Pd, Ttl};
use std::time::Duration;
use support::StillClock;

/// A device, its context, a protection domain, a clock and the cache.
struct World {
    device: Device,
    context: Context,
    pd: Pd,
    clock: StillClock,
    cache: AhCache,
}

impl World {
    fn new(config: AhCacheConfig) -> Self {
        Self::with(config, |options, _| options)
    }

    fn with(config: AhCacheConfig, change: impl FnOnce(AhCacheOptions, &StillClock) -> AhCacheOptions) -> Self {
        let device = Device::default();
        let context = device.open();
        let pd = context.alloc_pd().unwrap();
        let clock = StillClock::default();
        let options = change(AhCacheOptions::new(config).clock(clock.clone()), &clock);
        let cache = context.ah_cache_with(options).unwrap();
        Self { device, context, pd, clock, cache }
    }
}

fn ttl(ttl: Ttl) -> AhCacheConfig {
    AhCacheConfig { ttl, ..AhCacheConfig::default() }
}

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
