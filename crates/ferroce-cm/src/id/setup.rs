//! The queue pair of an id, and what readers do for an event before they deliver it.

use super::connect::over;
use super::queue::Queued;
use super::resolve::{path, scope_of};
use super::{Id, IdCore, Phase, datagram};
use crate::backend::Backend;
use crate::later::Later;
use crate::proto::{ConnectRequest, Event as ProtoEvent, Response};
use crate::sync::MutexGuard;
use crate::{Error, Event, EventKind, Offer, Options, Refusal, Result};
use ferroce_verbs::{Access, Gid, Mtu, Pd, Qp, QpAttr, QpInitAttr, QpState, QpType};
use ferroce_wire::cm::{IpCmHeader, TransportService};
use std::sync::Arc;

/// Who moves an id's queue pair to RTS once the peer has granted the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SetupIn {
    /// The reader of the event, before it delivers it as [`EventKind::Established`], as librdmacm does.
    #[default]
    EventThread,
    /// Whoever calls [`Id::establish`] after [`EventKind::ConnectResponse`]: event threads stay free of what takes long on a NIC.
    Caller,
}

/// What both sides agreed on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Negotiated {
    /// At which the peer begins to send: each side says where it wants to begin to receive (IBTA 12.7.31).
    pub(super) psn: u32,
    /// Of which type the queue pairs are, once that is known.
    pub(super) transport: Option<TransportService>,
    pub(super) remote_qpn: u32,
    /// At which this side begins to send, as the peer says.
    pub(super) remote_psn: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) path_mtu: MtuOrNone,
    pub(super) ack_timeout: u8,
    pub(super) flow_label: u32,
    pub(super) traffic_class: u8,
}

impl Negotiated {
    /// What a peer asks for, who is to begin to send at `psn`.
    pub(super) fn of_request(request: &ConnectRequest, psn: u32) -> Self {
        Self {
            psn,
            transport: Some(request.transport),
            remote_qpn: request.remote_qpn,
            remote_psn: request.remote_psn,
            // The peer's depths, as this side sees them.
            responder_resources: request.initiator_depth,
            initiator_depth: request.responder_resources,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            path_mtu: mtu_of(request.path_mtu),
            ack_timeout: request.path.local_ack_timeout.min(31),
            flow_label: request.path.flow_label,
            traffic_class: request.path.traffic_class,
        }
    }

    fn take_response(&mut self, response: &Response) {
        self.remote_qpn = response.remote_qpn;
        self.remote_psn = response.remote_psn;
        self.initiator_depth = self.initiator_depth.min(response.responder_resources);
        self.responder_resources = self.responder_resources.max(response.initiator_depth);
        self.rnr_retry_count = response.rnr_retry_count;
    }
}

/// Until a path MTU is known there is none.
type MtuOrNone = Option<Mtu>;

/// From the 4-bit code of the wire.
fn mtu_of(code: u8) -> Option<Mtu> {
    Mtu::from_bytes(128_u32.checked_shl(code.into())?)
}

impl Id {
    /// Gives the id a queue pair (`rdma_create_qp`) and moves it to INIT, so that receives can be posted. In the port space UDP it is
    /// of the type UD and moved on to RTS at once, with the Q_Key [`UDP_QKEY`](crate::UDP_QKEY).
    ///
    /// # Errors
    ///
    /// [`Error::Phase`] if it has one, or if the kernel is to manage its connections and does not know yet which device that takes: it must be
    /// bound to an address, or have the peer's; [`Error::Device`] if the device refuses, or the type does not suit the port space or the peer's
    /// queue pair: connections are of the types RC and UC, and where the kernel manages them of the type RC.
    pub fn create_qp(&self, pd: &Pd, attr: &QpInitAttr) -> Result<Qp> {
        let check = |state: &super::IdState| match &state.qp {
            Some(_) => Err(Error::Phase { call: "creating a second queue pair", phase: state.phase }),
            None => Ok(state.negotiated.transport),
        };
        let wanted = check(&*self.state()?)?;
        let is_datagram = self.core().is_datagram();
        let by_kernel = matches!(self.core().backend, Backend::Kernel(_));
        let refusal = match (attr.qp_type, wanted) {
            (QpType::Ud, _) if is_datagram => None,
            (QpType::Ud, _) => Some("queue pairs of the type UD are for the port space UDP"),
            _ if is_datagram => Some("the port space UDP takes queue pairs of the type UD"),
            (QpType::Uc, _) if by_kernel => Some("the kernel connects queue pairs of the type RC only"),
            (QpType::Uc, Some(TransportService::Rc)) => Some("the peer's queue pair is of the type RC"),
            (QpType::Rc, Some(TransportService::Uc)) => Some("the peer's queue pair is of the type UC"),
            (QpType::Rc | QpType::Uc, _) => None,
        };
        if let Some(why) = refusal {
            return Err(Error::device("creating a queue pair")(ferroce_verbs::Error::invalid("qp_type", why)));
        }
        // Without the lock: on a NIC this takes long.
        let qp = pd.create_qp(attr).map_err(Error::device("creating a queue pair"))?;
        let states = if is_datagram { &[QpState::Init, QpState::Rtr, QpState::Rts][..] } else { &[QpState::Init] };
        for &state in states {
            qp.modify(&self.qp_attr(state)?).map_err(Error::device("moving the queue pair"))?;
        }
        let mut state = self.state()?;
        check(&state)?;
        state.qp = Some(qp.clone());
        state.srq = attr.srq.is_some();
        Ok(qp)
    }

    /// What moves an external queue pair to `state`, INIT, RTR or RTS (`rdma_init_qp_attr`).
    ///
    /// # Errors
    ///
    /// [`Error::Destroyed`]; [`Error::Phase`] if not enough is agreed on for that; where the kernel manages connections, for INIT as of [`Self::create_qp`].
    pub fn qp_attr(&self, state: QpState) -> Result<QpAttr> {
        self.core().attr(state)
    }
}

impl IdCore {
    fn attr(self: &Arc<Self>, to: QpState) -> Result<QpAttr> {
        let manager = match &self.backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.attr_of_kernel(manager, to),
        };
        if self.is_datagram() {
            let phase = self.state.lock().phase;
            if phase == Phase::Destroyed {
                return Err(Error::Destroyed);
            }
            return datagram::qp_attr(to).ok_or(Error::Phase { call: "qp_attr", phase });
        }
        let options = *self.options.lock();
        let state = self.state.lock();
        if state.phase == Phase::Destroyed {
            return Err(Error::Destroyed);
        }
        let agreed = matches!(
            state.phase,
            Phase::Responding | Phase::Requested | Phase::Accepted | Phase::Connected | Phase::Disconnecting
        );
        let negotiated = state.negotiated;
        let is_uc = negotiated.transport == Some(TransportService::Uc);
        match to {
            QpState::Init => Ok(QpAttr::init(Access::ALL)),
            QpState::Rtr if agreed => {
                let (Some(local), Some(peer)) = (state.local, state.peer) else {
                    return Err(Error::Phase { call: "qp_attr", phase: state.phase });
                };
                let known = (state.gid.clone(), state.path);
                drop(state);
                let gid = match known.0 {
                    Some(gid) => gid,
                    None => manager
                        .local_gid(Gid::from(local.ip()), scope_of(local))
                        .map_err(Error::device("reading the GID table"))?
                        .ok_or_else(|| Error::Address { addr: local, why: "the address was removed".into() })?,
                };
                let tos = if options.tos == 0 { negotiated.traffic_class } else { options.tos };
                let av = known.1.unwrap_or_else(|| path(gid.index, Gid::from(peer.ip()), negotiated.flow_label, tos));
                let mtu = negotiated.path_mtu.map_or(gid.mtu, |mtu| mtu.min(gid.mtu));
                if is_uc {
                    return Ok(QpAttr::rtr_uc(av, mtu, negotiated.remote_qpn, negotiated.psn));
                }
                let mut attr = QpAttr::rtr(av, mtu, negotiated.remote_qpn, negotiated.psn);
                attr.max_dest_rd_atomic = Some(negotiated.responder_resources);
                attr.min_rnr_timer = Some(options.min_rnr_timer);
                Ok(attr)
            }
            QpState::Rts if agreed && is_uc => Ok(QpAttr::rts_unreliable(negotiated.remote_psn)),
            QpState::Rts if agreed => {
                let mut attr = QpAttr::rts(negotiated.remote_psn);
                // Of who accepts, the peer's, unless the program has another one.
                let own = Some(options.ack_timeout).filter(|&own| own != Options::default().ack_timeout);
                attr.timeout = Some(own.map_or(negotiated.ack_timeout, |own| own.min(31)));
                attr.retry_cnt = Some(negotiated.retry_count);
                attr.rnr_retry = Some(negotiated.rnr_retry_count);
                attr.max_rd_atomic = Some(negotiated.initiator_depth);
                Ok(attr)
            }
            _ => Err(Error::Phase { call: "qp_attr", phase: state.phase }),
        }
    }

    /// Moves the queue pair to RTS. Nothing but its id excludes anything; if the id is destroyed meanwhile it stops.
    pub(super) fn set_up(self: &Arc<Self>, qp: &Qp) -> Result<()> {
        let setup = self.setup.lock();
        self.move_to_rts(qp, &setup)
    }

    /// The same, for those who have the lock.
    pub(super) fn move_to_rts(self: &Arc<Self>, qp: &Qp, _setup: &MutexGuard<'_, ()>) -> Result<()> {
        if qp.state() == QpState::Rts {
            // Two threads want it at once, and the other one was first.
            return Ok(());
        }
        for (state, what) in
            [(QpState::Rtr, "moving the queue pair to RTR"), (QpState::Rts, "moving the queue pair to RTS")]
        {
            if self.is_destroyed() {
                return Err(Error::Destroyed);
            }
            let attr = self.attr(state)?;
            tracing::debug!(qp_num = qp.qp_num(), ?attr, "{what}");
            qp.modify(&attr).map_err(Error::device(what))?;
        }
        Ok(())
    }

    /// Moves the queue pair to ERR.
    pub(super) fn flush(&self, qp: &Qp) {
        let setup = self.setup.lock();
        Self::move_to_err(qp, &setup);
    }

    /// The same, for those who have the lock.
    pub(super) fn move_to_err(qp: &Qp, _setup: &MutexGuard<'_, ()>) {
        // It may be there already.
        let _ = qp.modify(&QpAttr::to(QpState::Err));
    }

    /// Sets the queue pair up and tells the peer.
    pub(super) fn confirm(self: &Arc<Self>, qp: Option<&Qp>) -> Result<()> {
        let manager = match &self.backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.confirm_by_kernel(manager, qp),
        };
        if let Some(qp) = qp {
            self.set_up(qp)?;
        }
        let mut later = Later::default();
        let mut state = self.state.lock();
        let (Phase::Responding, Some(conn)) = (state.phase, state.conn) else {
            return Err(match state.phase {
                Phase::Destroyed => Error::Destroyed,
                phase => Error::Phase { call: "establish", phase },
            });
        };
        let confirmed = manager.run_locked(&mut later, |protocol, _| protocol.endpoint.establish(conn, &[]));
        // Where the peer has ended it, giving up finds that, too.
        confirmed.map_err(|error| over("establish", error))?;
        state.phase = Phase::Connected;
        Ok(())
    }

    /// Does what an event leads to, and makes of it what is delivered.
    pub(super) fn process(self: &Arc<Self>, queued: Queued) -> Option<Event> {
        let id = Id(self.handles.upgrade()?);
        let event = |kind, private_data: &[u8]| Some(Event::new(id.clone(), kind, private_data));
        let manager = match &self.backend {
            Backend::Native(manager) => manager,
            Backend::Kernel(manager) => return self.process_of_kernel(manager, id, queued),
        };
        match queued {
            Queued::Kernel(_) | Queued::KernelRequest { .. } | Queued::Expired => None,
            Queued::AddrResolved(outcome) => event(addr_resolved(outcome), &[]),
            Queued::RouteResolved(outcome) => event(route_resolved(outcome), &[]),
            Queued::Request { child, request } => {
                child.core().announce(self);
                // Its place in the backlog is free. If the peer has given up meanwhile, the child's next event says so.
                let _ = manager.run(|protocol, now| protocol.endpoint.request_read(now, request.conn));
                let offer = Offer {
                    qp_num: request.remote_qpn,
                    initiator_depth: request.responder_resources,
                    responder_resources: request.initiator_depth,
                    retry_count: request.retry_count,
                    rnr_retry_count: request.rnr_retry_count,
                    srq: request.srq,
                };
                // The header that says the addresses is not the user's.
                let data = request.private_data.as_slice().get(IpCmHeader::LEN..).unwrap_or_default();
                event(EventKind::ConnectRequest { id: child, offer }, data)
            }
            Queued::Multicast { group, outcome } => self.on_multicast(id, group, outcome),
            Queued::Question { child, request } => self.on_question(manager, id, child, &request),
            Queued::Protocol(what) => match *what {
                ProtoEvent::Response(response) => self.on_response(&id, &response),
                ProtoEvent::SidrResponse(response) => self.on_answer(manager, id, &response),
                ProtoEvent::SidrUnreachable { sent, .. } => self.on_no_answer(manager, id, sent),
                ProtoEvent::Rejected(rejected) => {
                    self.end(Phase::Disconnected);
                    event(EventKind::Rejected { reason: rejected.reason }, rejected.private_data.as_slice())
                }
                ProtoEvent::Unreachable(unreachable) => {
                    self.end(Phase::Disconnected);
                    event(EventKind::Unreachable { sent: unreachable.sent }, &[])
                }
                ProtoEvent::Established { private_data, .. } => {
                    let mut state = self.state.lock();
                    if state.phase == Phase::Accepted {
                        state.phase = Phase::Connected;
                    }
                    drop(state);
                    event(EventKind::Established, private_data.as_slice())
                }
                ProtoEvent::Disconnected { cause, private_data, .. } => {
                    let mut state = self.state.lock();
                    if state.phase != Phase::Destroyed {
                        state.phase = Phase::Disconnected;
                    }
                    drop(state);
                    event(EventKind::Disconnected(cause), private_data.as_slice())
                }
                ProtoEvent::TimewaitExit { .. } => event(EventKind::TimewaitExit, &[]),
                _ => None,
            },
        }
    }

    /// The connection did not come about: what is posted is flushed. A queue pair of datagrams is of use to others.
    pub(super) fn end(self: &Arc<Self>, phase: Phase) {
        let qp = {
            let mut state = self.state.lock();
            if state.phase == Phase::Destroyed {
                return;
            }
            state.phase = phase;
            state.qp.clone().filter(|_| !self.is_datagram())
        };
        if let Some(qp) = qp {
            self.flush(&qp);
        }
    }

    fn on_response(self: &Arc<Self>, id: &Id, response: &Response) -> Option<Event> {
        let (qp, offer) = {
            let mut state = self.state.lock();
            if state.phase != Phase::Connecting {
                return None;
            }
            state.negotiated.take_response(response);
            state.phase = Phase::Responding;
            let offer = Offer {
                qp_num: response.remote_qpn,
                initiator_depth: response.responder_resources,
                responder_resources: response.initiator_depth,
                retry_count: state.negotiated.retry_count,
                rnr_retry_count: response.rnr_retry_count,
                srq: response.srq,
            };
            (state.qp.clone(), offer)
        };
        self.granted(id, qp.as_ref(), offer, response.private_data.as_slice())
    }

    /// The peer has granted the connection: does what there is to do, if it is the reader's.
    pub(super) fn granted(self: &Arc<Self>, id: &Id, qp: Option<&Qp>, offer: Offer, data: &[u8]) -> Option<Event> {
        let event = |kind| Some(Event::new(id.clone(), kind, data));
        let setup_in = self.options.lock().setup_in;
        let (Some(qp), SetupIn::EventThread) = (qp, setup_in) else {
            return event(EventKind::ConnectResponse(offer));
        };
        match self.confirm(Some(qp)) {
            Ok(()) => event(EventKind::Established),
            Err(error) if self.abandon() => {
                self.flush(qp);
                event(EventKind::ConnectError(Refusal::Setup(error.to_string())))
            }
            // The peer has ended it meanwhile, and that is the next event; or the program has decided otherwise.
            Err(_) => None,
        }
    }
}

pub(super) fn addr_resolved(outcome: Result<()>) -> EventKind {
    outcome.map_or_else(EventKind::AddrError, |()| EventKind::AddrResolved)
}

pub(super) fn route_resolved(outcome: Result<()>) -> EventKind {
    outcome.map_or_else(EventKind::RouteError, |()| EventKind::RouteResolved)
}
