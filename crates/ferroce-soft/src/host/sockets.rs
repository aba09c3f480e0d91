//! Which context has which socket of the group that shares the UDP port.
//!
//! The kernel numbers the sockets of a group in the order of binding, and gives the number of one that closes to the
//! last. Contexts bind and close under the registry's lock and keep the same account here. A process that is killed closes its
//! socket when the kernel likes, so after that the account may be wrong: probes correct it (see [`crate::link::udp`]).

use std::sync::atomic::Ordering;

use super::admin::Admin;
use super::layout::{Entry, Table};
use super::membership::Membership;

impl Admin<'_> {
    /// Accounts for the socket that this context has just bound, the last of the group, and returns its index.
    pub(crate) fn add_socket(&self, inode: u64) -> u16 {
        let table = self.table();
        let index = sockets(table).count() as u16;
        if let Some(entry) = table.entry(self.membership().slot()) {
            entry.udp_inode.store(inode, Ordering::Relaxed);
            change(table, || entry.udp_index.store(u32::from(index) + 1, Ordering::Release));
        }
        index
    }

    /// Accounts for the socket that this context has just closed. Returns the slot whose socket has its index now.
    pub(crate) fn remove_socket(&self) -> Option<u8> {
        remove(self.table(), self.membership().slot())
    }

    /// The inodes of all sockets that are accounted for.
    pub(crate) fn inodes(&self) -> Vec<u64> {
        sockets(self.table()).map(|(_, entry)| entry.udp_inode.load(Ordering::Relaxed)).collect()
    }
}

impl Membership {
    /// Slot and index of each socket of the group.
    pub(crate) fn sockets(&self) -> Vec<(u8, u16)> {
        sockets(self.registry().table()).map(|(slot, entry)| (slot, index(entry))).collect()
    }

    /// The mark that probes carry which are sent now: of this registry and of the present group.
    pub(crate) fn probe_mark(&self) -> u64 {
        self.nonce().wrapping_add(u64::from(self.registry().table().head.group.load(Ordering::SeqCst)))
    }

    /// Takes in a probe that came to this context's socket. Returns whether it proves that the account is right or has just
    /// been corrected; one of another registry, or of a group that has changed since, says nothing.
    pub(crate) fn probed(&self, at: u16, mark: u64) -> bool {
        let table = self.registry().table();
        let Some(entry) = table.entry(self.slot()) else { return false };
        // Read before the mark is compared: if the group changes after that, its account is not overwritten.
        let before = entry.udp_index.load(Ordering::SeqCst);
        if mark != self.probe_mark() || before == 0 {
            return false;
        }
        let now = u32::from(at) + 1;
        if before == now {
            return true;
        }
        let corrected = entry.udp_index.compare_exchange(before, now, Ordering::SeqCst, Ordering::Relaxed).is_ok();
        if corrected {
            table.head.steering.fetch_add(1, Ordering::SeqCst);
        }
        corrected
    }

    /// Says that the indices have been told to the kernel as they were at `steering`. Returns whether nothing changed since.
    pub(crate) fn steered(&self, steering: u32) -> bool {
        let head = &self.registry().table().head;
        head.steered.store(steering, Ordering::SeqCst);
        head.steering.load(Ordering::SeqCst) == steering
    }

    /// A number that changes whenever the index of any socket does.
    pub(crate) fn steering(&self) -> u32 {
        self.registry().table().head.steering.load(Ordering::SeqCst)
    }

    /// Whether the kernel has yet to be told of a change.
    pub(crate) fn wants_steering(&self) -> bool {
        let head = &self.registry().table().head;
        head.steering.load(Ordering::SeqCst) != head.steered.load(Ordering::SeqCst)
    }
}

/// Does what the kernel does when the socket of `slot` closes: the last one takes its place. Returns whose that was. Under
/// the registry's lock.
pub(super) fn remove(table: &Table, slot: u8) -> Option<u8> {
    let entry = table.entry(slot)?;
    if entry.udp_index.load(Ordering::SeqCst) == 0 {
        return None;
    }
    let (last_slot, last) = sockets(table).max_by_key(|(_, entry)| index(entry))?;
    change(table, || {
        let hole = entry.udp_index.swap(0, Ordering::SeqCst);
        if last_slot != slot {
            last.udp_index.store(hole, Ordering::SeqCst);
        }
    });
    (last_slot != slot).then_some(last_slot)
}

/// Runs a change of the group. Probes that are under way lose their meaning before it.
fn change(table: &Table, work: impl FnOnce()) {
    table.head.group.fetch_add(1, Ordering::SeqCst);
    work();
    table.head.steering.fetch_add(1, Ordering::SeqCst);
}

fn sockets(table: &Table) -> impl Iterator<Item = (u8, &Entry)> {
    let has_one = |entry: &Entry| entry.live().is_some() && entry.udp_index.load(Ordering::SeqCst) != 0;
    table.entries().filter(move |(_, entry)| has_one(entry))
}

fn index(entry: &Entry) -> u16 {
    // Never beyond a group's size: it counts sockets, of which there are at most as many as slots.
    entry.udp_index.load(Ordering::SeqCst).saturating_sub(1) as u16
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::host::{JoinOptions, Registry};

    fn locked<T>(membership: &Membership, work: impl FnOnce(&Admin<'_>) -> T) -> T {
        membership.with_admin_lock(Duration::from_secs(10), work).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// What the kernel does with a group (net/core/sock_reuseport.c): one more at the end, the last one into the hole.
        #[test]
        fn the_account_is_the_kernels(steps in proptest::collection::vec(any::<Option<u8>>(), 1..24)) {
            let directory = tempfile::tempdir().unwrap();
            let registry = directory.path().join("registry");
            let options = JoinOptions { directory: Some(registry), ..JoinOptions::default() };
            let observer = Registry::join(&options).unwrap();
            let mut group: Vec<Membership> = Vec::new();
            for step in steps {
                match step {
                    Some(at) if !group.is_empty() => {
                        let leaves = group.swap_remove(usize::from(at) % group.len());
                        let moved = locked(&leaves, |admin| admin.remove_socket());
                        let at = usize::from(at) % (group.len() + 1);
                        prop_assert_eq!(moved, group.get(at).map(Membership::slot));
                        prop_assert_eq!(locked(&leaves, |admin| admin.remove_socket()), None);
                    }
                    _ => {
                        let joins = Registry::join(&options).unwrap();
                        let index = locked(&joins, |admin| admin.add_socket(u64::from(joins.slot())));
                        prop_assert_eq!(usize::from(index), group.len());
                        group.push(joins);
                    }
                }
                let mut expected: Vec<(u8, u16)> = group.iter().map(Membership::slot).zip(0..).collect();
                expected.sort_unstable();
                prop_assert_eq!(observer.sockets(), expected);
            }
        }
    }

    #[test]
    fn a_probe_corrects_the_account_unless_it_is_late() {
        let directory = tempfile::tempdir().unwrap();
        let options = JoinOptions { directory: Some(directory.path().join("registry")), ..JoinOptions::default() };
        let (a, b) = (Registry::join(&options).unwrap(), Registry::join(&options).unwrap());
        let early = a.probe_mark();
        assert!(!a.probed(0, early), "it has no socket");
        locked(&a, |admin| admin.add_socket(1));
        assert!(!a.probed(3, early), "the group has changed since");
        assert!(!a.probed(3, a.probe_mark() ^ 1 << 40), "of another registry");
        let steering = a.steering();
        assert!(a.probed(0, a.probe_mark()) && a.steering() == steering, "it was right");
        assert!(a.probed(3, a.probe_mark()) && a.steering() != steering);
        assert_eq!(b.sockets(), [(a.slot(), 3)]);
        assert!(b.wants_steering());
        assert!(b.steered(b.steering()) && !a.wants_steering());
    }
}
