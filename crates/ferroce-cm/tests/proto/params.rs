//! Ordinary parameters.

use ferroce_cm::proto::{AcceptParams, Address, Bind, ConnId, ConnectParams, Event, ListenParams, Nanos, Service};
use ferroce_verbs::Gid;
use ferroce_wire::cm::{PortSpace, ServiceId, TransportService};
use std::net::Ipv4Addr;

pub(crate) const MS: Nanos = 1_000_000;
pub(crate) const S: Nanos = 1000 * MS;
pub(crate) const SERVICE: ServiceId = ServiceId::from_port(PortSpace::Tcp, 7471);
pub(crate) const DATAGRAMS: ServiceId = ServiceId::from_port(PortSpace::Udp, 7174);

pub(crate) fn gid(host: usize) -> Gid {
    Gid::from(Ipv4Addr::from(0x0a00_0001 + host as u32))
}

pub(crate) fn guid(host: usize) -> u64 {
    0x0200_00ff_fe00_0000 + host as u64
}

pub(crate) fn address(local: usize, remote: usize) -> Address {
    Address { local: gid(local), remote: gid(remote), scope_id: 0 }
}

pub(crate) fn connect_params(address: Address, qpn: u32, deadline: Nanos) -> ConnectParams<'static> {
    ConnectParams {
        address,
        service_id: SERVICE,
        transport: TransportService::Rc,
        qpn,
        psn: 0x1234,
        responder_resources: 1,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry_count: 6,
        srq: false,
        pkey: 0xffff,
        path_mtu: 3,
        ack_timeout: 14,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
        ece: None,
        private_data: b"hello",
        deadline,
        cookie: 0,
    }
}

pub(crate) fn accept_params(qpn: u32) -> AcceptParams<'static> {
    AcceptParams {
        qpn,
        psn: 0x4321,
        responder_resources: 2,
        initiator_depth: 1,
        rnr_retry_count: 5,
        srq: true,
        ece: None,
        private_data: b"welcome",
        deadline: None,
        cookie: 0,
    }
}

pub(crate) fn listen_params(backlog: usize) -> ListenParams {
    ListenParams { bind: Bind::Any, service_id: SERVICE, service: Service::Connection, backlog, cookie: 77 }
}

/// The name of an event, to compare sequences of them.
pub(crate) fn kind(event: &Event) -> &'static str {
    match event {
        Event::ConnectRequest(_) => "request",
        Event::Response(_) => "response",
        Event::Rejected(_) => "rejected",
        Event::Established { .. } => "established",
        Event::Disconnected { .. } => "disconnected",
        Event::Unreachable(_) => "unreachable",
        Event::TimewaitExit { .. } => "timewait exit",
        Event::SidrRequest(_) => "sidr request",
        Event::SidrResponse(_) => "sidr response",
        Event::SidrUnreachable { .. } => "sidr unreachable",
        Event::ListenerReleased { .. } => "listener released",
        _ => "other",
    }
}

/// The connection that an event is about.
pub(crate) fn subject(event: &Event) -> Option<ConnId> {
    Some(match event {
        Event::ConnectRequest(event) => event.conn,
        Event::Response(event) => event.conn,
        Event::Rejected(event) => event.conn,
        Event::Unreachable(event) => event.conn,
        Event::Established { conn, .. } | Event::Disconnected { conn, .. } | Event::TimewaitExit { conn, .. } => *conn,
        _ => return None,
    })
}

/// Whether a connection ends with this event.
pub(crate) fn is_terminal(event: &Event) -> bool {
    matches!(event, Event::Rejected(_) | Event::Unreachable(_) | Event::Disconnected { .. })
}
