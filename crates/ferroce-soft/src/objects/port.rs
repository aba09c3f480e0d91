use crate::driver;
use crate::engine::{Av, Engine, Nanos, PacketTx};
use crate::memory::MemoryPort;
use ferroce_verbs::{Gid, GidEntry, MAD_LEN, Result, ServiceBinding};
use std::net::IpAddr;
use std::sync::Arc;

/// What a context sends and receives through: this machine's links, or a network that exists only in memory.
pub(super) enum ContextPort {
    Host(Arc<driver::Port>),
    Memory(MemoryPort),
}

impl ContextPort {
    /// Calls `f` with a way to send; what it sends leaves before this returns.
    #[inline]
    pub(super) fn send<R>(&self, f: impl FnOnce(&mut dyn PacketTx) -> R) -> R {
        match self {
            Self::Host(port) => port.send(f),
            Self::Memory(port) => port.send(f),
        }
    }

    /// Makes progress in the calling thread.
    #[inline]
    pub(super) fn progress(&self, engine: &Engine) {
        match self {
            Self::Host(port) => port.progress(engine),
            Self::Memory(port) => port.progress(),
        }
    }

    /// The time when somebody last looked at the clock.
    #[inline]
    pub(super) fn now(&self) -> Nanos {
        match self {
            Self::Host(port) => port.now(),
            Self::Memory(port) => port.now(),
        }
    }

    /// The time.
    #[inline]
    pub(super) fn refresh_now(&self) -> Nanos {
        match self {
            Self::Host(port) => port.refresh_now(),
            Self::Memory(port) => port.now(),
        }
    }

    /// The program is about to wait for a completion.
    #[inline]
    pub(super) fn armed(&self) {
        match self {
            Self::Host(port) => port.armed(),
            // The network runs when it is told to; nobody has to be woken for it.
            Self::Memory(_) => {}
        }
    }

    /// Whether contexts of this machine are reached through shared memory.
    pub(super) fn uses_shm(&self) -> bool {
        match self {
            Self::Host(port) => port.uses_shm(),
            Self::Memory(_) => false,
        }
    }

    /// The GID table, in order of index.
    pub(super) fn gid_table(&self) -> Arc<Vec<GidEntry>> {
        match self {
            Self::Host(port) => port.gids.table(),
            Self::Memory(port) => port.gid_table(),
        }
    }

    /// The GID table entry at `index`.
    pub(super) fn gid(&self, index: u32) -> Option<GidEntry> {
        match self {
            Self::Host(port) => port.gids.get(index),
            Self::Memory(port) => port.gid_table().iter().find(|entry| entry.index == index).cloned(),
        }
    }

    /// Whether `ip` is an address of this machine.
    pub(super) fn is_local(&self, ip: IpAddr) -> bool {
        match self {
            Self::Host(port) => port.gids.is_local(ip),
            Self::Memory(port) => port.is_local(ip),
        }
    }

    pub(super) fn join_group(&self, gid: Gid) -> Result<()> {
        match self {
            Self::Host(port) => port.join_group(gid),
            Self::Memory(port) => {
                port.join_group(gid);
                Ok(())
            }
        }
    }

    pub(super) fn leave_group(&self, gid: Gid) {
        match self {
            Self::Host(port) => port.leave_group(gid),
            Self::Memory(port) => port.leave_group(gid),
        }
    }

    /// The random part of a new memory region's key. In a network that a seed reproduces it comes from the seed.
    pub(super) fn key_tag(&self) -> u32 {
        match self {
            Self::Host(_) => rand::random(),
            Self::Memory(port) => port.key_tag(),
        }
    }

    /// Sends a management datagram. Never blocks.
    pub(super) fn send_mad(&self, engine: &Engine, av: &Av, mad: &[u8; MAD_LEN]) {
        match self {
            Self::Host(port) => port.send_mad(engine, av, mad),
            Self::Memory(port) => port.send(|tx| engine.gsi.send(tx, av, 0, mad)),
        }
    }

    /// Says that this context receives management datagrams.
    pub(super) fn set_gsi(&self) {
        match self {
            Self::Host(port) => port.set_gsi(),
            // It sees for itself.
            Self::Memory(_) => {}
        }
    }

    pub(super) fn bind_service(&self, binding: ServiceBinding) -> Result<()> {
        match self {
            Self::Host(port) => port.bind_service(binding),
            Self::Memory(port) => port.bind_service(binding),
        }
    }

    pub(super) fn release_service(&self, binding: ServiceBinding) {
        match self {
            Self::Host(port) => port.release_service(binding),
            Self::Memory(port) => port.release_service(binding),
        }
    }

    pub(super) fn counters(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Host(port) => port.counters(),
            Self::Memory(_) => Vec::new(),
        }
    }

    /// The context is gone: nothing comes in for it any more.
    pub(super) fn stop(&self) {
        match self {
            // The thread goes by itself, and the links with it: the end of the process may come first.
            Self::Host(port) => {
                port.kick.stop();
                port.finish_capture();
            }
            Self::Memory(port) => port.detach(),
        }
    }
}
