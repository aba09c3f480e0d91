//! SIDR_REQ and SIDR_REP: which QP serves a service id, for datagrams (IBTA 12.11).

use super::code::code;
use super::fields::{Reader, Writer};
use super::private::{AdditionalInfo, PrivateData};
use super::service::ServiceId;

/// Service id resolution request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrReq {
    /// The sender's name for the request.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// What is asked for.
    pub service_id: ServiceId,
    /// The user's.
    pub private_data: PrivateData<216>,
}

impl SidrReq {
    pub(super) fn parse(b: Reader<'_>) -> Self {
        Self {
            request_id: b.u32(0),
            pkey: b.u16(4),
            service_id: ServiceId(b.u64(8)),
            private_data: PrivateData(b.bytes(16)),
        }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>) {
        b.u32(0, self.request_id);
        b.u16(4, self.pkey);
        b.u64(8, self.service_id.0);
        b.bytes(16, self.private_data.0);
    }
}

code! {
    /// What became of a resolution (IBTA table 121).
    SidrStatus: u8 {
        /// The QP is in the response.
        Success = 0, "success";
        /// Nobody listens to the service id.
        Unsupported = 1, "service id not supported: nobody listens";
        /// The peer's user refused.
        Reject = 2, "rejected by the peer's user";
        /// No QP available.
        NoQp = 3, "no QP available";
        /// Ask another port, which the additional information names.
        Redirect = 4, "redirect";
        /// The peer speaks another version of communication management.
        UnsupportedVersion = 5, "unsupported class version";
    }
}

/// Service id resolution response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SidrRep {
    /// The request's name, from the request.
    pub request_id: u32,
    /// What became of it.
    pub status: SidrStatus,
    /// Vendor of the options (enhanced connection establishment), 24 bits; 0 if none.
    pub vendor_id: u32,
    /// The QP, 24 bits.
    pub qpn: u32,
    /// What was asked for.
    pub service_id: ServiceId,
    /// The QP's queue key.
    pub qkey: u32,
    /// Details, depending on the status.
    pub info: AdditionalInfo,
    /// The user's.
    pub private_data: PrivateData<136>,
}

impl SidrRep {
    pub(super) fn parse(b: Reader<'_>) -> Self {
        Self {
            request_id: b.u32(0),
            status: SidrStatus::from_number(b.u8(4)),
            // The vendor came late, into the three bytes that were reserved.
            vendor_id: u32::from(b.u16(6)) << 8 | u32::from(b.u8(11)),
            qpn: b.u24(8),
            service_id: ServiceId(b.u64(12)),
            qkey: b.u32(20),
            info: AdditionalInfo::from_fields(b.u8(5), b.bytes(24)),
            private_data: PrivateData(b.bytes(96)),
        }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>) {
        let (len, info) = self.info.fields();
        b.u32(0, self.request_id);
        b.u8(4, self.status.to_number());
        b.u8(5, len);
        b.u16(6, (self.vendor_id >> 8) as u16);
        b.u24(8, self.qpn);
        b.u8(11, self.vendor_id as u8);
        b.u64(12, self.service_id.0);
        b.u32(20, self.qkey);
        b.bytes(24, info);
        b.bytes(96, self.private_data.0);
    }
}
