use crate::addr::link_layer;
use crate::driver;
use crate::engine::{Av, Engine, Nanos, PacketTx};
use crate::memory::MemoryPort;
use ferroce_verbs::{AddressWatcher, Error, Gid, GidEntry, LinkLayer, MAD_LEN, Result, ServiceBinding};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

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

    /// How packets to an address are addressed on the link layer; `None` if they do not leave this machine, or go to a group.
    pub(super) fn link_layer(&self, av: &Av) -> Result<Option<LinkLayer>> {
        match self {
            Self::Host(_) if av.same_host || av.remote.is_multicast() => Ok(None),
            Self::Host(_) => match link_layer(av.remote, av.scope) {
                Ok(link) => Ok(link),
                Err(error) if is_unreachable(&error) => {
                    Err(Error::os(format!("finding the way to {} in the routing table", av.remote), error))
                }
                // The kernel finds the way for itself; only who watches for changes will not know of some.
                Err(error) => {
                    tracing::debug!(%error, to = %av.remote, "the neighbour cannot be looked up over netlink");
                    Ok(None)
                }
            },
            Self::Memory(_) => Ok(av.mac.map(|mac| LinkLayer { ifindex: 0, next_hop: av.remote, mac: Some(mac) })),
        }
    }

    /// The MAC at `ip`, if packets carry what was resolved.
    pub(super) fn mac_of(&self, ip: IpAddr) -> Option<[u8; 6]> {
        match self {
            // The kernel looks for each packet.
            Self::Host(_) => None,
            Self::Memory(port) => port.mac_of(ip),
        }
    }

    /// Tells `watcher` of changes of addresses from now on.
    pub(super) fn watch_addresses(&self, watcher: Weak<dyn AddressWatcher>) -> Result<()> {
        match self {
            Self::Host(port) => {
                port.watched.set(watcher).map_err(|error| Error::os("watching neighbours over netlink", error))?;
                // It takes up what is new when it is awake.
                port.kick.wake();
                Ok(())
            }
            Self::Memory(port) => {
                port.watch_addresses(watcher);
                Ok(())
            }
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
                port.settle();
                port.kick.stop();
            }
            Self::Memory(port) => port.detach(),
        }
    }
}

fn is_unreachable(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable)
}
