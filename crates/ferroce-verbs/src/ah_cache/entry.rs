use super::config::Ttl;
use super::counters::{Tally, count};
use super::key::Key;
use super::{AhCacheConfig, Clock, parked};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::global;
use crate::{Ah, Pd, sync};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

global! {
    /// Names the next cache.
    static NEXT: AtomicU64 = AtomicU64::new(1);
}

/// What all entries of a cache have in common. It holds none of them, so they can hold it.
pub(super) struct Shared {
    /// Nobody else's, ever.
    pub(super) id: u64,
    pub(super) config: AhCacheConfig,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) tally: Tally,
    /// Leases that are put may wait with their threads for the next get: nothing has to be known of when that was.
    pub(super) parks: bool,
    /// Puts so far, if somebody wants to know their order.
    puts: AtomicU64,
    /// Set by whoever let go of an entry, so that it is worthwhile to look for one that can go.
    pub(super) let_go: std::sync::atomic::AtomicBool,
}

impl Shared {
    pub(super) fn new(config: AhCacheConfig, clock: Arc<dyn Clock>) -> Self {
        let parks = config.ttl == Ttl::Infinite && config.max_age.is_none() && config.capacity.is_none();
        Self {
            id: NEXT.fetch_add(1, Relaxed),
            config,
            clock,
            tally: Tally::default(),
            parks,
            puts: AtomicU64::new(0),
            let_go: std::sync::atomic::AtomicBool::new(false),
        }
    }
}

/// A resolved address. Its strong references are the one of the table, and one for each holder: so while the shard is locked, from
/// which alone new ones come, an entry with one reference is idle and stays so.
///
/// What a hit looks at comes first, behind the reference counts: all of it is in one cache line or two.
#[repr(C)]
pub(super) struct Entry {
    pub(super) key: Key,
    /// The key's, in this cache.
    pub(super) tag: u64,
    /// It has left the table.
    pub(super) gone: AtomicBool,
    /// As of [`Shared`].
    pub(super) parks: bool,
    pub(super) shared: Arc<Shared>,
    // Before the protection domain that it belongs to.
    ah: Ah,
    _pd: Pd,
    generation: u64,
    pub(super) created: u64,
    /// When it was put last; only with a TTL.
    pub(super) last_put: AtomicU64,
    /// Which of all puts that was; only with a capacity.
    pub(super) order: AtomicU64,
}

impl Entry {
    pub(super) fn new(shared: &Arc<Shared>, key: Key, generation: u64, pd: &Pd, ah: Ah) -> Arc<Self> {
        count(&shared.tally.live);
        let created = shared.clock.now();
        Arc::new(Self {
            key,
            tag: key.tag(shared.id),
            gone: AtomicBool::new(false),
            parks: shared.parks,
            shared: shared.clone(),
            ah,
            _pd: pd.clone(),
            generation,
            created,
            last_put: AtomicU64::new(created),
            order: AtomicU64::new(shared.puts.load(Relaxed)),
        })
    }

    pub(super) fn ah(&self) -> &Ah {
        &self.ah
    }

    /// Nobody holds it. Only while its shard is locked, and for what is in the table.
    pub(super) fn is_idle(this: &Arc<Self>) -> bool {
        Arc::strong_count(this) == 1
    }

    /// Lets go of a reference that a holder had.
    pub(super) fn release(this: Arc<Self>) {
        sync::step();
        let config = &this.shared.config;
        if config.capacity.is_none() {
            if matches!(config.ttl, Ttl::Finite(_)) {
                this.last_put.store(this.shared.clock.now(), Relaxed);
            }
            return;
        }
        let shared = this.shared.clone();
        if matches!(config.ttl, Ttl::Finite(_)) {
            this.last_put.store(shared.clock.now(), Relaxed);
        }
        this.order.store(shared.puts.fetch_add(1, Relaxed) + 1, Relaxed);
        drop(this);
        // Only now: who looks because of this finds it idle.
        shared.let_go.store(true, std::sync::atomic::Ordering::Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.parks {
            parked::forget(self.id);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.tally.live.fetch_sub(1, Relaxed);
    }
}

/// Holds an address handle. `Clone` holds it once more, `Drop` puts it; both from any thread. The address handle is there for as
/// long as anybody holds it, whatever becomes of its entry, of the cache, and of the context's other handles.
///
/// An endpoint keeps one until it is really gone, a work request until its completion; whoever only wants to look at the resolved
/// address drops it at once.
pub struct AhLease {
    /// Empty only while this is dropped.
    entry: Option<Arc<Entry>>,
}

impl AhLease {
    #[inline]
    pub(super) fn new(entry: Arc<Entry>) -> Self {
        Self { entry: Some(entry) }
    }

    #[inline]
    fn entry(&self) -> &Arc<Entry> {
        match &self.entry {
            Some(entry) => entry,
            None => unreachable!("a lease has its entry until it is dropped"),
        }
    }

    /// The address handle.
    #[must_use]
    pub fn ah(&self) -> &Ah {
        &self.entry().ah
    }

    /// Which resolution it comes from: every resolution of a cache has another number, later ones have higher ones. By it one tells
    /// a hit from a re-query; addresses of objects are used again and tell nothing.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.entry().generation
    }

    /// Whether the next get may still return the same: it has not been evicted, invalidated or replaced. With TTL 0 never.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        !self.entry().gone.load(Ordering::Acquire)
    }
}

impl Deref for AhLease {
    type Target = Ah;

    #[inline]
    fn deref(&self) -> &Ah {
        &self.entry().ah
    }
}

impl Clone for AhLease {
    fn clone(&self) -> Self {
        Self::new(self.entry().clone())
    }
}

impl Drop for AhLease {
    #[inline]
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            parked::put(entry);
        }
    }
}

impl fmt::Debug for AhLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AhLease")
            .field("attr", self.ah().attr())
            .field("generation", &self.generation())
            .field("is_cached", &self.is_cached())
            .finish()
    }
}
