use crate::Id;
use crate::proto::DisconnectCause;
use ferroce_verbs::AhAttr;
use ferroce_wire::cm::RejectReason;
use std::net::IpAddr;

/// Something happened to an id.
///
/// An event holds its id, and the id of a connection that it announces. Dropping it is all that librdmacm's `rdma_ack_cm_event` does:
/// nobody waits for it.
#[derive(Debug)]
pub struct Event {
    pub(crate) id: Id,
    pub(crate) kind: EventKind,
    pub(crate) private_data: Vec<u8>,
    pub(crate) ud: Option<UdParam>,
}

impl Event {
    pub(crate) fn new(id: Id, kind: EventKind, private_data: &[u8]) -> Self {
        Self { id, kind, private_data: private_data.to_vec(), ud: None }
    }

    /// Whom it happened to. Of a [`EventKind::ConnectRequest`] it is the listener.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.id
    }

    /// What happened.
    #[must_use]
    pub fn kind(&self) -> &EventKind {
        &self.kind
    }

    /// What the peer sent with it. Its length is the sender's if the peer is ferroce too; otherwise it is the whole field of the
    /// message, padded with zeros, as all implementations give it.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Where datagrams go: to the peer, if this is the [`EventKind::Established`] of a client of the port space UDP; to the group, if
    /// it is [`EventKind::MulticastJoin`].
    #[must_use]
    pub fn ud_param(&self) -> Option<&UdParam> {
        self.ud.as_ref()
    }

    /// Takes it apart: what [`Self::ud_param`] says goes.
    #[must_use]
    pub fn into_parts(self) -> (Id, EventKind, Vec<u8>) {
        (self.id, self.kind, self.private_data)
    }
}

/// What happened, named as in rdma_cm (`rdma_cm_event_type`).
#[derive(Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// The peer's address is resolved: `resolve_route` is next.
    AddrResolved,
    /// The peer's address cannot be resolved.
    AddrError(crate::Error),
    /// The route is resolved: `connect` is next.
    RouteResolved,
    /// The route cannot be resolved.
    RouteError(crate::Error),
    /// A peer asks for a connection, or in the port space UDP for a queue pair: `accept` or `reject`.
    ConnectRequest {
        /// The new connection. Dropping it rejects.
        id: Id,
        /// What the peer offers; in the port space UDP nothing, all is 0.
        offer: Offer,
    },
    /// The peer granted the connection, and the id's queue pair, if it has one, is not set up yet: `establish` is next.
    ConnectResponse(Offer),
    /// The connection cannot be used though the peer granted it.
    ConnectError(crate::Refusal),
    /// Nobody answered in time.
    Unreachable {
        /// How often the last message was sent.
        sent: u32,
    },
    /// The peer refused, or gave up. Refusals of a datagram service (SIDR) have the reason that says the same of a connection.
    Rejected {
        /// Why.
        reason: RejectReason,
    },
    /// The connection is established; in the port space UDP the peer's queue pair is known: [`Event::ud_param`].
    Established,
    /// The id has joined a multicast group: [`Event::ud_param`] says where datagrams to it go.
    MulticastJoin {
        /// Which.
        group: IpAddr,
    },
    /// The id could not join a multicast group.
    MulticastError {
        /// Which.
        group: IpAddr,
        /// Why.
        error: crate::Error,
    },
    /// The connection has ended.
    Disconnected(DisconnectCause),
    /// What the connection left in the network is gone.
    TimewaitExit,
    /// The device goes away (`RDMA_CM_EVENT_DEVICE_REMOVAL`), or the file of the kernel's connection manager cannot be read any more, as after a
    /// change of the process's user, and an answer that the id waits for cannot come: nothing but destroying makes sense any more. Of devices of
    /// the kernel only.
    DeviceRemoval,
    /// The network interface of the id's address has another hardware address (`RDMA_CM_EVENT_ADDR_CHANGE`), as when a bond fails over. Of
    /// devices of the kernel only.
    AddrChange,
    /// Somebody put it there: [`crate::EventChannel::post`].
    User(u64),
}

/// Where datagrams for a peer go (`rdma_ud_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UdParam {
    /// The way to the peer, to make an address handle with.
    pub ah_attr: AhAttr,
    /// The peer's queue pair.
    pub qp_num: u32,
    /// Its Q_Key.
    pub qkey: u32,
}

/// What a peer offers, or wants (`rdma_conn_param`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offer {
    /// The peer's queue pair.
    pub qp_num: u32,
    /// RDMA reads and atomics that this side may have outstanding: as many as the peer can answer.
    pub initiator_depth: u8,
    /// RDMA reads and atomics that this side should be able to answer: as many as the peer would have outstanding.
    pub responder_resources: u8,
    /// How often this side's queue pair should retry.
    pub retry_count: u8,
    /// How often this side's queue pair should retry after "receiver not ready"; 7 is for ever.
    pub rnr_retry_count: u8,
    /// The peer's queue pair has a shared receive queue.
    pub srq: bool,
}
