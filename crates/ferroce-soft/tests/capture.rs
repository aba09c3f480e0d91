//! Wireshark's opinion of what the device sends: it writes a capture of its own traffic, in which every opcode occurs, and tshark
//! decodes it.

use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_testing::tshark::{number, tshark};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, Ah, AhAttr, Context, Cq, Mr, Mtu, Pd, Qp, QpAttr, QpInitAttr, QpState, QpType, RecvWr, SendOp, SendWr,
    UdDest, WcStatus, WorkCompletion,
};
use ferroce_wire::{Flow, IpPair, NakCode, Opcode, Syndrome, check_icrc_exact};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

const LEN: usize = 4096;
const MTU: Mtu = Mtu::Mtu256;
/// A message of no packet but the only one, one of two packets, and one of three; none a multiple of 4.
const LENGTHS: [usize; 3] = [13, 400, 701];
const QKEY: u32 = 0x11_2233;

struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    mr: Mr,
    gid_index: u32,
}

impl End {
    fn open(link: LinkMode, ip: IpAddr, capture: Option<&Path>) -> Self {
        let capture = capture.map(Path::to_path_buf);
        let context = SoftDevice::new(SoftConfig { link, capture, ..SoftConfig::default() }).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let mr = pd.alloc_mr(LEN, Access::ALL).unwrap();
        // Nothing that tshark takes for a protocol.
        mr.write(0, &[b'x'; LEN]).unwrap();
        Self {
            cq: context.create_cq(64, None).unwrap(),
            mr,
            gid_index: context.find_gid(1, ip).unwrap().index,
            pd,
            context,
        }
    }

    fn address_of(&self, peer: &Self) -> AhAttr {
        AhAttr::roce(peer.context.query_gid(1, peer.gid_index).unwrap().gid, self.gid_index)
    }

    fn qp(&self, qp_type: QpType) -> Qp {
        let qp = self.pd.create_qp(&QpInitAttr::new(qp_type, &self.cq)).unwrap();
        let init = if qp_type == QpType::Ud { QpAttr::init_ud(QKEY) } else { QpAttr::init(Access::ALL) };
        qp.modify(&init).unwrap();
        qp
    }

    /// The next completion, while the peer makes progress as well. The deadline turns a hang into a failure.
    fn completion(&self, peer: &Self) -> WorkCompletion {
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut wc = [WorkCompletion::default()];
        while self.cq.poll(&mut wc).unwrap() == 0 {
            peer.cq.poll(&mut []).unwrap();
            assert!(Instant::now() < deadline, "no completion");
        }
        wc[0]
    }

    fn done(&self, peer: &Self) {
        let wc = self.completion(peer);
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
    }
}

fn connected(a: &End, b: &End, qp_type: QpType) -> (Qp, Qp) {
    let pair = (a.qp(qp_type), b.qp(qp_type));
    for (at, peer, qp, other) in [(a, b, &pair.0, &pair.1), (b, a, &pair.1, &pair.0)] {
        let (av, qpn) = (at.address_of(peer), other.qp_num());
        let [rtr, rts] = match qp_type {
            QpType::Rc => {
                let rtr = QpAttr { min_rnr_timer: Some(1), ..QpAttr::rtr(av, MTU, qpn, 7) };
                [rtr, QpAttr::rts(7)]
            }
            QpType::Uc => [QpAttr::rtr_uc(av, MTU, qpn, 7), QpAttr::rts_unreliable(7)],
            QpType::Ud => [QpAttr::to(QpState::Rtr), QpAttr::rts_unreliable(7)],
        };
        qp.modify(&rtr).unwrap();
        qp.modify(&rts).unwrap();
    }
    pair
}

/// Makes `a` send everything that it can send, and `b` answer with everything that it can answer with.
fn traffic(a: &End, b: &End) {
    let remote = |at: usize| (b.mr.addr() + at as u64, b.mr.rkey());
    let (rc, rc_peer) = connected(a, b, QpType::Rc);
    let (uc, uc_peer) = connected(a, b, QpType::Uc);
    for len in LENGTHS {
        for (qp, peer) in [(&rc, &rc_peer), (&uc, &uc_peer)] {
            let (remote_addr, rkey) = remote(0);
            let mut ops = vec![
                (SendOp::Send, true),
                (SendOp::SendImm(0x1234_5678), true),
                (SendOp::Write { remote_addr, rkey }, false),
                (SendOp::WriteImm { remote_addr, rkey, imm: 9 }, true),
            ];
            let mut invalidated = None;
            if qp.qp_type() == QpType::Rc {
                let mr = b.pd.alloc_mr(8, Access::ALL).unwrap();
                ops.push((SendOp::SendInv(mr.rkey()), true));
                ops.push((SendOp::Read { remote_addr, rkey }, false));
                invalidated = Some(mr);
            }
            for (op, received) in ops {
                if received {
                    peer.post_recv(&[RecvWr::new(1, &[b.mr.sge(..).unwrap()])]).unwrap();
                }
                qp.post_send(&[SendWr::new(2, op, &[a.mr.sge(..len).unwrap()])]).unwrap();
                a.done(b);
                if received {
                    b.done(a);
                }
            }
            drop(invalidated);
        }
    }
    let (remote_addr, rkey) = remote(8);
    for op in
        [SendOp::CompareSwap { remote_addr, rkey, compare: 1, swap: 2 }, SendOp::FetchAdd { remote_addr, rkey, add: 3 }]
    {
        rc.post_send(&[SendWr::new(3, op, &[a.mr.sge(..8).unwrap()])]).unwrap();
        a.done(b);
    }
    // Both kinds of refusal: not yet, and never.
    rc.post_send(&[SendWr::new(4, SendOp::Send, &[a.mr.sge(..LENGTHS[0]).unwrap()])]).unwrap();
    while b.context.counters().iter().all(|&(name, value)| name != "send_rnr_err" || value == 0) {
        a.cq.poll(&mut []).unwrap();
        b.cq.poll(&mut []).unwrap();
    }
    rc_peer.post_recv(&[RecvWr::new(5, &[b.mr.sge(..).unwrap()])]).unwrap();
    a.done(b);
    b.done(a);
    let op = SendOp::Write { remote_addr, rkey: rkey ^ 1 };
    rc.post_send(&[SendWr::new(6, op, &[a.mr.sge(..8).unwrap()])]).unwrap();
    assert_eq!(a.completion(b).status, WcStatus::RemAccessErr);
    datagrams(a, b);
}

fn datagrams(a: &End, b: &End) {
    let (ud, ud_peer) = connected(a, b, QpType::Ud);
    let ah: Ah = a.pd.create_ah(&a.address_of(b)).unwrap();
    for op in [SendOp::Send, SendOp::SendImm(7)] {
        ud_peer.post_recv(&[RecvWr::new(1, &[b.mr.sge(..).unwrap()])]).unwrap();
        let dest = UdDest { ah: &ah, qpn: ud_peer.qp_num(), qkey: QKEY };
        ud.post_send(&[SendWr::new(2, op, &[a.mr.sge(..99).unwrap()]).to(dest)]).unwrap();
        a.done(b);
        b.done(a);
    }
}

const FIELDS: [&str; 12] = [
    "_ws.malformed",
    "_ws.expert.message",
    "infiniband.bth.opcode",
    "_ws.col.Info",
    "ip.src",
    "ip.dst",
    "ip.id",
    "ipv6.src",
    "ipv6.dst",
    "udp.srcport",
    "udp.payload",
    "infiniband.aeth.syndrome",
];

/// What a capture holds: how often each opcode, and which syndromes.
#[derive(Default)]
struct Decoded {
    opcodes: BTreeMap<u8, u32>,
    syndromes: BTreeSet<u8>,
}

/// Lets tshark decode the capture, and checks each frame.
fn decode(file: &Path) -> Decoded {
    let mut decoded = Decoded::default();
    for line in tshark(&std::fs::read(file).unwrap(), &FIELDS) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [malformed, expert, opcode, info, v4_src, v4_dst, id, v6_src, v6_dst, port, payload, syndrome] =
            columns[..]
        else {
            panic!("{line:?}");
        };
        assert_eq!((malformed, expert), ("", ""), "tshark finds a fault: {line}");
        let opcode = number(opcode, false).unwrap_or_else(|| panic!("no BTH: {line}"));
        let opcode = Opcode::from_u8(opcode as u8).unwrap_or_else(|| panic!("opcode {opcode}: {line}"));
        let name = info.split("QP=").next().unwrap_or_default().trim_end();
        assert_eq!(name, opcode.name(), "{line}");
        // tshark shows the ICRC but does not compute it.
        let ip = if v4_src.is_empty() {
            IpPair::V6 { src: v6_src.parse().unwrap(), dst: v6_dst.parse().unwrap() }
        } else {
            IpPair::V4 { src: v4_src.parse().unwrap(), dst: v4_dst.parse().unwrap() }
        };
        let flow = Flow { ip, src_port: port.parse().unwrap(), dst_port: ferroce_wire::ROCE_UDP_PORT };
        let bytes = payload.as_bytes().as_chunks::<2>().0.iter();
        let bytes: Vec<u8> =
            bytes.map(|hex| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap()).collect();
        assert!(check_icrc_exact(&flow, number(id, false).unwrap_or(0) as u16, &bytes), "wrong ICRC: {line}");
        *decoded.opcodes.entry(opcode.to_u8()).or_default() += 1;
        decoded.syndromes.extend(number(syndrome, false).map(|syndrome| syndrome as u8));
    }
    decoded
}

fn check_every_opcode(link: LinkMode, ip: &str) {
    ferroce_testing::isolate();
    let directory = tempfile::tempdir().unwrap();
    let [ours, theirs] = ["a.pcap", "b.pcap"].map(|name| directory.path().join(name));
    let ip = ip.parse().unwrap();
    let a = End::open(link, ip, Some(&ours));
    let b = End::open(link, ip, Some(&theirs));
    traffic(&a, &b);
    // What is buffered is written when a context goes.
    drop((a, b));
    let (ours, theirs) = (wait_for(&ours), wait_for(&theirs));
    let all: BTreeSet<u8> = Opcode::ALL.iter().map(|opcode| opcode.to_u8()).collect();
    for decoded in [&ours, &theirs] {
        let seen: BTreeSet<u8> = decoded.opcodes.keys().copied().collect();
        let missing: Vec<&str> =
            Opcode::ALL.iter().filter(|opcode| !seen.contains(&opcode.to_u8())).map(|opcode| opcode.name()).collect();
        assert!(seen == all, "the capture lacks {missing:?}");
        let naks = [Syndrome::RnrNak { timer: 1 }, Syndrome::Nak(NakCode::RemoteAccess)];
        for syndrome in naks.map(Syndrome::to_u8) {
            assert!(decoded.syndromes.contains(&syndrome), "no syndrome {syndrome:#x} in {:x?}", decoded.syndromes);
        }
    }
    assert_eq!(ours.opcodes, theirs.opcodes, "what one sends the other receives");
}

/// Decodes `file` once it is complete: a thread of the device's writes it.
fn wait_for(file: &Path) -> Decoded {
    let mut len = 0;
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = std::fs::metadata(file).unwrap().len();
        if now > 24 && now == len {
            return decode(file);
        }
        len = now;
    }
}

#[test]
fn every_opcode_over_ipv4() {
    check_every_opcode(LinkMode::Udp, "127.0.0.1");
}

#[test]
fn every_opcode_over_ipv6() {
    check_every_opcode(LinkMode::Udp, "::1");
}

/// What goes through shared memory is in a capture as if it went over the wire.
#[test]
fn every_opcode_over_shared_memory() {
    check_every_opcode(LinkMode::Shm, "127.0.0.1");
}

#[test]
fn every_opcode_over_shared_memory_with_ipv6_addresses() {
    check_every_opcode(LinkMode::Shm, "::1");
}
