//! The 40 bytes that precede a received datagram (IBTA 11.4.1.2, annex A17).
//!
//! InfiniBand puts the global route header there, and RoCEv2 the IP header: for IPv6, which has the
//! same layout, all 40 bytes; for IPv4, the last 20, with the first 20 zero. A receiver reads the
//! sender's address from it in order to answer.

use crate::checksum;
use crate::error::ParseError;
use crate::flow::IpPair;

/// Bytes before the payload of a datagram receive.
pub const GRH_LEN: usize = 40;

const IPV4_AT: usize = 20;
const UDP_PROTOCOL: u8 = 17;

/// The IP header of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grh {
    /// Sender and receiver.
    pub ip: IpPair,
    /// IPv4 type of service or IPv6 traffic class.
    pub tclass: u8,
    /// IPv4 time to live or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; 0 with IPv4.
    pub flow_label: u32,
    /// Bytes after the IP header: UDP header, packet and ICRC.
    pub payload_len: u16,
}

impl Grh {
    /// Writes the 40 bytes. The IPv4 header has a right checksum, which is how libibverbs tells it
    /// from the tail of an IPv6 address; its identification is 0 and "don't fragment" is set. An
    /// IPv4 total length beyond 65535 saturates.
    #[inline]
    pub fn emit(&self, out: &mut [u8; GRH_LEN]) {
        match self.ip {
            IpPair::V4 { src, dst } => {
                let (zero, b) = out.split_at_mut(IPV4_AT);
                zero.fill(0);
                b[0] = 0x45;
                b[1] = self.tclass;
                let total = self.payload_len.saturating_add(20);
                b[2..4].copy_from_slice(&total.to_be_bytes());
                b[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
                b[8] = self.hop_limit;
                b[9] = UDP_PROTOCOL;
                b[10..12].fill(0);
                b[12..16].copy_from_slice(&src.octets());
                b[16..20].copy_from_slice(&dst.octets());
                let checksum = checksum::of(b);
                b[10..12].copy_from_slice(&checksum.to_be_bytes());
            }
            IpPair::V6 { src, dst } => {
                let word = 6 << 28 | u32::from(self.tclass) << 20 | self.flow_label & 0xf_ffff;
                out[0..4].copy_from_slice(&word.to_be_bytes());
                out[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
                out[6] = UDP_PROTOCOL;
                out[7] = self.hop_limit;
                out[8..24].copy_from_slice(&src.octets());
                out[24..40].copy_from_slice(&dst.octets());
            }
        }
    }

    /// Reads the 40 bytes, whoever wrote them: this device, the kernel's Soft-RoCE, or a NIC.
    ///
    /// As in libibverbs, a header with version 6 may still be IPv4 behind 20 undefined bytes: it is
    /// if the last 20 bytes are an IPv4 header with a right checksum.
    ///
    /// # Errors
    ///
    /// [`ParseError::NoIpHeader`] if neither header is there.
    pub fn parse(bytes: &[u8; GRH_LEN]) -> Result<Self, ParseError> {
        let v4: &[u8; 20] = bytes.last_chunk().expect("40 bytes end in 20");
        let is_v6 = bytes[0] >> 4 == 6;
        let is_v4 = v4[0] == 0x45 && (!is_v6 || checksum::of(v4) == 0);
        if is_v4 {
            let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *v4;
            return Ok(Self {
                ip: IpPair::V4 { src: [s0, s1, s2, s3].into(), dst: [d0, d1, d2, d3].into() },
                tclass: v4[1],
                hop_limit: v4[8],
                flow_label: 0,
                payload_len: u16::from_be_bytes([v4[2], v4[3]]).saturating_sub(20),
            });
        }
        if !is_v6 {
            return Err(ParseError::NoIpHeader);
        }
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let address = |at: usize| -> [u8; 16] { bytes[at..at + 16].try_into().expect("16 bytes of 40") };
        Ok(Self {
            ip: IpPair::V6 { src: address(8).into(), dst: address(24).into() },
            tclass: (word >> 20) as u8,
            hop_limit: bytes[7],
            flow_label: word & 0xf_ffff,
            payload_len: u16::from_be_bytes([bytes[4], bytes[5]]),
        })
    }
}
