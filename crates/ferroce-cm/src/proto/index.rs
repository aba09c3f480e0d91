//! By which numbers on the wire a connection is found.

use super::Address;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Where something is: among the connections, or among those that were destroyed and are remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    Conn(u32),
    Wait(u32),
}

/// A number that a peer gave: a communication id or a QPN.
///
/// IBTA and the kernel tell peers apart by the GUID alone. A GUID is easily known, so the address belongs to the
/// key: whoever forges requests from an address of its own cannot touch the connections of another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct PeerKey {
    pub(super) address: Address,
    pub(super) ca_guid: u64,
    pub(super) number: u32,
}

#[derive(Default)]
pub(super) struct Index {
    local: HashMap<u32, Target>,
    remote: HashMap<PeerKey, Target>,
    qpn: HashMap<PeerKey, u32>,
}

impl Index {
    pub(super) fn by_local(&self, local_comm_id: u32) -> Option<Target> {
        self.local.get(&local_comm_id).copied()
    }

    pub(super) fn set_local(&mut self, local_comm_id: u32, target: Target) {
        self.local.insert(local_comm_id, target);
    }

    pub(super) fn remove_local(&mut self, local_comm_id: u32) {
        self.local.remove(&local_comm_id);
    }

    pub(super) fn by_remote(&self, key: &PeerKey) -> Option<Target> {
        self.remote.get(key).copied()
    }

    pub(super) fn set_remote(&mut self, key: PeerKey, target: Target) {
        self.remote.insert(key, target);
    }

    /// Moves a key, unless it has gone to another one.
    pub(super) fn move_remote(&mut self, key: PeerKey, from: Target, to: Target) {
        if let Some(target) = self.remote.get_mut(&key)
            && *target == from
        {
            *target = to;
        }
    }

    /// Removes a key, unless it has gone to another one.
    pub(super) fn remove_remote(&mut self, key: PeerKey, of: Target) {
        if let Entry::Occupied(entry) = self.remote.entry(key)
            && *entry.get() == of
        {
            entry.remove();
        }
    }

    pub(super) fn by_qpn(&self, key: &PeerKey) -> Option<u32> {
        self.qpn.get(key).copied()
    }

    pub(super) fn set_qpn(&mut self, key: PeerKey, slot: u32) {
        self.qpn.insert(key, slot);
    }

    pub(super) fn remove_qpn(&mut self, key: &PeerKey) {
        self.qpn.remove(key);
    }

    pub(super) fn len(&self) -> usize {
        self.local.len() + self.remote.len() + self.qpn.len()
    }
}
