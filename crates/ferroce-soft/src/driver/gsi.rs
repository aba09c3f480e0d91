//! Queue pair 1 of a host: finds the context that a management datagram is for.

use super::port::Port;
use super::tx::HostTx;
use crate::engine::{Av, Destination, Engine};
use crate::host::{BindError, Binding};
use ferroce_verbs::{Error, Gid, MAD_LEN, Result, ServiceBinding};
use std::net::IpAddr;
use std::time::Duration;

/// How long to wait for the registry's lock.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

impl Port {
    /// Calls `f` with the slot of each context that a datagram which was sent to `local` is for.
    pub(super) fn mad_owners(&self, destination: Destination, local: IpAddr, mut f: impl FnMut(u8)) {
        match destination {
            Destination::Slot(slot) => f(slot),
            Destination::Service(id) => {
                let owner = self.membership.service_owner(id, Gid::from(local).to_bytes());
                f(owner.unwrap_or_else(|| self.refuser()));
            }
            Destination::All => self.membership.gsi_slots().for_each(f),
            Destination::Any => f(self.membership.slot()),
        }
    }

    /// Whoever tells a peer that nobody has its service: this context if it can.
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
            self.mad_owners(Destination::of_mad(mad), av.remote, |slot| engine.gsi.send(&mut tx, av, slot, mad));
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
