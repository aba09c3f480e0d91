//! What is in the cache, and who holds it.
#![allow(unsafe_code)]

use super::config::Ttl;
use super::counters::{Tally, count};
use super::key::Key;
use super::parked::Origin;
use super::{AhCacheConfig, Clock, parked};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::global;
use crate::{Ah, Pd, sync};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

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
    /// Leases that are put may wait with their threads for the next get: nothing has to be known of their order.
    pub(super) parks: bool,
    /// What is in the cache expires.
    pub(super) is_timed: bool,
    /// By the coarse clock.
    is_coarse: bool,
    /// So long an entry that nobody holds is fit for use, in nanoseconds of [`Self::now`].
    idle_limit: u64,
    /// And so long any.
    age_limit: u64,
    /// Puts so far, if somebody wants to know their order.
    puts: AtomicU64,
    /// Set by whoever let go of an entry, so that it is worthwhile to look for one that can go.
    pub(super) let_go: std::sync::atomic::AtomicBool,
}

/// Times so many times the coarse clock's error are measured by it.
const COARSE: u32 = 25;

impl Shared {
    pub(super) fn new(config: AhCacheConfig, clock: Arc<dyn Clock>) -> Self {
        let ttl = if let Ttl::Finite(ttl) = config.ttl { Some(ttl) } else { None };
        let limits = [ttl, config.max_age];
        let is_timed = limits.iter().any(Option::is_some);
        let error = clock.coarseness();
        let is_coarse = limits.iter().flatten().all(|limit| *limit >= error * COARSE);
        let id = NEXT.fetch_add(1, Relaxed);
        // A slot has half a word for a cache.
        let parks = is_coarse && config.ttl != Ttl::Bypass && config.capacity.is_none() && u32::try_from(id).is_ok();
        // Two readings may make a time look shorter by the error: what has to expire does, and some of the rest, too.
        let error = if is_coarse { error } else { Duration::ZERO };
        let nanos = |limit: Duration| u64::try_from((limit - error).as_nanos()).unwrap_or(u64::MAX);
        let [idle_limit, age_limit] = limits.map(|limit| limit.map_or(u64::MAX, nanos));
        Self {
            id,
            config,
            clock,
            tally: Tally::default(),
            parks,
            is_timed,
            is_coarse,
            idle_limit,
            age_limit,
            puts: AtomicU64::new(0),
            let_go: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// The time by which entries expire.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        if self.is_coarse { self.clock.coarse() } else { self.clock.now() }
    }
}

/// A resolved address. Its strong references are the one of the table, and one for each holder: so while the shard is locked, from
/// which alone new ones come, an entry with one reference is idle and stays so.
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) shared: Arc<Shared>,
    /// It has left the table.
    pub(super) gone: AtomicBool,
    created: u64,
    /// When it was put last; only with a TTL.
    last_put: AtomicU64,
    // Before the protection domain that it belongs to.
    ah: Ah,
    _pd: Pd,
    generation: u64,
    /// Which of all puts that was; only with a capacity.
    pub(super) order: AtomicU64,
}

impl Entry {
    pub(super) fn new(shared: &Arc<Shared>, key: Key, generation: u64, pd: &Pd, ah: Ah, created: u64) -> Arc<Self> {
        count(&shared.tally.live);
        Arc::new(Self {
            key,
            shared: shared.clone(),
            gone: AtomicBool::new(false),
            created,
            last_put: AtomicU64::new(created),
            ah,
            _pd: pd.clone(),
            generation,
            order: AtomicU64::new(shared.puts.load(Relaxed)),
        })
    }

    pub(super) fn ah(&self) -> &Ah {
        &self.ah
    }

    /// Nobody holds it. Only while its shard is locked, for what is in the table, and where nothing is parked.
    pub(super) fn is_idle(this: &Arc<Self>) -> bool {
        Arc::strong_count(this) == 1
    }

    /// Whether what is in the table is not to be used any more. Only while its shard is locked.
    pub(super) fn is_expired(this: &Arc<Self>, now: u64) -> bool {
        let shared = &this.shared;
        if !shared.is_timed {
            return false;
        }
        let past = |since: u64, limit: u64| now.saturating_sub(since) > limit;
        if past(this.created, shared.age_limit) {
            return true;
        }
        let was_put = || past(this.last_put.load(Relaxed), shared.idle_limit);
        // Once more at the end: who put it meanwhile noted that before.
        was_put() && (Self::is_idle(this) || shared.parks && parked::are_parked(this)) && was_put()
    }

    /// A holder lets go of it now; returns until when it is certainly fit for use, if nobody changes anything.
    #[inline]
    pub(super) fn note_put(&self) -> u64 {
        let shared = &self.shared;
        let now = shared.now();
        // By the coarse clock it is the same time for long, so that threads that use one address do not all write.
        if self.last_put.load(Relaxed) < now {
            self.last_put.fetch_max(now, Relaxed);
        }
        now.saturating_add(shared.idle_limit).min(self.created.saturating_add(shared.age_limit))
    }

    /// Lets go of a reference that a holder had.
    pub(super) fn put(this: Arc<Self>) {
        if this.shared.is_timed {
            this.note_put();
        }
        if this.shared.config.capacity.is_none() {
            return Self::release(this);
        }
        let shared = this.shared.clone();
        this.order.store(shared.puts.fetch_add(1, Relaxed) + 1, Relaxed);
        Self::release(this);
        // Only now: who looks because of this finds it idle.
        shared.let_go.store(true, std::sync::atomic::Ordering::Release);
    }

    /// Lets go of a reference.
    pub(super) fn release(this: Arc<Self>) {
        sync::step();
        drop(this);
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
    /// Taken only while this is dropped.
    entry: ManuallyDrop<Arc<Entry>>,
    origin: Origin,
}

impl AhLease {
    #[inline]
    pub(super) fn new(entry: Arc<Entry>) -> Self {
        Self::from_slot(entry, Origin::ELSEWHERE)
    }

    #[inline]
    pub(super) fn from_slot(entry: Arc<Entry>, origin: Origin) -> Self {
        Self { entry: ManuallyDrop::new(entry), origin }
    }

    /// The address handle.
    #[must_use]
    pub fn ah(&self) -> &Ah {
        &self.entry.ah
    }

    /// Which resolution it comes from: every resolution of a cache has another number, later ones have higher ones. By it one tells
    /// a hit from a re-query; addresses of objects are used again and tell nothing.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.entry.generation
    }

    /// Whether the next get may still return the same: it has not been evicted, invalidated or replaced. With TTL 0 never.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        !self.entry.gone.load(Ordering::Acquire)
    }
}

impl Deref for AhLease {
    type Target = Ah;

    #[inline]
    fn deref(&self) -> &Ah {
        &self.entry.ah
    }
}

impl Clone for AhLease {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.entry))
    }
}

impl Drop for AhLease {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is the end of the lease, and nobody sees what it has afterwards.
        parked::put(unsafe { ManuallyDrop::take(&mut self.entry) }, self.origin);
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
