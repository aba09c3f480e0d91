use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A global identifier: for RoCEv2 an IPv6 address, or an IPv4 address mapped into one (IBTA annex A17.4.5.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gid([u8; 16]);

impl Gid {
    /// The GID with these bytes, in network order.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes in network order.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// The IP address that this GID stands for; an IPv4-mapped one comes back as IPv4.
    pub fn ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// Source and destination of a received datagram, from the 40 bytes before it. For RoCEv2 over IPv4 the IPv4 header is in the
    /// last 20 of them (IBTA annex A17.4.5.1), and is told from an IPv6 header by its version.
    pub fn of_grh(grh: &[u8; 40]) -> (Self, Self) {
        if grh[0] >> 4 == 6 {
            let part = |at: usize| {
                let mut bytes = [0; 16];
                bytes.copy_from_slice(&grh[at..at + 16]);
                Self(bytes)
            };
            (part(8), part(24))
        } else {
            let part = |at: usize| Self::from(std::net::Ipv4Addr::new(grh[at], grh[at + 1], grh[at + 2], grh[at + 3]));
            (part(32), part(36))
        }
    }

    /// Whether this is a multicast GID: IPv6 `ff00::/8`, or an IPv4-mapped `224.0.0.0/4`.
    pub fn is_multicast(self) -> bool {
        self.ip().is_multicast()
    }

    /// Whether all bytes are zero.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 16]
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => ip.into(),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self(ip.to_ipv6_mapped().octets())
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(ip: Ipv6Addr) -> Self {
        Self(ip.octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_ipv4_both_ways() {
        let gid = Gid::from(Ipv4Addr::new(10, 77, 0, 1));
        assert_eq!(gid.to_string(), "::ffff:10.77.0.1");
        assert_eq!(gid.ip(), IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)));
        assert!(!gid.is_multicast());
        assert!(Gid::from(Ipv4Addr::new(239, 1, 2, 3)).is_multicast());
        let six: Ipv6Addr = "fd77::1".parse().unwrap();
        assert_eq!(Gid::from(six).ip(), IpAddr::V6(six));
    }
}
