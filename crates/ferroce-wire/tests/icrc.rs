//! The ICRC against an independent bitwise computation over a whole frame, and the solver's
//! promises.

mod common;

use common::{Bits, flow_v4, flow_v6, headers, packet, seal};
use ferroce_wire::{Flow, FrameMeta, IcrcCheck, IpPair, Opcode, check_icrc, check_icrc_exact, ethernet_frame, icrc};
use proptest::prelude::*;

const ETHERNET_LEN: usize = 14;

/// One bit at a time, from the definition: reflected polynomial, no final complement.
fn crc_state(mut state: u32, bytes: &[u8]) -> u32 {
    for &byte in bytes {
        for bit in 0..8 {
            let feedback = (state ^ u32::from(byte >> bit)) & 1;
            state >>= 1;
            if feedback == 1 {
                state ^= 0xedb8_8320;
            }
        }
    }
    state
}

/// The ICRC of a complete frame, with the mutable fields masked by their offsets in the frame.
fn oracle(frame: &[u8]) -> u32 {
    let mut ip = frame[ETHERNET_LEN..frame.len() - 4].to_vec();
    let udp = match ip[0] >> 4 {
        4 => {
            for at in [1, 8, 10, 11] {
                ip[at] = 0xff;
            }
            20
        }
        6 => {
            ip[0] |= 0x0f;
            for at in [1, 2, 3, 7] {
                ip[at] = 0xff;
            }
            40
        }
        version => panic!("IP version {version}"),
    };
    ip[udp + 6] = 0xff;
    ip[udp + 7] = 0xff;
    ip[udp + 8 + 4] = 0xff;
    !crc_state(crc_state(!0, &[0xff; 8]), &ip)
}

fn frame(flow: &Flow, meta: &FrameMeta, packet: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    ethernet_frame(flow, meta, &seal(flow, meta.ip_id, packet), &mut out);
    out
}

fn meta(ip_id: u16) -> FrameMeta {
    FrameMeta { src_mac: [2, 0, 0, 0, 0, 1], dst_mac: [2, 0, 0, 0, 0, 2], ttl: 64, tos: 0, ip_id }
}

fn any_flow() -> impl Strategy<Value = Flow> {
    let v4 = any::<([u8; 4], [u8; 4])>().prop_map(|(src, dst)| IpPair::V4 { src: src.into(), dst: dst.into() });
    let v6 = any::<([u8; 16], [u8; 16])>().prop_map(|(src, dst)| IpPair::V6 { src: src.into(), dst: dst.into() });
    (prop_oneof![v4, v6], any::<u16>(), any::<u16>()).prop_map(|(ip, src_port, dst_port)| Flow {
        ip,
        src_port,
        dst_port,
    })
}

#[test]
fn state_after_the_stand_in_route_header() {
    assert_eq!(crc_state(!0, &[0xff; 8]), 0xdebb_20e3);
    assert_eq!(!crc_state(!0, b"123456789"), 0xcbf4_3926, "the oracle is CRC-32");
}

#[test]
fn too_short_for_a_packet() {
    for flow in [flow_v4(), flow_v6()] {
        for len in 0..4 {
            assert_eq!(check_icrc(&flow, 0, &[0; 4][..len]), IcrcCheck::Bad);
        }
        // Less than a BTH has a defined ICRC all the same.
        for len in 0..13 {
            let sealed = seal(&flow, 9, &vec![0xa5; len]);
            assert_eq!(check_icrc(&flow, 9, &sealed), IcrcCheck::Ok);
        }
    }
}

#[test]
fn longer_than_a_datagram_is_bad_or_ok_but_no_panic() {
    for flow in [flow_v4(), flow_v6()] {
        for len in [65_503, 65_504, 65_507, 65_508, 65_535, 65_536, 70_000] {
            let sealed = seal(&flow, 9, &vec![0x5a; len]);
            assert_eq!(check_icrc(&flow, 9, &sealed), IcrcCheck::Ok);
            let solved = check_icrc(&flow, 8, &sealed);
            let expected = match flow.ip {
                IpPair::V6 { .. } => IcrcCheck::Ok,
                // 65535 less IP header, UDP header and ICRC.
                IpPair::V4 { .. } if len <= 65_503 => IcrcCheck::OkWithId(9),
                IpPair::V4 { .. } => IcrcCheck::Bad,
            };
            assert_eq!(solved, expected, "{len}");
        }
    }
}

#[test]
fn every_identification_is_found() {
    let flow = flow_v4();
    let plain = packet(&headers(Opcode::RcAck, 0, &mut Bits(1)), &[]);
    for id in 0..=u16::MAX {
        let sealed = seal(&flow, id, &plain);
        let expected = if id == 0x1234 { IcrcCheck::Ok } else { IcrcCheck::OkWithId(id) };
        assert_eq!(check_icrc(&flow, 0x1234, &sealed), expected);
    }
}

#[test]
fn a_sender_that_allows_fragments_is_understood() {
    let flow = flow_v4();
    for (id, hint) in [(0, 0), (0xbeef, 0), (7, 7), (1, 0xffff)] {
        let mut whole = frame(&flow, &meta(id), &[0xc3; 40]);
        whole[ETHERNET_LEN + 6] = 0; // "don't fragment" clear
        let end = whole.len() - 4;
        let crc = oracle(&whole);
        whole[end..].copy_from_slice(&crc.to_le_bytes());
        let check = check_icrc(&flow, hint, &whole[ETHERNET_LEN + 28..]);
        assert_eq!(check, IcrcCheck::OkWithId(id));
        // Any other fragment field is no whole datagram.
        for (at, value) in [(6, 0x20), (6, 0x80), (7, 1)] {
            let mut other = whole.clone();
            other[ETHERNET_LEN + at] = value;
            let crc = oracle(&other);
            other[end..].copy_from_slice(&crc.to_le_bytes());
            let check = check_icrc(&flow, hint, &other[ETHERNET_LEN + 28..]);
            assert_eq!(check, IcrcCheck::Bad);
        }
    }
}

/// Corrupts packets at random and counts how many pass.
fn accepted(flow: &Flow, rounds: usize, corrupt: impl Fn(&mut Bits, &mut [u8])) -> usize {
    let mut bits = Bits(0x1c2c);
    let mut accepted = 0;
    for _ in 0..rounds {
        let len = bits.below(64) * 4;
        let payload = bits.bytes(len);
        let plain = packet(&headers(Opcode::RcSendOnly, len, &mut bits), &payload);
        let id = bits.word() as u16;
        let mut sealed = seal(flow, id, &plain);
        let before = sealed.clone();
        corrupt(&mut bits, &mut sealed);
        // Byte 4 of the BTH is not covered: put it back, and skip what is then no corruption.
        sealed[4] = before[4];
        if sealed != before && check_icrc(flow, id, &sealed).is_ok() {
            accepted += 1;
        }
    }
    accepted
}

fn flip_one(bits: &mut Bits, bytes: &mut [u8]) {
    let at = bits.below(bytes.len());
    bytes[at] ^= 1 << bits.below(8);
}

fn flip_some(bits: &mut Bits, bytes: &mut [u8]) {
    for _ in 0..2 + bits.below(30) {
        flip_one(bits, bytes);
    }
}

fn overwrite(bits: &mut Bits, bytes: &mut [u8]) {
    let from = bits.below(bytes.len());
    let to = from + 1 + bits.below(bytes.len() - from);
    for byte in &mut bytes[from..to] {
        *byte = bits.word() as u8;
    }
}

#[test]
fn corruption_passes_as_rarely_as_promised() {
    const ROUNDS: usize = 200_000;
    // 17 bits are solved for, so 2^-15 of random corruptions pass: 6.1 of these on average, and
    // beyond 20 with probability 3e-6. The bits are fixed, so the outcome is too.
    for corrupt in [flip_some, overwrite] {
        let passed = accepted(&flow_v4(), ROUNDS, corrupt);
        assert!(passed <= 20, "{passed} of {ROUNDS}");
        assert_eq!(accepted(&flow_v6(), ROUNDS, corrupt), 0);
    }
    assert_eq!(accepted(&flow_v6(), ROUNDS, flip_one), 0);
}

/// A single wrong bit passes or not by its distance from the identification, whatever the packet
/// holds. Of the 33 632 bits of a 4 KiB packet, one is expected to.
#[test]
fn hardly_any_single_bit_passes() {
    let flow = flow_v4();
    let mut sealed = seal(&flow, 0, &vec![0; 4_200]);
    let mut passed = Vec::new();
    for bit in (0..sealed.len() * 8).filter(|bit| bit / 8 != 4) {
        sealed[bit / 8] ^= 1 << (bit % 8);
        if check_icrc(&flow, 0, &sealed).is_ok() {
            passed.push(bit);
        }
        sealed[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(passed.len() <= 2, "{passed:?}");
}

#[test]
fn one_or_two_wrong_bits_with_the_right_identification_never_check_exactly() {
    let flow = flow_v4();
    let plain = packet(&headers(Opcode::UdSendOnly, 24, &mut Bits(8)), &[0x77; 24]);
    let sealed = seal(&flow, 77, &plain);
    let bits = sealed.len() * 8;
    for a in (0..bits).filter(|bit| bit / 8 != 4) {
        for b in (0..bits).filter(|bit| bit / 8 != 4) {
            let mut bad = sealed.clone();
            bad[a / 8] ^= 1 << (a % 8);
            if a != b {
                bad[b / 8] ^= 1 << (b % 8);
            }
            assert_ne!(check_icrc(&flow, 77, &bad), IcrcCheck::Ok);
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_the_oracle(
        flow in any_flow(),
        ip_id: u16,
        ttl: u8,
        tos: u8,
        ecn: u8,
        mut packet in proptest::collection::vec(any::<u8>(), 12..600),
    ) {
        let meta = FrameMeta { ttl, tos, ..meta(ip_id) };
        let mut whole = frame(&flow, &meta, &packet);
        let (_, stored) = whole.split_last_chunk::<4>().unwrap();
        prop_assert_eq!(u32::from_le_bytes(*stored), oracle(&whole));
        // Routers may change these without harm.
        packet[4] = ecn;
        let udp = whole.len() - 4 - packet.len() - 8;
        whole[udp + 6] ^= 0xff;
        prop_assert_eq!(icrc(&flow, ip_id, &packet), oracle(&whole));
    }

    #[test]
    fn solves_for_the_identification(
        flow in any_flow(),
        id: u16,
        hint: u16,
        packet in proptest::collection::vec(any::<u8>(), 0..4_200),
    ) {
        let sealed = seal(&flow, id, &packet);
        let expected = match flow.ip {
            IpPair::V4 { .. } if id != hint => IcrcCheck::OkWithId(id),
            _ => IcrcCheck::Ok,
        };
        prop_assert_eq!(check_icrc(&flow, hint, &sealed), expected);
        prop_assert!(expected.is_ok());
        prop_assert_eq!(check_icrc_exact(&flow, hint, &sealed), expected == IcrcCheck::Ok);
    }

    #[test]
    fn any_bytes_are_checked(
        flow in any_flow(),
        hint: u16,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let check = check_icrc(&flow, hint, &bytes);
        // What passes is a packet with that identification (or with fragments allowed).
        if check == IcrcCheck::Ok {
            let (packet, _) = bytes.split_last_chunk::<4>().unwrap();
            prop_assert_eq!(seal(&flow, hint, packet), bytes);
        }
    }
}
