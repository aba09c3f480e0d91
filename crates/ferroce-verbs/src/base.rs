use crate::Error;
use crate::ah_cache::CacheOwner;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What this crate keeps with every open device. A device embeds one in its context and gives it away in
/// [`crate::provider::ContextOps::base`]; a layer around another context gives away that one's.
#[derive(Default)]
pub struct ContextBase {
    /// Whoever uses the cache holds it: what is cached holds the context, which therefore must not hold the cache.
    pub(crate) ah_cache: Mutex<Weak<CacheOwner>>,
    ah_destroy_failures: AtomicU64,
}

impl ContextBase {
    /// The device could not destroy an address handle. A destructor has nobody to return an error to, so it is counted
    /// (`ah_destroy_failures`) and logged.
    pub fn report_ah_destroy_failure(&self, error: &Error) {
        self.ah_destroy_failures.fetch_add(1, Relaxed);
        tracing::error!(%error, "the device failed to destroy an address handle, and may still have it");
    }

    /// Address handles that the device could not destroy.
    pub fn ah_destroy_failures(&self) -> u64 {
        self.ah_destroy_failures.load(Relaxed)
    }
}

impl fmt::Debug for ContextBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContextBase").field("ah_destroy_failures", &self.ah_destroy_failures()).finish_non_exhaustive()
    }
}
