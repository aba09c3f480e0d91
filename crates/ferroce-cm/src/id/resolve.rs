//! Local addresses, the peer's address, and the route to it.

use super::queue::Queued;
use super::{Id, IdCore, Phase};
use crate::backend::Backend;
use crate::manager::Manager;
use crate::{Error, Result};
use ferroce_verbs::{AhAttr, Gid, GidEntry, GlobalRoute};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;

impl Id {
    /// Gives it a local address (`rdma_bind_addr`). Port 0 stands for any, the unspecified address for all.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if the host has no such address, [`Error::Phase`] unless the id is new.
    pub fn bind_addr(&self, addr: SocketAddr) -> Result<()> {
        let manager = match &self.core().backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.bind_by_kernel(manager, addr),
        };
        let mut state = self.state()?;
        if state.phase != Phase::Idle {
            return Err(Error::Phase { call: "bind_addr", phase: state.phase });
        }
        if !addr.ip().is_unspecified() {
            state.gid = Some(local_gid(manager, addr, scope_of(addr))?);
        }
        state.local = Some(addr);
        state.phase = Phase::Bound;
        Ok(())
    }

    /// Finds out how `peer`, in the port space UDP perhaps a multicast group, is reached, from `local` if it is given
    /// (`rdma_resolve_addr`). The outcome comes as an event, [`crate::EventKind::AddrResolved`] or [`crate::EventKind::AddrError`].
    ///
    /// Addresses are numbers, so nobody has to be asked over the network and nothing blocks: which of several local addresses the
    /// kernel would send from costs the calling thread some system calls that return at once, with no lock held. Where the kernel manages
    /// connections it looks for the neighbour, too, for at most five seconds, while nobody is blocked. A link-local IPv6
    /// address needs the interface that it is of, the scope id of its [`std::net::SocketAddrV6`], unless only one has such addresses.
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] if the id has a peer already.
    pub fn resolve_addr(&self, local: Option<SocketAddr>, peer: SocketAddr) -> Result<()> {
        let manager = match &self.core().backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.resolve_addr_by_kernel(manager, local, peer),
        };
        let bound = {
            let state = self.state()?;
            match state.phase {
                Phase::Idle => local,
                Phase::Bound => state.local.filter(|local| !local.ip().is_unspecified()).or(local),
                phase => return Err(Error::Phase { call: "resolve_addr", phase }),
            }
        };
        let found = self.core().find(manager, bound, peer);
        let mut state = self.state()?;
        let outcome = match found {
            Ok((gid, ip)) if matches!(state.phase, Phase::Idle | Phase::Bound) => {
                let port = state.local.or(local).map_or(0, |addr| addr.port());
                let port = if port == 0 { manager.ephemeral_port() } else { port };
                state.local = Some(with_scope(SocketAddr::new(ip, port), gid.ifindex));
                state.peer = Some(with_scope(peer, gid.ifindex));
                state.gid = Some(gid);
                state.phase = Phase::AddrResolved;
                Ok(())
            }
            Ok(_) => return Err(Error::Phase { call: "resolve_addr", phase: state.phase }),
            Err(error) => Err(error),
        };
        drop(state);
        drop(self.core().push(Queued::AddrResolved(outcome)));
        Ok(())
    }

    /// Finds out which way to the peer to use (`rdma_resolve_route`). On RoCE there is one; the outcome comes as an event all the
    /// same.
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] unless the peer's address is resolved.
    pub fn resolve_route(&self) -> Result<()> {
        if let Backend::Kernel(manager) = &self.core().backend {
            return self.resolve_route_by_kernel(manager);
        }
        let mut state = self.state()?;
        let (Phase::AddrResolved, Some(gid), Some(local), Some(peer)) =
            (state.phase, &state.gid, state.local, state.peer)
        else {
            return Err(Error::Phase { call: "resolve_route", phase: state.phase });
        };
        let tos = self.core().options.lock().tos;
        // As the kernel makes it from the ports (`cma_resolve_iboe_route`), so that connections take different ways.
        let flow_label = (u32::from(local.port()) * 31 + u32::from(peer.port())) & 0xf_ffff;
        state.path = Some(path(gid.index, Gid::from(peer.ip()), flow_label, tos));
        state.phase = Phase::RouteResolved;
        drop(state);
        drop(self.core().push(Queued::RouteResolved(Ok(()))));
        Ok(())
    }
}

/// The path of RoCE packets to `dgid`.
pub(super) fn path(sgid_index: u32, dgid: Gid, flow_label: u32, traffic_class: u8) -> AhAttr {
    let route = GlobalRoute { flow_label, traffic_class, ..GlobalRoute::new(dgid, sgid_index) };
    AhAttr { grh: Some(route), ..AhAttr::roce(dgid, sgid_index) }
}

impl IdCore {
    /// The local GID and address from which a peer is reached.
    fn find(
        self: &Arc<Self>,
        manager: &Manager,
        local: Option<SocketAddr>,
        peer: SocketAddr,
    ) -> Result<(GidEntry, IpAddr)> {
        let refuse = |why: &str| Err(Error::Address { addr: peer, why: why.into() });
        let is_group = self.is_datagram() && peer.ip().is_multicast();
        if !is_peer(peer, is_group) {
            return refuse("it is no address of a peer");
        }
        let scope_id = scope_of(peer);
        if let Some(local) = local.filter(|local| !local.ip().is_unspecified()) {
            let scope_id = if scope_id == 0 { scope_of(local) } else { scope_id };
            return Ok((local_gid(manager, local, scope_id)?, local.ip()));
        }
        let table = manager.context.gid_table(1).map_err(Error::device("reading the GID table"))?;
        let link_local = is_link_local(peer.ip());
        let mut candidates = table.into_iter().filter(|entry| {
            let ip = entry.ip();
            let reaches = !link_local || is_link_local(ip) && (scope_id == 0 || entry.ifindex == scope_id);
            ip.is_ipv4() == peer.ip().is_ipv4() && reaches
        });
        let first = candidates.next();
        if let (Some(only), None) = (&first, candidates.next()) {
            return Ok((only.clone(), only.ip()));
        }
        if link_local && scope_id == 0 {
            return refuse("a link-local address needs its interface, as in fe80::1%eth0");
        }
        let source = source_for(peer)
            .map_err(|error| Error::Address { addr: peer, why: format!("there is no route to it: {error}") })?;
        Ok((local_gid(manager, SocketAddr::new(source, 0), scope_id)?, source))
    }
}

/// Whether an address means something else on each interface.
pub(crate) fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// Whether that can be an address of a peer, or of a group.
pub(super) fn is_peer(addr: SocketAddr, is_group: bool) -> bool {
    !addr.ip().is_unspecified() && (is_group || !addr.ip().is_multicast() && addr.port() != 0)
}

/// The GID of a local address, on the interface `scope_id` if it is not 0.
fn local_gid(manager: &Manager, addr: SocketAddr, scope_id: u32) -> Result<GidEntry> {
    let gid = manager.local_gid(Gid::from(addr.ip()), scope_id);
    let gid = gid.map_err(Error::device("reading the GID table"))?;
    gid.ok_or_else(|| Error::Address { addr, why: "the device has no GID for it: see `ferroce info`".into() })
}

/// The interface that an address names, or 0.
pub(super) fn scope_of(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V6(v6) if is_link_local(addr.ip()) => v6.scope_id(),
        _ => 0,
    }
}

/// The same address; a link-local one names the interface.
pub(super) fn with_scope(addr: SocketAddr, ifindex: u32) -> SocketAddr {
    match addr {
        SocketAddr::V6(mut v6) if is_link_local(addr.ip()) => {
            v6.set_scope_id(ifindex);
            v6.into()
        }
        other => other,
    }
}

/// The address from which the kernel would send to `peer`: it chooses one when a datagram socket is connected, without sending
/// anything.
fn source_for(peer: SocketAddr) -> std::io::Result<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}
