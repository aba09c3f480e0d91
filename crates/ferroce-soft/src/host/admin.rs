//! Looking after the registry.

use std::sync::atomic::Ordering;

use super::join::Registry;
use super::layout::Table;
use super::lock::Guard;
use super::membership::Membership;

/// What the registry says about an occupied slot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotInfo {
    /// The slot.
    pub slot: u8,
    /// Who occupies it.
    pub incarnation: u64,
    /// Process id of the owner as the owner sees it: for people, not for decisions.
    pub pid: u32,
    /// The name that the owner gave.
    pub name: String,
    /// One more than the index of its UDP socket in the group that shares the port; zero while it has none.
    pub udp_index: u32,
    /// Whether the owner exists.
    pub alive: bool,
}

pub(super) fn slot_info(registry: &Registry, slot: u8, incarnation: u64) -> SlotInfo {
    let entry = registry.table().entry(slot);
    SlotInfo {
        slot,
        incarnation,
        pid: entry.map_or(0, |entry| entry.pid.load(Ordering::Relaxed)),
        name: entry.map_or_else(String::new, |entry| entry.name()),
        udp_index: entry.map_or(0, |entry| entry.udp_index.load(Ordering::Relaxed)),
        alive: registry.owner_exists(slot, incarnation),
    }
}

/// The registry's lock, held: nobody joins, reaps or administers meanwhile. Contexts may still leave or die.
#[derive(Debug)]
pub struct Admin<'a> {
    membership: &'a Membership,
    lock: Guard,
}

impl<'a> Admin<'a> {
    pub(super) fn new(membership: &'a Membership, lock: Guard) -> Self {
        Self { membership, lock }
    }

    /// The membership through which the lock was taken.
    #[must_use]
    pub fn membership(&self) -> &'a Membership {
        self.membership
    }

    pub(super) fn table(&self) -> &Table {
        self.membership.registry().table()
    }

    /// Frees the slots of contexts that died, and says which: slot and incarnation.
    pub fn reap(&self) -> Vec<(u8, u64)> {
        self.membership.registry().reap(&self.lock)
    }
}
