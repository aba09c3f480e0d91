//! What readers make of what the kernel says.

use super::super::datagram::refusal;
use super::super::queue::Queued;
use super::super::setup::{Negotiated, addr_resolved, route_resolved};
use super::attr::ah_attr;
use super::{Id, IdCore, Phase};
use crate::event::UdParam;
use crate::kernel::{KernelManager, Place, address, of_status};
use crate::proto::DisconnectCause;
use crate::{Event, EventKind, Offer, Refusal, RejectReason, Result};
use ferroce_abi::rdma_cm::{self, CmEvent, wire::event};
use ferroce_wire::cm::SidrStatus;
use rustix::io::Errno;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// How often the kernel sends a request (`CMA_MAX_CM_RETRIES`), and how long it waits each time with its default settings.
const TRIES: u32 = 16;
const TRY: Duration = Duration::from_millis(4608);

/// Where there is no address to name in an error.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

impl IdCore {
    pub(in crate::id) fn process_of_kernel(
        self: &Arc<Self>,
        manager: &Arc<KernelManager>,
        id: Id,
        queued: Queued,
    ) -> Option<Event> {
        match queued {
            // What a call has found out itself.
            Queued::AddrResolved(outcome) => Some(Event::new(id, addr_resolved(outcome), &[])),
            Queued::RouteResolved(outcome) => Some(Event::new(id, route_resolved(outcome), &[])),
            Queued::Multicast { group, outcome: Err(error) } => {
                Some(Event::new(id, EventKind::MulticastError { group, error }, &[]))
            }
            Queued::KernelRequest { child, event, place } => self.on_request(manager, id, child, &event, place),
            // With the kernel's id went what it had said and nobody has read.
            Queued::Kernel(event) if !self.is_of(&event) => None,
            Queued::Kernel(event) => self.on_kernel_event(manager, id, &event),
            Queued::Expired => self.on_expired(id),
            Queued::Request { .. } | Queued::Question { .. } | Queued::Protocol(_) | Queued::Multicast { .. } => None,
        }
    }

    /// Whether an event is of what the id has of the kernel's now.
    fn is_of(&self, event: &CmEvent) -> bool {
        let state = self.state.lock();
        let of_group = matches!(event.event, event::MULTICAST_JOIN | event::MULTICAST_ERROR);
        state.kernel.id.as_ref().is_some_and(|id| of_group || id.uid() == event.uid)
    }

    fn on_kernel_event(self: &Arc<Self>, manager: &Arc<KernelManager>, id: Id, event: &CmEvent) -> Option<Event> {
        let conn = || event.param.conn();
        match event.event {
            // A server of datagrams has answered with another Q_Key than this side's (`cma_sidr_rep_handler`).
            event::ADDR_ERROR if self.state.lock().phase == Phase::Connecting => {
                self.end(Phase::Disconnected);
                let why = format!("the answer cannot be used: {}", of_status(event.status));
                Some(Event::new(id, EventKind::ConnectError(Refusal::Setup(why)), &[]))
            }
            event::ADDR_RESOLVED | event::ADDR_ERROR => {
                let outcome = self.on_address(manager, event.status)?;
                Some(Event::new(id, addr_resolved(outcome), &[]))
            }
            event::ROUTE_RESOLVED | event::ROUTE_ERROR => {
                let outcome = self.on_route(event.status)?;
                Some(Event::new(id, route_resolved(outcome), &[]))
            }
            event::CONNECT_RESPONSE => self.on_grant(&id, &conn()),
            event::ESTABLISHED => self.on_established(manager, id, event),
            event::CONNECT_ERROR => {
                self.end(Phase::Disconnected);
                let why = of_status(event.status).to_string();
                Some(Event::new(id, EventKind::ConnectError(Refusal::Setup(why)), &[]))
            }
            event::UNREACHABLE => self.on_unreachable(id, event),
            event::REJECTED => {
                self.end(Phase::Disconnected);
                let reason = RejectReason::from_number(event.status as u16);
                Some(Event::new(id, EventKind::Rejected { reason }, conn().private_data.as_slice()))
            }
            event::DISCONNECTED => {
                let cause = self.on_disconnected(event.status)?;
                Some(Event::new(id, EventKind::Disconnected(cause), conn().private_data.as_slice()))
            }
            event::TIMEWAIT_EXIT => Some(Event::new(id, EventKind::TimewaitExit, &[])),
            event::DEVICE_REMOVAL => {
                self.end(Phase::Disconnected);
                Some(Event::new(id, EventKind::DeviceRemoval, &[]))
            }
            event::ADDR_CHANGE => Some(Event::new(id, EventKind::AddrChange, &[])),
            event::MULTICAST_JOIN | event::MULTICAST_ERROR => self.on_kernel_multicast(id, event),
            unknown => {
                tracing::debug!(unknown, "an event of a newer kernel");
                None
            }
        }
    }

    /// The outcome of resolving an address; nothing if nobody has asked.
    fn on_address(&self, manager: &KernelManager, status: i32) -> Option<Result<()>> {
        let (kernel_id, peer) = {
            let state = self.state.lock();
            (state.kernel.id.clone()?, state.kernel.resolving?)
        };
        let found = match status {
            0 => super::resolve::addresses(manager, &kernel_id, peer),
            status => Err(address(peer, of_status(status))),
        };
        let (found, outcome) = match found {
            Ok(found) => (Some((found, peer)), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // Only then is the kernel's id let go that was asked about.
        let waits = self.resolve_no_more(found, status == 0);
        waits.then_some(outcome)
    }

    /// The same of a route.
    fn on_route(&self, status: i32) -> Option<Result<()>> {
        let mut state = self.state.lock();
        let peer = state.kernel.resolving.take()?;
        if state.phase != Phase::AddrResolved {
            return None;
        }
        if status != 0 {
            return Some(Err(address(peer, of_status(status))));
        }
        state.phase = Phase::RouteResolved;
        Some(Ok(()))
    }

    fn on_request(
        self: &Arc<Self>,
        manager: &KernelManager,
        id: Id,
        child: Id,
        event: &CmEvent,
        place: Place,
    ) -> Option<Event> {
        child.core().announce(self);
        // There is room for another one.
        drop(place);
        let kernel_id = child.core().state.lock().kernel.id.clone()?;
        let found = super::resolve::addresses(manager, &kernel_id, NOWHERE);
        let Ok(found) = found.inspect_err(|error| manager.cannot_take(error)) else {
            // With the child goes the request.
            return None;
        };
        let conn = event.param.conn();
        {
            let mut state = child.core().state.lock();
            (state.local, state.peer) = (found.local, found.peer);
            state.negotiated = Negotiated {
                responder_resources: conn.responder_resources,
                initiator_depth: conn.initiator_depth,
                ..Negotiated::default()
            };
        }
        if self.is_datagram() {
            let kind = EventKind::ConnectRequest { id: child, offer: Offer::default() };
            return Some(Event::new(id, kind, event.param.ud().private_data.as_slice()));
        }
        let kind = EventKind::ConnectRequest { id: child, offer: offer(&conn) };
        Some(Event::new(id, kind, conn.private_data.as_slice()))
    }

    /// The peer has granted a connection.
    fn on_grant(self: &Arc<Self>, id: &Id, conn: &rdma_cm::ConnParam) -> Option<Event> {
        let qp = {
            let mut state = self.state.lock();
            if state.phase != Phase::Connecting {
                return None;
            }
            state.phase = Phase::Responding;
            state.qp.clone()
        };
        self.granted(id, qp.as_ref(), offer(conn), conn.private_data.as_slice())
    }

    fn on_established(&self, manager: &KernelManager, id: Id, event: &CmEvent) -> Option<Event> {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Accepted | Phase::Connecting => state.phase = Phase::Connected,
            Phase::Disconnecting => {
                let ends = std::mem::take(&mut state.kernel.ends_when_established);
                let kernel_id = state.kernel.id.clone().filter(|_| ends);
                drop(state);
                if let Some(kernel_id) = kernel_id {
                    self.end_in_kernel(manager, &kernel_id);
                }
                return None;
            }
            Phase::Disconnected | Phase::Destroyed => return None,
            _ => {}
        }
        drop(state);
        if !self.is_datagram() {
            return Some(Event::new(id, EventKind::Established, event.param.conn().private_data.as_slice()));
        }
        let param = event.param.ud();
        let ud = UdParam { ah_attr: ah_attr(&param.ah_attr), qp_num: param.qp_num, qkey: param.qkey };
        Some(Event { ud: Some(ud), ..Event::new(id, EventKind::Established, param.private_data.as_slice()) })
    }

    fn on_unreachable(self: &Arc<Self>, id: Id, event: &CmEvent) -> Option<Event> {
        let (phase, unconfirmed) = {
            let state = self.state.lock();
            (state.phase, state.kernel.ends_when_established)
        };
        if phase == Phase::Disconnecting && unconfirmed {
            self.end(Phase::Disconnected);
            return Some(Event::new(id, EventKind::Disconnected(DisconnectCause::TimedOut), &[]));
        }
        if !matches!(phase, Phase::Connecting | Phase::Responding | Phase::Accepted) {
            // Kernels since 6.0 say it of connections, too, when a neighbour's hardware address changes (libfabric #12362).
            tracing::debug!("a neighbour's address has changed");
            return None;
        }
        self.end(Phase::Disconnected);
        if self.is_datagram()
            && let Ok(answer) = u8::try_from(event.status)
            && let Some(reason) = refusal(SidrStatus::from_number(answer))
        {
            let data = event.param.ud().private_data;
            return Some(Event::new(id, EventKind::Rejected { reason }, data.as_slice()));
        }
        Some(Event::new(id, EventKind::Unreachable { sent: TRIES }, &[]))
    }

    fn on_disconnected(&self, status: i32) -> Option<DisconnectCause> {
        let mut state = self.state.lock();
        let asked = match state.phase {
            Phase::Disconnected | Phase::Destroyed => return None,
            phase => phase == Phase::Disconnecting,
        };
        state.phase = Phase::Disconnected;
        Some(match Errno::from_io_error(&of_status(status)) {
            Some(Errno::TIMEDOUT) if status != 0 => DisconnectCause::TimedOut,
            _ if asked => DisconnectCause::Agreed,
            _ => DisconnectCause::Requested,
        })
    }

    /// The program does not want to wait any longer: the kernel is to forget it, which tells the peer.
    fn on_expired(self: &Arc<Self>, id: Id) -> Option<Event> {
        let timeout = self.options.lock().connect_timeout;
        let part = {
            let mut state = self.state.lock();
            if state.phase != Phase::Connecting {
                return None;
            }
            state.phase = Phase::Disconnected;
            // Its memberships go with it: their numbers are used again.
            std::mem::take(&mut state.kernel)
        };
        part.end();
        self.end(Phase::Disconnected);
        let sent = 1 + (timeout.as_millis() / TRY.as_millis()) as u32;
        Some(Event::new(id, EventKind::Unreachable { sent: sent.min(TRIES) }, &[]))
    }
}

/// The kernel has turned the depths round: they are as this side sees them.
fn offer(conn: &rdma_cm::ConnParam) -> Offer {
    Offer {
        qp_num: conn.qp_num,
        initiator_depth: conn.initiator_depth,
        responder_resources: conn.responder_resources,
        retry_count: conn.retry_count,
        rnr_retry_count: conn.rnr_retry_count,
        srq: conn.srq,
    }
}
