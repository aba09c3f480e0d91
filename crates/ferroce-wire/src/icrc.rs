//! The invariant CRC of RoCEv2 (IBTA annex A17, section A17.3.3): CRC-32 over everything that no
//! router may change, from the IP header to the pad.
//!
//! Covered are 8 bytes of ones in place of the InfiniBand local route header, the IP and UDP
//! headers, and the packet. Fields that routers change count as ones: IPv4 type of service, time to
//! live and header checksum; IPv6 traffic class, flow label and hop limit; the UDP checksum; byte 4
//! of the BTH.
//!
//! The IPv4 identification is *not* among them, and a UDP socket sees neither its own nor the
//! peer's. A CRC is linear, though: two packets that differ only in the identification have CRCs
//! whose difference tells in which bits. So [`check_icrc`] solves for it.

use crate::flow::{Flow, IpPair};
use crate::gf2;

/// Bytes of the ICRC at the end of a packet.
pub const ICRC_LEN: usize = 4;

/// The CRC of the 8 bytes of ones that stand in for the local route header.
const LRH_CRC: u32 = !0xdebb_20e3;

/// The byte of the BTH that holds the congestion bits, which a switch may set.
const ECN_BYTE: usize = 4;

const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const UDP_PROTOCOL: u8 = 17;

/// The flags and fragment offset of an IPv4 header with "don't fragment" set.
const DF: [u8; 2] = [0x40, 0];

/// Bytes of an IPv4 datagram between the fragment offset and the packet: TTL to addresses, and UDP.
const BETWEEN_FRAGMENT_AND_PACKET: usize = IPV4_LEN - 8 + UDP_LEN;

/// The longest packet that an IPv4 datagram holds beside the ICRC.
const MAX_PACKET: usize = u16::MAX as usize - IPV4_LEN - UDP_LEN - ICRC_LEN;

/// What a big-endian 16-bit field of the headers adds to their CRC, for each value of its two
/// bytes.
type FieldTable = [[u32; 256]; 2];

/// The table of the field at `offset` in headers of `len` bytes.
const fn field_table(offset: usize, len: usize) -> FieldTable {
    let mut table = [[0; 256]; 2];
    let mut byte = 0;
    while byte < 2 {
        // Once through the CRC register itself, then past every byte behind.
        let power = gf2::power_of_x(8 * (len - offset - byte) as u32);
        let mut value = 0;
        while value < 256 {
            table[byte][value] = gf2::mul(value as u32, power);
            value += 1;
        }
        byte += 1;
    }
    table
}

static V4_TOTAL_LEN: FieldTable = field_table(2, IPV4_LEN + UDP_LEN);
static V4_ID: FieldTable = field_table(4, IPV4_LEN + UDP_LEN);
static V6_PAYLOAD_LEN: FieldTable = field_table(4, IPV6_LEN + UDP_LEN);
/// The UDP header ends the headers of both versions, so one table does.
static UDP_LENGTH: FieldTable = field_table(4, UDP_LEN);

#[inline]
fn field(table: &FieldTable, value: u16) -> u32 {
    let [high, low] = value.to_be_bytes();
    table[0][usize::from(high)] ^ table[1][usize::from(low)]
}

/// The part of the ICRC that does not change from packet to packet of a flow.
///
/// For a sender or receiver that keeps one for each peer, the ICRC of a short packet takes half the
/// time that it takes [`icrc`] and [`check_icrc`], which make one anew: the CRC of the IP and UDP
/// headers is kept for lengths and identification 0, and what those add is looked up, because a CRC
/// is linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowIcrc {
    headers: u32,
    is_v4: bool,
}

impl FlowIcrc {
    /// Prepares for the packets of `flow`.
    #[inline]
    #[must_use]
    pub fn new(flow: &Flow) -> Self {
        let [s0, s1] = flow.src_port.to_be_bytes();
        let [d0, d1] = flow.dst_port.to_be_bytes();
        let udp: [u8; UDP_LEN] = [s0, s1, d0, d1, 0, 0, 0xff, 0xff];
        let mut crc = crc32fast::Hasher::new_with_initial(LRH_CRC);
        match flow.ip {
            IpPair::V4 { src, dst } => {
                let mut b = [0; IPV4_LEN + UDP_LEN];
                b[0..2].copy_from_slice(&[0x45, 0xff]);
                b[6..8].copy_from_slice(&DF);
                b[8..12].copy_from_slice(&[0xff, UDP_PROTOCOL, 0xff, 0xff]);
                b[12..16].copy_from_slice(&src.octets());
                b[16..20].copy_from_slice(&dst.octets());
                b[20..28].copy_from_slice(&udp);
                crc.update(&b);
            }
            IpPair::V6 { src, dst } => {
                let mut b = [0; IPV6_LEN + UDP_LEN];
                b[0..4].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff]);
                b[6..8].copy_from_slice(&[UDP_PROTOCOL, 0xff]);
                b[8..24].copy_from_slice(&src.octets());
                b[24..40].copy_from_slice(&dst.octets());
                b[40..48].copy_from_slice(&udp);
                crc.update(&b);
            }
        }
        Self { headers: crc.finalize(), is_v4: matches!(flow.ip, IpPair::V4 { .. }) }
    }

    /// The ICRC of `packet`: see [`icrc`].
    #[inline]
    #[must_use]
    pub fn icrc(&self, ip_id: u16, packet: &[u8]) -> u32 {
        let udp_len = (UDP_LEN + packet.len() + ICRC_LEN) as u16;
        let mut headers = self.headers ^ field(&UDP_LENGTH, udp_len);
        if self.is_v4 {
            headers ^= field(&V4_TOTAL_LEN, udp_len.wrapping_add(IPV4_LEN as u16));
            headers ^= field(&V4_ID, ip_id);
        } else {
            headers ^= field(&V6_PAYLOAD_LEN, udp_len);
        }
        let mut crc = crc32fast::Hasher::new_with_initial(headers);
        if let Some((&first, rest)) = packet.split_first_chunk::<16>() {
            let masked = u128::from_le_bytes(first) | 0xff << (8 * ECN_BYTE);
            crc.update(&masked.to_le_bytes());
            crc.update(rest);
        } else {
            let mut short = [0; 16];
            let short = &mut short[..packet.len()];
            short.copy_from_slice(packet);
            if let Some(byte) = short.get_mut(ECN_BYTE) {
                *byte = 0xff;
            }
            crc.update(short);
        }
        crc.finalize()
    }

    /// Checks the ICRC at the end of `packet_with_icrc`: see [`check_icrc`].
    #[inline]
    #[must_use]
    pub fn check(&self, id_hint: u16, packet_with_icrc: &[u8]) -> IcrcCheck {
        match self.difference(id_hint, packet_with_icrc) {
            Some((0, _)) => IcrcCheck::Ok,
            Some((difference, len)) if self.is_v4 => solve(difference, id_hint, len),
            _ => IcrcCheck::Bad,
        }
    }

    /// Checks the ICRC at the end of `packet_with_icrc`: see [`check_icrc_exact`].
    #[inline]
    #[must_use]
    pub fn check_exact(&self, ip_id: u16, packet_with_icrc: &[u8]) -> bool {
        let difference = self.difference(ip_id, packet_with_icrc);
        difference.is_some_and(|(difference, _)| difference == 0)
    }

    /// The received ICRC less the right one, and the length of the packet without it.
    #[inline]
    fn difference(&self, ip_id: u16, packet_with_icrc: &[u8]) -> Option<(u32, usize)> {
        let (packet, &received) = packet_with_icrc.split_last_chunk::<ICRC_LEN>()?;
        let difference = u32::from_le_bytes(received) ^ self.icrc(ip_id, packet);
        Some((difference, packet.len()))
    }
}

/// The ICRC of `packet` (BTH up to and including the pad, without the ICRC), to be stored behind it
/// in **little-endian** byte order.
///
/// `ip_id` is the identification that the IPv4 header will carry, "don't fragment" being set; IPv6
/// has none and ignores it. A packet longer than a datagram can be has its lengths taken modulo
/// 2^16.
#[inline]
#[must_use]
pub fn icrc(flow: &Flow, ip_id: u16, packet: &[u8]) -> u32 {
    FlowIcrc::new(flow).icrc(ip_id, packet)
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

/// Checks the ICRC at the end of `packet_with_icrc` (BTH up to and including the ICRC), all 32 bits
/// of it.
///
/// For whoever knows the identification: a receiver that sees IP headers, a link that both ends
/// agree on, a sender that promises one. IPv6 has none and ignores it. Never panics.
#[inline]
#[must_use]
pub fn check_icrc_exact(flow: &Flow, ip_id: u16, packet_with_icrc: &[u8]) -> bool {
    FlowIcrc::new(flow).check_exact(ip_id, packet_with_icrc)
}

/// Checks the ICRC at the end of `packet_with_icrc` (BTH up to and including the ICRC) for a
/// receiver that does not see the IPv4 header.
///
/// With IPv6, or with IPv4 and the right `id_hint`, all 32 bits are checked. With IPv4 and another
/// identification the function solves for it, and also allows for a sender that leaves "don't
/// fragment" clear: of 32 bits 17 are then free, and a random corruption goes unnoticed with
/// probability 2^-15. A single wrong bit is not quite random: it passes or not by its place in the
/// packet, and about one place in 2^15 passes. What the Ethernet frame check sequence catches does
/// not get here. Never panics.
#[inline]
#[must_use]
pub fn check_icrc(flow: &Flow, id_hint: u16, packet_with_icrc: &[u8]) -> IcrcCheck {
    FlowIcrc::new(flow).check(id_hint, packet_with_icrc)
}

/// Finds the identification that explains `difference`, the right CRC being that for `id_hint` and
/// DF.
///
/// Let the two IPv4 headers differ by the polynomial d in the four bytes of identification and
/// fragment offset, with n bytes behind them. Then the CRCs differ by d * x^(8n + 32), whose
/// inverse power is known, and d comes out as the four bytes themselves.
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
