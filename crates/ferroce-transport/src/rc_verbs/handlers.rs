//! Who is handed active messages.

use crate::uct::{AM_IDS, AmHandler};
use parking_lot::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The handlers of all ids.
type All = [Option<AmHandler>; AM_IDS as usize];

/// The handlers as they were last set, and how often they were.
pub(super) struct Handlers {
    current: RwLock<All>,
    version: AtomicU64,
}

/// A copy of them, so that a message takes no lock and touches no count.
pub(super) struct Snapshot {
    all: All,
    version: u64,
}

impl Handlers {
    pub(super) fn new() -> Self {
        Self { current: RwLock::new([const { None }; AM_IDS as usize]), version: AtomicU64::new(0) }
    }

    /// Sets one; returns the one before, to be dropped without locks. `None`: there is no such id.
    pub(super) fn set(&self, am: u8, handler: Option<AmHandler>) -> Option<Option<AmHandler>> {
        let mut current = self.current.write();
        let before = std::mem::replace(current.get_mut(usize::from(am))?, handler);
        self.version.fetch_add(1, Ordering::Release);
        Some(before)
    }
}

impl Snapshot {
    pub(super) const fn new() -> Self {
        Self { all: [const { None }; AM_IDS as usize], version: 0 }
    }

    /// Takes over what was set since; returns what was there before, to be dropped without locks.
    #[inline]
    pub(super) fn refresh(&mut self, handlers: &Handlers) -> Option<Box<All>> {
        if handlers.version.load(Ordering::Acquire) == self.version {
            return None;
        }
        Some(self.renew(handlers))
    }

    #[cold]
    fn renew(&mut self, handlers: &Handlers) -> Box<All> {
        let current = handlers.current.read();
        self.version = handlers.version.load(Ordering::Acquire);
        Box::new(std::mem::replace(&mut self.all, current.clone()))
    }

    #[inline]
    pub(super) fn get(&self, am: u8) -> Option<&AmHandler> {
        self.all.get(usize::from(am))?.as_ref()
    }
}
