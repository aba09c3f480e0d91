//! Whose a message is, where several processes share an address.

use super::wire;
use ferroce_wire::MadHeader;
use ferroce_wire::cm::{CM_CLASS, ServiceId};

/// Which of several endpoints that share an address a message is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Destination {
    /// The one with this [`Config::comm_id_prefix`](super::Config::comm_id_prefix); if there is none (any more), any one:
    /// it answers for the dead. No other may get it, as it would answer that there is no such connection.
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
        let (header, data) = MadHeader::parse(mad).ok().filter(|(header, _)| header.class == CM_CLASS)?;
        let prefix = |at: usize| data[at];
        let service = || Self::Service(ServiceId(u64::from_be_bytes(*data[8..].first_chunk().expect("232 bytes"))));
        Some(match header.attr_id {
            wire::REQ | wire::SIDR_REQ => service(),
            // The request id comes first, and is ours.
            wire::SIDR_REP => Self::Prefix(prefix(0)),
            wire::REJ if data[4..8] == [0; 4] => Self::All,
            wire::MRA..=wire::APR => Self::Prefix(prefix(4)),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Destination;
    use crate::proto::wire::encode;
    use ferroce_wire::cm::{
        AdditionalInfo, Answered, Drep, PrivateData, Rej, RejectReason, ServiceId, SidrRep, SidrReq, SidrStatus,
    };

    #[test]
    fn messages_go_where_their_ids_say() {
        let drep =
            Drep { local_comm_id: 0x0100_0000, remote_comm_id: 0x0712_3456, private_data: PrivateData::default() };
        assert_eq!(Destination::of(&encode(0, 0, drep, None)), Some(Destination::Prefix(7)));
        let rej = Rej {
            local_comm_id: 1,
            remote_comm_id: 0,
            rejected: Answered::Other,
            reason: RejectReason::Timeout,
            info: AdditionalInfo::EMPTY,
            private_data: PrivateData::default(),
        };
        assert_eq!(Destination::of(&encode(0, 0, rej, None)), Some(Destination::All));
        let rej = Rej { remote_comm_id: 0x0800_0000, ..rej };
        assert_eq!(Destination::of(&encode(0, 0, rej, None)), Some(Destination::Prefix(8)));
        let service_id = ServiceId(0x0111_1c06);
        let req = SidrReq { request_id: 0x0900_0000, pkey: 1, service_id, private_data: PrivateData::default() };
        assert_eq!(Destination::of(&encode(0, 0, req, None)), Some(Destination::Service(service_id)));
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
        let mut mad = encode(0, 0, rep, None);
        assert_eq!(Destination::of(&mad), Some(Destination::Prefix(9)));
        mad[1] = 3;
        assert_eq!(Destination::of(&mad), None);
        assert_eq!(Destination::of(&mad[1..]), None);
    }
}
