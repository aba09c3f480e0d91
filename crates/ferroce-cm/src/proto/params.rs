//! What the user says of a connection, and what the peer said.

use super::{Address, Nanos};
use ferroce_wire::cm::{Path, PrivateData, ServiceId, TransportService};

/// What to connect to, and how.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams<'a> {
    /// From where to where.
    pub address: Address,
    /// What is asked for.
    pub service_id: ServiceId,
    /// [`TransportService::Rc`] or [`TransportService::Uc`].
    pub transport: TransportService,
    /// Our QP, 24 bits.
    pub qpn: u32,
    /// PSN at which the peer is to begin to send, 24 bits, and so what our QP expects first: [`Endpoint::random_psn`](super::Endpoint::random_psn).
    pub psn: u32,
    /// RDMA reads and atomics that our QP can answer at a time.
    pub responder_resources: u8,
    /// RDMA reads and atomics that our QP would have outstanding.
    pub initiator_depth: u8,
    /// How often the peer's QP is to retry, 3 bits.
    pub retry_count: u8,
    /// How often the peer's QP is to retry after "receiver not ready", 3 bits; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Our QP has a shared receive queue.
    pub srq: bool,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU, the 4-bit code of the wire: 1 is 256 bytes, 5 is 4096.
    pub path_mtu: u8,
    /// How long QPs wait for an acknowledgement, a 5-bit exponent: see [`ferroce_wire::cm::time`].
    pub ack_timeout: u8,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Flow label of the path, 20 bits.
    pub flow_label: u32,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Options of the connection, if any.
    pub ece: Option<Ece>,
    /// The user's, at most 92 bytes, of which RDMA IP CM takes 36: see [`ferroce_wire::cm::IpCmHeader`].
    pub private_data: &'a [u8],
    /// When to give up, unless the connection is established or over by then.
    pub deadline: Nanos,
    /// Comes back with every event.
    pub cookie: u64,
}

/// How a request is granted.
#[derive(Clone, Copy, Debug)]
pub struct AcceptParams<'a> {
    /// Our QP, 24 bits.
    pub qpn: u32,
    /// PSN at which the peer is to begin to send, 24 bits, and so what our QP expects first: [`Endpoint::random_psn`](super::Endpoint::random_psn).
    pub psn: u32,
    /// RDMA reads and atomics that our QP can answer at a time.
    pub responder_resources: u8,
    /// RDMA reads and atomics that our QP would have outstanding.
    pub initiator_depth: u8,
    /// How often the peer's QP is to retry after "receiver not ready", 3 bits; 7 is for ever.
    pub rnr_retry_count: u8,
    /// Our QP has a shared receive queue.
    pub srq: bool,
    /// Options of the connection, if any.
    pub ece: Option<Ece>,
    /// The user's, at most 196 bytes.
    pub private_data: &'a [u8],
    /// When to give up waiting for the peer. `None`: [`Config::accept_timeout`](super::Config::accept_timeout), or
    /// when the peer says that it gives up, if that is sooner.
    pub deadline: Option<Nanos>,
    /// Comes back with every event.
    pub cookie: u64,
}

/// Which QP serves a service id?
#[derive(Clone, Copy, Debug)]
pub struct ResolveParams<'a> {
    /// From where to where.
    pub address: Address,
    /// What is asked for.
    pub service_id: ServiceId,
    /// Partition key.
    pub pkey: u16,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Flow label of the path, 20 bits.
    pub flow_label: u32,
    /// The user's, at most 216 bytes, of which RDMA IP CM takes 36.
    pub private_data: &'a [u8],
    /// When to give up.
    pub deadline: Nanos,
    /// Comes back with the event.
    pub cookie: u64,
}

/// Options of a connection (enhanced connection establishment).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ece {
    /// Whose options they are, 24 bits, not 0.
    pub vendor_id: u32,
    /// The options.
    pub options: u32,
}

impl Ece {
    pub(super) fn from_wire(vendor_id: u32, options: u32) -> Option<Self> {
        (vendor_id != 0).then_some(Self { vendor_id, options })
    }

    pub(super) fn to_wire(ece: Option<Self>) -> (u32, u32) {
        ece.map_or((0, 0), |ece| (ece.vendor_id, ece.options))
    }
}

/// Private data that a peer sent: up to `N` bytes.
///
/// Its length does not travel in the messages of communication management: a receiver gets the whole field, padded
/// with zeros. Our endpoints say the length to each other in a field of the MAD header that is reserved, which other
/// implementations ignore. Then this is what the sender gave; otherwise it is the whole field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ReceivedData<const N: usize> {
    bytes: [u8; N],
    field: u8,
    len: Option<u8>,
}

/// In the high byte of the MAD header's class-specific field: the low byte is the length of the private data. The
/// field is reserved for all classes but directed-route subnet management (IBTA 13.4.3), and is not looked at.
const LENGTH_FOLLOWS: u8 = 0xf0;

impl<const N: usize> ReceivedData<N> {
    /// The whole field, of which a message whose header has this class-specific field says the length, or does not.
    pub(super) fn new(field: PrivateData<N>, class_specific: u16) -> Self {
        let [mark, len] = class_specific.to_be_bytes();
        // A length that leaves something out is none: nothing that arrives is hidden from the user.
        let rest = field.0.get(usize::from(len)..);
        let says = mark == LENGTH_FOLLOWS && rest.is_some_and(|rest| rest.iter().all(|&byte| byte == 0));
        Self { bytes: field.0, field: N as u8, len: says.then_some(len) }
    }

    pub(super) const fn empty() -> Self {
        Self { bytes: [0; N], field: N as u8, len: Some(0) }
    }

    /// The same where there is room for the fields of several messages.
    pub(super) fn widen<const M: usize>(&self) -> ReceivedData<M> {
        let mut bytes = [0; M];
        bytes[..N].copy_from_slice(&self.bytes);
        ReceivedData { bytes, field: self.field, len: self.len }
    }

    /// What the sender gave, if its length is known; otherwise the whole field, which the sender has filled up with
    /// zeros.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len.unwrap_or(self.field))]
    }

    /// Whether the length is the sender's.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        self.len.is_some()
    }

    /// The whole field, as other implementations give it to their users.
    #[must_use]
    pub fn padded(&self) -> &[u8] {
        &self.bytes[..usize::from(self.field)]
    }
}

impl<const N: usize> std::fmt::Debug for ReceivedData<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceivedData").field("bytes", &PrivateData(self.bytes)).field("len", &self.len).finish()
    }
}

/// Says the length of the private data in the header of a MAD.
pub(super) fn write_private_len(mad: &mut [u8; 256], len: usize) {
    (mad[6], mad[7]) = (LENGTH_FOLLOWS, len as u8);
}

/// A path as RoCE describes it.
pub(super) fn roce_path(params: &ConnectParams<'_>) -> Path {
    Path {
        local_lid: ferroce_wire::cm::PERMISSIVE_LID,
        remote_lid: ferroce_wire::cm::PERMISSIVE_LID,
        local_gid: params.address.local.to_bytes(),
        remote_gid: params.address.remote.to_bytes(),
        flow_label: params.flow_label,
        packet_rate: 0,
        traffic_class: params.traffic_class,
        hop_limit: params.hop_limit,
        sl: 0,
        subnet_local: false,
        local_ack_timeout: params.ack_timeout,
    }
}
