//! Connections through the connection manager.

use super::address::Terms;
use super::core::Phase;
use super::endpoint::RcEndpoint;
use super::progress::Progress;
use super::{RcVerbs, clock};
use crate::uct::{Cause, EndpointId};
use ferroce_cm::proto::DisconnectCause;
use ferroce_cm::{Connection, ConnectionManager, Endpoint, EventKind, Incoming, Listener};
use ferroce_verbs::Qp;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A connection through the connection manager did not come about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// What the connection manager says.
    #[error(transparent)]
    Cm(#[from] ferroce_cm::Error),
    /// What the device says.
    #[error("making an endpoint: {0}")]
    Device(#[source] ferroce_verbs::Error),
    /// Whoever answered does not speak this protocol.
    #[error("the peer is no rc_verbs interface: {0}")]
    Terms(#[source] ferroce_verbs::Error),
}

impl RcVerbs {
    fn cm_endpoint(&self, cm: &ConnectionManager) -> Endpoint {
        Endpoint { cm: cm.clone(), pd: self.0.pd.clone(), qp: self.0.qp_init_attr() }
    }

    /// Puts the connection manager's queue pair into the table, before anything can come to it. Dropped, it drains.
    fn adopt_connecting(&self, qp: &Qp) -> ferroce_verbs::Result<RcEndpoint> {
        let core = self.adopt(qp.clone())?;
        core.lock().phase = Phase::Connecting;
        Ok(RcEndpoint::new(self.clone(), core))
    }

    /// An endpoint that is connected to whoever listens at `peer` ([`RcListener`]). Waits at most for `timeout`.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] says whose fault it was.
    pub fn connect(
        &self,
        cm: &ConnectionManager,
        peer: SocketAddr,
        timeout: Duration,
    ) -> Result<RcEndpoint, ConnectError> {
        let mut adopted = None;
        let terms = self.0.terms().to_bytes();
        let adopt = |qp: &Qp| {
            adopted = Some(
                self.adopt_connecting(qp)
                    .map_err(|source| ferroce_cm::Error::Device { what: "making an endpoint", source })?,
            );
            Ok(())
        };
        let connection = Connection::connect(&self.cm_endpoint(cm), peer, &terms, timeout, adopt)?;
        finish(adopted, connection)
    }

    /// What the connection manager says of endpoints.
    pub(super) fn connection_events(&self, progress: &mut Progress) {
        while let Ok(Some(event)) = self.0.channel.try_next() {
            if let EventKind::Disconnected(why) = event.kind() {
                let cause = if *why == DisconnectCause::PeerLost { Cause::PeerTimeout } else { Cause::Closed };
                if let Some(endpoint) = event.id().context::<EndpointId>() {
                    self.fail_endpoint(progress, *endpoint, cause);
                }
                // Answers the peer, and stops the queue pair. That it has stopped already is fine.
                let _ = event.id().disconnect();
            }
        }
    }
}

/// Makes an endpoint of what was connected.
fn finish(adopted: Option<RcEndpoint>, connection: Connection) -> Result<RcEndpoint, ConnectError> {
    // Whoever connects has called what adopts it.
    let no_endpoint = || ferroce_verbs::Error::invalid("connection", "it has no queue pair");
    let endpoint = adopted.ok_or_else(|| ConnectError::Device(no_endpoint()))?;
    let terms = Terms::from_bytes(connection.private_data()).map_err(ConnectError::Terms)?;
    let attr = endpoint.core.qp.query().map_err(ConnectError::Device)?;
    let gid = attr.ah_attr.and_then(|attr| attr.grh).map(|grh| grh.dgid);
    let id = connection.id().clone();
    let shared = &endpoint.interface.0;
    {
        let mut state = endpoint.core.lock();
        state.set_terms(&endpoint.core, terms);
        state.peer = gid.zip(attr.dest_qpn);
        state.phase = match state.phase {
            Phase::Connecting => Phase::Ready,
            over => over,
        };
        state.life.last_ack = clock::now();
        state.connection = Some(connection);
        shared.watch(&endpoint.core, &mut state);
    }
    id.set_context(Arc::new(endpoint.core.id()))?;
    id.migrate(&shared.channel)?;
    // A peer that was quick may wait for a grant already.
    shared.look_at(true);
    Ok(endpoint)
}

/// Listens for endpoints that connect to a socket address. Dropping it stops it; endpoints live on.
#[derive(Debug)]
pub struct RcListener {
    interface: RcVerbs,
    listener: Listener,
}

impl RcListener {
    /// Listens at `addr`; port 0 stands for any.
    ///
    /// # Errors
    ///
    /// What the connection manager says.
    pub fn bind(
        interface: &RcVerbs,
        cm: &ConnectionManager,
        addr: SocketAddr,
        backlog: usize,
    ) -> Result<Self, ConnectError> {
        let listener = Listener::bind(&interface.cm_endpoint(cm), addr, backlog)?;
        Ok(Self { interface: interface.clone(), listener })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next peer that asks for a connection; `None` if there is none within `timeout`. Several threads may wait.
    ///
    /// # Errors
    ///
    /// What the connection manager says.
    pub fn incoming(&self, timeout: Duration) -> Result<Option<RcIncoming>, ConnectError> {
        let interface = self.interface.clone();
        Ok(self.listener.incoming(timeout)?.map(|incoming| RcIncoming { interface, incoming }))
    }
}

/// A peer that asks for a connection. Dropping it rejects.
#[derive(Debug)]
pub struct RcIncoming {
    interface: RcVerbs,
    incoming: Incoming,
}

impl RcIncoming {
    /// Who asks.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.incoming.peer_addr()
    }

    /// Refuses.
    ///
    /// # Errors
    ///
    /// If the peer has given up.
    pub fn reject(self) -> Result<(), ConnectError> {
        Ok(self.incoming.reject(&[])?)
    }

    /// Grants the connection, and waits at most for `timeout` until the peer knows. Messages may come before this returns.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Terms`] if the peer does not speak this protocol: then it is rejected. Else as of [`RcVerbs::connect`].
    pub fn accept(self, timeout: Duration) -> Result<RcEndpoint, ConnectError> {
        let Self { interface, incoming } = self;
        Terms::from_bytes(incoming.private_data()).map_err(ConnectError::Terms)?;
        let mut adopted = None;
        let adopt = |qp: &Qp| {
            adopted = Some(
                interface
                    .adopt_connecting(qp)
                    .map_err(|source| ferroce_cm::Error::Device { what: "making an endpoint", source })?,
            );
            Ok(())
        };
        let connection = incoming.accept(&interface.0.terms().to_bytes(), timeout, adopt)?;
        finish(adopted, connection)
    }
}
