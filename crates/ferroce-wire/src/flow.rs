//! The IP and UDP addressing of a packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The UDP destination port of RoCEv2.
pub const ROCE_UDP_PORT: u16 = 4791;

/// Source and destination address, which are always of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpPair {
    /// IPv4.
    V4 {
        /// Sender.
        src: Ipv4Addr,
        /// Receiver.
        dst: Ipv4Addr,
    },
    /// IPv6.
    V6 {
        /// Sender.
        src: Ipv6Addr,
        /// Receiver.
        dst: Ipv6Addr,
    },
}

impl IpPair {
    /// Pairs two addresses; `None` if they are of different families.
    #[inline]
    #[must_use]
    pub const fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src, dst }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src, dst }),
            _ => None,
        }
    }

    /// The sender.
    #[inline]
    #[must_use]
    pub const fn src(&self) -> IpAddr {
        match *self {
            Self::V4 { src, .. } => IpAddr::V4(src),
            Self::V6 { src, .. } => IpAddr::V6(src),
        }
    }

    /// The receiver.
    #[inline]
    #[must_use]
    pub const fn dst(&self) -> IpAddr {
        match *self {
            Self::V4 { dst, .. } => IpAddr::V4(dst),
            Self::V6 { dst, .. } => IpAddr::V6(dst),
        }
    }

    /// The pair as the receiver answers: source and destination exchanged.
    #[inline]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        match *self {
            Self::V4 { src, dst } => Self::V4 { src: dst, dst: src },
            Self::V6 { src, dst } => Self::V6 { src: dst, dst: src },
        }
    }
}

/// The parts of the IP and UDP headers that tell one flow from another, all of which the ICRC
/// covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The addresses.
    pub ip: IpPair,
    /// UDP source port.
    pub src_port: u16,
    /// UDP destination port, [`ROCE_UDP_PORT`] for RoCEv2.
    pub dst_port: u16,
}
