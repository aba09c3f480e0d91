//! Headers and packets: golden bytes, round trips, and what is refused.

mod common;

use common::{Bits, headers, packet};
use ferroce_wire::{
    Aeth, AtomicEth, BTH_LEN, Bth, Deth, Ext, Headers, MAX_HEADERS_LEN, NakCode, Opcode, Operation, Packet, ParseError,
    Position, Reth, Syndrome, Transport, pad_len,
};
use proptest::prelude::*;

/// IBTA table 38, as (opcode, bytes of extension headers), written down independently of the crate.
const EXTENSION_LEN: [(u8, usize); 37] = [
    (0x00, 0),
    (0x01, 0),
    (0x02, 0),
    (0x03, 4),
    (0x04, 0),
    (0x05, 4),
    (0x06, 16),
    (0x07, 0),
    (0x08, 0),
    (0x09, 4),
    (0x0a, 16),
    (0x0b, 20),
    (0x0c, 16),
    (0x0d, 4),
    (0x0e, 0),
    (0x0f, 4),
    (0x10, 4),
    (0x11, 4),
    (0x12, 12),
    (0x13, 28),
    (0x14, 28),
    (0x16, 4),
    (0x17, 4),
    (0x20, 0),
    (0x21, 0),
    (0x22, 0),
    (0x23, 4),
    (0x24, 0),
    (0x25, 4),
    (0x26, 16),
    (0x27, 0),
    (0x28, 0),
    (0x29, 4),
    (0x2a, 16),
    (0x2b, 20),
    (0x64, 8),
    (0x65, 12),
];

#[test]
fn opcode_numbers_and_header_lengths() {
    let known: Vec<(u8, usize)> = (0..=u8::MAX)
        .filter_map(|n| {
            let opcode = Opcode::from_u8(n)?;
            assert_eq!(opcode.to_u8(), n);
            Some((n, opcode.headers_len() - BTH_LEN))
        })
        .collect();
    assert_eq!(known, EXTENSION_LEN);
    let all: Vec<u8> = Opcode::ALL.iter().map(|opcode| opcode.to_u8()).collect();
    let numbers: Vec<u8> = EXTENSION_LEN.iter().map(|&(n, _)| n).collect();
    assert_eq!(all, numbers);
    let longest = Opcode::ALL.iter().map(|opcode| opcode.headers_len()).max();
    assert_eq!(longest, Some(MAX_HEADERS_LEN));
}

#[test]
fn opcode_attributes_agree_with_the_name() {
    for &opcode in Opcode::ALL {
        let name = opcode.name();
        let transport = match &name[..3] {
            "RC " => Transport::Rc,
            "UC " => Transport::Uc,
            "UD " => Transport::Ud,
            other => panic!("{other}"),
        };
        assert_eq!(opcode.transport(), transport, "{name}");
        let operation = match &name[3..] {
            n if n.starts_with("Send") => Operation::Send,
            n if n.starts_with("RDMA Write") => Operation::Write,
            "RDMA Read Request" => Operation::ReadRequest,
            n if n.starts_with("RDMA Read Response") => Operation::ReadResponse,
            "Acknowledge" => Operation::Ack,
            "Atomic Acknowledge" => Operation::AtomicAck,
            "Compare Swap" => Operation::CompareSwap,
            "Fetch Add" => Operation::FetchAdd,
            other => panic!("{other}"),
        };
        assert_eq!(opcode.operation(), operation, "{name}");
        let position = if name.contains("First") {
            Position::First
        } else if name.contains("Middle") {
            Position::Middle
        } else if name.contains("Last") {
            Position::Last
        } else {
            Position::Only
        };
        assert_eq!(opcode.position(), position, "{name}");
        assert_eq!(opcode.has_imm(), name.ends_with("Immediate"), "{name}");
        assert_eq!(opcode.has_inv(), name.ends_with("Invalidate"), "{name}");
        let reth = operation == Operation::Write && position.is_first() || operation == Operation::ReadRequest;
        assert_eq!(opcode.has_reth(), reth, "{name}");
        let aeth = matches!(operation, Operation::Ack | Operation::AtomicAck)
            || operation == Operation::ReadResponse && position != Position::Middle;
        assert_eq!(opcode.has_aeth(), aeth, "{name}");
        assert_eq!(opcode.has_deth(), transport == Transport::Ud, "{name}");
        let atomic = matches!(operation, Operation::CompareSwap | Operation::FetchAdd);
        assert_eq!(opcode.has_atomic_eth(), atomic, "{name}");
        let atomic_ack = operation == Operation::AtomicAck;
        assert_eq!(opcode.has_atomic_ack_eth(), atomic_ack, "{name}");
        assert_eq!(position.is_last(), !name.contains("First") && !name.contains("Middle"));
    }
}

fn emitted(headers: Headers) -> Vec<u8> {
    let mut out = [0xee; MAX_HEADERS_LEN + 1];
    let len = headers.emit(&mut out);
    assert_eq!(len, headers.len());
    assert!(out[len..].iter().all(|&b| b == 0xee), "wrote behind the headers");
    out[..len].to_vec()
}

#[test]
fn golden_bytes() {
    let bth = Bth {
        opcode: Opcode::RcWriteOnlyImm,
        solicited: true,
        migrated: true,
        pad: 3,
        pkey: 0x8001,
        dest_qpn: 0x0a_0b0c,
        ack_request: true,
        psn: 0x01_0203,
    };
    let reth = Reth { va: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, len: 0xddee_ff00 };
    let bytes = emitted(Headers { bth, ext: Ext::RethImm(reth, 0x0102_0304) });
    #[rustfmt::skip]
    assert_eq!(bytes, [
        0x0b, 0xf0, 0x80, 0x01, 0x00, 0x0a, 0x0b, 0x0c, 0x80, 0x01, 0x02, 0x03,
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff, 0x00,
        0x01, 0x02, 0x03, 0x04,
    ]);

    let ack = Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 0x0a_0b0c };
    let bytes = emitted(Headers {
        bth: Bth { opcode: Opcode::RcAtomicAck, migrated: false, ..Bth::default() },
        ext: Ext::AtomicAck(ack, 0x0102_0304_0506_0708),
    });
    #[rustfmt::skip]
    assert_eq!(bytes, [
        0x12, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0,
        0x62, 0x0a, 0x0b, 0x0c, 1, 2, 3, 4, 5, 6, 7, 8,
    ]);

    let atomic = AtomicEth {
        va: 0x1122_3344_5566_7788,
        rkey: 0x99aa_bbcc,
        swap_or_add: 0x0102_0304_0506_0708,
        compare: 0x1112_1314_1516_1718,
    };
    let bytes =
        emitted(Headers { bth: Bth { opcode: Opcode::RcCompareSwap, ..Bth::default() }, ext: Ext::Atomic(atomic) });
    #[rustfmt::skip]
    assert_eq!(bytes[12..], [
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc,
        1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
    ]);

    let deth = Deth { qkey: 0x8001_0000, src_qpn: 1 };
    let bytes = emitted(Headers {
        bth: Bth { opcode: Opcode::UdSendOnlyImm, dest_qpn: 1, ..Bth::default() },
        ext: Ext::DethImm(deth, 7),
    });
    #[rustfmt::skip]
    assert_eq!(bytes, [
        0x65, 0x40, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0,
        0x80, 0x01, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7,
    ]);
}

#[test]
fn every_syndrome_byte_round_trips() {
    for byte in 0..=u8::MAX {
        let syndrome = Syndrome::from_u8(byte);
        assert_eq!(syndrome.to_u8(), byte);
        let reserved = !matches!(byte, 0x00..=0x3f | 0x60..=0x64);
        assert_eq!(matches!(syndrome, Syndrome::Reserved(_)), reserved, "{byte:#x}");
    }
    assert_eq!(Syndrome::from_u8(0x1f), Syndrome::ACK_UNLIMITED);
    assert_eq!(Syndrome::from_u8(0x2e), Syndrome::RnrNak { timer: 14 });
    assert_eq!(Syndrome::from_u8(0x60), Syndrome::Nak(NakCode::PsnSequence));
    assert_eq!(Syndrome::from_u8(0x64), Syndrome::Nak(NakCode::InvalidRdRequest));
}

#[test]
fn headers_cut_anywhere_are_truncated() {
    let mut bits = Bits(1);
    for &opcode in Opcode::ALL {
        let bytes = emitted(headers(opcode, 0, &mut bits));
        for len in 0..bytes.len() {
            match Headers::parse(&bytes[..len]) {
                Err(ParseError::Truncated { needed, len: seen }) => {
                    assert!(needed > len && needed <= bytes.len() && seen == len);
                }
                other => panic!("{opcode:?} cut to {len}: {other:?}"),
            }
        }
    }
}

#[test]
#[should_panic(expected = "range end index 28 out of range for slice of length 27")]
fn emitting_into_too_short_a_buffer_panics() {
    let headers = headers(Opcode::RcReadRequest, 0, &mut Bits(1));
    headers.emit(&mut [0; 27]);
}

#[test]
fn wide_fields_are_cut_and_do_not_spill() {
    let all = Headers {
        bth: Bth {
            opcode: Opcode::UdSendOnly,
            solicited: false,
            migrated: false,
            pad: 0xfc,
            pkey: 0,
            dest_qpn: 0xff00_0000,
            ack_request: false,
            psn: 0xff00_0000,
        },
        ext: Ext::Deth(Deth { qkey: 0, src_qpn: 0xff00_0000 }),
    };
    let bytes = emitted(all);
    assert_eq!(bytes[0], 0x64);
    assert!(bytes[1..].iter().all(|&b| b == 0), "{bytes:x?}");
    let ack = Aeth { syndrome: Syndrome::Ack { credits: 0xe0 }, msn: 0xff00_0000 };
    let bytes = emitted(Headers { bth: Bth::default(), ext: Ext::Aeth(ack) });
    assert_eq!(bytes[12..], [0; 4]);
    let rnr = Syndrome::RnrNak { timer: 0xe0 };
    assert_eq!(rnr.to_u8(), 0x20);
}

#[test]
fn reserved_bits_are_ignored() {
    let headers = headers(Opcode::UdSendOnly, 0, &mut Bits(3));
    let mut bytes = emitted(headers);
    bytes[4] = 0xff; // FECN, BECN and reserved
    bytes[8] |= 0x7f; // reserved
    bytes[16] = 0xff; // reserved, before the source QPN
    assert_eq!(Headers::parse(&bytes), Ok((headers, 20)));
}

#[test]
fn what_is_refused() {
    let good = packet(&headers(Opcode::RcSendOnly, 5, &mut Bits(4)), b"hello");
    assert_eq!(Packet::parse(&good).unwrap().payload, b"hello");

    let with = |at: usize, value: u8| {
        let mut bad = good.clone();
        bad[at] = value;
        bad
    };
    for unknown in (0..=u8::MAX).filter(|&n| Opcode::from_u8(n).is_none()) {
        let refused = Packet::parse(&with(0, unknown)).map(|_| ());
        assert_eq!(refused, Err(ParseError::UnknownOpcode(unknown)));
    }
    for version in 1..=15 {
        let refused = Packet::parse(&with(1, version)).map(|_| ());
        assert_eq!(refused, Err(ParseError::Version(version)));
    }
    let refused = Packet::parse(&good[..good.len() - 1]);
    assert_eq!(refused, Err(ParseError::Unaligned(7)));

    let pad_only = with(1, 0x30);
    let refused = Packet::parse(&pad_only[..BTH_LEN]);
    assert_eq!(refused, Err(ParseError::Pad { pad: 3, remaining: 0 }));
    // A pad that is all that follows is an empty payload.
    assert_eq!(Packet::parse(&pad_only[..BTH_LEN + 4]).unwrap().payload.len(), 1);
}

#[test]
fn payload_comes_only_where_it_may() {
    let mut bits = Bits(5);
    for &opcode in Opcode::ALL {
        let headers = headers(opcode, 4, &mut bits);
        let bytes = packet(&headers, &[1, 2, 3, 4]);
        let parsed = Packet::parse(&bytes);
        if opcode.has_payload() {
            assert_eq!(parsed.map(|p| p.payload), Ok(&[1, 2, 3, 4][..]));
        } else {
            let refused = ParseError::UnexpectedPayload { opcode, len: 4 };
            assert_eq!(parsed, Err(refused));
        }
    }
    let without: Vec<Opcode> = Opcode::ALL.iter().copied().filter(|opcode| !opcode.has_payload()).collect();
    use Opcode::{RcAck, RcAtomicAck, RcCompareSwap, RcFetchAdd, RcReadRequest};
    assert_eq!(without, [RcReadRequest, RcAck, RcAtomicAck, RcCompareSwap, RcFetchAdd]);
}

#[test]
fn ext_that_does_not_fit_the_opcode_is_inconsistent() {
    let mut bits = Bits(6);
    for &a in Opcode::ALL {
        for &b in Opcode::ALL {
            let mut mixed = headers(a, 0, &mut bits);
            assert!(mixed.is_consistent());
            mixed.bth.opcode = b;
            let same_ext = std::mem::discriminant(&mixed.ext) == std::mem::discriminant(&common::ext(b, &mut bits));
            assert_eq!(mixed.is_consistent(), same_ext, "{a:?} as {b:?}");
        }
    }
}

#[test]
fn ext_accessors() {
    let mut bits = Bits(7);
    for &opcode in Opcode::ALL {
        let ext = headers(opcode, 0, &mut bits).ext;
        assert_eq!(ext.imm().is_some(), opcode.has_imm());
        assert_eq!(ext.reth().is_some(), opcode.has_reth());
        assert_eq!(ext.aeth().is_some(), opcode.has_aeth());
        assert_eq!(ext.deth().is_some(), opcode.has_deth());
    }
}

proptest! {
    #[test]
    fn packets_round_trip(
        opcode in proptest::sample::select(Opcode::ALL),
        seed: u64,
        payload in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let payload = if opcode.has_payload() { payload } else { Vec::new() };
        let headers = headers(opcode, payload.len(), &mut Bits(seed));
        prop_assert_eq!(headers.len(), opcode.headers_len());
        let bytes = packet(&headers, &payload);
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(Headers::parse(&bytes), Ok((headers, opcode.headers_len())));
        let parsed = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(parsed.headers, headers);
        prop_assert_eq!(parsed.payload, &payload[..]);
    }

    #[test]
    fn any_bytes_parse_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let _ = Packet::parse(&bytes);
    }

    /// Bytes that look like a packet: what parses also comes out again, but for the reserved bits.
    #[test]
    fn parsing_loses_only_reserved_bits(
        opcode in proptest::sample::select(Opcode::ALL),
        flags: u8,
        mut bytes in proptest::collection::vec(any::<u8>(), MAX_HEADERS_LEN..100),
    ) {
        bytes[0] = opcode.to_u8();
        bytes[1] = flags & 0xf0;
        let (headers, len) = Headers::parse(&bytes).unwrap();
        let mut again = vec![0; len];
        headers.emit(&mut again);
        bytes[4] = 0;
        bytes[8] &= 0x80;
        if opcode.has_deth() {
            bytes[16] = 0;
        }
        prop_assert_eq!(&again[..], &bytes[..len]);
        prop_assert!(headers.is_consistent());
        if let Ok(packet) = Packet::parse(&bytes) {
            let rest = bytes.len() - len;
            prop_assert_eq!(packet.payload.len() + usize::from(headers.bth.pad), rest);
            prop_assert_eq!(packet.payload, &bytes[len..][..packet.payload.len()]);
        }
    }

    #[test]
    fn pad_completes_the_word(len in 0usize..10_000) {
        prop_assert!(pad_len(len) < 4);
        prop_assert_eq!((len + usize::from(pad_len(len))) % 4, 0);
    }
}
