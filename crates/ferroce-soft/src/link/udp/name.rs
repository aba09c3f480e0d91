//! Socket addresses as the kernel has them, in safe code.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Address family of the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    /// `AF_INET`: IPv4 only.
    V4,
    /// `AF_INET6`: IPv6, and IPv4 as mapped addresses unless bound to one address.
    V6,
}

const V4_LEN: usize = 16;
const V6_LEN: usize = 28;

/// A `sockaddr_in` or `sockaddr_in6` (their layout is kernel ABI, `include/uapi/linux/in.h` and `in6.h`).
#[derive(Clone, Copy, Default)]
#[repr(C, align(8))]
pub(super) struct SockName {
    bytes: [u8; V6_LEN],
    len: u32,
}

impl SockName {
    /// The name of `addr` for a socket of `family`: an `AF_INET6` socket gets IPv4 addresses mapped.
    pub(super) fn encode(family: Family, addr: &SocketAddr) -> Self {
        let mut bytes = [0; V6_LEN];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(2, &addr.port().to_be_bytes());
        let len = match (family, addr) {
            (Family::V4, SocketAddr::V4(v4)) => {
                put(0, &(libc::AF_INET as u16).to_ne_bytes());
                put(4, &v4.ip().octets());
                V4_LEN
            }
            (Family::V6, SocketAddr::V4(v4)) => {
                put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
                put(8, &v4.ip().to_ipv6_mapped().octets());
                V6_LEN
            }
            // On an AF_INET socket the kernel answers EAFNOSUPPORT, which counts as unreachable.
            (_, SocketAddr::V6(v6)) => {
                put(0, &(libc::AF_INET6 as u16).to_ne_bytes());
                put(4, &v6.flowinfo().to_be_bytes());
                put(8, &v6.ip().octets());
                put(24, &v6.scope_id().to_ne_bytes());
                V6_LEN
            }
        };
        Self { bytes, len: len as u32 }
    }

    /// The address; mapped IPv4 addresses come out as IPv4. `None` if the kernel gave none.
    pub(super) fn decode(&self) -> Option<SocketAddr> {
        let bytes = self.as_bytes();
        let family = u16::from_ne_bytes(*bytes.first_chunk()?);
        let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
        match i32::from(family) {
            libc::AF_INET => {
                let octets: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
                Some(SocketAddrV4::new(octets.into(), port).into())
            }
            libc::AF_INET6 => {
                let octets: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
                let ip = Ipv6Addr::from(octets);
                if let Some(v4) = ip.to_ipv4_mapped() {
                    return Some(SocketAddrV4::new(v4, port).into());
                }
                let scope = u32::from_ne_bytes(*bytes.get(24..)?.first_chunk()?);
                Some(SocketAddrV6::new(ip, port, 0, scope).into())
            }
            _ => None,
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    /// All of the space, for the kernel to fill.
    pub(super) fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// How much of the space the kernel filled.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(V6_LEN) as u32;
    }
}

/// The IPv4 address that an IPv6 address maps, else the address itself.
pub(super) fn unmap(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// Whether `ip` is the wildcard of its family.
pub(super) fn is_wildcard(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(Ipv4Addr::UNSPECIFIED) | IpAddr::V6(Ipv6Addr::UNSPECIFIED))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let v4: SocketAddr = "10.1.2.3:4791".parse().unwrap();
        let v6: SocketAddr = "[fe80::1%7]:4791".parse().unwrap();
        for family in [Family::V4, Family::V6] {
            assert_eq!(SockName::encode(family, &v4).decode(), Some(v4));
            assert_eq!(SockName::encode(family, &v6).decode(), Some(v6));
        }
        assert_eq!(SockName::encode(Family::V4, &v4).as_bytes().len(), 16);
        assert_eq!(SockName::encode(Family::V6, &v4).as_bytes().len(), 28);
    }

    #[test]
    fn every_cut_of_a_name_is_refused() {
        let v6: SocketAddr = "[2001:db8::1]:4791".parse().unwrap();
        let mut name = SockName::encode(Family::V6, &v6);
        for len in 0..V6_LEN {
            name.set_len(len);
            assert_eq!(name.decode(), None, "{len} bytes");
        }
    }
}
