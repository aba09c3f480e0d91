//! REJ and MRA: no, and not yet (IBTA 12.6.6 and 12.6.7).

use super::code::code;
use super::fields::{Reader, Writer};
use super::private::{AdditionalInfo, PrivateData};

/// Which message an MRA or a REJ answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answered {
    /// A REQ.
    Req,
    /// A REP.
    Rep,
    /// Another: of an MRA a LAP, of a REJ none in particular (such as a timeout).
    Other,
}

impl Answered {
    /// From 2 bits; 3 is reserved and read as [`Other`](Self::Other).
    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Req,
            1 => Self::Rep,
            _ => Self::Other,
        }
    }

    const fn to_bits(self) -> u8 {
        match self {
            Self::Req => 0,
            Self::Rep => 1,
            Self::Other => 2,
        }
    }
}

code! {
    /// Why a connection was refused (IBTA table 109).
    RejectReason: u16 {
        /// No QP available.
        NoQp = 1, "no QP available";
        /// No end-to-end context available.
        NoEec = 2, "no end-to-end context available";
        /// No resources available.
        NoResources = 3, "no resources available";
        /// The peer gave up waiting for an answer.
        Timeout = 4, "timeout";
        /// The request is not supported.
        Unsupported = 5, "unsupported request";
        /// The communication id is not known.
        InvalidCommId = 6, "invalid communication id";
        /// The communication ids do not belong together.
        InvalidCommInstance = 7, "invalid communication instance";
        /// Nobody listens to the service id.
        InvalidServiceId = 8, "invalid service id: nobody listens";
        /// The transport service is not that of the listener.
        InvalidTransportType = 9, "invalid transport service type";
        /// The QP is still connected, as far as the peer knows.
        StaleConn = 10, "stale connection";
        /// The RD channel does not exist.
        RdcNotExist = 11, "RD channel does not exist";
        /// The primary path's GID is not the peer's.
        InvalidGid = 12, "invalid GID";
        /// The primary path's LID is not the peer's.
        InvalidLid = 13, "invalid LID";
        /// Service level of the primary path.
        InvalidSl = 14, "invalid service level";
        /// Traffic class of the primary path.
        InvalidTrafficClass = 15, "invalid traffic class";
        /// Hop limit of the primary path.
        InvalidHopLimit = 16, "invalid hop limit";
        /// Packet rate of the primary path.
        InvalidPacketRate = 17, "invalid packet rate";
        /// The alternate path's GID is not the peer's.
        InvalidAltGid = 18, "invalid GID of the alternate path";
        /// The alternate path's LID is not the peer's.
        InvalidAltLid = 19, "invalid LID of the alternate path";
        /// Service level of the alternate path.
        InvalidAltSl = 20, "invalid service level of the alternate path";
        /// Traffic class of the alternate path.
        InvalidAltTrafficClass = 21, "invalid traffic class of the alternate path";
        /// Hop limit of the alternate path.
        InvalidAltHopLimit = 22, "invalid hop limit of the alternate path";
        /// Packet rate of the alternate path.
        InvalidAltPacketRate = 23, "invalid packet rate of the alternate path";
        /// Ask another port and the CM that the additional information names.
        PortCmRedirect = 24, "redirect of port and CM";
        /// Ask another port, which the additional information names.
        PortRedirect = 25, "redirect of port";
        /// The path MTU does not suit.
        InvalidMtu = 26, "invalid path MTU";
        /// The peer cannot answer that many reads and atomics.
        InsufficientRespResources = 27, "insufficient responder resources";
        /// The peer's user refused.
        ConsumerDefined = 28, "rejected by the peer's user";
        /// The RNR retry count does not suit.
        InvalidRnrRetry = 29, "invalid RNR retry count";
        /// The peer knows this communication id as that of another connection.
        DuplicateLocalCommId = 30, "duplicate local communication id";
        /// The peer speaks another version of communication management.
        InvalidClassVersion = 31, "invalid class version";
        /// Flow label of the primary path.
        InvalidFlowLabel = 32, "invalid flow label";
        /// Flow label of the alternate path.
        InvalidAltFlowLabel = 33, "invalid flow label of the alternate path";
        /// The connection's options (enhanced connection establishment) do not suit.
        VendorOptionNotSupported = 35, "vendor option not supported";
    }
}

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rej {
    /// The sender's name for the connection; 0 if it has none.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// Which message is refused.
    pub rejected: Answered,
    /// Why.
    pub reason: RejectReason,
    /// What would have been accepted, or other details, depending on the reason.
    pub info: AdditionalInfo,
    /// The user's.
    pub private_data: PrivateData<148>,
}

impl Rej {
    pub(super) fn parse(b: Reader<'_>) -> Self {
        Self {
            local_comm_id: b.u32(0),
            remote_comm_id: b.u32(4),
            rejected: Answered::from_bits(b.bits(8, 0, 2)),
            reason: RejectReason::from_number(b.u16(10)),
            info: AdditionalInfo::from_fields(b.bits(9, 0, 7), b.bytes(12)),
            private_data: PrivateData(b.bytes(84)),
        }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>) {
        let (len, info) = self.info.fields();
        b.u32(0, self.local_comm_id);
        b.u32(4, self.remote_comm_id);
        b.bits(8, 0, 2, self.rejected.to_bits());
        b.bits(9, 0, 7, len);
        b.u16(10, self.reason.to_number());
        b.bytes(12, info);
        b.bytes(84, self.private_data.0);
    }
}

/// Message receipt acknowledgement: the answer will take longer than the peer allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mra {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// Which message was received.
    pub received: Answered,
    /// How long the answer will take, a 5-bit exponent: see [`super::time`].
    pub service_timeout: u8,
    /// The user's.
    pub private_data: PrivateData<222>,
}

impl Mra {
    pub(super) fn parse(b: Reader<'_>) -> Self {
        Self {
            local_comm_id: b.u32(0),
            remote_comm_id: b.u32(4),
            received: Answered::from_bits(b.bits(8, 0, 2)),
            service_timeout: b.bits(9, 0, 5),
            private_data: PrivateData(b.bytes(10)),
        }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>) {
        b.u32(0, self.local_comm_id);
        b.u32(4, self.remote_comm_id);
        b.bits(8, 0, 2, self.received.to_bits());
        b.bits(9, 0, 5, self.service_timeout);
        b.bytes(10, self.private_data.0);
    }
}
