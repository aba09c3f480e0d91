//! Connecting, accepting, rejecting, disconnecting.

use super::resolve::with_scope;
use super::setup::Negotiated;
use super::{Id, IdState, Phase};
use crate::backend::Backend;
use crate::later::Later;
use crate::proto::{AcceptParams, Address, CmError, ConnectParams, ConnectRequest, nanos};
use crate::{Error, Result};
use ferroce_verbs::{Gid, QpType};
use ferroce_wire::IpPair;
use ferroce_wire::cm::{AdditionalInfo, IpCmHeader, RejectReason, ServiceId, TransportService};
use std::net::SocketAddr;

/// How to connect or accept (`rdma_conn_param`).
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnParam<'a> {
    /// What the peer's user gets with the event. At most 56 bytes to connect, 196 to accept; in the port space UDP 180 and 136.
    pub private_data: &'a [u8],
    /// RDMA reads and atomics that this side can answer at a time. `None`: 16, or as many as the peer would have outstanding.
    pub responder_resources: Option<u8>,
    /// RDMA reads and atomics that this side would have outstanding. `None`: 16, or as many as the peer can answer.
    pub initiator_depth: Option<u8>,
    /// How often queue pairs retry what is not acknowledged, at most 7. `None`: 7.
    pub retry_count: Option<u8>,
    /// How often queue pairs retry after "receiver not ready", at most 7, which is for ever. `None`: 7.
    pub rnr_retry_count: Option<u8>,
    /// The queue pair, if it is not the id's own: its user then moves it. It is of the type RC.
    pub qp_num: Option<u32>,
    /// It has a shared receive queue, if it is not the id's own.
    pub srq: bool,
    /// The queue pair's Q_Key, to accept in the port space UDP. `None`: [`crate::UDP_QKEY`], with which queue pairs of ids are made.
    pub qkey: Option<u32>,
}

/// What the software device can have outstanding.
pub(super) const DEPTH: u8 = 16;
pub(super) const PKEY: u16 = 0xffff;

impl Id {
    /// Asks the peer for a connection (`rdma_connect`). The outcome comes as an event: [`crate::EventKind::Established`] or, if the queue
    /// pair is not the reader's to move, [`crate::EventKind::ConnectResponse`]; or one that says why not.
    ///
    /// In the port space UDP it asks for the peer's queue pair and address, which come with [`crate::EventKind::Established`]
    /// ([`crate::Event::ud_param`]); there it needs no queue pair of its own.
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] unless the route is resolved; what the protocol says of the parameters.
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<()> {
        let manager = match &self.core().backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.connect_by_kernel(manager, param),
        };
        let core = self.core();
        if core.is_datagram() {
            return self.ask(manager, param);
        }
        let options = *core.options.lock();
        let mut later = Later::default();
        let mut state = self.state()?;
        let (Phase::RouteResolved, Some(local), Some(peer), Some(gid), Some(path)) =
            (state.phase, state.local, state.peer, state.gid.clone(), state.path)
        else {
            return Err(Error::Phase { call: "connect", phase: state.phase });
        };
        let (qpn, srq) = state.queue_pair(param)?;
        let transport = state.transport(param);
        let (private_data, length) = with_header::<92>(local, peer, param.private_data)?;
        let route = path.grh.unwrap_or(ferroce_verbs::GlobalRoute::new(Gid::from(peer.ip()), gid.index));
        let responder_resources = param.responder_resources.unwrap_or(DEPTH);
        let initiator_depth = param.initiator_depth.unwrap_or(DEPTH);
        let retry_count = param.retry_count.unwrap_or(7);
        let rnr_retry_count = param.rnr_retry_count.unwrap_or(7);
        let address = manager.address(gid.gid, route.dgid);
        let (conn, psn) = manager.run_locked(&mut later, |protocol, now| {
            let cookie = core.enroll(protocol);
            let psn = protocol.endpoint.random_psn();
            let conn = protocol.endpoint.connect(
                now,
                &ConnectParams {
                    address,
                    service_id: ServiceId::from_port(core.port_space, peer.port()),
                    transport,
                    qpn,
                    psn,
                    responder_resources,
                    initiator_depth,
                    retry_count,
                    rnr_retry_count,
                    srq,
                    pkey: PKEY,
                    path_mtu: gid.mtu as u8,
                    ack_timeout: options.ack_timeout.min(31),
                    traffic_class: route.traffic_class,
                    flow_label: route.flow_label,
                    hop_limit: route.hop_limit,
                    ece: None,
                    private_data: &private_data[..length],
                    deadline: now.saturating_add(nanos(options.connect_timeout)),
                    cookie,
                },
            )?;
            Ok::<_, Error>((conn, psn))
        })?;
        state.conn = Some(conn);
        state.negotiated = Negotiated {
            psn,
            transport: Some(transport),
            responder_resources,
            initiator_depth,
            retry_count,
            rnr_retry_count,
            path_mtu: Some(gid.mtu),
            ack_timeout: options.ack_timeout.min(31),
            ..Negotiated::default()
        };
        state.phase = Phase::Connecting;
        Ok(())
    }

    /// Grants a connection that a peer has asked for (`rdma_accept`). Moves the id's queue pair, if it has one, to RTS first, in the
    /// calling thread. [`crate::EventKind::Established`] follows when the peer knows.
    ///
    /// In the port space UDP it tells the peer the id's queue pair, and nothing follows.
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] if there is no request to grant, or it was taken back; [`Error::Device`] if the queue pair cannot be moved, in
    /// which case the request is rejected; [`Error::Unsupported`] for a `qkey` that the kernel cannot tell.
    pub fn accept(&self, param: &ConnParam<'_>) -> Result<()> {
        let manager = match &self.core().backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.accept_by_kernel(manager, param),
        };
        let core = self.core();
        if core.is_datagram() {
            return self.answer_with_qp(manager, param);
        }
        let mut later = Later::default();
        // Of two threads that accept, one does; destroying waits for neither.
        let setup = core.setup.lock();
        // What does not fit is found before the queue pair is moved: then the request can still be granted.
        let (answer, qp) = {
            let mut state = self.state()?;
            if state.phase != Phase::Requested {
                return Err(Error::Phase { call: "accept", phase: state.phase });
            }
            let (qpn, srq) = state.queue_pair(param)?;
            let mut negotiated = state.negotiated;
            negotiated.responder_resources =
                param.responder_resources.unwrap_or(negotiated.responder_resources).min(DEPTH);
            negotiated.initiator_depth = param.initiator_depth.unwrap_or(negotiated.initiator_depth).min(DEPTH);
            let answer = AcceptParams {
                qpn,
                psn: negotiated.psn,
                responder_resources: negotiated.responder_resources,
                initiator_depth: negotiated.initiator_depth,
                // What the peer's queue pair is to do; ours does what the peer said.
                rnr_retry_count: param.rnr_retry_count.unwrap_or(7),
                srq,
                ece: None,
                private_data: param.private_data,
                deadline: None,
                cookie: core.cookie.load(crate::sync::atomic::Ordering::Relaxed),
            };
            answer.check()?;
            state.negotiated = negotiated;
            (answer, if param.qp_num.is_none() { state.qp.clone() } else { None })
        };
        if let Some(qp) = &qp
            && let Err(error) = core.move_to_rts(qp, &setup)
        {
            // With what it leads to others may come back here.
            drop(setup);
            core.abandon();
            return Err(error);
        }
        let mut state = self.state()?;
        let (Phase::Requested, Some(conn)) = (state.phase, state.conn) else {
            return Err(Error::Phase { call: "accept", phase: state.phase });
        };
        let accepted = manager.run_locked(&mut later, |protocol, now| protocol.endpoint.accept(now, conn, &answer));
        state.decided("accept", accepted, Phase::Accepted)
    }

    /// Refuses a connection that a peer has asked for, or that a peer has granted (`rdma_reject`). `private_data` is at most 148
    /// bytes, 136 in the port space UDP.
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] if there is nothing to refuse.
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        let manager = match &self.core().backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.reject_by_kernel(manager, private_data),
        };
        if self.core().is_datagram() {
            return self.refuse(manager, private_data);
        }
        let mut later = Later::default();
        let mut state = self.state()?;
        let (Phase::Requested | Phase::Responding, Some(conn)) = (state.phase, state.conn) else {
            return Err(Error::Phase { call: "reject", phase: state.phase });
        };
        let rejected = manager.run_locked(&mut later, |protocol, now| {
            let info = AdditionalInfo::EMPTY;
            protocol.endpoint.reject(now, conn, RejectReason::ConsumerDefined, info, private_data)
        });
        state.decided("reject", rejected, Phase::Disconnected)
    }

    /// Confirms a connection that the peer has granted (`rdma_establish`), after [`crate::EventKind::ConnectResponse`]. Moves the id's queue
    /// pair, if it has one, to RTS first, in the calling thread. There is no further event.
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] if there is nothing to confirm; [`Error::Device`] if the queue pair cannot be moved, in which case the
    /// connection is given up.
    pub fn establish(&self) -> Result<()> {
        let qp = {
            let state = self.state()?;
            if state.phase != Phase::Responding {
                return Err(Error::Phase { call: "establish", phase: state.phase });
            }
            state.qp.clone()
        };
        self.core().confirm(qp.as_ref()).inspect_err(|_| {
            self.core().abandon();
        })
    }

    /// Says that the peer's data has come, so that it must have established the connection, though its message may be lost
    /// (`rdma_notify` with `IBV_EVENT_COMM_EST`). [`crate::EventKind::Established`] follows, unless it has come already.
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] unless the id has accepted.
    pub fn notify_established(&self) -> Result<()> {
        let manager = match &self.core().backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.notify_kernel(manager),
        };
        let call = "notify_established";
        let mut later = Later::default();
        let state = self.state()?;
        match (state.phase, state.conn) {
            (Phase::Accepted | Phase::Connected, Some(conn)) => manager
                .run_locked(&mut later, |protocol, _| protocol.endpoint.notify_established(conn))
                .map_err(|error| over(call, error)),
            (phase, _) => Err(Error::Phase { call, phase }),
        }
    }

    /// Ends the connection (`rdma_disconnect`): moves the id's queue pair, if it has one, to ERR, which flushes it, and tells the
    /// peer. [`crate::EventKind::Disconnected`] follows. After that event this answers the peer, which waits, if it was the one that
    /// asked. Ending what has ended already is fine.
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] if there was no connection yet, or in the port space UDP, where there is none.
    pub fn disconnect(&self) -> Result<()> {
        let manager = match &self.core().backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.disconnect_by_kernel(manager),
        };
        let core = self.core();
        let mut later = Later::default();
        let qp = {
            let mut state = self.state()?;
            match (state.phase, state.conn) {
                (Phase::Disconnecting, _) | (Phase::Disconnected, None) => None,
                (Phase::Disconnected, Some(conn)) => {
                    // Where there is nobody to answer, it does nothing.
                    manager.run_locked(&mut later, |protocol, now| protocol.endpoint.disconnect(now, conn, &[]))?;
                    state.qp.clone()
                }
                (Phase::Connected | Phase::Accepted, Some(conn)) => {
                    state.phase = Phase::Disconnecting;
                    manager.run_locked(&mut later, |protocol, now| protocol.endpoint.disconnect(now, conn, &[]))?;
                    state.qp.clone()
                }
                (phase, _) => {
                    let call =
                        if core.is_datagram() { "disconnecting where there are datagrams only" } else { "disconnect" };
                    return Err(Error::Phase { call, phase });
                }
            }
        };
        if let Some(qp) = qp {
            core.flush(&qp);
        }
        Ok(())
    }
}

impl super::IdCore {
    /// Gives up a connection that cannot be used. Whether that is its end: otherwise it is over already, and an event says so.
    pub(super) fn abandon(self: &std::sync::Arc<Self>) -> bool {
        let manager = match &self.backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.abandon_by_kernel(manager),
        };
        let mut later = Later::default();
        let mut state = self.state.lock();
        let (Phase::Requested | Phase::Responding, Some(conn)) = (state.phase, state.conn) else { return false };
        state.phase = Phase::Disconnected;
        let (reason, info) = (RejectReason::ConsumerDefined, AdditionalInfo::EMPTY);
        manager.run_locked(&mut later, |protocol, now| protocol.endpoint.reject(now, conn, reason, info, &[]).is_ok())
    }
}

impl IdState {
    /// Number of the queue pair that connects, and whether it has a shared receive queue.
    pub(super) fn queue_pair(&self, param: &ConnParam<'_>) -> Result<(u32, bool)> {
        if let Some(qp_num) = param.qp_num {
            return Ok((qp_num, param.srq));
        }
        let qp = self.qp.as_ref().ok_or(Error::Phase { call: "connecting without a queue pair", phase: self.phase })?;
        Ok((qp.qp_num(), self.srq))
    }

    /// What the queue pair that connects is to be connected by.
    fn transport(&self, param: &ConnParam<'_>) -> TransportService {
        let own = self.qp.as_ref().filter(|_| param.qp_num.is_none());
        if own.is_some_and(|qp| qp.qp_type() == QpType::Uc) { TransportService::Uc } else { TransportService::Rc }
    }

    /// Takes over what a peer asks for, and that it is to begin to send at `psn`.
    pub(super) fn take_request(&mut self, request: &ConnectRequest, psn: u32) {
        self.conn = Some(request.conn);
        self.take_addresses(&request.address, request.service_id, request.private_data.as_slice());
        self.negotiated = Negotiated::of_request(request, psn);
    }

    /// What a call that decides on a request says. Where there is nothing to decide any more, the peer has ended it, of which an event says so.
    pub(super) fn decided<T>(&mut self, call: &'static str, outcome: Result<T, CmError>, phase: Phase) -> Result<T> {
        let outcome = outcome.map_err(|error| over(call, error));
        match outcome {
            Ok(_) => self.phase = phase,
            Err(Error::Phase { phase, .. }) => self.phase = phase,
            Err(_) => {}
        }
        outcome
    }

    /// The addresses of a request.
    pub(super) fn take_addresses(&mut self, address: &Address, service_id: ServiceId, private_data: &[u8]) {
        let port = service_id.port().map_or(0, |(_, port)| port);
        self.local = Some(with_scope(SocketAddr::new(address.local.ip(), port), address.scope_id));
        let claimed = IpCmHeader::parse(private_data).ok();
        let peer_port = claimed.map_or(0, |(header, _)| header.src_port);
        // The address is the packet's, whatever the peer claims.
        self.peer = Some(with_scope(SocketAddr::new(address.remote.ip(), peer_port), address.scope_id));
    }
}

/// What the protocol's refusal of a call means: the connection may be over already, though nobody has read of it.
pub(super) fn over(call: &'static str, error: CmError) -> Error {
    match error {
        CmError::InvalidState { .. } | CmError::Stale => Error::Phase { call, phase: Phase::Disconnected },
        error => Error::Protocol(error),
    }
}

/// The private data of a request: the header that says the addresses, then the user's. With its length.
pub(super) fn with_header<const N: usize>(
    local: SocketAddr,
    peer: SocketAddr,
    user: &[u8],
) -> Result<([u8; N], usize)> {
    let mut field = [0; N];
    let length = IpCmHeader::LEN + user.len();
    let room = field.get_mut(..length).ok_or_else(|| {
        let too_much = ferroce_wire::cm::TooMuchPrivateData { len: user.len(), max: N - IpCmHeader::LEN };
        Error::Protocol(too_much.into())
    })?;
    room[..IpCmHeader::LEN].copy_from_slice(&header(local, peer)?.emit());
    room[IpCmHeader::LEN..].copy_from_slice(user);
    Ok((field, length))
}

/// What tells the peer's listener the addresses (IBTA annex A11). Linux has it wherever addresses are those of IP, whatever the port space
/// (`cma_format_hdr`, `cma_user_data_offset`).
fn header(local: SocketAddr, peer: SocketAddr) -> Result<IpCmHeader> {
    let ip = match (local, peer) {
        (SocketAddr::V4(local), SocketAddr::V4(peer)) => IpPair::V4 { src: *local.ip(), dst: *peer.ip() },
        (SocketAddr::V6(local), SocketAddr::V6(peer)) => IpPair::V6 { src: *local.ip(), dst: *peer.ip() },
        _ => return Err(Error::Address { addr: peer, why: format!("{local} is of another family") }),
    };
    Ok(IpCmHeader { ip, src_port: local.port() })
}
