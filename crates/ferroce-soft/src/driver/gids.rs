use super::port::OpenError;
use crate::addr::{AddrWatch, GidChange, GidTable, local_addrs};
use arc_swap::ArcSwap;
use ferroce_verbs::{Gid, GidEntry, Mtu};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The GID table: one entry for each local address, kept current.
pub(crate) struct Gids {
    /// What the entries are made from, so that each keeps its index.
    table: Mutex<GidTable>,
    entries: ArcSwap<Vec<GidEntry>>,
    watch: AddrWatch,
    /// They changed and could not be read.
    stale: AtomicBool,
}

impl Gids {
    pub(super) fn open() -> Result<Self, OpenError> {
        let os = |what| move |source| OpenError::Os { what, source };
        // Watched before read: what changes in between is read once more.
        let watch = AddrWatch::open().map_err(os("watching the local addresses over netlink"))?;
        let table = GidTable::new(&local_addrs().map_err(os("reading the local addresses over netlink"))?);
        let entries = ArcSwap::from_pointee(entries(&table));
        Ok(Self { table: Mutex::new(table), entries, watch, stale: AtomicBool::new(false) })
    }

    /// A descriptor that is readable when addresses changed.
    pub(super) fn watch_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Whether the last change could not be read: to be tried again now and then.
    pub(super) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Relaxed)
    }

    /// Reads the addresses again if they changed; returns which entries of the table did, by index.
    pub(super) fn refresh(&self) -> Vec<(u32, Gid)> {
        if !(self.watch.changed().unwrap_or(true) | self.stale.swap(false, Ordering::Relaxed)) {
            return Vec::new();
        }
        let snapshot = match local_addrs() {
            Ok(snapshot) => snapshot,
            Err(error) => {
                tracing::warn!(%error, "reading the local addresses failed; the GID table stays as it is until they can be read");
                self.stale.store(true, Ordering::Relaxed);
                return Vec::new();
            }
        };
        let mut table = self.table.lock();
        let (updated, changes) = table.updated(&snapshot);
        let changed = |change: &GidChange| {
            let (GidChange::Added(index) | GidChange::Removed(index) | GidChange::Modified(index)) = *change;
            // What is gone was there before.
            let entry = updated.get(index).or_else(|| table.get(index))?;
            Some((u32::try_from(index).ok()?, entry.gid))
        };
        let changes = changes.iter().filter_map(changed).collect();
        self.entries.store(Arc::new(entries(&updated)));
        *table = updated;
        changes
    }

    /// The entries, in order of index.
    pub(crate) fn table(&self) -> Arc<Vec<GidEntry>> {
        self.entries.load_full()
    }

    /// The entry at `index`.
    pub(crate) fn get(&self, index: u32) -> Option<GidEntry> {
        self.entries.load().iter().find(|entry| entry.index == index).cloned()
    }

    /// Whether `ip` is an address of this machine.
    pub(crate) fn is_local(&self, ip: IpAddr) -> bool {
        self.entries.load().iter().any(|entry| entry.ip() == ip)
    }
}

fn entries(table: &GidTable) -> Vec<GidEntry> {
    let usable = table.iter().filter(|(_, entry)| entry.addr.up);
    // A network device that does not even carry the smallest MTU is of no use.
    let entry = |(index, entry): (usize, &crate::addr::GidEntry)| {
        Some(GidEntry {
            index: u32::try_from(index).ok()?,
            gid: entry.gid,
            netdev: entry.addr.ifname.clone(),
            ifindex: entry.addr.ifindex,
            mtu: Mtu::fitting(entry.addr.mtu)?,
            loopback: entry.addr.loopback,
        })
    };
    usable.filter_map(entry).collect()
}
