//! The invariant CRC of RoCEv2 (IBTA annex A17, section A17.3.3): CRC-32 over everything that no router
//! may change, from the IP header to the pad.
//!
//! Covered are 8 bytes of ones in place of the InfiniBand local route header, the IP and UDP headers, and the
//! packet. Fields that routers change count as ones: IPv4 type of service, time to live and header
//! checksum; IPv6 traffic class, flow label and hop limit; the UDP checksum; byte 4 of the BTH.
//!
//! The IPv4 identification is *not* among them, and a UDP socket sees neither its own nor the peer's. A
//! CRC is linear, though: two packets that differ only in the identification have CRCs whose difference
//! tells in which bits. So [`check_icrc`] solves for it.

use crate::flow::{Flow, IpPair};
use crate::gf2;
use crate::headers::BTH_LEN;

/// Bytes of the ICRC at the end of a packet.
pub const ICRC_LEN: usize = 4;

/// The CRC of the 8 bytes of ones that stand in for the local route header.
const LRH_CRC: u32 = !0xdebb_20e3;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const UDP_PROTOCOL: u8 = 17;

/// The flags and fragment offset of an IPv4 header with "don't fragment" set and not.
const DF: [u8; 2] = [0x40, 0];

/// Bytes of an IPv4 datagram between the fragment offset and the packet: TTL to addresses, and UDP.
const BETWEEN_FRAGMENT_AND_PACKET: usize = IPV4_LEN - 8 + UDP_LEN;

/// The longest packet that a UDP datagram holds beside the ICRC, whichever the IP version.
const MAX_PACKET: usize = u16::MAX as usize - IPV4_LEN - UDP_LEN - ICRC_LEN;

/// The CRC of `headers`, then the packet with byte 4 of its BTH masked.
#[inline]
fn finish<const IP_UDP: usize, const ALL: usize>(headers: &[u8; IP_UDP], packet: &[u8]) -> u32 {
    const { assert!(ALL == IP_UDP + BTH_LEN) };
    let mut crc = crc32fast::Hasher::new_with_initial(LRH_CRC);
    if let Some((bth, rest)) = packet.split_first_chunk::<BTH_LEN>() {
        // One run over all that is masked, one over all that is not.
        let mut masked = [0; ALL];
        masked[..IP_UDP].copy_from_slice(headers);
        masked[IP_UDP..].copy_from_slice(bth);
        masked[IP_UDP + 4] = 0xff;
        crc.update(&masked);
        crc.update(rest);
    } else {
        // Shorter than a BTH: no packet, but still a defined value.
        let mut short = [0; BTH_LEN];
        let short = &mut short[..packet.len()];
        short.copy_from_slice(packet);
        if let Some(byte) = short.get_mut(4) {
            *byte = 0xff;
        }
        crc.update(headers);
        crc.update(short);
    }
    crc.finalize()
}

#[inline]
fn udp_header(flow: &Flow, udp_len: u16) -> [u8; UDP_LEN] {
    let [s0, s1] = flow.src_port.to_be_bytes();
    let [d0, d1] = flow.dst_port.to_be_bytes();
    let [l0, l1] = udp_len.to_be_bytes();
    [s0, s1, d0, d1, l0, l1, 0xff, 0xff]
}

/// The ICRC of `packet` (BTH up to and including the pad, without the ICRC), to be stored behind it in
/// **little-endian** byte order.
///
/// `ip_id` is the identification that the IPv4 header will carry, "don't fragment" being set; IPv6 has
/// none and ignores it. A packet longer than a datagram can be has its lengths taken modulo 2^16.
#[inline]
#[must_use]
pub fn icrc(flow: &Flow, ip_id: u16, packet: &[u8]) -> u32 {
    let udp_len = (UDP_LEN + packet.len() + ICRC_LEN) as u16;
    match flow.ip {
        IpPair::V4 { src, dst } => {
            let mut b = [0xff; IPV4_LEN + UDP_LEN];
            b[0] = 0x45;
            b[2..4].copy_from_slice(&udp_len.wrapping_add(IPV4_LEN as u16).to_be_bytes());
            b[4..6].copy_from_slice(&ip_id.to_be_bytes());
            b[6..8].copy_from_slice(&DF);
            b[9] = UDP_PROTOCOL;
            b[12..16].copy_from_slice(&src.octets());
            b[16..20].copy_from_slice(&dst.octets());
            b[20..].copy_from_slice(&udp_header(flow, udp_len));
            finish::<{ IPV4_LEN + UDP_LEN }, { IPV4_LEN + UDP_LEN + BTH_LEN }>(&b, packet)
        }
        IpPair::V6 { src, dst } => {
            let mut b = [0xff; IPV6_LEN + UDP_LEN];
            b[0] = 0x6f;
            b[4..6].copy_from_slice(&udp_len.to_be_bytes());
            b[6] = UDP_PROTOCOL;
            b[8..24].copy_from_slice(&src.octets());
            b[24..40].copy_from_slice(&dst.octets());
            b[40..].copy_from_slice(&udp_header(flow, udp_len));
            finish::<{ IPV6_LEN + UDP_LEN }, { IPV6_LEN + UDP_LEN + BTH_LEN }>(&b, packet)
        }
    }
}

/// What [`check_icrc`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcrcCheck {
    /// Right, with the identification that was expected.
    Ok,
    /// Right if the IPv4 header carried this identification.
    OkWithId(u16),
    /// Wrong whatever the identification, or too short to hold an ICRC.
    Bad,
}

impl IcrcCheck {
    /// Whether the packet may be used.
    #[inline]
    #[must_use]
    pub const fn is_ok(self) -> bool {
        !matches!(self, Self::Bad)
    }
}

/// Checks the ICRC at the end of `packet_with_icrc` (BTH up to and including the ICRC).
///
/// With IPv6, or with IPv4 and the right `id_hint`, all 32 bits are checked. With IPv4 and another
/// identification the function solves for it, and also allows for a sender that leaves "don't fragment"
/// clear: of 32 bits 17 are then free, and a random corruption goes unnoticed with probability 2^-15. The
/// UDP checksum, where there is one, catches most of the rest. Never panics.
#[inline]
#[must_use]
pub fn check_icrc(flow: &Flow, id_hint: u16, packet_with_icrc: &[u8]) -> IcrcCheck {
    let Some((packet, &received)) = packet_with_icrc.split_last_chunk::<ICRC_LEN>() else {
        return IcrcCheck::Bad;
    };
    let difference = u32::from_le_bytes(received) ^ icrc(flow, id_hint, packet);
    if difference == 0 {
        return IcrcCheck::Ok;
    }
    match flow.ip {
        IpPair::V4 { .. } => solve(difference, id_hint, packet.len()),
        IpPair::V6 { .. } => IcrcCheck::Bad,
    }
}

/// Finds the identification that explains `difference`, the right CRC being that for `id_hint` and DF.
///
/// Let the two IPv4 headers differ by the polynomial d in the four bytes of identification and
/// fragment offset, with n bytes behind them. Then the CRCs differ by d * x^(8n + 32), whose inverse power
/// is known, and d comes out as the four bytes themselves.
fn solve(difference: u32, id_hint: u16, packet_len: usize) -> IcrcCheck {
    if packet_len > MAX_PACKET {
        return IcrcCheck::Bad;
    }
    let behind = BETWEEN_FRAGMENT_AND_PACKET + packet_len;
    // 4 more for the 32 bits of the CRC itself; MAX_PACKET keeps the sum within 16 bits.
    let [id_hi, id_lo, fragment @ ..] = gf2::unshift_bytes(difference, (behind + 4) as u16).to_le_bytes();
    if fragment == [0, 0] || fragment == DF {
        IcrcCheck::OkWithId(id_hint ^ u16::from_be_bytes([id_hi, id_lo]))
    } else {
        IcrcCheck::Bad
    }
}
