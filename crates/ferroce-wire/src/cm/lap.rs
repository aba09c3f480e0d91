//! LAP and APR: an alternate path for a connection, and the answer (IBTA 12.8).

use super::code::code;
use super::fields::{Reader, Writer};
use super::path::{Layout, Path};
use super::private::{AdditionalInfo, PrivateData};

/// Load alternate path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lap {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// The receiver's QP, 24 bits.
    pub remote_qpn: u32,
    /// How long the receiver may take to answer, a 5-bit exponent: see [`super::time`].
    pub remote_cm_response_timeout: u8,
    /// The path.
    pub alternate: Path,
    /// The user's.
    pub private_data: PrivateData<168>,
}

const ALTERNATE: Layout = Layout::lap(20);

impl Lap {
    pub(super) fn parse(b: Reader<'_>) -> Self {
        Self {
            local_comm_id: b.u32(0),
            remote_comm_id: b.u32(4),
            remote_qpn: b.u24(12),
            remote_cm_response_timeout: b.bits(15, 0, 5),
            alternate: Path::parse(b, &ALTERNATE),
            private_data: PrivateData(b.bytes(64)),
        }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>) {
        b.u32(0, self.local_comm_id);
        b.u32(4, self.remote_comm_id);
        b.u24(12, self.remote_qpn);
        b.bits(15, 0, 5, self.remote_cm_response_timeout);
        self.alternate.emit(b, &ALTERNATE);
        b.bytes(64, self.private_data.0);
    }
}

code! {
    /// What became of an alternate path (IBTA table 117).
    AprStatus: u8 {
        /// It is loaded.
        Success = 0, "success";
        /// The communication ids are not known.
        InvalidCommId = 1, "invalid communication id";
        /// Alternate paths are not supported.
        Unsupported = 2, "alternate paths are not supported";
        /// Refused.
        Reject = 3, "rejected";
        /// Ask another port, which the additional information names.
        Redirect = 4, "redirect";
        /// It is the path in use.
        IsCurrent = 5, "the path is in use already";
        /// The QP is not that of the connection.
        InvalidQpn = 6, "invalid QP";
        /// The LID is not the peer's.
        InvalidLid = 7, "invalid LID";
        /// The GID is not the peer's.
        InvalidGid = 8, "invalid GID";
        /// Flow label.
        InvalidFlowLabel = 9, "invalid flow label";
        /// Traffic class.
        InvalidTrafficClass = 10, "invalid traffic class";
        /// Hop limit.
        InvalidHopLimit = 11, "invalid hop limit";
        /// Packet rate.
        InvalidPacketRate = 12, "invalid packet rate";
        /// Service level.
        InvalidSl = 13, "invalid service level";
    }
}

/// Alternate path response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Apr {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// What became of it.
    pub status: AprStatus,
    /// Details, depending on the status.
    pub info: AdditionalInfo,
    /// The user's.
    pub private_data: PrivateData<148>,
}

impl Apr {
    pub(super) fn parse(b: Reader<'_>) -> Self {
        Self {
            local_comm_id: b.u32(0),
            remote_comm_id: b.u32(4),
            status: AprStatus::from_number(b.u8(9)),
            info: AdditionalInfo::from_fields(b.u8(8), b.bytes(12)),
            private_data: PrivateData(b.bytes(84)),
        }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>) {
        let (len, info) = self.info.fields();
        b.u32(0, self.local_comm_id);
        b.u32(4, self.remote_comm_id);
        b.u8(8, len);
        b.u8(9, self.status.to_number());
        b.bytes(12, info);
        b.bytes(84, self.private_data.0);
    }
}
