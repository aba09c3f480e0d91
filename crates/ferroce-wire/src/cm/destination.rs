//! Whose a message is, where several processes share an address.

use super::{CM_CLASS, ServiceId, attr};
use crate::mad::{MAD_HEADER_LEN, MAD_LEN};

/// Which of several endpoints that share an address, and so queue pair 1, a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Destination {
    /// The one whose communication ids and SIDR request ids have this top byte: the message answers what it asked, or goes on
    /// with its connection. No other may get it while that one exists, as it would answer that there is no such connection.
    Prefix(u8),
    /// The one that listens to this service; if there is none, any one: it refuses. Duplicates must come to the same one.
    Service(ServiceId),
    /// All: a REJ that names no id of ours. Whom it does not concern ignores it.
    All,
}

impl Destination {
    /// Where `mad` goes. `None` if it is no message of communication management: any endpoint may count it.
    #[must_use]
    pub fn of(mad: &[u8]) -> Option<Self> {
        let (header, data) = mad.split_at_checked(MAD_HEADER_LEN).filter(|_| mad.len() == MAD_LEN)?;
        if header[1] != CM_CLASS {
            return None;
        }
        let (first, second) = (data[0], &data[4..8]);
        Some(match u16::from_be_bytes([header[16], header[17]]) {
            attr::REQ | attr::SIDR_REQ => {
                Self::Service(ServiceId(u64::from_be_bytes(*data[8..].first_chunk().expect("232 bytes"))))
            }
            // The request id comes first, and is the receiver's.
            attr::SIDR_REP => Self::Prefix(first),
            attr::REJ if second == [0; 4] => Self::All,
            attr::MRA..=attr::APR => Self::Prefix(second[0]),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cm::{
        AdditionalInfo, Answered, CmMad, CmMessage, Drep, PrivateData, Rej, RejectReason, SidrRep, SidrReq, SidrStatus,
    };

    fn encode(message: impl Into<CmMessage>) -> [u8; MAD_LEN] {
        let mut mad = [0; MAD_LEN];
        CmMad { tid: 0, ece_options: 0, message: message.into() }.emit(&mut mad);
        mad
    }

    #[test]
    fn messages_go_where_their_ids_say() {
        let drep =
            Drep { local_comm_id: 0x0100_0000, remote_comm_id: 0x0712_3456, private_data: PrivateData::default() };
        assert_eq!(Destination::of(&encode(drep)), Some(Destination::Prefix(7)));
        let rej = Rej {
            local_comm_id: 1,
            remote_comm_id: 0,
            rejected: Answered::Other,
            reason: RejectReason::Timeout,
            info: AdditionalInfo::EMPTY,
            private_data: PrivateData::default(),
        };
        assert_eq!(Destination::of(&encode(rej)), Some(Destination::All));
        let rej = Rej { remote_comm_id: 0x0800_0000, ..rej };
        assert_eq!(Destination::of(&encode(rej)), Some(Destination::Prefix(8)));
        let service_id = ServiceId(0x0111_1c06);
        let req = SidrReq { request_id: 0x0900_0000, pkey: 1, service_id, private_data: PrivateData::default() };
        assert_eq!(Destination::of(&encode(req)), Some(Destination::Service(service_id)));
        let rep = SidrRep {
            request_id: 0x0900_0000,
            status: SidrStatus::Success,
            vendor_id: 0,
            qpn: 1,
            service_id,
            qkey: 1,
            info: AdditionalInfo::EMPTY,
            private_data: PrivateData::default(),
        };
        let mut mad = encode(rep);
        assert_eq!(Destination::of(&mad), Some(Destination::Prefix(9)));
        mad[1] = 3;
        assert_eq!(Destination::of(&mad), None);
        assert_eq!(Destination::of(&mad[1..]), None);
    }
}
