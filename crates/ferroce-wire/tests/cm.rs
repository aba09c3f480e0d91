//! Communication management: the layout of every message, round trips, and what a kernel sent.

mod common;

use std::time::Duration;

use common::pcap::kernel;
use ferroce_wire::cm::{
    AdditionalInfo, Answered, AprStatus, CmMad, CmMessage, IpCmError, IpCmHeader, Mra, Path, PortSpace, PrivateData,
    RejectReason, Req, ServiceId, SidrStatus, TransportService, time,
};
use ferroce_wire::{Ext, GSI_QKEY, GSI_QPN, ICRC_LEN, IpPair, MAD_LEN, MadError, MadHeader, Packet};
use proptest::prelude::*;

const DATA: usize = 24;

/// A CM MAD with this attribute and data.
fn mad(attr_id: u16, data: &[u8; 232]) -> [u8; MAD_LEN] {
    let mut out = [0; MAD_LEN];
    out[..4].copy_from_slice(&[1, 7, 2, 3]);
    out[16..18].copy_from_slice(&attr_id.to_be_bytes());
    out[DATA..].copy_from_slice(data);
    out
}

fn parse(attr_id: u16, data: &[u8; 232]) -> CmMessage {
    CmMad::parse(&mad(attr_id, data)).unwrap().message
}

fn emit(message: CmMessage) -> [u8; 232] {
    // Bytes that were in the buffer before do not show through.
    let mut out = [0xee; MAD_LEN];
    let mad = CmMad { tid: 0x0102_0304_0506_0708, ece_options: 0x1112_1314, message };
    mad.emit(&mut out);
    assert_eq!(out[..16], [1, 7, 2, 3, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(out[16..18], message.attr_id().to_be_bytes());
    assert_eq!(out[18..24], [0, 0, 0x11, 0x12, 0x13, 0x14]);
    *out.last_chunk().unwrap()
}

const ZERO: [u8; 232] = [0; 232];

/// `data` with runs of bits set, each given as (byte, bits skipped in it, width).
fn with_bits(mut data: [u8; 232], runs: &[(usize, usize, usize)]) -> [u8; 232] {
    for &(byte, skip, width) in runs {
        for bit in byte * 8 + skip..byte * 8 + skip + width {
            data[bit / 8] |= 0x80 >> (bit % 8);
        }
    }
    data
}

/// Checks that a message with one field all ones and the others zero differs from the zero message
/// in exactly the bits of that field.
macro_rules! layout {
    ($attr_id:literal $message:ident: $($($field:ident).+ = $value:expr, $bits:expr;)*) => {{
        let CmMessage::$message(zero) = parse($attr_id, &ZERO) else {
            panic!("attribute {} is no {}", $attr_id, stringify!($message));
        };
        $(
            let mut message = zero;
            message.$($field).+ = $value;
            let expected = with_bits(emit(zero.into()), &$bits);
            let name = concat!(stringify!($message), ".", stringify!($($field).+));
            assert_eq!(emit(message.into()), expected, "{name}");
            // And it is read from where it was written, unless it was cut.
            let again = parse($attr_id, &expected);
            assert_eq!(emit(again), expected, "{name}");
        )*
    }};
}

const GID: [u8; 16] = [0xff; 16];

// The numbers of this test are those of IBTA's tables 106 to 120.
#[test]
fn every_field_is_in_its_place() {
    layout!(0x10 Req:
        local_comm_id = !0, [(0, 0, 32)];
        vendor_id = !0, [(5, 0, 24)];
        service_id = ServiceId(!0), [(8, 0, 64)];
        local_ca_guid = !0, [(16, 0, 64)];
        local_qkey = !0, [(28, 0, 32)];
        local_qpn = !0, [(32, 0, 24)];
        responder_resources = !0, [(35, 0, 8)];
        local_eecn = !0, [(36, 0, 24)];
        initiator_depth = !0, [(39, 0, 8)];
        remote_eecn = !0, [(40, 0, 24)];
        remote_cm_response_timeout = !0, [(43, 0, 5)];
        transport = TransportService::Uc, [(43, 6, 1)];
        transport = TransportService::Rd, [(43, 5, 1)];
        transport = TransportService::Xrc, [(43, 5, 2), (51, 7, 1)];
        transport = TransportService::Reserved(!0), [(43, 5, 2), (51, 5, 3)];
        end_to_end_flow_control = true, [(43, 7, 1)];
        starting_psn = !0, [(44, 0, 24)];
        local_cm_response_timeout = !0, [(47, 0, 5)];
        retry_count = !0, [(47, 5, 3)];
        pkey = !0, [(48, 0, 16)];
        path_mtu = !0, [(50, 0, 4)];
        rdc_exists = true, [(50, 4, 1)];
        rnr_retry_count = !0, [(50, 5, 3)];
        max_cm_retries = !0, [(51, 0, 4)];
        srq = true, [(51, 4, 1)];
        primary.local_lid = !0, [(52, 0, 16)];
        primary.remote_lid = !0, [(54, 0, 16)];
        primary.local_gid = GID, [(56, 0, 128)];
        primary.remote_gid = GID, [(72, 0, 128)];
        primary.flow_label = !0, [(88, 0, 20)];
        primary.packet_rate = !0, [(91, 2, 6)];
        primary.traffic_class = !0, [(92, 0, 8)];
        primary.hop_limit = !0, [(93, 0, 8)];
        primary.sl = !0, [(94, 0, 4)];
        primary.subnet_local = true, [(94, 4, 1)];
        primary.local_ack_timeout = !0, [(95, 0, 5)];
        alternate = Some(PATH), [
            (96, 0, 32), (100, 0, 128), (116, 0, 128), (132, 0, 20), (135, 2, 6), (136, 0, 16),
            (138, 0, 5), (139, 0, 5)
        ];
        sap_supported = true, [(139, 5, 1)];
        private_data = PrivateData([0xff; 92]), [(140, 0, 92 * 8)];
    );
    layout!(0x11 Mra:
        local_comm_id = !0, [(0, 0, 32)];
        remote_comm_id = !0, [(4, 0, 32)];
        received = Answered::Rep, [(8, 1, 1)];
        received = Answered::Other, [(8, 0, 1)];
        service_timeout = !0, [(9, 0, 5)];
        private_data = PrivateData([0xff; 222]), [(10, 0, 222 * 8)];
    );
    layout!(0x12 Rej:
        local_comm_id = !0, [(0, 0, 32)];
        remote_comm_id = !0, [(4, 0, 32)];
        rejected = Answered::Rep, [(8, 1, 1)];
        rejected = Answered::Other, [(8, 0, 1)];
        reason = RejectReason::Other(!0), [(10, 0, 16)];
        // The length is 72, or 0b1001000.
        info = AdditionalInfo::new(&[0xff; 72]), [(9, 0, 1), (9, 3, 1), (12, 0, 72 * 8)];
        private_data = PrivateData([0xff; 148]), [(84, 0, 148 * 8)];
    );
    layout!(0x13 Rep:
        local_comm_id = !0, [(0, 0, 32)];
        remote_comm_id = !0, [(4, 0, 32)];
        local_qkey = !0, [(8, 0, 32)];
        local_qpn = !0, [(12, 0, 24)];
        local_eecn = !0, [(16, 0, 24)];
        vendor_id = 0xff_0000, [(15, 0, 8)];
        vendor_id = 0xff00, [(19, 0, 8)];
        vendor_id = 0xff, [(23, 0, 8)];
        vendor_id = !0, [(15, 0, 8), (19, 0, 8), (23, 0, 8)];
        starting_psn = !0, [(20, 0, 24)];
        responder_resources = !0, [(24, 0, 8)];
        initiator_depth = !0, [(25, 0, 8)];
        target_ack_delay = !0, [(26, 0, 5)];
        failover_accepted = !0, [(26, 5, 2)];
        end_to_end_flow_control = true, [(26, 7, 1)];
        rnr_retry_count = !0, [(27, 0, 3)];
        srq = true, [(27, 3, 1)];
        local_ca_guid = !0, [(28, 0, 64)];
        private_data = PrivateData([0xff; 196]), [(36, 0, 196 * 8)];
    );
    layout!(0x14 Rtu:
        local_comm_id = !0, [(0, 0, 32)];
        remote_comm_id = !0, [(4, 0, 32)];
        private_data = PrivateData([0xff; 224]), [(8, 0, 224 * 8)];
    );
    layout!(0x15 Dreq:
        local_comm_id = !0, [(0, 0, 32)];
        remote_comm_id = !0, [(4, 0, 32)];
        remote_qpn = !0, [(8, 0, 24)];
        private_data = PrivateData([0xff; 220]), [(12, 0, 220 * 8)];
    );
    layout!(0x16 Drep:
        local_comm_id = !0, [(0, 0, 32)];
        remote_comm_id = !0, [(4, 0, 32)];
        private_data = PrivateData([0xff; 224]), [(8, 0, 224 * 8)];
    );
    layout!(0x17 SidrReq:
        request_id = !0, [(0, 0, 32)];
        pkey = !0, [(4, 0, 16)];
        service_id = ServiceId(!0), [(8, 0, 64)];
        private_data = PrivateData([0xff; 216]), [(16, 0, 216 * 8)];
    );
    layout!(0x18 SidrRep:
        request_id = !0, [(0, 0, 32)];
        status = SidrStatus::Other(!0), [(4, 0, 8)];
        vendor_id = 0xffff00, [(6, 0, 16)];
        vendor_id = 0xff, [(11, 0, 8)];
        qpn = !0, [(8, 0, 24)];
        service_id = ServiceId(!0), [(12, 0, 64)];
        qkey = !0, [(20, 0, 32)];
        info = AdditionalInfo::new(&[0xff; 72]), [(5, 1, 1), (5, 4, 1), (24, 0, 72 * 8)];
        private_data = PrivateData([0xff; 136]), [(96, 0, 136 * 8)];
    );
    layout!(0x19 Lap:
        local_comm_id = !0, [(0, 0, 32)];
        remote_comm_id = !0, [(4, 0, 32)];
        remote_qpn = !0, [(12, 0, 24)];
        remote_cm_response_timeout = !0, [(15, 0, 5)];
        alternate.local_lid = !0, [(20, 0, 16)];
        alternate.remote_lid = !0, [(22, 0, 16)];
        alternate.local_gid = GID, [(24, 0, 128)];
        alternate.remote_gid = GID, [(40, 0, 128)];
        alternate.flow_label = !0, [(56, 0, 20)];
        alternate.traffic_class = !0, [(59, 0, 8)];
        alternate.hop_limit = !0, [(60, 0, 8)];
        alternate.packet_rate = !0, [(61, 2, 6)];
        alternate.sl = !0, [(62, 0, 4)];
        alternate.subnet_local = true, [(62, 4, 1)];
        alternate.local_ack_timeout = !0, [(63, 0, 5)];
        private_data = PrivateData([0xff; 168]), [(64, 0, 168 * 8)];
    );
    layout!(0x1a Apr:
        local_comm_id = !0, [(0, 0, 32)];
        remote_comm_id = !0, [(4, 0, 32)];
        status = AprStatus::Other(!0), [(9, 0, 8)];
        info = AdditionalInfo::new(&[0xff; 72]), [(8, 1, 1), (8, 4, 1), (12, 0, 72 * 8)];
        private_data = PrivateData([0xff; 148]), [(84, 0, 148 * 8)];
    );
}

/// All ones, beyond what the fields hold.
const PATH: Path = Path {
    local_lid: !0,
    remote_lid: !0,
    local_gid: GID,
    remote_gid: GID,
    flow_label: !0,
    packet_rate: !0,
    traffic_class: !0,
    hop_limit: !0,
    sl: !0,
    subnet_local: true,
    local_ack_timeout: !0,
};

/// The CM MADs of the capture, in order.
fn kernel_mads() -> Vec<(IpPair, Vec<u8>)> {
    let mut mads = Vec::new();
    for frame in kernel() {
        let bytes = &frame.packet_with_icrc[..frame.packet_with_icrc.len() - ICRC_LEN];
        let packet = Packet::parse(bytes).unwrap();
        if let Ext::Deth(deth) = packet.headers.ext
            && packet.headers.bth.dest_qpn == GSI_QPN
        {
            assert_eq!((deth.qkey, deth.src_qpn), (GSI_QKEY, GSI_QPN));
            mads.push((frame.flow.ip, packet.payload.to_vec()));
        }
    }
    mads
}

#[test]
fn what_the_kernel_sent_comes_out_again() {
    let mut seen = Vec::new();
    for (_, bytes) in kernel_mads() {
        let mad = CmMad::parse(&bytes).unwrap();
        seen.push(mad.message.attr_id());
        let mut again = [0xee; MAD_LEN];
        mad.emit(&mut again);
        assert_eq!(again[..], bytes);
    }
    let connection = [0x10, 0x13, 0x14, 0x15, 0x16];
    let expected = [&connection[..], &connection, &[0x17, 0x18], &[0x10, 0x12]].concat();
    assert_eq!(seen, expected);
}

#[test]
fn what_the_kernel_meant() {
    let mads = kernel_mads();
    let message = |n: usize| CmMad::parse(&mads[n].1).unwrap().message;

    let CmMessage::Req(req) = message(0) else {
        panic!("{:?}", message(0));
    };
    assert_eq!(req.local_comm_id, 0xdc5e_2a22);
    assert_eq!(req.service_id, ServiceId::from_port(PortSpace::Tcp, 7174));
    assert_eq!(req.local_ca_guid, 0x5054_00ff_fe00_0002);
    assert_eq!(req.local_qpn, 0x11);
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!((req.local_cm_response_timeout, req.remote_cm_response_timeout), (20, 20));
    assert_eq!(req.transport, TransportService::Rc);
    assert_eq!(req.starting_psn, 0x11_f44f);
    assert_eq!((req.retry_count, req.rnr_retry_count, req.max_cm_retries), (7, 7, 15));
    assert_eq!((req.path_mtu, req.pkey), (3, 0xffff));
    assert_eq!(req.primary.local_gid[10..], [0xff, 0xff, 10, 77, 0, 2]);
    assert_eq!(req.primary.remote_gid[10..], [0xff, 0xff, 10, 77, 0, 1]);
    assert_eq!((req.primary.local_lid, req.primary.remote_lid), (0xffff, 0xffff));
    // (source port * 31 + destination port), 20 bits of it.
    assert_eq!(req.primary.flow_label, (0xe791 * 31 + 7174) & 0xf_ffff);
    assert_eq!((req.primary.hop_limit, req.primary.local_ack_timeout), (64, 19));
    assert_eq!((req.alternate, req.sap_supported), (None, false));
    let (ip_cm, user) = IpCmHeader::parse(req.private_data.as_slice()).unwrap();
    assert_eq!((ip_cm.ip, ip_cm.src_port), (mads[0].0, 0xe791));
    assert_eq!(user, [0; 56]);

    let CmMessage::Rep(rep) = message(1) else {
        panic!("{:?}", message(1));
    };
    assert_eq!((rep.local_comm_id, rep.remote_comm_id), (0xc21f_cfec, 0xdc5e_2a22));
    assert_eq!((rep.local_qpn, rep.starting_psn), (0x11, 0x8c_9c1e));
    assert_eq!((rep.target_ack_delay, rep.rnr_retry_count), (15, 7));

    let CmMessage::Dreq(dreq) = message(3) else {
        panic!("{:?}", message(3));
    };
    assert_eq!((dreq.local_comm_id, dreq.remote_comm_id), (0xdc5e_2a22, 0xc21f_cfec));
    assert_eq!(dreq.remote_qpn, 0x11);

    let CmMessage::Req(req) = message(5) else {
        panic!("{:?}", message(5));
    };
    let (ip_cm, _) = IpCmHeader::parse(req.private_data.as_slice()).unwrap();
    assert_eq!(ip_cm.ip, mads[5].0);
    assert!(matches!(ip_cm.ip, IpPair::V6 { .. }));

    let CmMessage::SidrReq(sidr) = message(10) else {
        panic!("{:?}", message(10));
    };
    assert_eq!(sidr.service_id.port(), Some((PortSpace::Udp, 7174)));
    assert_eq!(sidr.pkey, 0xffff);
    let (ip_cm, user) = IpCmHeader::parse(sidr.private_data.as_slice()).unwrap();
    assert_eq!((ip_cm.ip, user.len()), (mads[10].0, 180));

    let CmMessage::SidrRep(reply) = message(11) else {
        panic!("{:?}", message(11));
    };
    assert_eq!((reply.request_id, reply.status), (sidr.request_id, SidrStatus::Success));
    assert_eq!((reply.qpn, reply.qkey), (0x13, 0x0123_4567));
    assert_eq!(reply.service_id, sidr.service_id);

    let CmMessage::Rej(rej) = message(13) else {
        panic!("{:?}", message(13));
    };
    assert_eq!((rej.local_comm_id, rej.remote_comm_id), (0, 0xdf5e_2a22));
    assert_eq!(rej.rejected, Answered::Req);
    assert_eq!(rej.reason, RejectReason::InvalidServiceId);
    assert_eq!(rej.reason.to_string(), "invalid service id: nobody listens");
    assert_eq!(rej.info.as_slice(), []);
}

#[test]
fn what_is_no_cm_mad() {
    let good = mad(0x14, &ZERO);
    assert!(CmMad::parse(&good).is_ok());
    let with = |at: usize, value: u8| {
        let mut bad = good;
        bad[at] = value;
        CmMad::parse(&bad).unwrap_err()
    };
    assert_eq!(CmMad::parse(&good[..255]), Err(MadError::Length(255)));
    assert_eq!(CmMad::parse(&[&good[..], &[0]].concat()), Err(MadError::Length(257)));
    assert_eq!(with(0, 2), MadError::BaseVersion(2));
    assert_eq!(with(1, 3), MadError::Class(3));
    assert_eq!(with(2, 1), MadError::ClassVersion(1));
    assert_eq!(with(3, 0x83), MadError::Method(0x83));
    assert_eq!(with(17, 0x0f), MadError::Attribute(0x0f));
    assert_eq!(with(17, 0x1b), MadError::Attribute(0x1b));
    assert_eq!(with(16, 1), MadError::Attribute(0x114));
}

#[test]
fn additional_info_longer_than_its_field_is_cut() {
    for (attr_id, len_at, len, at) in [(0x12, 9, 0xfe, 12), (0x18, 5, 0xff, 24), (0x1a, 8, 73, 12)] {
        let mut data = ZERO;
        data[len_at] = len;
        data[at..at + 72].fill(0xab);
        let info = match parse(attr_id, &data) {
            CmMessage::Rej(rej) => rej.info,
            CmMessage::SidrRep(rep) => rep.info,
            CmMessage::Apr(apr) => apr.info,
            other => panic!("{other:?}"),
        };
        assert_eq!(info.as_slice(), [0xab; 72]);
    }
    assert_eq!(AdditionalInfo::new(&[1; 100]).as_slice().len(), 72);
    assert_eq!(AdditionalInfo::default(), AdditionalInfo::new(&[]));
}

#[test]
fn reserved_codes() {
    let mut data = ZERO;
    data[8] = 0xc0;
    assert!(matches!(parse(0x11, &data), CmMessage::Mra(Mra { received: Answered::Other, .. })));
    // The extended transport means something only where it is announced.
    let mut data = ZERO;
    data[51] = 1;
    assert!(matches!(parse(0x10, &data), CmMessage::Req(Req { transport: TransportService::Rc, .. })));
    for number in 0..=u16::MAX {
        let reason = RejectReason::from_number(number);
        assert_eq!(reason.to_number(), number);
        let named = matches!(number, 1..=33 | 35);
        assert_eq!(reason != RejectReason::Other(number), named);
    }
    for number in 0..=u8::MAX {
        assert_eq!(AprStatus::from_number(number).to_number(), number);
        assert_eq!(SidrStatus::from_number(number).to_number(), number);
    }
    assert_eq!(RejectReason::Other(99).to_string(), "reserved code 99");
}

#[test]
fn private_data_fills_its_field() {
    let data = PrivateData::<92>::new(b"hello").unwrap();
    assert_eq!(data.as_slice().len(), 92);
    assert_eq!(data.as_slice()[..6], *b"hello\0");
    assert_eq!(format!("{data:?}"), "PrivateData<92>(68656c6c6f)");
    assert!(PrivateData::<92>::new(&[1; 92]).is_ok());
    let error = PrivateData::<92>::new(&[1; 93]).unwrap_err();
    assert_eq!((error.len, error.max), (93, 92));
}

#[test]
fn service_ids() {
    let id = ServiceId::from_port(PortSpace::Tcp, 7471);
    assert_eq!(id, ServiceId(0x0000_0000_0106_1d2f));
    for space in [PortSpace::IpoIb, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib] {
        assert_eq!(ServiceId::from_port(space, 9).port(), Some((space, 9)));
    }
    assert_eq!(ServiceId(0x1_0000_0106_1d2f).port(), None);
    assert_eq!(ServiceId(0x0105_1d2f).port(), None);
}

#[test]
fn times() {
    assert_eq!(time(0), Duration::from_nanos(4_096));
    assert_eq!(time(20), Duration::from_nanos(4_294_967_296));
    assert_eq!(time(31), time(0x3f));
    assert_eq!(time(31).as_secs(), 8_796);
}

#[test]
fn what_is_no_ip_cm_header() {
    let ip = IpPair::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    let good = IpCmHeader { ip, src_port: 0x1234 }.emit();
    let mut expected = [0; 36];
    expected[1..4].copy_from_slice(&[0x40, 0x12, 0x34]);
    expected[16..20].copy_from_slice(&[10, 0, 0, 1]);
    expected[32..36].copy_from_slice(&[10, 0, 0, 2]);
    assert_eq!(good, expected);
    assert_eq!(IpCmHeader::parse(&good[..35]), Err(IpCmError::Truncated(35)));
    let with = |at: usize, value: u8| {
        let mut bad = good;
        bad[at] = value;
        IpCmHeader::parse(&bad).unwrap_err()
    };
    assert_eq!(with(0, 0x10), IpCmError::Version(0x10));
    assert_eq!(with(1, 0x50), IpCmError::IpVersion(5));
}

/// Any data of a message, all bits at random.
fn any_data() -> impl Strategy<Value = [u8; 232]> {
    proptest::collection::vec(any::<u8>(), 232).prop_map(|bytes| bytes.try_into().unwrap())
}

proptest! {
    /// Whatever the bits are, they parse, and what was parsed survives.
    #[test]
    fn messages_round_trip(attr_id in 0x10u16..=0x1a, data in any_data()) {
        let message = parse(attr_id, &data);
        prop_assert_eq!(message.attr_id(), attr_id);
        let bytes = emit(message);
        prop_assert_eq!(parse(attr_id, &bytes), message);
        // Nothing appears that was not there: bits are kept or dropped, but for the additional
        // information's length, and reserved values.
        let kept = bytes.iter().zip(&data).filter(|&(b, d)| b & !d != 0).count();
        prop_assert!(kept <= 1, "{} bytes have gained bits", kept);
    }

    #[test]
    fn any_mad_parses_or_fails(
        bytes in proptest::collection::vec(any::<u8>(), MAD_LEN),
        prefix in 0usize..5,
    ) {
        let mut bytes = bytes;
        bytes[..prefix.min(4)].copy_from_slice(&[1, 7, 2, 3][..prefix.min(4)]);
        let _ = CmMad::parse(&bytes);
        let _ = CmMad::parse(&bytes[..prefix]);
        if let Ok((header, data)) = MadHeader::parse(&bytes) {
            let mut again = [0; MAD_LEN];
            header.emit(&mut again).copy_from_slice(data);
            bytes[18..20].fill(0);
            prop_assert_eq!(&again[..], &bytes[..]);
        }
    }

    #[test]
    fn ip_cm_header_round_trips(v6: bool, src: [u8; 16], dst: [u8; 16], src_port: u16) {
        let ip = if v6 {
            IpPair::V6 { src: src.into(), dst: dst.into() }
        } else {
            let (src, dst) = (src.first_chunk::<4>().unwrap(), dst.first_chunk::<4>().unwrap());
            IpPair::V4 { src: (*src).into(), dst: (*dst).into() }
        };
        let header = IpCmHeader { ip, src_port };
        let bytes = [&header.emit()[..], b"user"].concat();
        prop_assert_eq!(IpCmHeader::parse(&bytes), Ok((header, &b"user"[..])));
    }

    #[test]
    fn any_ip_cm_header_parses_or_fails(
        bytes in proptest::collection::vec(any::<u8>(), 0..100),
        version in 0u8..16,
    ) {
        let mut bytes = bytes;
        let _ = IpCmHeader::parse(&bytes);
        if bytes.len() >= 2 {
            bytes[0] = 0;
            bytes[1] = version << 4;
            let _ = IpCmHeader::parse(&bytes);
        }
    }
}
