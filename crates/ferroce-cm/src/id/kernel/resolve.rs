//! Addresses, routes and listeners.

use super::super::queue::Queued;
use super::super::resolve::is_peer;
use super::{Id, IdCore, Phase};
use crate::kernel::{Backlog, KernelId, KernelManager, address, refused};
use crate::{Error, Options, PortSpace, Result};
use ferroce_abi::rdma_cm::{Addresses, wire};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long neighbours may take to answer.
const RESOLVE: Duration = Duration::from_secs(5);

impl Id {
    pub(in crate::id) fn bind_by_kernel(&self, manager: &Arc<KernelManager>, addr: SocketAddr) -> Result<()> {
        let new = |phase| match phase {
            Phase::Idle => Ok(()),
            phase => Err(Error::Phase { call: "bind_addr", phase }),
        };
        new(self.state()?.phase)?;
        let id = self.in_kernel(manager)?;
        let bound = self.let_reuse(manager, &id).and_then(|()| {
            let bound = manager.device().bind(id.number(), addr);
            bound.map_err(|error| address(addr, error))
        });
        let found = bound.and_then(|()| addresses(manager, &id, addr)).inspect_err(|_| self.core().renew(&id))?;
        let mut state = self.state()?;
        new(state.phase)?;
        if !state.kernel.is_own(&id) {
            // Another thread's call has failed meanwhile, and took it along.
            return Err(Error::Phase { call: "bind_addr", phase: state.phase });
        }
        state.local = Some(found.local.unwrap_or(addr));
        state.phase = Phase::Bound;
        Ok(())
    }

    pub(in crate::id) fn resolve_addr_by_kernel(
        &self,
        manager: &Arc<KernelManager>,
        local: Option<SocketAddr>,
        peer: SocketAddr,
    ) -> Result<()> {
        let core = self.core();
        let local = {
            let mut state = self.state()?;
            let local = match (state.phase, state.kernel.resolving) {
                (Phase::Idle, None) => local,
                // The kernel has it already.
                (Phase::Bound, None) => None,
                (phase, _) => return Err(Error::Phase { call: "resolve_addr", phase }),
            };
            state.kernel.resolving = Some(peer);
            local
        };
        let asked = self.in_kernel(manager).and_then(|id| {
            if !is_peer(peer, core.is_datagram() && peer.ip().is_multicast()) {
                return Err(Error::Address { addr: peer, why: "it is no address of a peer".into() });
            }
            self.set_kernel_options(manager, &id)?;
            if local.is_some() {
                self.let_reuse(manager, &id)?;
            }
            let resolving = manager.device().resolve_addr(id.number(), local, peer, RESOLVE.as_millis() as u32);
            resolving.map_err(|error| address(peer, error))
        });
        if let Err(error) = asked {
            core.resolve_no_more(None, false);
            drop(core.push(Queued::AddrResolved(Err(error))));
        }
        Ok(())
    }

    pub(in crate::id) fn resolve_route_by_kernel(&self, manager: &Arc<KernelManager>) -> Result<()> {
        let (id, peer) = {
            let mut state = self.state()?;
            let id = state.kernel_id("resolve_route", |phase| phase == Phase::AddrResolved)?;
            let (None, Some(peer)) = (state.kernel.resolving, state.peer) else {
                return Err(Error::Phase { call: "resolve_route", phase: state.phase });
            };
            state.kernel.resolving = Some(peer);
            (id, peer)
        };
        let asked = self.set_kernel_options(manager, &id).and_then(|()| {
            let resolving = manager.device().resolve_route(id.number(), RESOLVE.as_millis() as u32);
            resolving.map_err(|error| address(peer, error))
        });
        if let Err(error) = asked {
            self.state()?.kernel.resolving = None;
            drop(self.core().push(Queued::RouteResolved(Err(error))));
        }
        Ok(())
    }

    /// What the kernel has to know before the id gets a local address.
    fn let_reuse(&self, manager: &KernelManager, id: &KernelId) -> Result<()> {
        if !self.options().reuse_addr {
            return Ok(());
        }
        let (name, value) = (wire::OPTION_ID_REUSEADDR, 1_i32.to_ne_bytes());
        let set = manager.device().set_option(id.number(), wire::OPTION_ID, name, &value);
        set.map_err(refused("letting others have an address, too"))
    }

    /// The options that the kernel has to know: before it looks for a route, and before the queue pair is moved.
    pub(super) fn set_kernel_options(&self, manager: &KernelManager, id: &KernelId) -> Result<()> {
        let (options, usual) = (self.options(), Options::default());
        let set = |name, value: u8| {
            let set = manager.device().set_option(id.number(), wire::OPTION_ID, name, &[value]);
            set.map_err(refused("setting an option"))
        };
        if options.tos != usual.tos {
            set(wire::OPTION_ID_TOS, options.tos)?;
        }
        if options.ack_timeout != usual.ack_timeout && self.port_space() == PortSpace::Tcp {
            set(wire::OPTION_ID_ACK_TIMEOUT, options.ack_timeout.min(31))?;
        }
        Ok(())
    }

    pub(in crate::id) fn listen_by_kernel(&self, manager: &Arc<KernelManager>, backlog: usize) -> Result<()> {
        let (id, addr) = {
            let mut state = self.state()?;
            let id = state.kernel_id("listen", |phase| phase == Phase::Bound)?;
            let Some(addr) = state.local else { return Err(Error::Phase { call: "listen", phase: state.phase }) };
            state.kernel.backlog = Some(Backlog::new(backlog));
            state.phase = Phase::Listening;
            (id, addr)
        };
        let listening = self.set_kernel_options(manager, &id).and_then(|()| {
            // As long as the kernel allows: it drops what does not fit.
            manager.device().listen(id.number(), 0).map_err(|error| address(addr, error))
        });
        listening.inspect_err(|_| {
            let mut state = self.core().state.lock();
            if state.phase == Phase::Listening {
                state.phase = Phase::Bound;
            }
        })
    }
}

impl IdCore {
    /// The kernel's id may have gone where nobody wanted it: what is tried next is tried with another one, if nothing else has become of it.
    pub(super) fn renew(&self, id: &Arc<KernelId>) {
        let mut state = self.state.lock();
        if state.phase == Phase::Idle && state.kernel.resolving.is_none() && state.kernel.is_own(id) {
            let old = state.kernel.id.take();
            drop(state);
            // With it goes the kernel's.
            drop(old);
        }
    }

    /// The address that was looked for is `found`, or there is none; then what is tried next is tried with another id of the kernel's, and if the
    /// old one `went` to another device, that it was bound is over, too. False if nobody waits for it any more.
    pub(super) fn resolve_no_more(&self, found: Option<(Addresses, SocketAddr)>, went: bool) -> bool {
        let mut state = self.state.lock();
        state.kernel.resolving = None;
        let waits = matches!(state.phase, Phase::Idle | Phase::Bound);
        let mut old = None;
        match found {
            Some((found, peer)) if waits => {
                state.local = found.local;
                state.peer = found.peer.or(Some(peer));
                state.phase = Phase::AddrResolved;
            }
            None if state.phase == Phase::Idle || state.phase == Phase::Bound && went => {
                (state.phase, state.local) = (Phase::Idle, None);
                old = state.kernel.id.take();
            }
            _ => {}
        }
        drop(state);
        // With it goes the kernel's.
        drop(old);
        waits
    }
}

/// The addresses of an id, which must be of the manager's device if it is of any.
pub(super) fn addresses(manager: &KernelManager, id: &KernelId, addr: SocketAddr) -> Result<Addresses> {
    let found = manager.device().query_addr(id.number()).map_err(refused("asking for the addresses of an id"))?;
    if found.node_guid != 0 && !manager.is_own(found.node_guid) {
        return Err(Error::Address { addr, why: "another RDMA device has it, or reaches it: open that one".into() });
    }
    Ok(found)
}
