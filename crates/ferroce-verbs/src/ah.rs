use crate::Gid;

/// The global route header's part of an address (`ibv_global_route`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GlobalRoute {
    /// The peer's GID.
    pub dgid: Gid,
    /// Index of the local GID to send from.
    pub sgid_index: u32,
    /// IPv6 flow label, 20 bits; chooses the UDP source port on RoCEv2.
    pub flow_label: u32,
    /// Hop limit (IPv4 TTL).
    pub hop_limit: u8,
    /// Traffic class (IPv4 TOS).
    pub traffic_class: u8,
}

impl GlobalRoute {
    /// The route to `dgid` from the local GID at `sgid_index`, all else default.
    pub const fn new(dgid: Gid, sgid_index: u32) -> Self {
        Self { dgid, sgid_index, flow_label: 0, hop_limit: 64, traffic_class: 0 }
    }
}

/// A peer's address (`ibv_ah_attr`). Values compare by identity: there is no padding and nothing that is not address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AhAttr {
    /// The global route; RoCE requires it.
    pub grh: Option<GlobalRoute>,
    /// The peer's local identifier; unused on Ethernet.
    pub dlid: u16,
    /// Service level, 0 to 15.
    pub sl: u8,
    /// Source path bits; unused on Ethernet.
    pub src_path_bits: u8,
    /// Static rate, 0 for the port's own.
    pub static_rate: u8,
    /// The local port, from 1.
    pub port_num: u8,
}

impl AhAttr {
    /// The RoCE address `dgid`, sent to from the local GID at `sgid_index` of port 1.
    pub const fn roce(dgid: Gid, sgid_index: u32) -> Self {
        Self {
            grh: Some(GlobalRoute::new(dgid, sgid_index)),
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
            port_num: 1,
        }
    }
}
