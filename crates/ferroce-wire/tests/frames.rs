//! Ethernet frames, pcap headers and the GRH.

mod common;

use common::{flow_v4, flow_v6};
use ferroce_wire::capture::{pcap_header, pcap_record};
use ferroce_wire::{FrameMeta, GRH_LEN, Grh, IpPair, ParseError, ethernet_frame};
use proptest::prelude::*;

const META: FrameMeta =
    FrameMeta { src_mac: [2, 0, 0, 0, 0, 1], dst_mac: [2, 0, 0, 0, 0, 2], ttl: 63, tos: 0x6a, ip_id: 0x1234 };

/// The ones' complement sum, one word at a time with the carry put back at once.
fn ones_complement(bytes: &[u8]) -> u16 {
    let mut sum = 0u16;
    for pair in bytes.chunks(2) {
        let word = u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]);
        let (low, carry) = sum.overflowing_add(word);
        sum = low + u16::from(carry);
    }
    sum
}

#[test]
fn a_v4_frame() {
    let mut out = b"before".to_vec();
    ethernet_frame(&flow_v4(), &META, b"packet and icrc!", &mut out);
    let frame = out.strip_prefix(b"before").unwrap();
    #[rustfmt::skip]
    assert_eq!(frame[..24], [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00,
        0x45, 0x6a, 0, 44, 0x12, 0x34, 0x40, 0, 63, 17,
    ]);
    assert_eq!(ones_complement(&frame[14..34]), 0xffff);
    assert_eq!(frame[26..34], [192, 0, 2, 1, 192, 0, 2, 2]);
    assert_eq!(frame[34..42], [0xc1, 0x23, 0x12, 0xb7, 0, 24, 0, 0]);
    assert_eq!(&frame[42..], b"packet and icrc!");
}

#[test]
fn a_v6_frame() {
    let mut frame = Vec::new();
    ethernet_frame(&flow_v6(), &META, b"an odd one.", &mut frame);
    assert_eq!(frame[12..22], [0x86, 0xdd, 0x66, 0xa0, 0, 0, 0, 19, 17, 63]);
    assert_eq!(frame[54..60], [0xc1, 0x23, 0x12, 0xb7, 0, 19]);
    // The pseudo-header, in the order of RFC 8200.
    let mut covered = frame[22..54].to_vec();
    covered.extend_from_slice(&[0, 0, 0, 19, 0, 0, 0, 17]);
    covered.extend_from_slice(&frame[54..]);
    assert_eq!(ones_complement(&covered), 0xffff);
    assert_eq!(&frame[62..], b"an odd one.");
}

#[test]
fn a_v6_checksum_of_zero_is_sent_as_ones() {
    // Vary two bytes until the sum is all ones, whose complement would read "no checksum".
    let mut seen = false;
    for filler in 0..=u16::MAX {
        let mut frame = Vec::new();
        ethernet_frame(&flow_v6(), &META, &filler.to_be_bytes(), &mut frame);
        assert_ne!(frame[60..62], [0, 0]);
        seen |= frame[60..62] == [0xff, 0xff];
    }
    assert!(seen);
}

#[test]
fn pcap_bytes() {
    #[rustfmt::skip]
    assert_eq!(pcap_header(), [
        0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0,
    ]);
    assert_eq!(pcap_record(3_000_000_002, 258), [3, 0, 0, 0, 2, 0, 0, 0, 2, 1, 0, 0, 2, 1, 0, 0]);
}

#[test]
fn grh_of_v4() {
    let grh = Grh { ip: flow_v4().ip, tclass: 0x6a, hop_limit: 63, flow_label: 0, payload_len: 288 };
    let mut bytes = [0xee; GRH_LEN];
    grh.emit(&mut bytes);
    assert_eq!(bytes[..20], [0; 20]);
    assert_eq!(bytes[20..30], [0x45, 0x6a, 1, 52, 0, 0, 0x40, 0, 63, 17]);
    assert_eq!(ones_complement(&bytes[20..]), 0xffff);
    assert_eq!(bytes[32..], [192, 0, 2, 1, 192, 0, 2, 2]);
    assert_eq!(Grh::parse(&bytes), Ok(grh));

    // Some devices leave the first half undefined; what looks like IPv6 there does not mislead.
    bytes[0] = 0x60;
    assert_eq!(Grh::parse(&bytes), Ok(grh));
    // Unless the second half is not IPv4: then it is the tail of an IPv6 address pair.
    bytes[30] ^= 1;
    assert!(matches!(Grh::parse(&bytes), Ok(Grh { ip: IpPair::V6 { .. }, .. })));
    // Without the rival, a NIC's missing checksum is forgiven.
    bytes[0] = 0;
    assert_eq!(Grh::parse(&bytes), Ok(grh));
}

#[test]
fn grh_of_v6() {
    let grh = Grh { ip: flow_v6().ip, tclass: 0x6a, hop_limit: 63, flow_label: 0xa_bcde, payload_len: 288 };
    let mut bytes = [0xee; GRH_LEN];
    grh.emit(&mut bytes);
    assert_eq!(bytes[..8], [0x66, 0xaa, 0xbc, 0xde, 1, 32, 17, 63]);
    assert_eq!(Grh::parse(&bytes), Ok(grh));
}

#[test]
fn no_grh() {
    assert_eq!(Grh::parse(&[0; GRH_LEN]), Err(ParseError::NoIpHeader));
    assert_eq!(Grh::parse(&[0xff; GRH_LEN]), Err(ParseError::NoIpHeader));
}

proptest! {
    #[test]
    fn grh_round_trips(
        v6: bool,
        src: [u8; 16],
        dst: [u8; 16],
        tclass: u8,
        hop_limit: u8,
        flow_label in 0u32..1 << 20,
        payload_len in 0u16..=65_515,
    ) {
        let grh = if v6 {
            let ip = IpPair::V6 { src: src.into(), dst: dst.into() };
            Grh { ip, tclass, hop_limit, flow_label, payload_len }
        } else {
            let (src, dst) = (src.first_chunk::<4>().unwrap(), dst.first_chunk::<4>().unwrap());
            let ip = IpPair::V4 { src: (*src).into(), dst: (*dst).into() };
            Grh { ip, tclass, hop_limit, flow_label: 0, payload_len }
        };
        let mut bytes = [0xee; GRH_LEN];
        grh.emit(&mut bytes);
        prop_assert_eq!(Grh::parse(&bytes), Ok(grh));
    }

    #[test]
    fn any_40_bytes_parse_or_fail(low: [u8; 20], high: [u8; 20], first: u8, middle: u8) {
        let mut bytes = [0; GRH_LEN];
        bytes[..20].copy_from_slice(&low);
        bytes[20..].copy_from_slice(&high);
        let _ = Grh::parse(&bytes);
        bytes[0] = first & 0x6f;
        bytes[20] = middle & 0x45;
        let _ = Grh::parse(&bytes);
    }
}
