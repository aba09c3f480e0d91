//! Which context has which service: requests for connections name a service and no context.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::admin::Admin;
use super::layout::Table;
use super::membership::Membership;

/// Services that the contexts of a host can have.
pub(crate) const SERVICES: usize = 1024;

/// One binding. Written under the registry's lock; given up by its owner without it.
#[repr(C)]
pub(super) struct Service {
    /// The incarnation that has it; zero if the entry is free. Stored last.
    owner: AtomicU64,
    id: AtomicU64,
    /// The local GID, zero for any.
    gid: [AtomicU64; 2],
    slot: AtomicU32,
    _pad: AtomicU32,
}

/// What a service is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) id: u64,
    /// The local GID; all zero for any.
    pub(crate) gid: [u8; 16],
}

impl Binding {
    fn words(&self) -> [u64; 2] {
        let (high, low) = self.gid.split_at(8);
        [high, low].map(|half| u64::from_ne_bytes(half.try_into().unwrap_or_default()))
    }
}

impl Service {
    fn binding(&self) -> (u64, [u64; 2]) {
        let gid = [self.gid[0].load(Ordering::Relaxed), self.gid[1].load(Ordering::Relaxed)];
        (self.id.load(Ordering::Relaxed), gid)
    }

    /// The slot that has it, if its owner still lives.
    fn owner(&self, table: &Table) -> Option<u8> {
        let owner = self.owner.load(Ordering::Acquire);
        let slot = u8::try_from(self.slot.load(Ordering::Relaxed)).ok()?;
        (owner != 0 && table.entry(slot)?.live() == Some(owner)).then_some(slot)
    }
}

/// Why a service cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BindError {
    /// A context has it.
    Taken,
    /// There are as many as there can be.
    Full,
}

impl Admin<'_> {
    /// Gives a service to this context.
    pub(crate) fn bind_service(&self, binding: &Binding) -> Result<(), BindError> {
        let table = self.table();
        let words = binding.words();
        let mut free = None;
        let mut beyond = 0;
        for (at, entry) in table.services.iter().enumerate() {
            if entry.owner.load(Ordering::Acquire) != 0 {
                beyond = at + 1;
            }
            if entry.owner(table).is_none() {
                free = free.or(Some(at));
                continue;
            }
            let (id, gid) = entry.binding();
            if id == binding.id && (gid == words || gid == [0; 2] || words == [0; 2]) {
                return Err(BindError::Taken);
            }
        }
        let at = free.ok_or(BindError::Full)?;
        let entry = &table.services[at];
        // Nobody may take what is half written for the binding of the one before.
        entry.owner.store(0, Ordering::Release);
        entry.id.store(binding.id, Ordering::Relaxed);
        entry.gid[0].store(words[0], Ordering::Relaxed);
        entry.gid[1].store(words[1], Ordering::Relaxed);
        entry.slot.store(self.membership().slot().into(), Ordering::Relaxed);
        entry.owner.store(self.membership().incarnation(), Ordering::Release);
        let used = beyond.max(at + 1) as u32;
        table.head.services.store(used, Ordering::Release);
        Ok(())
    }
}

impl Membership {
    /// Gives up a service, if this context has it.
    pub(crate) fn release_service(&self, binding: &Binding) {
        let words = binding.words();
        for entry in used(self.registry().table()) {
            if entry.binding() == (binding.id, words) {
                let _ = entry.owner.compare_exchange(self.incarnation(), 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
    }

    /// The slot of the context that has service `id` at the local address `gid`. One that is bound to just this address goes before
    /// one that is bound to all.
    pub(crate) fn service_owner(&self, id: u64, gid: [u8; 16]) -> Option<u8> {
        let table = self.registry().table();
        let exact = Binding { id, gid }.words();
        let mut found = None;
        for entry in used(table) {
            let (other, bound) = entry.binding();
            if other == id && (bound == exact || bound == [0; 2]) {
                let Some(slot) = entry.owner(table) else { continue };
                if bound == exact {
                    return Some(slot);
                }
                found = Some(slot);
            }
        }
        found
    }

    /// Says that this context has somebody who receives the datagrams of queue pair 1.
    pub(crate) fn set_gsi(&self) {
        if let Some(entry) = self.registry().table().entry(self.slot()) {
            entry.gsi.store(1, Ordering::Release);
        }
    }

    /// The slots of contexts with such a receiver.
    pub(crate) fn gsi_slots(&self) -> impl Iterator<Item = u8> {
        let entries = self.registry().table().entries();
        entries
            .filter(|(_, entry)| entry.live().is_some() && entry.gsi.load(Ordering::Acquire) != 0)
            .map(|(slot, _)| slot)
    }
}

fn used(table: &Table) -> &[Service] {
    let used = table.head.services.load(Ordering::Acquire) as usize;
    &table.services[..used.min(SERVICES)]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::host::{JoinOptions, Registry};

    fn bind(membership: &Membership, id: u64, gid: u8) -> Result<(), BindError> {
        let binding = Binding { id, gid: [gid; 16] };
        membership.with_admin_lock(Duration::from_secs(10), |admin| admin.bind_service(&binding)).unwrap()
    }

    #[test]
    fn a_service_has_one_owner_who_lives() {
        let directory = tempfile::tempdir().unwrap();
        let options = JoinOptions { directory: Some(directory.path().join("registry")), ..JoinOptions::default() };
        let (a, b) = (Registry::join(&options).unwrap(), Registry::join(&options).unwrap());
        assert_eq!(a.service_owner(7, [1; 16]), None);
        bind(&a, 7, 0).unwrap();
        assert_eq!(bind(&b, 7, 0), Err(BindError::Taken));
        assert_eq!(bind(&b, 7, 1), Err(BindError::Taken), "an address of all");
        assert_eq!(b.service_owner(7, [1; 16]), Some(a.slot()));
        // Another one's is not given up.
        b.release_service(&Binding { id: 7, gid: [0; 16] });
        assert_eq!(b.service_owner(7, [1; 16]), Some(a.slot()));
        a.release_service(&Binding { id: 7, gid: [0; 16] });
        assert_eq!(b.service_owner(7, [1; 16]), None);
        // Two addresses, two owners.
        bind(&a, 7, 1).unwrap();
        bind(&b, 7, 2).unwrap();
        assert_eq!(bind(&b, 7, 0), Err(BindError::Taken), "all addresses, of which one is taken");
        assert_eq!((a.service_owner(7, [1; 16]), a.service_owner(7, [2; 16])), (Some(a.slot()), Some(b.slot())));
        assert_eq!(a.service_owner(7, [3; 16]), None);
        // Whoever is gone has nothing.
        drop(a);
        assert_eq!(b.service_owner(7, [1; 16]), None);
        bind(&b, 7, 1).unwrap();
        assert_eq!(b.service_owner(7, [1; 16]), Some(b.slot()));
    }

    #[test]
    fn there_are_so_many() {
        let directory = tempfile::tempdir().unwrap();
        let options = JoinOptions { directory: Some(directory.path().join("registry")), ..JoinOptions::default() };
        let a = Registry::join(&options).unwrap();
        for id in 0..SERVICES as u64 {
            bind(&a, id, 0).unwrap();
        }
        assert_eq!(bind(&a, 5000, 0), Err(BindError::Full));
        a.release_service(&Binding { id: 512, gid: [0; 16] });
        bind(&a, 5000, 0).unwrap();
        assert_eq!(a.service_owner(5000, [1; 16]), Some(a.slot()));
    }
}
