//! Datagrams: which queue pair of the peer serves a port of the port space UDP (SIDR, IBTA 12.11).
//!
//! A client asks (`connect`), the server answers (`accept`, `reject`), and that is all: there is no connection that could end.

use super::connect::with_header;
use super::{Id, IdCore, IdState, Phase};
use crate::event::UdParam;
use crate::later::Later;
use crate::manager::Manager;
use crate::proto::{ResolveParams, SidrAnswer, SidrId, SidrRequest, SidrResponse, nanos};
use crate::{ConnParam, Error, Event, EventKind, Offer, PortSpace, Result};
use ferroce_verbs::{Gid, GlobalRoute, QpAttr, QpState};
use ferroce_wire::cm::{AdditionalInfo, IpCmHeader, RejectReason, ServiceId, SidrStatus};
use std::sync::Arc;

/// The Q_Key of the queue pairs of the port space UDP (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: u32 = 0x0123_4567;

/// Private data of a SIDR_REQ.
pub(super) const QUESTION: usize = 216;

/// What an id has open with the protocol.
#[derive(Clone, Copy)]
pub(super) enum Sidr {
    /// A question of its own.
    Asked(SidrId),
    /// A peer's, which is not answered.
    Received(SidrId),
}

impl Id {
    /// Asks the peer for the queue pair that serves its port.
    pub(super) fn ask(&self, manager: &Arc<Manager>, param: &ConnParam<'_>) -> Result<()> {
        let core = self.core();
        let timeout = nanos(core.options.lock().connect_timeout);
        let mut later = Later::default();
        let mut state = self.state()?;
        let (Phase::RouteResolved, Some(local), Some(peer), Some(gid), Some(path)) =
            (state.phase, state.local, state.peer, &state.gid, state.path)
        else {
            return Err(Error::Phase { call: "connect", phase: state.phase });
        };
        let (private_data, length) = with_header::<QUESTION>(local, peer, param.private_data)?;
        let route = path.grh.unwrap_or(GlobalRoute::new(Gid::from(peer.ip()), gid.index));
        let address = manager.address(gid.gid, route.dgid);
        let sidr = manager.run_locked(&mut later, |protocol, now| {
            let cookie = core.enroll(protocol);
            protocol.endpoint.resolve_service(
                now,
                &ResolveParams {
                    address,
                    service_id: ServiceId::from_port(core.port_space, peer.port()),
                    pkey: super::connect::PKEY,
                    traffic_class: route.traffic_class,
                    flow_label: route.flow_label,
                    private_data: &private_data[..length],
                    deadline: now.saturating_add(timeout),
                    cookie,
                },
            )
        })?;
        state.sidr = Some(Sidr::Asked(sidr));
        state.phase = Phase::Connecting;
        Ok(())
    }

    /// Answers a peer's question with the id's queue pair, or that of `param`.
    pub(super) fn answer_with_qp(&self, manager: &Arc<Manager>, param: &ConnParam<'_>) -> Result<()> {
        let mut later = Later::default();
        let mut state = self.state()?;
        let own = state.qp.as_ref().map(ferroce_verbs::Qp::qp_num);
        let qpn =
            param.qp_num.or(own).ok_or(Error::Phase { call: "accepting without a queue pair", phase: state.phase })?;
        let qkey = param.qkey.unwrap_or(UDP_QKEY);
        let answer = answer_of(SidrStatus::Success, (qpn, qkey), param.private_data);
        Self::answer(manager, &mut later, &mut state, "accept", &answer, Phase::Connected)
    }

    /// Answers a peer's question with a refusal.
    pub(super) fn refuse(&self, manager: &Arc<Manager>, private_data: &[u8]) -> Result<()> {
        let mut later = Later::default();
        let mut state = self.state()?;
        let answer = answer_of(SidrStatus::Reject, (0, 0), private_data);
        Self::answer(manager, &mut later, &mut state, "reject", &answer, Phase::Disconnected)
    }

    /// Gives the answer, after which the id is in `phase`.
    fn answer(
        manager: &Arc<Manager>,
        later: &mut Later,
        state: &mut IdState,
        call: &'static str,
        answer: &SidrAnswer<'_>,
        phase: Phase,
    ) -> Result<()> {
        let (Phase::Requested, Some(Sidr::Received(sidr))) = (state.phase, state.sidr) else {
            return Err(Error::Phase { call, phase: state.phase });
        };
        let answered = manager.run_locked(later, |protocol, now| protocol.endpoint.answer_sidr(now, sidr, answer));
        state.decided(call, answered, phase)?;
        state.sidr = None;
        Ok(())
    }
}

impl IdCore {
    pub(super) fn is_datagram(&self) -> bool {
        self.port_space == PortSpace::Udp
    }

    /// Ends what a destroyed id has left open. With the protocol's lock held.
    pub(super) fn close_sidr(endpoint: &mut crate::proto::Endpoint, now: crate::proto::Nanos, sidr: Sidr) {
        // A name that is stale already is one that the protocol has let go of.
        let _ = match sidr {
            Sidr::Asked(sidr) => endpoint.destroy_sidr(sidr),
            Sidr::Received(sidr) => endpoint.answer_sidr(now, sidr, &answer_of(SidrStatus::Reject, (0, 0), &[])),
        };
    }

    /// What a reader delivers of a peer's question. Nothing if nobody waits for the answer any more.
    pub(super) fn on_question(
        self: &Arc<Self>,
        manager: &Arc<Manager>,
        id: Id,
        child: Id,
        request: &SidrRequest,
    ) -> Option<Event> {
        child.core().announce(self);
        // Its place in the backlog is free.
        manager.run(|protocol, now| protocol.endpoint.sidr_request_read(now, request.sidr)).ok()?;
        let data = request.private_data.as_slice().get(IpCmHeader::LEN..).unwrap_or_default();
        let kind = EventKind::ConnectRequest { id: child, offer: Offer::default() };
        Some(Event::new(id, kind, data))
    }

    /// What a reader delivers of the peer's answer.
    pub(super) fn on_answer(
        self: &Arc<Self>,
        manager: &Arc<Manager>,
        id: Id,
        response: &SidrResponse,
    ) -> Option<Event> {
        let reason = refusal(response.status);
        let phase = if reason.is_none() { Phase::Connected } else { Phase::Disconnected };
        let path = self.question_over(manager, phase)?;
        let (kind, ud) = match reason {
            Some(reason) => (EventKind::Rejected { reason }, None),
            None => {
                let ud = UdParam { ah_attr: path, qp_num: response.qpn, qkey: response.qkey };
                (EventKind::Established, Some(ud))
            }
        };
        Some(Event { ud, ..Event::new(id, kind, response.private_data.as_slice()) })
    }

    /// What a reader delivers if nobody answered.
    pub(super) fn on_no_answer(self: &Arc<Self>, manager: &Arc<Manager>, id: Id, sent: u32) -> Option<Event> {
        self.question_over(manager, Phase::Disconnected)?;
        Some(Event::new(id, EventKind::Unreachable { sent }, &[]))
    }

    /// Lets go of the id's question; returns the way to the peer.
    fn question_over(self: &Arc<Self>, manager: &Arc<Manager>, phase: Phase) -> Option<ferroce_verbs::AhAttr> {
        let mut later = Later::default();
        let mut state = self.state.lock();
        // Destroyed meanwhile, there is none.
        let Some(Sidr::Asked(sidr)) = state.sidr else { return None };
        state.sidr = None;
        state.phase = phase;
        manager.run_locked(&mut later, |protocol, _| protocol.endpoint.destroy_sidr(sidr)).ok()?;
        state.path
    }
}

impl IdState {
    /// Takes over what a peer asks.
    pub(super) fn take_question(&mut self, request: &SidrRequest) {
        self.sidr = Some(Sidr::Received(request.sidr));
        self.take_addresses(&request.address, request.service_id, request.private_data.as_slice());
    }
}

/// What moves a queue pair of datagrams to `state`. Nothing of it depends on a peer.
pub(super) fn qp_attr(state: QpState) -> Option<QpAttr> {
    match state {
        QpState::Init => Some(QpAttr::init_ud(UDP_QKEY)),
        QpState::Rtr => Some(QpAttr::to(QpState::Rtr)),
        QpState::Rts => Some(QpAttr::rts_unreliable(0)),
        _ => None,
    }
}

/// An answer, with number and Q_Key of a queue pair.
const fn answer_of(status: SidrStatus, (qpn, qkey): (u32, u32), private_data: &[u8]) -> SidrAnswer<'_> {
    SidrAnswer { status, qpn, qkey, ece: None, info: AdditionalInfo::EMPTY, private_data }
}

/// The reason that says the same of a connection.
pub(super) fn refusal(status: SidrStatus) -> Option<RejectReason> {
    Some(match status {
        SidrStatus::Success => return None,
        SidrStatus::Unsupported => RejectReason::InvalidServiceId,
        SidrStatus::NoQp => RejectReason::NoQp,
        SidrStatus::Redirect => RejectReason::PortRedirect,
        SidrStatus::UnsupportedVersion => RejectReason::InvalidClassVersion,
        _ => RejectReason::ConsumerDefined,
    })
}
