//! REQ: a request for a connection (IBTA 12.6.5).

use super::fields::{Reader, Writer};
use super::path::{Layout, Path};
use super::private::PrivateData;
use super::service::ServiceId;

/// The transport service that a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransportService {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Extended reliable connection.
    Xrc,
    /// An extended transport that is reserved, as its 3-bit number, which is not 1 (XRC).
    Reserved(u8),
}

impl TransportService {
    /// From the service type (2 bits) and the extended transport (3 bits, if the type is 3).
    const fn from_bits(service: u8, extended: u8) -> Self {
        match (service, extended) {
            (0, _) => Self::Rc,
            (1, _) => Self::Uc,
            (2, _) => Self::Rd,
            (_, 1) => Self::Xrc,
            (_, other) => Self::Reserved(other),
        }
    }

    const fn to_bits(self) -> (u8, u8) {
        match self {
            Self::Rc => (0, 0),
            Self::Uc => (1, 0),
            Self::Rd => (2, 0),
            Self::Xrc => (3, 1),
            Self::Reserved(extended) => (3, extended),
        }
    }
}

/// A request for a connection.
///
/// "Local" is its sender, the active side, and "remote" its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Req {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// Vendor of the connection's options (enhanced connection establishment), 24 bits; 0 if none.
    pub vendor_id: u32,
    /// What is asked for.
    pub service_id: ServiceId,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Queue key, for RD.
    pub local_qkey: u32,
    /// The sender's QP, 24 bits.
    pub local_qpn: u32,
    /// RDMA reads and atomics that the sender can answer at a time.
    pub responder_resources: u8,
    /// The sender's end-to-end context, 24 bits, for RD.
    pub local_eecn: u32,
    /// RDMA reads and atomics that the sender would have outstanding.
    pub initiator_depth: u8,
    /// The receiver's end-to-end context, 24 bits, for RD.
    pub remote_eecn: u32,
    /// How long the receiver may take to answer, a 5-bit exponent: see [`super::time`].
    pub remote_cm_response_timeout: u8,
    /// The transport service.
    pub transport: TransportService,
    /// The sender counts credits.
    pub end_to_end_flow_control: bool,
    /// PSN at which the receiver is to begin to send, 24 bits (IBTA 12.7.31): what the sender expects first.
    pub starting_psn: u32,
    /// How long the sender may take to answer, a 5-bit exponent: see [`super::time`].
    pub local_cm_response_timeout: u8,
    /// How often the receiver's QP is to retry, 3 bits.
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU, a 4-bit code: 1 is 256 bytes, each next one twice that, 5 is 4096.
    pub path_mtu: u8,
    /// The RD channel exists already.
    pub rdc_exists: bool,
    /// How often the receiver's QP is to retry after "receiver not ready", 3 bits; 7 is for ever.
    pub rnr_retry_count: u8,
    /// How often the sender sends the request at most, 4 bits.
    pub max_cm_retries: u8,
    /// The sender's QP has a shared receive queue.
    pub srq: bool,
    /// The path to use.
    pub primary: Path,
    /// The path to migrate to, if any. Its `local_lid` is not 0.
    pub alternate: Option<Path>,
    /// The sender can suggest an alternate path (SAP).
    pub sap_supported: bool,
    /// The user's.
    pub private_data: PrivateData<92>,
}

const PRIMARY: Layout = Layout::req(52);
const ALTERNATE: Layout = Layout::req(96);

impl Req {
    pub(super) fn parse(b: Reader<'_>) -> Self {
        let alternate = Path::parse(b, &ALTERNATE);
        Self {
            local_comm_id: b.u32(0),
            vendor_id: b.u24(5),
            service_id: ServiceId(b.u64(8)),
            local_ca_guid: b.u64(16),
            local_qkey: b.u32(28),
            local_qpn: b.u24(32),
            responder_resources: b.u8(35),
            local_eecn: b.u24(36),
            initiator_depth: b.u8(39),
            remote_eecn: b.u24(40),
            remote_cm_response_timeout: b.bits(43, 0, 5),
            transport: TransportService::from_bits(b.bits(43, 5, 2), b.bits(51, 5, 3)),
            end_to_end_flow_control: b.bit(43, 7),
            starting_psn: b.u24(44),
            local_cm_response_timeout: b.bits(47, 0, 5),
            retry_count: b.bits(47, 5, 3),
            pkey: b.u16(48),
            path_mtu: b.bits(50, 0, 4),
            rdc_exists: b.bit(50, 4),
            rnr_retry_count: b.bits(50, 5, 3),
            max_cm_retries: b.bits(51, 0, 4),
            srq: b.bit(51, 4),
            primary: Path::parse(b, &PRIMARY),
            alternate: (alternate.local_lid != 0).then_some(alternate),
            sap_supported: b.bit(139, 5),
            private_data: PrivateData(b.bytes(140)),
        }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>) {
        let (service, extended) = self.transport.to_bits();
        b.u32(0, self.local_comm_id);
        b.u24(5, self.vendor_id);
        b.u64(8, self.service_id.0);
        b.u64(16, self.local_ca_guid);
        b.u32(28, self.local_qkey);
        b.u24(32, self.local_qpn);
        b.u8(35, self.responder_resources);
        b.u24(36, self.local_eecn);
        b.u8(39, self.initiator_depth);
        b.u24(40, self.remote_eecn);
        b.bits(43, 0, 5, self.remote_cm_response_timeout);
        b.bits(43, 5, 2, service);
        b.bit(43, 7, self.end_to_end_flow_control);
        b.u24(44, self.starting_psn);
        b.bits(47, 0, 5, self.local_cm_response_timeout);
        b.bits(47, 5, 3, self.retry_count);
        b.u16(48, self.pkey);
        b.bits(50, 0, 4, self.path_mtu);
        b.bit(50, 4, self.rdc_exists);
        b.bits(50, 5, 3, self.rnr_retry_count);
        b.bits(51, 0, 4, self.max_cm_retries);
        b.bit(51, 4, self.srq);
        b.bits(51, 5, 3, extended);
        self.primary.emit(b, &PRIMARY);
        if let Some(alternate) = &self.alternate {
            alternate.emit(b, &ALTERNATE);
        }
        b.bit(139, 5, self.sap_supported);
        b.bytes(140, self.private_data.0);
    }
}
