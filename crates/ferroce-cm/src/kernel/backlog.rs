//! How many requests a listener lets wait. The kernel's own backlog is of no use: what does not fit it drops without a word, and the peer
//! asks again after 4.6 s (libfabric #10566). Here a request that does not fit is rejected at once.

use crate::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// The places of one listener.
pub(crate) struct Backlog {
    limit: usize,
    taken: AtomicUsize,
}

/// A place that a request has, until a reader takes it.
pub(crate) struct Place(Arc<Backlog>);

impl Backlog {
    /// 0 stands for as many as with the native protocol.
    const DEFAULT: usize = 1024;

    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit: if limit == 0 { Self::DEFAULT } else { limit }, taken: AtomicUsize::new(0) })
    }

    /// A place, if there is one left. One thread at a time asks.
    pub(crate) fn place(self: Arc<Self>) -> Option<Place> {
        if self.taken.load(Ordering::Relaxed) >= self.limit {
            return None;
        }
        self.taken.fetch_add(1, Ordering::Relaxed);
        Some(Place(self))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
    }
}
