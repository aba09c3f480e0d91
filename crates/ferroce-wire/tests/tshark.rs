//! Wireshark's opinion of what this crate writes: a capture that holds every opcode, over IPv4 and
//! IPv6, is decoded by tshark and compared field by field. (tshark shows the ICRC but does not
//! compute it; the captures of a kernel in `kernel.rs` do that part.)

mod common;

use common::{Bits, flow_v4, flow_v6, headers, packet, seal};
use ferroce_testing::tshark::{number, tshark};
use ferroce_wire::capture::{pcap_header, pcap_record};
use ferroce_wire::{Ext, Flow, FrameMeta, Headers, ICRC_LEN, IpPair, Opcode, ethernet_frame};

/// A payload that needs three bytes of pad, and that no heuristic of tshark's takes for a protocol.
const TEXT: &[u8] = b"sixty-one bytes of payload, whose pad has to be of 3 bytes...";

/// What went into a frame.
struct Sent {
    flow: Flow,
    headers: Headers,
    icrc: u32,
}

/// A capture of every opcode over both IP versions.
fn capture() -> (Vec<u8>, Vec<Sent>) {
    let mut bits = Bits(4791);
    let mut file = pcap_header().to_vec();
    let mut sent = Vec::new();
    for flow in [flow_v4(), flow_v6()] {
        for &opcode in Opcode::ALL {
            let payload: &[u8] = if opcode.has_payload() { TEXT } else { b"" };
            let headers = headers(opcode, payload.len(), &mut bits);
            let meta = FrameMeta {
                src_mac: [2, 0, 0, 0, 0, 1],
                dst_mac: [2, 0, 0, 0, 0, 2],
                ttl: 64,
                tos: 0,
                ip_id: bits.word() as u16,
            };
            let sealed = seal(&flow, meta.ip_id, &packet(&headers, payload));
            let mut frame = Vec::new();
            ethernet_frame(&flow, &meta, &sealed, &mut frame);
            let time_ns = 1_700_000_000_000_000_001 + 1_000 * sent.len() as u64;
            file.extend_from_slice(&pcap_record(time_ns, frame.len()));
            file.extend_from_slice(&frame);
            let (_, stored) = sealed.split_last_chunk::<ICRC_LEN>().unwrap();
            sent.push(Sent { flow, headers, icrc: u32::from_be_bytes(*stored) });
        }
    }
    (file, sent)
}

const CHECKSUM_GOOD: u64 = 1;
const CHECKSUM_ABSENT: u64 = 3;

/// Every field that is compared, whether tshark prints it as bare hexadecimal, and what it ought to
/// be.
type Field = (&'static str, bool, fn(&Sent) -> Option<u64>);

const FIELDS: &[Field] = &[
    ("ip.checksum.status", false, |s| match s.flow.ip {
        IpPair::V4 { .. } => Some(CHECKSUM_GOOD),
        IpPair::V6 { .. } => None,
    }),
    ("udp.checksum.status", false, |s| match s.flow.ip {
        IpPair::V4 { .. } => Some(CHECKSUM_ABSENT),
        IpPair::V6 { .. } => Some(CHECKSUM_GOOD),
    }),
    ("infiniband.bth.opcode", false, |s| Some(s.headers.bth.opcode.to_u8().into())),
    ("infiniband.bth.padcnt", false, |s| Some(s.headers.bth.pad.into())),
    ("infiniband.bth.p_key", false, |s| Some(s.headers.bth.pkey.into())),
    ("infiniband.bth.destqp", false, |s| Some(s.headers.bth.dest_qpn.into())),
    ("infiniband.bth.psn", false, |s| Some(s.headers.bth.psn.into())),
    // tshark shows an atomic's address under the name of the RETH's.
    ("infiniband.reth.va", false, |s| match s.headers.ext {
        Ext::Reth(reth) | Ext::RethImm(reth, _) => Some(reth.va),
        Ext::Atomic(atomic) => Some(atomic.va),
        _ => None,
    }),
    ("infiniband.reth.r_key", false, |s| match s.headers.ext {
        Ext::Reth(reth) | Ext::RethImm(reth, _) => Some(reth.rkey.into()),
        Ext::Atomic(atomic) => Some(atomic.rkey.into()),
        _ => None,
    }),
    ("infiniband.reth.dmalen", false, |s| s.headers.ext.reth().map(|reth| reth.len.into())),
    ("infiniband.deth.q_key", false, |s| s.headers.ext.deth().map(|deth| deth.qkey.into())),
    ("infiniband.deth.srcqp", false, |s| s.headers.ext.deth().map(|deth| deth.src_qpn.into())),
    ("infiniband.aeth.syndrome", false, |s| s.headers.ext.aeth().map(|aeth| aeth.syndrome.to_u8().into())),
    ("infiniband.aeth.msn", false, |s| s.headers.ext.aeth().map(|aeth| aeth.msn.into())),
    ("infiniband.atomiceth.swapdt", false, |s| match s.headers.ext {
        Ext::Atomic(atomic) => Some(atomic.swap_or_add),
        _ => None,
    }),
    ("infiniband.atomiceth.cmpdt", false, |s| match s.headers.ext {
        Ext::Atomic(atomic) => Some(atomic.compare),
        _ => None,
    }),
    ("infiniband.atomicacketh.origremdt", false, |s| match s.headers.ext {
        Ext::AtomicAck(_, original) => Some(original),
        _ => None,
    }),
    ("infiniband.immdt", true, |s| s.headers.ext.imm().map(u64::from)),
    ("infiniband.ieth", true, |s| match s.headers.ext {
        Ext::Inv(rkey) => Some(rkey.into()),
        _ => None,
    }),
    ("infiniband.invariant.crc", false, |s| Some(s.icrc.into())),
];

#[test]
fn tshark_reads_what_was_written() {
    let (file, sent) = capture();
    let names: Vec<&str> = FIELDS.iter().map(|&(name, ..)| name).collect();
    let lines = tshark(&file, &names);
    assert_eq!(lines.len(), sent.len());
    for (line, sent) in lines.iter().zip(&sent) {
        let columns: Vec<&str> = line.split('\t').collect();
        assert_eq!(columns.len(), FIELDS.len(), "{line:?}");
        for (column, (name, bare_hex, expected)) in columns.iter().zip(FIELDS) {
            let opcode = sent.headers.bth.opcode.name();
            assert_eq!(number(column, *bare_hex), expected(sent), "{name} of {opcode}");
        }
    }
}

#[test]
fn tshark_finds_no_fault_and_the_same_names() {
    let (file, sent) = capture();
    let lines = tshark(&file, &["_ws.malformed", "_ws.expert.message", "_ws.col.Info"]);
    assert_eq!(lines.len(), sent.len());
    for (line, sent) in lines.iter().zip(&sent) {
        let name = sent.headers.bth.opcode.name();
        let info = line.strip_prefix("\t\t").unwrap_or_else(|| panic!("{name}: {line:?}"));
        // The name ends where the QP begins, or else a longer name could pass for a shorter one.
        let (seen, _) = info.split_once("QP=").unwrap_or_else(|| panic!("{name}: {info}"));
        assert_eq!(seen.trim_end(), name);
    }
}

/// The test above can fail: a frame that is cut short is reported.
#[test]
fn tshark_finds_a_fault_where_there_is_one() {
    let headers = headers(Opcode::RcReadRequest, 0, &mut Bits(1));
    let whole = packet(&headers, &[]);
    let mut frame = Vec::new();
    let meta = FrameMeta { src_mac: [2, 0, 0, 0, 0, 1], dst_mac: [2, 0, 0, 0, 0, 2], ttl: 64, tos: 0, ip_id: 0 };
    ethernet_frame(&flow_v4(), &meta, &whole[..14], &mut frame);
    let mut file = pcap_header().to_vec();
    file.extend_from_slice(&pcap_record(0, frame.len()));
    file.extend_from_slice(&frame);
    let lines = tshark(&file, &["_ws.malformed", "_ws.expert.message"]);
    assert_ne!(lines, ["\t"]);
}
