//! Packets that a Linux kernel sent: what they say is understood, their ICRC is right, and this
//! crate would have written them byte for byte.

mod common;

use std::collections::BTreeSet;

use common::pcap::kernel;
use ferroce_wire::{
    FlowIcrc, Grh, ICRC_LEN, IcrcCheck, IpPair, Opcode, Packet, ROCE_UDP_PORT, check_icrc, check_icrc_exact,
    ethernet_frame, icrc,
};

#[test]
fn its_icrc_is_ours() {
    for (frame, n) in kernel().iter().zip(1..) {
        let (packet, stored) = frame.packet_with_icrc.split_last_chunk::<ICRC_LEN>().unwrap();
        let (flow, id) = (&frame.flow, frame.meta.ip_id);
        assert_eq!(icrc(flow, id, packet).to_le_bytes(), *stored, "frame {n}");
        let flow_icrc = FlowIcrc::new(flow);
        assert_eq!(flow_icrc.icrc(id, packet).to_le_bytes(), *stored, "frame {n}");
        assert!(check_icrc_exact(flow, id, &frame.packet_with_icrc));
        assert_eq!(check_icrc(flow, id, &frame.packet_with_icrc), IcrcCheck::Ok);
    }
}

#[test]
fn its_identification_is_found() {
    let mut solved = 0;
    for frame in kernel() {
        let check = check_icrc(&frame.flow, 0, &frame.packet_with_icrc);
        match frame.flow.ip {
            IpPair::V4 { .. } => {
                assert_eq!(check, IcrcCheck::OkWithId(frame.meta.ip_id));
                solved += 1;
            }
            IpPair::V6 { .. } => assert_eq!(check, IcrcCheck::Ok),
        }
    }
    assert_eq!(solved, 43);
}

#[test]
fn its_packets_parse_and_come_out_again() {
    let mut seen = BTreeSet::new();
    for frame in kernel() {
        assert_eq!(frame.flow.dst_port, ROCE_UDP_PORT);
        let bytes = &frame.packet_with_icrc[..frame.packet_with_icrc.len() - ICRC_LEN];
        let packet = Packet::parse(bytes).unwrap();
        seen.insert(packet.headers.bth.opcode.to_u8());
        assert_eq!(common::packet(&packet.headers, packet.payload), bytes);
    }
    use Opcode::*;
    let expected = [
        RcSendFirst,
        RcSendMiddle,
        RcSendLast,
        RcSendOnly,
        RcWriteOnly,
        RcReadRequest,
        RcReadResponseOnly,
        RcAck,
        UcSendFirst,
        UcSendMiddle,
        UcSendLast,
        UdSendOnly,
        UdSendOnlyImm,
    ];
    assert_eq!(seen, expected.iter().map(|opcode| opcode.to_u8()).collect());
}

#[test]
fn its_frames_are_built_alike() {
    for frame in kernel() {
        let mut built = Vec::new();
        ethernet_frame(&frame.flow, &frame.meta, &frame.packet_with_icrc, &mut built);
        if let IpPair::V6 { .. } = frame.flow.ip {
            // Soft-RoCE leaves out the UDP checksum even there.
            assert_eq!(frame.bytes[60..62], [0, 0]);
            built[60..62].fill(0);
        }
        assert_eq!(built, frame.bytes);
    }
}

#[test]
fn its_ip_header_is_a_grh() {
    for frame in kernel() {
        let grh = Grh::parse(&frame.grh).unwrap();
        assert_eq!(grh.ip, frame.flow.ip);
        assert_eq!((grh.hop_limit, grh.tclass), (64, 0));
        assert_eq!(usize::from(grh.payload_len), frame.packet_with_icrc.len() + 8);
    }
}
