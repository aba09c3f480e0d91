use crate::addr::NeighbourWatch;
use ferroce_verbs::{AddressChange, AddressWatcher};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{OnceLock, Weak};

/// Who is told of changes of addresses. Until somebody is, nothing is watched but this machine's own.
#[derive(Default)]
pub(crate) struct Watched {
    watcher: Mutex<Option<Weak<dyn AddressWatcher>>>,
    neighbours: OnceLock<NeighbourWatch>,
}

impl Watched {
    /// From now on `watcher` is.
    pub(crate) fn set(&self, watcher: Weak<dyn AddressWatcher>) -> io::Result<()> {
        if self.neighbours.get().is_none() {
            // Of two who do so at once one is in vain.
            let _ = self.neighbours.set(NeighbourWatch::open()?);
        }
        *self.watcher.lock() = Some(watcher);
        Ok(())
    }

    /// A descriptor that is readable when neighbours changed; `None` as long as nobody wants to know.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.neighbours.get().map(AsFd::as_fd)
    }

    /// Tells of what changed among neighbours.
    pub(super) fn neighbours(&self) {
        if let Some(watch) = self.neighbours.get() {
            watch.changes(&mut |change| self.tell(change));
        }
    }

    pub(super) fn tell(&self, change: &AddressChange) {
        let watcher = self.watcher.lock().as_ref().and_then(Weak::upgrade);
        if let Some(watcher) = watcher {
            watcher.changed(change);
        }
    }
}
