//! What the user is told.

use super::{Address, ConnId, Ece, ListenId, ReceivedData, SidrId, State};
use ferroce_wire::cm::{AdditionalInfo, Path, RejectReason, ServiceId, SidrStatus, TransportService};

/// What happened.
///
/// A connection that the user does not destroy, reject or disconnect first ends in exactly one of
/// [`Rejected`](Self::Rejected), [`Unreachable`](Self::Unreachable) and [`Disconnected`](Self::Disconnected). After
/// [`Endpoint::destroy`](super::Endpoint::destroy) there is no event for the connection, not even one that was due.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A peer asks for a connection.
    ConnectRequest(ConnectRequest),
    /// The peer grants the connection that we asked for: move the QP to RTS, then
    /// [`Endpoint::establish`](super::Endpoint::establish).
    Response(Response),
    /// The peer does not want the connection: it refused, or gave up asking for it (with
    /// [`RejectReason::Timeout`]). Terminal.
    Rejected(Rejected),
    /// The connection that we granted is established: the peer said so (RTU), or its data did.
    Established {
        /// Which.
        conn: ConnId,
        /// The user's.
        cookie: u64,
        /// What the peer sent with the RTU; empty if data came before it.
        private_data: ReceivedData<224>,
    },
    /// An established connection has ended, or one that the peer took for established. Terminal.
    Disconnected {
        /// Which.
        conn: ConnId,
        /// The user's.
        cookie: u64,
        /// How.
        cause: DisconnectCause,
        /// What the peer sent with its DREQ or DREP.
        private_data: ReceivedData<224>,
    },
    /// The deadline passed before the connection was established. Terminal.
    Unreachable(Unreachable),
    /// What the connection left in the network is gone: its QP may be used again. Follows the terminal event of a
    /// connection that one of the sides may have taken for established, unless it is destroyed before.
    TimewaitExit {
        /// Which.
        conn: ConnId,
        /// The user's.
        cookie: u64,
    },
    /// A peer asks which QP serves a service id: [`Endpoint::answer_sidr`](super::Endpoint::answer_sidr).
    SidrRequest(SidrRequest),
    /// The answer to our question which QP serves a service id. Terminal.
    SidrResponse(SidrResponse),
    /// Nobody answered our question in time. Terminal.
    SidrUnreachable {
        /// Which.
        sidr: SidrId,
        /// The user's.
        cookie: u64,
        /// How often the question was sent.
        sent: u32,
    },
    /// The requests that a closed listener had left are over or known to be answered: another endpoint may have the service, see
    /// [`Endpoint::close_listener`](super::Endpoint::close_listener).
    ListenerReleased {
        /// Which it was.
        listener: ListenId,
    },
}

/// See [`Event::ConnectRequest`].
#[derive(Clone, Copy, Debug)]
pub struct ConnectRequest {
    /// Who listens.
    pub listener: ListenId,
    /// The listener's.
    pub listener_cookie: u64,
    /// The new connection.
    pub conn: ConnId,
    /// Where the request came from and went to.
    pub address: Address,
    /// What is asked for.
    pub service_id: ServiceId,
    /// The transport service.
    pub transport: TransportService,
    /// The peer's QP.
    pub remote_qpn: u32,
    /// PSN at which our QP is to begin to send: what the peer's expects first.
    pub remote_psn: u32,
    /// The peer's channel adapter.
    pub remote_ca_guid: u64,
    /// RDMA reads and atomics that the peer can answer at a time.
    pub responder_resources: u8,
    /// RDMA reads and atomics that the peer would have outstanding.
    pub initiator_depth: u8,
    /// How often our QP is to retry.
    pub retry_count: u8,
    /// How often our QP is to retry after "receiver not ready".
    pub rnr_retry_count: u8,
    /// The peer's QP has a shared receive queue.
    pub srq: bool,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU, the 4-bit code of the wire.
    pub path_mtu: u8,
    /// The path that the peer wants; "local" is the peer. Its GIDs are what the peer claims, `address` is what the
    /// packet had.
    pub path: Path,
    /// Options of the connection, if any.
    pub ece: Option<Ece>,
    /// The peer's.
    pub private_data: ReceivedData<92>,
}

/// See [`Event::Response`].
#[derive(Clone, Copy, Debug)]
pub struct Response {
    /// Which.
    pub conn: ConnId,
    /// The user's.
    pub cookie: u64,
    /// The peer's QP.
    pub remote_qpn: u32,
    /// PSN at which our QP is to begin to send: what the peer's expects first.
    pub remote_psn: u32,
    /// The peer's channel adapter.
    pub remote_ca_guid: u64,
    /// RDMA reads and atomics that the peer can answer at a time.
    pub responder_resources: u8,
    /// RDMA reads and atomics that the peer would have outstanding.
    pub initiator_depth: u8,
    /// How long the peer's adapter takes to acknowledge, a 5-bit exponent.
    pub target_ack_delay: u8,
    /// How often our QP is to retry after "receiver not ready".
    pub rnr_retry_count: u8,
    /// The peer's QP has a shared receive queue.
    pub srq: bool,
    /// Options of the connection, if any.
    pub ece: Option<Ece>,
    /// The peer's.
    pub private_data: ReceivedData<196>,
}

/// See [`Event::Rejected`].
#[derive(Clone, Copy, Debug)]
pub struct Rejected {
    /// Which.
    pub conn: ConnId,
    /// The user's.
    pub cookie: u64,
    /// Why. [`RejectReason::InvalidServiceId`]: nobody listens. [`RejectReason::ConsumerDefined`]: the peer's user
    /// refused. [`RejectReason::StaleConn`]: the peer takes our QP for that of an earlier connection, which it now
    /// ends: try again.
    pub reason: RejectReason,
    /// What would have been accepted, or other details, depending on the reason.
    pub info: AdditionalInfo,
    /// The peer's.
    pub private_data: ReceivedData<148>,
}

/// See [`Event::Unreachable`].
#[derive(Clone, Copy, Debug)]
pub struct Unreachable {
    /// Which.
    pub conn: ConnId,
    /// The user's.
    pub cookie: u64,
    /// How far it came. [`State::ReqSent`]: nobody answered. [`State::MraReqRcvd`]: the peer asked for time, but did
    /// not decide. [`State::RepRcvd`]: our side did not establish it in time. [`State::ReqRcvd`]: our side did not
    /// decide in time. [`State::RepSent`]: the requester is gone.
    pub state: State,
    /// How often the message was sent that was not answered.
    pub sent: u32,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DisconnectCause {
    /// The peer asked (DREQ).
    Requested,
    /// We asked and the peer agreed (DREP).
    Agreed,
    /// We asked and the peer did not answer in time.
    TimedOut,
    /// The peer denies the connection (REJ).
    Denied(RejectReason),
    /// The peer does not answer any more on the QP of this connection.
    PeerLost,
    /// The peer uses the QP of this connection for another one: it has restarted.
    Stale,
}

/// See [`Event::SidrRequest`].
#[derive(Clone, Copy, Debug)]
pub struct SidrRequest {
    /// Who listens.
    pub listener: ListenId,
    /// The listener's.
    pub listener_cookie: u64,
    /// The question.
    pub sidr: SidrId,
    /// Where the question came from and went to.
    pub address: Address,
    /// What is asked for.
    pub service_id: ServiceId,
    /// Partition key.
    pub pkey: u16,
    /// The peer's.
    pub private_data: ReceivedData<216>,
}

/// See [`Event::SidrResponse`].
#[derive(Clone, Copy, Debug)]
pub struct SidrResponse {
    /// Which.
    pub sidr: SidrId,
    /// The user's.
    pub cookie: u64,
    /// What became of it.
    pub status: SidrStatus,
    /// The QP that serves the service id, if the status is [`SidrStatus::Success`].
    pub qpn: u32,
    /// Its queue key.
    pub qkey: u32,
    /// Options, if any.
    pub ece: Option<Ece>,
    /// Details, depending on the status.
    pub info: AdditionalInfo,
    /// The peer's.
    pub private_data: ReceivedData<136>,
}
