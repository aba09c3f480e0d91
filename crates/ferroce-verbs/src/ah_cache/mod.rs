//! The address-handle cache of a context: an address handle contains a *resolved* address, which takes time to make, can go stale,
//! and must not be destroyed while anybody sends with it.
//!
//! [`Context::ah_cache`] gives the cache; all who use one context share it for as long as anybody holds it. [`AhCache::get`] gives an
//! [`AhLease`]: `Clone` holds the address handle once more, `Drop` puts it. It is there for as long as anybody holds it, whatever
//! becomes of the cache. Three kinds of use follow: an endpoint keeps a lease until it is really gone, what is posted keeps one until
//! its completion, and who only looks drops it at once.
//!
//! # When an entry is used again
//!
//! By default ([`Ttl::Infinite`]) until it is invalidated: the device says which neighbours, GIDs and ports changed
//! ([`ContextOps::watch_addresses`](crate::provider::ContextOps::watch_addresses)), and the entries concerned leave the cache at once.
//! Holders keep what they have. [`AhCacheConfig`] also knows finite times to live, a largest age, a capacity, and no cache at all.
//!
//! # Keys
//!
//! An entry belongs to a protection domain and to the parsed attributes, every field of them. The device checks that an address handle
//! and the queue pair that uses it have one protection domain, so the same address in two of them is two entries, and an entry holds
//! its protection domain like any address handle does. [`AhCache::forget_pd`] drops the entries of one.
//!
//! # Threads
//!
//! Every call may be made from any thread. No lock is held while an address is resolved, a device's object is destroyed, or a program's
//! code is called.

mod barrier;
mod clock;
mod config;
mod counters;
mod entry;
mod error;
mod evict;
mod flight;
mod key;
#[cfg(test)]
mod model;
mod neighbours;
mod parked;
mod resolver;
mod table;

pub use clock::{Clock, MonotonicClock};
pub use config::{AhCacheConfig, CAPACITY_VARIABLE, MAX_AGE_VARIABLE, TTL_VARIABLE, Ttl, parse_time};
pub use counters::{AhCacheCounters, ResolutionTimes};
pub use entry::AhLease;
pub use error::{AhError, Destination, ResolveCause};
pub use flight::{AhPending, Resolution};
pub use resolver::{AhResolver, DeviceResolver};

use crate::{AddressChange, AddressWatcher, AhAttr, Context, Error, Pd, Result};
use key::Key;
use std::fmt;
use std::sync::{Arc, Weak};
use table::{Core, Step};

/// The address-handle cache of a context. Clones are handles to one cache; it closes with the last of them, and leases outlive it.
#[derive(Clone)]
pub struct AhCache(Arc<CacheOwner>);

/// Closes the cache. What is cached holds the context, which therefore knows of this only weakly.
pub(crate) struct CacheOwner {
    core: Arc<Core>,
    watcher: Option<Arc<Watcher>>,
}

/// How a cache is made.
#[derive(Clone)]
#[non_exhaustive]
pub struct AhCacheOptions {
    /// How it behaves.
    pub config: AhCacheConfig,
    /// Where it has the time from.
    pub clock: Arc<dyn Clock>,
    /// What makes the address handles.
    pub resolver: Arc<dyn AhResolver>,
}

impl AhCacheOptions {
    /// The machine's clock and the device's address handles.
    #[must_use]
    pub fn new(config: AhCacheConfig) -> Self {
        Self { config, clock: Arc::new(MonotonicClock), resolver: Arc::new(DeviceResolver) }
    }

    /// With another clock.
    #[must_use]
    pub fn clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// With something else to make the address handles.
    #[must_use]
    pub fn resolver(self, resolver: impl AhResolver + 'static) -> Self {
        Self { resolver: Arc::new(resolver), ..self }
    }
}

impl fmt::Debug for AhCacheOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AhCacheOptions").field("config", &self.config).finish_non_exhaustive()
    }
}

/// What there was when a cache was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CloseReport {
    /// Entries in the cache.
    pub entries: usize,
    /// Those of them that somebody held. Their address handles, and with them the device, go with the last holder.
    pub held: usize,
    /// How many times those were held.
    pub leases: usize,
    /// Addresses that were being resolved. Whoever waits for one gets [`AhError::Closed`].
    pub in_flight: usize,
}

/// What [`AhCache::try_get`] has for its caller.
#[derive(Debug)]
pub enum AhLookup {
    /// The address handle.
    Ready(AhLease),
    /// It is on its way.
    Pending(AhPending),
}

/// Tells the cache what changed.
struct Watcher(Weak<Core>);

impl AddressWatcher for Watcher {
    fn changed(&self, change: &AddressChange) {
        if let Some(core) = self.0.upgrade() {
            let count = core.invalidate(change);
            if count != 0 {
                tracing::debug!(?change, count, "address handles invalidated");
            }
        }
    }
}

impl Context {
    /// The cache of address handles that all users of this context share. If there is none at the moment it is made, as
    /// `FERROCE_AH_CACHE_TTL`, `FERROCE_AH_CACHE_MAX_AGE` and `FERROCE_AH_CACHE_CAPACITY` say.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] names the variable that cannot be understood.
    pub fn ah_cache(&self) -> Result<AhCache> {
        let mut slot = self.ops().base().ah_cache.lock();
        if let Some(owner) = slot.upgrade() {
            return Ok(AhCache(owner));
        }
        let cache = AhCache::open(self, AhCacheOptions::new(AhCacheConfig::from_env()?))?;
        *slot = Arc::downgrade(&cache.0);
        Ok(cache)
    }

    /// Makes the cache of address handles that all users of this context share from now on.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the settings contradict each other, or if there is a cache already.
    pub fn ah_cache_with(&self, options: AhCacheOptions) -> Result<AhCache> {
        let mut slot = self.ops().base().ah_cache.lock();
        if slot.strong_count() != 0 {
            return Err(Error::invalid(
                "address-handle cache",
                "the context has one already: make it before anybody uses it",
            ));
        }
        let cache = AhCache::open(self, options)?;
        *slot = Arc::downgrade(&cache.0);
        Ok(cache)
    }

    /// Gives the context up, and closes its cache of address handles. Holders keep theirs: the device itself goes with the last of
    /// them and of its other objects.
    pub fn close(self) -> CloseReport {
        let owner = self.ops().base().ah_cache.lock().upgrade();
        owner.map(|owner| owner.core.close()).unwrap_or_default()
    }
}

impl AhCache {
    fn open(context: &Context, options: AhCacheOptions) -> Result<Self> {
        options.config.check()?;
        let watch = options.config.watch && options.config.ttl != Ttl::Bypass;
        let core = Core::new(options);
        let mut watcher = None;
        if watch {
            let this = Arc::new(Watcher(Arc::downgrade(&core)));
            let weak: Weak<dyn AddressWatcher> = Arc::downgrade(&(this.clone() as Arc<dyn AddressWatcher>));
            match context.ops().watch_addresses(weak) {
                Ok(()) => watcher = Some(this),
                // Some devices never do.
                Err(error @ Error::Unsupported { .. }) => {
                    tracing::debug!(%error, "nobody tells the address-handle cache what changes");
                }
                Err(error) => tracing::warn!(
                    %error,
                    "nobody tells the address-handle cache what changes: an address handle may be stale until it expires"
                ),
            }
        }
        Ok(Self(Arc::new(CacheOwner { core, watcher })))
    }

    /// A cache that is no context's: it learns of changes only through [`Self::invalidate`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the settings contradict each other.
    pub fn detached(options: AhCacheOptions) -> Result<Self> {
        options.config.check()?;
        Ok(Self(Arc::new(CacheOwner { core: Core::new(options), watcher: None })))
    }

    fn core(&self) -> &Arc<Core> {
        &self.0.core
    }

    /// An address handle of `pd` to the address. If there is none that is fit for use it is resolved, in this thread; if another
    /// thread does so already, this one waits for it, at most [`AhCacheConfig::wait_limit`].
    ///
    /// # Errors
    ///
    /// [`AhError`] says why there is none.
    #[inline]
    pub fn get(&self, pd: &Pd, attr: &AhAttr) -> Result<AhLease, AhError> {
        let core = self.core();
        if let Some(lease) = parked::get(&core.shared, pd, attr) {
            return Ok(lease);
        }
        self.get_from_table(pd, attr)
    }

    #[inline(never)]
    fn get_from_table(&self, pd: &Pd, attr: &AhAttr) -> Result<AhLease, AhError> {
        let flight = match self.core().begin(Key::new(pd, attr), pd, attr)? {
            Step::Hit(lease) => return Ok(lease),
            Step::Wait(flight) => flight,
            Step::Lead(resolution) => {
                let flight = resolution.flight.clone();
                resolution.run();
                flight
            }
        };
        flight.wait(self.core().shared.config.wait_limit)
    }

    /// As [`Self::get`], but does not block: if the address must be resolved first, [`AhLookup::Pending`] is what to wait on.
    ///
    /// # Errors
    ///
    /// [`AhError::Full`] and [`AhError::Closed`].
    pub fn try_get(&self, pd: &Pd, attr: &AhAttr) -> Result<AhLookup, AhError> {
        let (lookup, resolution) = self.look_up(pd, attr)?;
        resolution.into_iter().for_each(Resolution::start);
        let AhLookup::Pending(pending) = lookup else { return Ok(lookup) };
        // It may not have taken any time at all.
        match pending.try_take() {
            Some(outcome) => outcome.map(AhLookup::Ready),
            None => Ok(AhLookup::Pending(pending)),
        }
    }

    /// As [`Self::try_get`], but calls no resolver. If the address must be resolved, and nobody does so yet, it is for the caller to
    /// [start](Resolution::start) it: for who holds a lock that somebody else's code must not meet.
    ///
    /// # Errors
    ///
    /// [`AhError::Full`] and [`AhError::Closed`].
    pub fn look_up(&self, pd: &Pd, attr: &AhAttr) -> Result<(AhLookup, Option<Resolution>), AhError> {
        let core = self.core();
        if let Some(lease) = parked::get(&core.shared, pd, attr) {
            return Ok((AhLookup::Ready(lease), None));
        }
        Ok(match core.begin(Key::new(pd, attr), pd, attr)? {
            Step::Hit(lease) => (AhLookup::Ready(lease), None),
            Step::Wait(flight) => (AhLookup::Pending(AhPending(flight)), None),
            Step::Lead(resolution) => (AhLookup::Pending(AhPending(resolution.flight.clone())), Some(resolution)),
        })
    }

    /// As [`Self::get`], without blocking the thread.
    ///
    /// # Errors
    ///
    /// [`AhError`] says why there is none.
    pub async fn get_async(&self, pd: &Pd, attr: &AhAttr) -> Result<AhLease, AhError> {
        match self.try_get(pd, attr)? {
            AhLookup::Ready(lease) => Ok(lease),
            AhLookup::Pending(pending) => pending.await,
        }
    }

    /// Takes the entries that a change concerns out of the cache, as a device's own word would; returns how many. Holders keep
    /// theirs. What is being resolved meanwhile is resolved once more.
    pub fn invalidate(&self, change: &AddressChange) -> usize {
        self.core().invalidate(change)
    }

    /// Takes the entry of an address out of the cache; returns whether there was one. For who finds out that it does not work.
    pub fn invalidate_address(&self, pd: &Pd, attr: &AhAttr) -> bool {
        self.core().invalidate_key(&Key::new(pd, attr))
    }

    /// Takes the entries of a protection domain out of the cache, which hold it; returns how many.
    pub fn forget_pd(&self, pd: &Pd) -> usize {
        self.core().remove_all(|entry| entry.key.is_of(pd))
    }

    /// Takes the entries that have expired out of the cache; returns how many. They are of no use, and go by themselves when somebody
    /// asks for their addresses, or as the cache grows.
    pub fn sweep(&self) -> usize {
        self.core().sweep()
    }

    /// How it behaves.
    #[must_use]
    pub fn config(&self) -> &AhCacheConfig {
        &self.core().shared.config
    }

    /// Whether the device says when addresses change.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.0.watcher.is_some()
    }

    /// What it did and what it has. Looks at every entry.
    #[must_use]
    pub fn counters(&self) -> AhCacheCounters {
        self.core().counters()
    }

    /// Closes the cache: entries go, holders keep what they have, and every get fails from now on with [`AhError::Closed`]. Returns
    /// what there was. A second time there is nothing.
    pub fn close(&self) -> CloseReport {
        self.core().close()
    }
}

impl fmt::Debug for AhCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AhCache").field("config", self.config()).finish_non_exhaustive()
    }
}

impl CacheOwner {
    /// For whoever has the context only.
    pub(crate) fn counters(&self) -> AhCacheCounters {
        self.core.counters()
    }
}

impl Drop for CacheOwner {
    fn drop(&mut self) {
        let report = self.core.close();
        if report.held != 0 {
            tracing::debug!(?report, "the address-handle cache is closed while address handles are held");
        }
    }
}
