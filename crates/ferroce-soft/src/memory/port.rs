use super::network::Network;
use super::traffic::Mac;
use crate::engine::{Engine, Nanos, PacketTx, To};
use ferroce_verbs::{AddressWatcher, Error, Gid, GidEntry, Result, ServiceBinding};
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// One context on the network.
pub(super) struct Node {
    pub(super) ip: IpAddr,
    pub(super) slot: u8,
    pub(super) engine: Arc<Engine>,
    /// Who is told that hosts move.
    pub(super) watcher: Mutex<Option<Weak<dyn AddressWatcher>>>,
}

/// A slot on a host that a context is about to take. It is free again when this is dropped.
pub(crate) struct MemoryPlace {
    pub(super) network: Arc<Network>,
    pub(super) ip: IpAddr,
    pub(super) slot: u8,
    pub(super) attached: bool,
}

impl MemoryPlace {
    /// The high byte of the context's queue pair numbers.
    pub(crate) fn slot(&self) -> u8 {
        self.slot
    }

    /// See [`super::MemoryConfig::keepalive`].
    pub(crate) fn keepalive(&self) -> Option<Duration> {
        self.network.keepalive()
    }

    /// Puts `engine` there: from now on packets reach it.
    pub(crate) fn attach(mut self, engine: Arc<Engine>) -> MemoryPort {
        self.attached = true;
        let node = Arc::new(Node { ip: self.ip, slot: self.slot, engine, watcher: Mutex::default() });
        self.network.attach(&node);
        let gid = GidEntry {
            index: 0,
            gid: Gid::from(self.ip),
            netdev: "memory0".into(),
            ifindex: 0,
            mtu: self.network.mtu(),
            loopback: self.ip.is_loopback(),
        };
        MemoryPort { network: self.network.clone(), node, gids: Arc::new(vec![gid]) }
    }
}

impl Drop for MemoryPlace {
    fn drop(&mut self) {
        if !self.attached {
            self.network.release(self.ip, self.slot);
        }
    }
}

/// What a context on the network sends and receives through.
pub(crate) struct MemoryPort {
    network: Arc<Network>,
    node: Arc<Node>,
    gids: Arc<Vec<GidEntry>>,
}

impl MemoryPort {
    pub(crate) fn send<R>(&self, f: impl FnOnce(&mut dyn PacketTx) -> R) -> R {
        f(&mut MemoryTx::new(&self.network, &self.node))
    }

    pub(crate) fn progress(&self) {
        self.network.progress();
    }

    pub(crate) fn now(&self) -> Nanos {
        self.network.now()
    }

    pub(crate) fn gid_table(&self) -> Arc<Vec<GidEntry>> {
        self.gids.clone()
    }

    pub(crate) fn is_local(&self, ip: IpAddr) -> bool {
        self.node.ip == ip
    }

    pub(crate) fn mac_of(&self, ip: IpAddr) -> Option<Mac> {
        (!ip.is_multicast() && !self.is_local(ip)).then(|| self.network.mac_of(ip))
    }

    pub(crate) fn watch_addresses(&self, watcher: Weak<dyn AddressWatcher>) {
        *self.node.watcher.lock() = Some(watcher);
    }

    pub(crate) fn join_group(&self, gid: Gid) {
        self.network.join_group(gid.ip(), &self.node);
    }

    pub(crate) fn leave_group(&self, gid: Gid) {
        self.network.leave_group(gid.ip(), &self.node);
    }

    pub(crate) fn bind_service(&self, binding: ServiceBinding) -> Result<()> {
        if self.network.bind_service(&self.node, binding.service_id) {
            return Ok(());
        }
        Err(Error::InUse { what: "service", name: format!("{:#018x}", binding.service_id) })
    }

    pub(crate) fn release_service(&self, binding: ServiceBinding) {
        self.network.release_service(&self.node, binding.service_id);
    }

    pub(crate) fn key_tag(&self) -> u32 {
        self.network.key_tag()
    }

    pub(crate) fn detach(&self) {
        self.network.detach(&self.node);
    }
}

/// Puts one packet after the other on the network.
pub(super) struct MemoryTx<'a> {
    network: &'a Network,
    node: &'a Node,
    packet: Vec<u8>,
    to: Option<Address>,
}

/// What of its address a packet carries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    pub(super) tos: u8,
    pub(super) ttl: u8,
    pub(super) mac: Option<Mac>,
}

impl<'a> MemoryTx<'a> {
    pub(super) fn new(network: &'a Network, node: &'a Node) -> Self {
        Self { network, node, packet: Vec::new(), to: None }
    }
}

impl PacketTx for MemoryTx<'_> {
    fn reserve(&mut self, to: &To<'_>, len: usize) -> Option<&mut [u8]> {
        self.to = None;
        if self.network.is_full(self.node.ip) {
            return None;
        }
        self.to = Some(Address { src: to.av.local, dst: to.av.remote, tos: to.av.tos, ttl: to.av.ttl, mac: to.av.mac });
        self.packet.clear();
        // Not zero, so that a byte which the engine forgets to write shows.
        self.packet.resize(len, 0xa5);
        Some(&mut self.packet)
    }

    fn commit(&mut self) {
        if let Some(to) = self.to.take() {
            self.network.transmit(&to, &self.packet);
        }
    }

    fn flush(&mut self) {
        // Every packet enters the network as it is committed.
    }
}
