//! Queue pair 1 of a host: finds the context that a management datagram is for.

use super::port::{LOCK_PATIENCE, Port};
use super::tx::HostTx;
use crate::engine::{Av, Engine};
use crate::host::{BindError, Binding};
use ferroce_verbs::{Error, Gid, MAD_LEN, Result, ServiceBinding};
use ferroce_wire::cm::{Destination, ServiceId};
use std::net::IpAddr;

impl Port {
    /// Calls `f` with the slot of each context that a datagram to queue pair 1 of `local` is for. A slot is the top byte of its
    /// context's communication ids.
    pub(super) fn mad_owners(&self, mad: &[u8], local: IpAddr, mut f: impl FnMut(u8)) {
        match Destination::of(mad) {
            // For a context that is gone somebody answers as for an id that does not exist: so the peer of a process that was
            // killed learns that its connections are over.
            Some(Destination::Prefix(slot)) => {
                let there = self.membership.peer(slot).is_some();
                f(if there { slot } else { self.refuser() });
            }
            Some(Destination::Service(ServiceId(id))) => {
                let owner = self.membership.service_owner(id, Gid::from(local).to_bytes());
                f(owner.unwrap_or_else(|| self.refuser()));
            }
            Some(Destination::All) => self.membership.gsi_slots().for_each(f),
            None => f(self.membership.slot()),
        }
    }

    /// Whoever tells a peer that nobody has its service or connection: this context if it can.
    fn refuser(&self) -> u8 {
        let own = self.membership.slot();
        let mut first = None;
        for slot in self.membership.gsi_slots() {
            if slot == own {
                return own;
            }
            first = first.or(Some(slot));
        }
        first.unwrap_or(own)
    }

    /// Sends a management datagram.
    pub(crate) fn send_mad(&self, engine: &Engine, av: &Av, mad: &[u8; MAD_LEN]) {
        let mut tx = HostTx::new(self);
        if av.same_host && self.uses_shm() {
            self.mad_owners(mad, av.remote, |slot| engine.gsi.send(&mut tx, av, slot, mad));
        } else {
            engine.gsi.send(&mut tx, av, 0, mad);
        }
    }

    /// Says to the other contexts that this one receives management datagrams.
    pub(crate) fn set_gsi(&self) {
        self.membership.set_gsi();
    }

    pub(crate) fn bind_service(&self, binding: ServiceBinding) -> Result<()> {
        let bound = self.membership.with_admin_lock(LOCK_PATIENCE, |admin| admin.bind_service(&key(binding)));
        match bound.map_err(|error| Error::Device(Box::new(error)))? {
            Ok(()) => Ok(()),
            Err(BindError::Taken) => {
                Err(Error::InUse { what: "service", name: format!("{:#018x}", binding.service_id) })
            }
            Err(BindError::Full) => {
                Err(Error::Exhausted { what: "services of one host", limit: crate::host::SERVICES as u64 })
            }
        }
    }

    pub(crate) fn release_service(&self, binding: ServiceBinding) {
        self.membership.release_service(&key(binding));
    }
}

fn key(binding: ServiceBinding) -> Binding {
    Binding { id: binding.service_id, gid: binding.local.map_or([0; 16], |gid| gid.to_bytes()) }
}
