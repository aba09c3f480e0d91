//! Captures: complete Ethernet frames around RoCEv2 packets, and the pcap file format to keep them
//! in.
//!
//! These functions build bytes; writing them to a file is the caller's. Wireshark and tshark read
//! the result.

use crate::checksum;
use crate::flow::{Flow, IpPair};

/// What a frame needs beyond the flow: the link addresses and the IP fields that routers may
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameMeta {
    /// Sender's link address.
    pub src_mac: [u8; 6],
    /// Receiver's link address.
    pub dst_mac: [u8; 6],
    /// IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// IPv4 identification, which the ICRC covers; IPv6 has none.
    pub ip_id: u16,
}

const UDP_LEN: usize = 8;
const UDP_PROTOCOL: u8 = 17;

/// Appends to `out` the Ethernet frame (without preamble and frame check sequence) that carries
/// `packet_with_icrc` (BTH up to and including the ICRC).
///
/// IPv4 has "don't fragment" set, a right header checksum and, as RoCEv2 senders do it, no UDP
/// checksum; IPv6 has a UDP checksum, which it requires, and flow label 0. Lengths of a packet
/// longer than a datagram can be are taken modulo 2^16. Allocates only if `out` has to grow.
pub fn ethernet_frame(flow: &Flow, meta: &FrameMeta, packet_with_icrc: &[u8], out: &mut Vec<u8>) {
    let udp_len = (UDP_LEN + packet_with_icrc.len()) as u16;
    out.reserve(14 + 40 + UDP_LEN + packet_with_icrc.len());
    out.extend_from_slice(&meta.dst_mac);
    out.extend_from_slice(&meta.src_mac);
    match flow.ip {
        IpPair::V4 { src, dst } => {
            out.extend_from_slice(&0x0800u16.to_be_bytes());
            let ip = out.len();
            out.extend_from_slice(&[0x45, meta.tos]);
            out.extend_from_slice(&udp_len.wrapping_add(20).to_be_bytes());
            out.extend_from_slice(&meta.ip_id.to_be_bytes());
            out.extend_from_slice(&[0x40, 0, meta.ttl, UDP_PROTOCOL, 0, 0]);
            out.extend_from_slice(&src.octets());
            out.extend_from_slice(&dst.octets());
            let checksum = checksum::of(&out[ip..]);
            out[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());
        }
        IpPair::V6 { src, dst } => {
            out.extend_from_slice(&0x86ddu16.to_be_bytes());
            out.extend_from_slice(&(6 << 28 | u32::from(meta.tos) << 20).to_be_bytes());
            out.extend_from_slice(&udp_len.to_be_bytes());
            out.extend_from_slice(&[UDP_PROTOCOL, meta.ttl]);
            out.extend_from_slice(&src.octets());
            out.extend_from_slice(&dst.octets());
        }
    }
    let udp = out.len();
    for word in [flow.src_port, flow.dst_port, udp_len, 0] {
        out.extend_from_slice(&word.to_be_bytes());
    }
    out.extend_from_slice(packet_with_icrc);
    if let IpPair::V6 { src, dst } = flow.ip {
        // RFC 8200 section 8.1: the pseudo-header is the addresses, the length and the protocol.
        let sum = u32::from(UDP_PROTOCOL) + u32::from(udp_len);
        let sum = checksum::sum(sum, &src.octets());
        let sum = checksum::sum(sum, &dst.octets());
        let checksum = match checksum::finish(checksum::sum(sum, &out[udp..])) {
            0 => 0xffff,
            checksum => checksum,
        };
        out[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// Bytes of a pcap file header.
pub const PCAP_HEADER_LEN: usize = 24;

/// Bytes before each frame of a pcap file.
pub const PCAP_RECORD_LEN: usize = 16;

/// Longest frame that the file header allows.
const SNAP_LEN: u32 = 262_144;

/// The header of a classic pcap file (little-endian, nanosecond timestamps, Ethernet frames).
#[must_use]
pub fn pcap_header() -> [u8; PCAP_HEADER_LEN] {
    const NANOSECOND_MAGIC: u32 = 0xa1b2_3c4d;
    const VERSION_2_4: u32 = 4 << 16 | 2;
    const LINKTYPE_ETHERNET: u32 = 1;
    let mut out = [0; PCAP_HEADER_LEN];
    // Time zone and accuracy, the two words between, are zero in practice.
    let words = [NANOSECOND_MAGIC, VERSION_2_4, 0, 0, SNAP_LEN, LINKTYPE_ETHERNET];
    for (field, word) in out.as_chunks_mut().0.iter_mut().zip(words) {
        *field = word.to_le_bytes();
    }
    out
}

/// The header of one record, to be followed by the `frame_len` bytes of the frame.
///
/// `time_ns` is the time of capture in nanoseconds since the Unix epoch; the format ends in the
/// year 2106.
#[must_use]
pub fn pcap_record(time_ns: u64, frame_len: usize) -> [u8; PCAP_RECORD_LEN] {
    const SECOND: u64 = 1_000_000_000;
    let len = u32::try_from(frame_len).unwrap_or(u32::MAX);
    let words = [(time_ns / SECOND) as u32, (time_ns % SECOND) as u32, len, len];
    let mut out = [0; PCAP_RECORD_LEN];
    for (field, word) in out.as_chunks_mut().0.iter_mut().zip(words) {
        *field = word.to_le_bytes();
    }
    out
}
