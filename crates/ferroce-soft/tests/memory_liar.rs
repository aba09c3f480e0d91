//! A peer that answers what it was not asked, or not as the protocol wants it: the requester must end with the right status, and its
//! memory must not be touched beyond what it offered.

use ferroce_soft::memory::{Fate, FaultPolicy, InFlight, MemoryConfig, MemoryNetwork};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Mtu, QpAttr, QpInitAttr, QpState, QpType, SendOp, SendWr, WcStatus, WorkCompletion,
};
use ferroce_wire::{Aeth, Bth, Ext, Headers, Opcode, Syndrome};
use std::net::IpAddr;
use std::time::Duration;

const MTU: usize = 1024;
/// What is read: three packets, the last one shorter.
const READ_LEN: usize = 2 * MTU + 100;
/// What follows it in memory is not the peer's business.
const MR_LEN: usize = 8 * MTU;
const OURS: u8 = 0x5a;
const LIE: u8 = 0xee;

/// Nothing arrives but what is injected.
struct Deaf;

impl FaultPolicy for Deaf {
    fn fate(&mut self, _: &InFlight<'_>) -> Fate {
        Fate { copies: [None, None] }
    }
}

#[derive(Clone, Copy, Debug)]
enum Asks {
    Send,
    Read,
    /// A read of 65 packets, which is requested as 64 and one.
    LongRead,
    Atomic,
}

/// Posts one work request, answers it with `answers` (opcode, PSN, bytes of payload), and says how it completed, if it did, and how
/// much of the memory changed.
fn outcome(asks: Asks, answers: &[(Opcode, u32, usize)]) -> (Option<WcStatus>, usize) {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (ours, theirs) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let context = network.host(ours).open().unwrap();
    let peer = network.host(theirs).open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(16, None).unwrap();
    let qp = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq)).unwrap();
    let len = if matches!(asks, Asks::LongRead) { 70 * MTU } else { MR_LEN };
    let mr = pd.alloc_mr(len, Access::ALL).unwrap();
    mr.write(0, &vec![OURS; len]).unwrap();
    qp.modify(&QpAttr::init(Access::ALL)).unwrap();
    let gid = peer.query_gid(1, 0).unwrap().gid;
    qp.modify(&QpAttr::rtr(AhAttr::roce(gid, 0), Mtu::Mtu1024, 0x12, 0)).unwrap();
    qp.modify(&QpAttr { timeout: Some(0), ..QpAttr::rts(0) }).unwrap();
    network.set_policy(Box::new(Deaf));

    let (remote_addr, rkey) = (0x1000, 7);
    let (op, asked) = match asks {
        Asks::Send => (SendOp::Send, 8),
        Asks::Read => (SendOp::Read { remote_addr, rkey }, READ_LEN),
        Asks::LongRead => (SendOp::Read { remote_addr, rkey }, 65 * MTU),
        Asks::Atomic => (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8),
    };
    qp.post_send(&[SendWr::new(1, op, &[mr.sge(..asked).unwrap()])]).unwrap();
    for &(opcode, psn, payload) in answers {
        let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 };
        let ext = match opcode {
            Opcode::RcAtomicAck => Ext::AtomicAck(aeth, u64::from_ne_bytes([LIE; 8])),
            Opcode::RcReadResponseMiddle => Ext::None,
            _ => Ext::Aeth(aeth),
        };
        let headers = Headers { bth: Bth { opcode, dest_qpn: qp.qp_num(), psn, ..Bth::default() }, ext };
        let mut packet = vec![LIE; headers.len() + payload];
        headers.emit(&mut packet);
        network.inject(theirs, ours, &packet);
        assert!(network.run_until_idle(Duration::from_secs(1)));
    }
    let mut wc = [WorkCompletion::default()];
    let status = (cq.poll(&mut wc).unwrap() == 1).then(|| wc[0].status);
    let broken = status.is_some_and(|status| status != WcStatus::Success);
    assert_eq!(qp.query().unwrap().state == Some(QpState::Err), broken, "{asks:?} {answers:?}");
    let mut bytes = vec![0; len];
    mr.read(0, &mut bytes).unwrap();
    assert!(bytes[asked..].iter().all(|&byte| byte == OURS), "{asks:?} {answers:?} wrote beyond what was offered");
    (status, bytes.iter().filter(|&&byte| byte != OURS).count())
}

use Opcode::{
    RcAck as Ack, RcAtomicAck as AtomicAck, RcReadResponseFirst as First, RcReadResponseLast as Last,
    RcReadResponseMiddle as Middle, RcReadResponseOnly as Only,
};

#[test]
fn honest_answers_complete() {
    let good = Some(WcStatus::Success);
    assert_eq!(outcome(Asks::Send, &[(Ack, 0, 0)]), (good, 0));
    assert_eq!(outcome(Asks::Atomic, &[(AtomicAck, 0, 0)]), (good, 8));
    assert_eq!(outcome(Asks::Read, &[(First, 0, MTU), (Middle, 1, MTU), (Last, 2, 100)]), (good, READ_LEN));
    // What is asked for again begins with another First.
    assert_eq!(outcome(Asks::Read, &[(First, 0, MTU), (First, 1, MTU), (Last, 2, 100)]), (good, READ_LEN));
    let mut long: Vec<_> = (0..65).map(|psn| (Middle, psn, MTU)).collect();
    (long[0].0, long[63].0, long[64].0) = (First, Last, Only);
    assert_eq!(outcome(Asks::LongRead, &long), (good, 65 * MTU));
}

#[test]
fn a_read_response_of_another_length_is_refused() {
    let bad = Some(WcStatus::BadRespErr);
    for len in [0, 4, MTU - 4, MTU + 4, 4096] {
        assert_eq!(outcome(Asks::Read, &[(First, 0, len)]), (bad, 0), "{len}");
        assert_eq!(outcome(Asks::Read, &[(First, 0, MTU), (Middle, 1, len)]), (bad, MTU), "{len}");
    }
    for len in [0, 96, 104, MTU, 4096] {
        assert_eq!(outcome(Asks::Read, &[(First, 0, MTU), (Middle, 1, MTU), (Last, 2, len)]), (bad, 2 * MTU), "{len}");
    }
}

#[test]
fn a_read_ends_where_it_was_asked_to() {
    let bad = Some(WcStatus::BadRespErr);
    assert_eq!(outcome(Asks::Read, &[(Only, 0, MTU)]), (bad, 0));
    assert_eq!(outcome(Asks::Read, &[(First, 0, MTU), (Last, 1, MTU)]), (bad, MTU));
    // Such an end would leave the requester with a read that it counts for ever.
    assert_eq!(outcome(Asks::Read, &[(First, 0, MTU), (Middle, 1, MTU), (Middle, 2, 100)]), (bad, 2 * MTU));
    let unending: Vec<_> = (0..64).map(|psn| (Middle, psn, MTU)).collect();
    assert_eq!(outcome(Asks::LongRead, &unending), (bad, 63 * MTU));
}

#[test]
fn an_answer_to_another_question_is_refused() {
    let bad = Some(WcStatus::BadRespErr);
    assert_eq!(outcome(Asks::Read, &[(AtomicAck, 0, 0)]), (bad, 0));
    assert_eq!(outcome(Asks::Atomic, &[(Only, 0, 8)]), (bad, 0));
    assert_eq!(outcome(Asks::Send, &[(AtomicAck, 0, 0)]), (bad, 0));
    assert_eq!(outcome(Asks::Send, &[(Only, 0, 8)]), (bad, 0));
}

#[test]
fn an_acknowledgement_does_not_complete_what_wants_a_response() {
    for asks in [Asks::Read, Asks::Atomic] {
        assert_eq!(outcome(asks, &[(Ack, 0, 0)]), (None, 0));
    }
}

#[test]
fn an_answer_to_what_was_not_sent_is_nothing() {
    for psn in [1, 2, 100, 0x80_0000, 0xff_ffff] {
        assert_eq!(outcome(Asks::Send, &[(Ack, psn, 0)]), (None, 0), "{psn:#x}");
        assert_eq!(outcome(Asks::Atomic, &[(AtomicAck, psn, 0)]), (None, 0), "{psn:#x}");
    }
    assert_eq!(outcome(Asks::Read, &[(Only, 3, 100)]), (None, 0));
}
