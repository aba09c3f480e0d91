//! REP and RTU: the answer to a request, and the answer to that (IBTA 12.6.8 and 12.6.9).

use super::fields::{Reader, Writer};
use super::private::PrivateData;

/// A reply: the connection is granted.
///
/// "Local" is its sender, the passive side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rep {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection, from its REQ.
    pub remote_comm_id: u32,
    /// Queue key, for RD.
    pub local_qkey: u32,
    /// The sender's QP, 24 bits.
    pub local_qpn: u32,
    /// The sender's end-to-end context, 24 bits, for RD; for XRC the target QP.
    pub local_eecn: u32,
    /// Vendor of the connection's options (enhanced connection establishment), 24 bits; 0 if none.
    pub vendor_id: u32,
    /// PSN at which the receiver is to begin to send, 24 bits (IBTA 12.7.31): what the sender expects first.
    pub starting_psn: u32,
    /// RDMA reads and atomics that the sender can answer at a time.
    pub responder_resources: u8,
    /// RDMA reads and atomics that the sender would have outstanding.
    pub initiator_depth: u8,
    /// How long the sender's adapter takes to acknowledge, a 5-bit exponent: see [`super::time`].
    pub target_ack_delay: u8,
    /// Whether the alternate path was accepted, 2 bits: 0 yes, 1 not supported, 2 refused.
    pub failover_accepted: u8,
    /// The sender counts credits.
    pub end_to_end_flow_control: bool,
    /// How often the receiver's QP is to retry after "receiver not ready", 3 bits; 7 is for ever.
    pub rnr_retry_count: u8,
    /// The sender's QP has a shared receive queue.
    pub srq: bool,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// The user's.
    pub private_data: PrivateData<196>,
}

impl Rep {
    pub(super) fn parse(b: Reader<'_>) -> Self {
        Self {
            local_comm_id: b.u32(0),
            remote_comm_id: b.u32(4),
            local_qkey: b.u32(8),
            local_qpn: b.u24(12),
            local_eecn: b.u24(16),
            // The vendor came late, into the three bytes that were reserved.
            vendor_id: u32::from_be_bytes([0, b.u8(15), b.u8(19), b.u8(23)]),
            starting_psn: b.u24(20),
            responder_resources: b.u8(24),
            initiator_depth: b.u8(25),
            target_ack_delay: b.bits(26, 0, 5),
            failover_accepted: b.bits(26, 5, 2),
            end_to_end_flow_control: b.bit(26, 7),
            rnr_retry_count: b.bits(27, 0, 3),
            srq: b.bit(27, 3),
            local_ca_guid: b.u64(28),
            private_data: PrivateData(b.bytes(36)),
        }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>) {
        let [_, high, middle, low] = self.vendor_id.to_be_bytes();
        b.u32(0, self.local_comm_id);
        b.u32(4, self.remote_comm_id);
        b.u32(8, self.local_qkey);
        b.u24(12, self.local_qpn);
        b.u8(15, high);
        b.u24(16, self.local_eecn);
        b.u8(19, middle);
        b.u24(20, self.starting_psn);
        b.u8(23, low);
        b.u8(24, self.responder_resources);
        b.u8(25, self.initiator_depth);
        b.bits(26, 0, 5, self.target_ack_delay);
        b.bits(26, 5, 2, self.failover_accepted);
        b.bit(26, 7, self.end_to_end_flow_control);
        b.bits(27, 0, 3, self.rnr_retry_count);
        b.bit(27, 3, self.srq);
        b.u64(28, self.local_ca_guid);
        b.bytes(36, self.private_data.0);
    }
}

/// Ready to use: the active side has the reply, and the connection is established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rtu {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// The user's.
    pub private_data: PrivateData<224>,
}

impl Rtu {
    pub(super) fn parse(b: Reader<'_>) -> Self {
        Self { local_comm_id: b.u32(0), remote_comm_id: b.u32(4), private_data: PrivateData(b.bytes(8)) }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>) {
        b.u32(0, self.local_comm_id);
        b.u32(4, self.remote_comm_id);
        b.bytes(8, self.private_data.0);
    }
}
