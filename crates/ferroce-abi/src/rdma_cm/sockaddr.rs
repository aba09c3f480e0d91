//! Socket addresses as the kernel has them.

use super::wire::{AF_INET, AF_INET6, SOCKADDR_STORAGE};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// `struct sockaddr_in` or `struct sockaddr_in6`, and its length.
pub(super) fn encode(addr: SocketAddr) -> ([u8; SOCKADDR_STORAGE], u16) {
    let mut out = [0; SOCKADDR_STORAGE];
    out[2..4].copy_from_slice(&addr.port().to_be_bytes());
    match addr {
        SocketAddr::V4(v4) => {
            out[..2].copy_from_slice(&AF_INET.to_ne_bytes());
            out[4..8].copy_from_slice(&v4.ip().octets());
            (out, 16)
        }
        SocketAddr::V6(v6) => {
            out[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
            out[8..24].copy_from_slice(&v6.ip().octets());
            out[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            (out, 28)
        }
    }
}

/// `None`: no address, or one of another family.
pub(super) fn decode(storage: &[u8; SOCKADDR_STORAGE]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes([storage[0], storage[1]]);
    let port = u16::from_be_bytes([storage[2], storage[3]]);
    match family {
        AF_INET => {
            let ip = Ipv4Addr::new(storage[4], storage[5], storage[6], storage[7]);
            Some(SocketAddr::new(IpAddr::V4(ip), port))
        }
        AF_INET6 => {
            let ip: [u8; 16] = storage[8..24].try_into().ok()?;
            let scope_id = u32::from_ne_bytes(storage[24..28].try_into().ok()?);
            Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope_id).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_back_as_they_were() {
        for text in ["10.77.0.1:7471", "[fd77::1]:7174", "[fe80::1%3]:1"] {
            let addr: SocketAddr = text.parse().unwrap();
            let (storage, length) = encode(addr);
            assert_eq!(length, if addr.is_ipv4() { 16 } else { 28 });
            assert_eq!(decode(&storage), Some(addr));
        }
        assert_eq!(decode(&[0; SOCKADDR_STORAGE]), None);
    }
}
