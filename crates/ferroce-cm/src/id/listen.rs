//! Listeners.

use super::{Id, Phase};
use crate::backend::Backend;
use crate::later::Later;
use crate::manager::Manager;
use crate::proto::{Bind, ListenParams, Service};
use crate::services::Claim;
use crate::{Error, Result};
use ferroce_verbs::{Gid, ServiceBinding};
use ferroce_wire::cm::ServiceId;
use std::net::{IpAddr, SocketAddr};

/// How often a random port is tried before the host counts as full.
const PORT_TRIES: usize = 256;

impl Id {
    /// Begins to listen (`rdma_listen`) at the address that it is bound to. Up to `backlog` requests wait to be read, 1024 if it
    /// is 0; of those beyond that the peers are told to try again, or that there is no room if nobody reads.
    ///
    /// At all addresses it takes the requests that come in over the device of its connection manager. Where the kernel manages connections it has the
    /// port on the host's other RDMA devices, too, and what comes in over those is rejected, with a warning in the log: a program that is to be
    /// reached over several devices binds to an address of each.
    ///
    /// Waits for the registry of the host, at most some seconds.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if another listener of the host has the address, or a destroyed one of which requests are left that may come again: of
    /// another program, or, to listen at all addresses, of this one at some. One that is left of all addresses keeps other programs from them for as
    /// long as this one listens at any. [`Error::NoPort`] if there is no free one, [`Error::Phase`] unless the id is bound.
    pub fn listen(&self, backlog: usize) -> Result<()> {
        let manager = match &self.core().backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.listen_by_kernel(manager, backlog),
        };
        let core = self.core();
        let (addr, gid) = {
            let state = self.state()?;
            match (state.phase, state.local) {
                (Phase::Bound, Some(local)) => (local, state.gid.as_ref().map(|entry| entry.gid)),
                (phase, _) => return Err(Error::Phase { call: "listen", phase }),
            }
        };
        let (service, port) = self.claim(manager, addr, gid)?;
        let mut later = Later::default();
        let mut state = match self.state() {
            Ok(state) if state.phase == Phase::Bound => state,
            other => {
                manager.unclaim(service);
                let phase = other?.phase;
                return Err(Error::Phase { call: "listen", phase });
            }
        };
        let bind = bind(manager, addr, gid);
        let listening = manager.run_locked(&mut later, |protocol, _| {
            let cookie = core.enroll(protocol);
            let listener = protocol.endpoint.listen(&ListenParams {
                bind,
                service_id: ServiceId(service.service_id()),
                service: if core.is_datagram() { Service::Datagram } else { Service::Connection },
                backlog,
                cookie,
            })?;
            protocol.services.opened(listener, service);
            Ok::<_, crate::proto::CmError>(listener)
        });
        match listening {
            Ok(listener) => {
                state.listener = Some(listener);
                state.local = Some(with_port(addr, port));
                state.phase = Phase::Listening;
                Ok(())
            }
            Err(error) => {
                drop(state);
                manager.unclaim(service);
                Err(error.into())
            }
        }
    }

    /// Claims a port for this context.
    fn claim(&self, manager: &Manager, addr: SocketAddr, gid: Option<Gid>) -> Result<(Claim, u16)> {
        let core = self.core();
        let binding = |port| {
            let service_id = ServiceId::from_port(core.port_space, port).0;
            ServiceBinding { service_id, local: gid }
        };
        if addr.port() != 0 {
            let service = binding(addr.port());
            return match manager.claim(service) {
                Ok(service) => Ok((service, addr.port())),
                Err(ferroce_verbs::Error::InUse { .. }) => {
                    Err(Error::Address { addr, why: "another listener of this host has it".into() })
                }
                Err(error) => Err(Error::device("claiming the port")(error)),
            };
        }
        for _ in 0..PORT_TRIES {
            let port = manager.ephemeral_port();
            match manager.claim(binding(port)) {
                Ok(service) => return Ok((service, port)),
                Err(ferroce_verbs::Error::InUse { .. }) => {}
                Err(error) => return Err(Error::device("claiming a port")(error)),
            }
        }
        Err(Error::NoPort)
    }
}

fn with_port(mut addr: SocketAddr, port: u16) -> SocketAddr {
    addr.set_port(port);
    addr
}

fn bind(manager: &Manager, addr: SocketAddr, gid: Option<Gid>) -> Bind {
    match (gid, addr.ip()) {
        (Some(gid), _) => Bind::Gid { gid, scope_id: manager.address(gid, gid).scope_id },
        (None, IpAddr::V4(_)) => Bind::AnyV4,
        // A wildcard of IPv6 takes IPv4 too, as with sockets.
        (None, IpAddr::V6(_)) => Bind::Any,
    }
}
