//! Ancillary data of the IP and UDP layers, encoded and decoded in safe code.
//!
//! The layout is kernel ABI (`include/linux/socket.h`): a `cmsghdr` is a word-sized length that includes the header,
//! then level and type as two 32-bit integers; the next one begins at the next word boundary.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::name::Family;

const WORD: usize = size_of::<usize>();
const HEADER: usize = WORD + 8;
const fn aligned(len: usize) -> usize {
    len.next_multiple_of(WORD)
}

/// Room for packet info of IPv6, TTL, TOS and a segment size, which is all that is asked for.
const SPACE: usize = 40 + 3 * 24;

pub(super) const UDP_SEGMENT: libc::c_int = 103;
pub(super) const UDP_GRO: libc::c_int = 104;

/// Ancillary data of one message.
#[derive(Clone)]
#[repr(C, align(8))]
pub(super) struct Control {
    bytes: [u8; SPACE],
    len: usize,
}

impl Default for Control {
    fn default() -> Self {
        Self { bytes: [0; SPACE], len: 0 }
    }
}

/// What the kernel tells of a received datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RxInfo {
    /// Destination address in the IP header.
    pub(super) dst: Option<IpAddr>,
    /// Interface that the datagram came in by.
    pub(super) ifindex: u32,
    /// IPv4 type of service or IPv6 traffic class.
    pub(super) tos: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub(super) ttl: u8,
    /// Size of each datagram that GRO joined, but the last, which may be shorter. 0: not joined.
    pub(super) segment: usize,
}

impl Control {
    /// Source address, type of service and time to live of a packet to be sent. `tos` 0 and `ttl` 0 leave the socket's own.
    ///
    /// `scope` is the interface index, for link-local IPv6 addresses only, else 0.
    pub(super) fn for_packet(family: Family, local: IpAddr, scope: u32, tos: u8, ttl: u8) -> Self {
        let mut control = Self::default();
        let v4 = local.is_ipv4();
        match (family, local) {
            (Family::V4, IpAddr::V4(v4)) => {
                // struct in_pktinfo: interface, source, and a destination that is not read.
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&v4.octets());
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            (Family::V6, IpAddr::V4(v4)) => control.push_info6(v4.to_ipv6_mapped(), 0),
            (_, IpAddr::V6(v6)) => control.push_info6(v6, scope),
        }
        if tos != 0 {
            let value = i32::from(tos).to_ne_bytes();
            if v4 {
                control.push(libc::IPPROTO_IP, libc::IP_TOS, &value);
            } else {
                control.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &value);
            }
        }
        if ttl != 0 {
            let value = i32::from(ttl).to_ne_bytes();
            if v4 {
                control.push(libc::IPPROTO_IP, libc::IP_TTL, &value);
            } else {
                control.push(libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT, &value);
            }
        }
        control
    }

    fn push_info6(&mut self, source: Ipv6Addr, scope: u32) {
        // struct in6_pktinfo: source, interface.
        let mut info = [0; 20];
        info[..16].copy_from_slice(&source.octets());
        info[16..].copy_from_slice(&scope.to_ne_bytes());
        self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
    }

    /// Asks the kernel to cut the payload into datagrams of `segment` bytes.
    pub(super) fn push_segment(&mut self, segment: u16) {
        self.push(libc::SOL_UDP, UDP_SEGMENT, &segment.to_ne_bytes());
    }

    /// Takes back [`push_segment`](Self::push_segment), if that was the last thing pushed.
    pub(super) fn pop_segment(&mut self) {
        self.len -= HEADER + aligned(size_of::<u16>());
    }

    fn push(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        let space = &mut self.bytes[self.len..][..HEADER + aligned(data.len())];
        space[..WORD].copy_from_slice(&(HEADER + data.len()).to_ne_bytes());
        space[WORD..WORD + 4].copy_from_slice(&level.to_ne_bytes());
        space[WORD + 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        space[HEADER..HEADER + data.len()].copy_from_slice(data);
        self.len += HEADER + aligned(data.len());
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// All of the space, for the kernel to fill.
    pub(super) fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// How much of the space the kernel filled.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(SPACE);
    }

    /// Reads what the kernel told of a received datagram.
    pub(super) fn decode(&self) -> RxInfo {
        let mut info = RxInfo::default();
        let mut rest = self.as_bytes();
        while let Some((header, _)) = rest.split_first_chunk::<HEADER>() {
            let (len, header) = header.split_at(WORD);
            let len = usize::from_ne_bytes(len.try_into().expect("split at a word"));
            let Some(data) = rest.get(HEADER..len) else {
                break;
            };
            let level = i32::from_ne_bytes(header[..4].try_into().expect("eight bytes"));
            let kind = i32::from_ne_bytes(header[4..].try_into().expect("eight bytes"));
            info.note(level, kind, data);
            rest = rest.get(aligned(len)..).unwrap_or_default();
        }
        info
    }
}

impl RxInfo {
    fn note(&mut self, level: libc::c_int, kind: libc::c_int, data: &[u8]) {
        let word = |at: usize| -> Option<[u8; 4]> { data.get(at..)?.first_chunk().copied() };
        match (level, kind) {
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let (Some(octets), Some(index)) = (data.first_chunk::<16>(), word(16)) {
                    self.dst = Some(super::name::unmap(Ipv6Addr::from(*octets).into()));
                    self.ifindex = u32::from_ne_bytes(index);
                }
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let (Some(index), Some(dst)) = (word(0), word(8)) {
                    self.dst = Some(Ipv4Addr::from(dst).into());
                    self.ifindex = u32::from_ne_bytes(index);
                }
            }
            // The one that is a single byte.
            (libc::IPPROTO_IP, libc::IP_TOS) => self.tos = data.first().copied().unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                self.tos = word(0).map_or(0, |w| i32::from_ne_bytes(w) as u8);
            }
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                self.ttl = word(0).map_or(0, |w| i32::from_ne_bytes(w) as u8);
            }
            (libc::SOL_UDP, UDP_GRO) => {
                let size = word(0).map_or(0, i32::from_ne_bytes);
                self.segment = usize::try_from(size).unwrap_or(0);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_packets_data_is_read_back() {
        let local: IpAddr = "fe80::7".parse().unwrap();
        let mut control = Control::for_packet(Family::V6, local, 3, 0x62, 17);
        control.push_segment(1100);
        let info = control.decode();
        assert_eq!((info.dst, info.ifindex), (Some(local), 3));
        assert_eq!((info.tos, info.ttl), (0x62, 17));
        let local: IpAddr = "10.0.0.9".parse().unwrap();
        let control = Control::for_packet(Family::V6, local, 3, 0x62, 17);
        let info = control.decode();
        assert_eq!((info.dst, info.ifindex), (Some(local), 0));
        assert_eq!((info.tos, info.ttl), (0x62, 17));
    }

    proptest! {
        #[test]
        fn any_bytes_are_legal_input(bytes: [u8; SPACE], len in 0..=SPACE) {
            let mut control = Control { bytes, len: 0 };
            control.set_len(len);
            let _ = control.decode();
        }
    }
}
