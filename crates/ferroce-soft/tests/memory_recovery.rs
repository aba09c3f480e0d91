//! Loss recovery of reliable connections, where one particular packet decides.

use ferroce_soft::memory::{Arrival, Fate, FaultPolicy, InFlight, MemoryConfig, MemoryFaults, MemoryNetwork};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Context, Cq, Mr, Mtu, Qp, QpAttr, QpInitAttr, QpState, QpType, RecvWr, SendOp, SendWr, WcStatus,
    WorkCompletion,
};
use ferroce_wire::{Aeth, Ext, Headers, Opcode, Operation, Syndrome};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

const MTU: usize = 1024;

/// Two connected ends; `attr` changes what they go to RTS with.
fn pair(network: &MemoryNetwork, len: usize, attr: impl Fn(&mut QpAttr)) -> (End, End) {
    let ends = [1, 2].map(|last| {
        let context = network.host(IpAddr::from([10, 0, 0, last])).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256, None).unwrap();
        let qp = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq)).unwrap();
        qp.modify(&QpAttr::init(Access::ALL)).unwrap();
        End { cq, qp, mr: pd.alloc_mr(len, Access::ALL).unwrap(), context }
    });
    let [a, b] = &ends;
    for (from, to) in [(a, b), (b, a)] {
        let gid = to.context.query_gid(1, 0).unwrap().gid;
        let mut rtr = QpAttr::rtr(AhAttr::roce(gid, 0), Mtu::Mtu1024, to.qp.qp_num(), 0);
        let mut rts = QpAttr::rts(0);
        attr(&mut rts);
        rtr.max_dest_rd_atomic = rts.max_rd_atomic;
        from.qp.modify(&rtr).unwrap();
        from.qp.modify(&rts).unwrap();
    }
    let [a, b] = ends;
    (a, b)
}

fn drain(cq: &Cq) -> Vec<WorkCompletion> {
    let mut all = Vec::new();
    let mut wc = [WorkCompletion::default()];
    while cq.poll(&mut wc).unwrap() == 1 {
        all.push(wc[0]);
    }
    all
}

/// Delivers after `self.delay`, but for what `decide` says otherwise: it gets each packet's headers and how many were sent
/// before.
struct Script<F>(u64, F);

impl<F: FnMut(u64, &Headers) -> Option<Fate> + Send> FaultPolicy for Script<F> {
    fn fate(&mut self, packet: &InFlight<'_>) -> Fate {
        let (headers, _) = Headers::parse(packet.packet).unwrap();
        let index = self.0;
        self.0 += 1;
        (self.1)(index, &headers).unwrap_or_else(|| after(1))
    }
}

/// One copy after so many microseconds.
fn after(micros: u64) -> Fate {
    let arrival = Arrival { delay: Duration::from_micros(micros), ..Arrival::default() };
    Fate { copies: [Some(arrival), None] }
}

const LOST: Fate = Fate { copies: [None, None] };

#[test]
fn one_lost_packet_costs_one_retry_however_often_its_loss_is_reported() {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let len = 16 * MTU;
    let (a, b) = pair(&network, len, |attr| attr.retry_cnt = Some(1));
    let mut first = true;
    network.set_policy(Box::new(Script(0, move |index, headers: &Headers| {
        if headers.bth.psn == 0 && std::mem::take(&mut first) {
            return Some(LOST);
        }
        // The rest of the first round arrives backwards: each packet makes the responder report the gap once more.
        (index < 16).then(|| after(100 - 2 * index))
    })));
    b.qp.post_recv(&[RecvWr::new(1, &[b.mr.sge(..).unwrap()])]).unwrap();
    a.qp.post_send(&[SendWr::send(2, &[a.mr.sge(..).unwrap()])]).unwrap();
    assert!(network.run_until_idle(Duration::from_secs(10)));
    assert_eq!(drain(&a.cq).iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::Success]);
    assert_eq!(drain(&b.cq).len(), 1);
}

#[test]
fn endless_reports_of_a_gap_end_when_the_timer_does_not_run() {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (a, _b) = pair(&network, 4 * MTU, |attr| (attr.retry_cnt, attr.timeout) = (Some(3), Some(0)));
    network.set_policy(Box::new(Script(0, |_, headers: &Headers| (headers.bth.psn == 0).then_some(LOST))));
    a.qp.post_send(&[SendWr::send(2, &[a.mr.sge(..).unwrap()])]).unwrap();
    // The answer that reports the gap carries PSN 0 as well, so nothing moves, and nothing counts.
    assert!(network.run_until_idle(Duration::from_secs(10)));
    assert_eq!(drain(&a.cq), []);
    let lost =
        |_: u64, headers: &Headers| (headers.bth.psn == 0 && headers.bth.opcode != Opcode::RcAck).then_some(LOST);
    network.set_policy(Box::new(Script(0, lost)));
    let mut a_nak = [0; 16];
    let aeth = ferroce_wire::Aeth { syndrome: ferroce_wire::Syndrome::Nak(ferroce_wire::NakCode::PsnSequence), msn: 0 };
    let bth = ferroce_wire::Bth { opcode: Opcode::RcAck, dest_qpn: a.qp.qp_num(), ..ferroce_wire::Bth::default() };
    Headers { bth, ext: ferroce_wire::Ext::Aeth(aeth) }.emit(&mut a_nak);
    network.inject(IpAddr::from([10, 0, 0, 2]), IpAddr::from([10, 0, 0, 1]), &a_nak);
    assert!(network.run_until_idle(Duration::from_secs(10)));
    assert_eq!(drain(&a.cq).iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::RetryExcErr]);
}

#[test]
fn a_long_read_goes_on_from_the_middle_of_a_piece() {
    // Reads longer than 64 packets are asked for in pieces; one response packet of each piece is lost.
    let network = MemoryNetwork::new(MemoryConfig::default());
    let len = 200 * MTU + 5;
    let (a, b) = pair(&network, len, |_| {});
    let mut lost = vec![10, 63, 64, 100, 200];
    network.set_policy(Box::new(Script(0, move |_, headers: &Headers| {
        let response = headers.bth.opcode.operation() == ferroce_wire::Operation::ReadResponse;
        let at = lost.iter().position(|&psn| response && psn == headers.bth.psn)?;
        lost.remove(at);
        Some(LOST)
    })));
    let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
    b.mr.write(0, &bytes).unwrap();
    let op = SendOp::Read { remote_addr: b.mr.addr(), rkey: b.mr.rkey() };
    a.qp.post_send(&[SendWr::new(1, op, &[a.mr.sge(..).unwrap()])]).unwrap();
    assert!(network.run_until_idle(Duration::from_secs(10)));
    assert_eq!(drain(&a.cq).iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::Success]);
    let mut got = vec![0; len];
    a.mr.read(0, &mut got).unwrap();
    assert!(got == bytes);
}

#[test]
fn a_read_that_is_asked_for_twice_leaves_room_for_the_next() {
    // Every request arrives twice, and answers wait a while: the answer to a duplicate is still queued when the next request
    // comes, for which the only resource must do.
    let faults = MemoryFaults {
        duplicate: 1.0,
        min_delay: Duration::from_micros(1),
        max_delay: Duration::from_micros(3),
        ..MemoryFaults::default()
    };
    for seed in 0..50 {
        let answer_within = Duration::from_micros(20);
        let network = MemoryNetwork::new(MemoryConfig { seed, faults, answer_within, ..MemoryConfig::default() });
        let (a, b) = pair(&network, 3 * MTU, |attr| attr.max_rd_atomic = Some(1));
        for id in 0..20 {
            let (remote_addr, rkey) = (b.mr.addr(), b.mr.rkey());
            let (op, len) = match id % 2 {
                0 => (SendOp::Read { remote_addr, rkey }, 3 * MTU),
                _ => (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, 8),
            };
            a.qp.post_send(&[SendWr::new(id, op, &[a.mr.sge(..len).unwrap()])]).unwrap();
        }
        assert!(network.run_until_idle(Duration::from_secs(10)));
        let done = drain(&a.cq);
        assert!(done.len() == 20 && done.iter().all(WorkCompletion::is_ok), "seed {seed}: {done:?}");
        let mut word = [0; 8];
        b.mr.read(0, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), 10, "seed {seed}");
    }
}

#[test]
fn a_queue_pair_that_its_owner_ended_sends_no_more() {
    // A slow link, so that most of the response still waits when the queue pair ends.
    for destroy in [true, false] {
        let config = MemoryConfig { rate: 1_000_000_000, send_buffer: 4096, ..MemoryConfig::default() };
        let network = MemoryNetwork::new(config);
        let len = 32 * MTU;
        let (a, b) = pair(&network, len, |attr| attr.timeout = Some(0));
        let op = SendOp::Read { remote_addr: b.mr.addr(), rkey: b.mr.rkey() };
        a.qp.post_send(&[SendWr::new(1, op, &[a.mr.sge(..).unwrap()])]).unwrap();
        network.advance(Duration::from_micros(10));
        let sent = network.stats().sent;
        assert!((5..30).contains(&sent), "{sent}");
        if destroy {
            // The memory goes with it: were it still asked for, the peer would be told that it is gone.
            drop((b.qp, b.mr));
        } else {
            b.qp.modify(&QpAttr::to(ferroce_verbs::QpState::Err)).unwrap();
        }
        assert!(network.run_until_idle(Duration::from_secs(1)));
        assert_eq!(network.stats().sent, sent);
        assert_eq!(drain(&a.cq), []);
    }
}

#[test]
fn a_long_wait_for_a_receive_does_not_use_up_the_retries() {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (a, b) = pair(&network, 64, |_| {});
    // Of the receiver-not-ready answers every second one is lost, and of what arrives each comes twice.
    let mut answers = 0;
    network.set_policy(Box::new(Script(0, move |_, headers: &Headers| {
        if headers.bth.opcode != Opcode::RcAck {
            return None;
        }
        answers += 1;
        if answers % 2 == 0 {
            return Some(LOST);
        }
        let [copy, _] = after(1).copies;
        Some(Fate { copies: [copy, copy] })
    })));
    a.qp.post_send(&[SendWr::send(1, &[a.mr.sge(..).unwrap()])]).unwrap();
    network.advance(Duration::from_secs(5));
    assert_eq!(drain(&a.cq), []);
    b.qp.post_recv(&[RecvWr::new(2, &[b.mr.sge(..).unwrap()])]).unwrap();
    network.advance(Duration::from_secs(1));
    assert_eq!(drain(&a.cq).iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::Success]);
}

#[test]
fn a_receiver_not_ready_answer_that_comes_twice_counts_once() {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (a, _b) = pair(&network, 64, |attr| attr.rnr_retry = Some(3));
    network.set_policy(Box::new(Script(0, |_, headers: &Headers| {
        let [copy, _] = after(1).copies;
        (headers.bth.opcode == Opcode::RcAck).then_some(Fate { copies: [copy, copy] })
    })));
    a.qp.post_send(&[SendWr::send(1, &[a.mr.sge(..).unwrap()])]).unwrap();
    assert!(network.run_until_idle(Duration::from_secs(5)));
    assert_eq!(drain(&a.cq).iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::RnrRetryExcErr]);
    let requests = network.stats();
    // The send and three more, and an answer to each.
    assert_eq!(requests.sent, 8, "{requests:?}");
}

#[test]
fn a_queue_pair_has_one_timer_at_most() {
    let network = MemoryNetwork::new(MemoryConfig::default());
    // The ACK timer runs for more than two hours, and each wait for a receive is a timer of 0.64 ms in front of it.
    let (a, b) = pair(&network, 64, |attr| attr.timeout = Some(31));
    a.qp.post_send(&[SendWr::send(1, &[a.mr.sge(..).unwrap()])]).unwrap();
    network.advance(Duration::from_secs(1));
    let timers = |end: &End| end.context.counters().into_iter().find(|(name, _)| *name == "timers").unwrap().1;
    assert_eq!((timers(&a), timers(&b)), (1, 0));
    drop(a.qp);
    let left = a.context.counters().into_iter().find(|(name, _)| *name == "timers").unwrap().1;
    assert_eq!(left, 0, "it went with the queue pair");
}

/// Who sends again because answers were lost gets acknowledged what it sent again, and not the read or atomic that followed. A requester
/// that takes such an acknowledgement for the response completes it with nothing; the kernel's rxe does (`check_ack` in `rxe_comp.c`).
#[test]
fn the_acknowledgement_of_a_duplicate_stops_before_a_read_or_atomic() {
    #[derive(Clone, Copy, Debug)]
    enum Next {
        Read(usize),
        Atomic,
        Send,
    }
    use Next::{Atomic, Read, Send};
    let cases: [&[Next]; 7] = [
        &[Read(8)],
        &[Read(3 * MTU)],
        &[Read(70 * MTU)],
        &[Atomic],
        &[Read(8), Read(2 * MTU), Atomic],
        &[Atomic, Read(8)],
        &[Read(2 * MTU), Send, Atomic],
    ];
    for next in cases {
        let network = MemoryNetwork::new(MemoryConfig::default());
        let (a, b) = pair(&network, 70 * MTU, |attr| attr.max_rd_atomic = Some(8));
        // No answer arrives, and what follows the first request does so once only, until that one was acknowledged again.
        let acks = Arc::new(Mutex::new(Vec::new()));
        let (seen, mut asked, mut repeated) = (acks.clone(), std::collections::HashSet::new(), false);
        network.set_policy(Box::new(Script(0, move |_, headers: &Headers| {
            let mut acks = seen.lock().unwrap();
            let psn = headers.bth.psn;
            let lost = match headers.bth.opcode.operation() {
                Operation::Ack => {
                    acks.push(psn);
                    !repeated
                }
                Operation::ReadResponse | Operation::AtomicAck => !repeated,
                _ if psn == 0 => {
                    if !asked.insert(0) {
                        acks.clear();
                        repeated = true;
                    }
                    false
                }
                _ => !asked.insert(psn) && (acks.is_empty() || !repeated),
            };
            lost.then_some(LOST)
        })));
        b.mr.write(0, &[7; 70 * MTU]).unwrap();
        let recvs: Vec<_> = (0..3).map(|id| RecvWr::new(id, &[])).collect();
        b.qp.post_recv(&recvs).unwrap();
        let (remote_addr, rkey) = (b.mr.addr(), b.mr.rkey());
        let mut wrs = vec![SendWr::new(0, SendOp::Send, &[])];
        let whole = |len: usize| [a.mr.sge(..len).unwrap()];
        let sges: Vec<_> = next.iter().map(|next| whole(if let Read(len) = next { *len } else { 8 })).collect();
        for (id, (next, sge)) in next.iter().zip(&sges).enumerate() {
            let (op, sge): (_, &[_]) = match next {
                Read(_) => (SendOp::Read { remote_addr, rkey }, sge),
                Atomic => (SendOp::FetchAdd { remote_addr, rkey, add: 1 }, sge),
                Send => (SendOp::Send, &[]),
            };
            wrs.push(SendWr::new(id as u64 + 1, op, sge));
        }
        a.qp.post_send(&wrs).unwrap();
        assert!(network.run_until_idle(Duration::from_secs(60)));
        let done = drain(&a.cq);
        assert!(done.len() == wrs.len() && done.iter().all(WorkCompletion::is_ok), "{next:?}: {done:?}");
        let atomics = next.iter().filter(|next| matches!(next, Atomic)).count();
        let mut word = [0; 8];
        b.mr.read(0, &mut word).unwrap();
        assert_eq!(u64::from_ne_bytes(word), u64::from_ne_bytes([7; 8]) + atomics as u64, "{next:?}");
        let acks = acks.lock().unwrap();
        assert_eq!(acks.first(), Some(&0), "{next:?}: {acks:?}");
        // Afterwards, what is sent behind a response may be acknowledged, but no PSN of what has one.
        let mut psn = 1;
        for next in next {
            let packets = if let Read(len) = next { len.div_ceil(MTU) as u32 } else { 1 };
            let own = psn..psn + packets;
            psn = own.end;
            assert!(matches!(next, Send) || !acks.iter().any(|ack| own.contains(ack)), "{next:?} at {own:?}: {acks:?}");
        }
    }
}

fn counter(end: &End, name: &str) -> u64 {
    end.context.counters().iter().find(|(counter, _)| *counter == name).expect(name).1
}

/// A 64-packet message of which the chosen packets are lost once; returns how long it took.
fn with_lost(lost: impl Fn(&Headers, bool) -> bool + Send + 'static) -> (End, Duration) {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (a, b) = pair(&network, 64 * MTU, |attr| attr.timeout = Some(18));
    let mut seen = std::collections::HashSet::new();
    network.set_policy(Box::new(Script(0, move |_, headers: &Headers| {
        let first = seen.insert((headers.bth.opcode, headers.bth.psn));
        lost(headers, first).then_some(LOST)
    })));
    b.qp.post_recv(&[RecvWr::new(1, &[b.mr.sge(..).unwrap()])]).unwrap();
    a.qp.post_send(&[SendWr::send(2, &[a.mr.sge(..).unwrap()])]).unwrap();
    let mut all = Vec::new();
    while all.is_empty() {
        assert!(network.step(), "nothing happens any more");
        all = drain(&a.cq);
    }
    assert_eq!(all[0].status, WcStatus::Success);
    (a, network.now())
}

#[test]
fn a_lost_tail_does_not_cost_a_timeout() {
    // The last packet; the acknowledgement of it; the report of a gap.
    let cases: [fn(&Headers, bool) -> bool; 3] = [
        |headers, first| headers.bth.psn == 63 && headers.bth.opcode != Opcode::RcAck && first,
        |headers, first| headers.bth.psn == 63 && headers.bth.opcode == Opcode::RcAck && first,
        |headers, first| headers.bth.psn == 40 && first,
    ];
    for lost in cases {
        let (a, took) = with_lost(lost);
        // A timeout of 18 is a second.
        assert!(took < Duration::from_millis(100), "{took:?}");
        assert_eq!((counter(&a, "tail_loss_probes"), counter(&a, "local_ack_timeout_err")), (1, 0));
    }
}

/// Sends, reads and atomics of which packets are lost more than once; returns what the requester counted, and how long it took.
fn with_lost_again(op: fn(&End) -> SendOp, len: usize, lost: fn(&Headers, u32) -> bool) -> ((u64, u64), Duration) {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (a, b) = pair(&network, 64 * MTU, |attr| attr.timeout = Some(20));
    let mut seen = std::collections::HashMap::new();
    network.set_policy(Box::new(Script(0, move |_, headers: &Headers| {
        let before = seen.entry((headers.bth.opcode, headers.bth.psn)).or_insert(0);
        *before += 1;
        lost(headers, *before - 1).then_some(LOST)
    })));
    b.mr.write(0, &[1; 64 * MTU]).unwrap();
    b.qp.post_recv(&[RecvWr::new(1, &[b.mr.sge(..).unwrap()])]).unwrap();
    a.qp.post_send(&[SendWr::new(2, op(&b), &[a.mr.sge(..len).unwrap()])]).unwrap();
    let mut all = Vec::new();
    while all.is_empty() {
        assert!(network.step(), "nothing happens any more");
        all = drain(&a.cq);
    }
    assert_eq!(all[0].status, WcStatus::Success);
    let took = network.now();
    // What is still under way changes nothing.
    assert!(network.run_until_idle(Duration::from_secs(60)));
    assert!([&a, &b].iter().all(|end| end.qp.query().unwrap().state == Some(QpState::Rts)));
    let (mut got, mut word) = (vec![0; len], [0; 8]);
    a.mr.read(0, &mut got).unwrap();
    b.mr.read(0, &mut word).unwrap();
    let added = match op(&b) {
        SendOp::Read { .. } | SendOp::FetchAdd { .. } => {
            assert!(got.iter().all(|&byte| byte == 1));
            u64::from(matches!(op(&b), SendOp::FetchAdd { .. }))
        }
        _ => u64::from_ne_bytes([0; 8]).wrapping_sub(u64::from_ne_bytes([1; 8])),
    };
    assert_eq!(u64::from_ne_bytes(word), u64::from_ne_bytes([1; 8]).wrapping_add(added));
    ((counter(&a, "tail_loss_probes"), counter(&a, "local_ack_timeout_err")), took)
}

/// Between a machine of the kernel's and one of ours a timeout takes 4.3 s (`CMA_CM_RESPONSE_TIMEOUT`), for each packet that was lost twice.
#[test]
fn what_is_lost_again_and_again_does_not_cost_a_timeout() {
    let send = |_: &End| SendOp::Send;
    let atomic = |b: &End| SendOp::FetchAdd { remote_addr: b.mr.addr(), rkey: b.mr.rkey(), add: 1 };
    type Case = (&'static str, fn(&End) -> SendOp, usize, fn(&Headers, u32) -> bool);
    let cases: [Case; 6] = [
        ("a message", send, 8, |headers, before| headers.bth.opcode != Opcode::RcAck && before < 4),
        ("the end of a long one", send, 64 * MTU, |headers, before| headers.bth.psn == 63 && before < 4),
        ("an acknowledgement", send, 8, |headers, before| headers.bth.opcode == Opcode::RcAck && before < 4),
        ("what is sent again for a gap", send, 64 * MTU, |headers, before| headers.bth.psn == 40 && before < 3),
        // The kernel's rxe reports a gap once, so to send the last packet again and again would not help.
        ("every report of a gap", send, 48 * MTU, |headers, before| {
            let reports = matches!(headers.ext, Ext::Aeth(Aeth { syndrome: Syndrome::Nak(_), .. }));
            reports || headers.bth.psn == 40 && headers.bth.opcode != Opcode::RcAck && before == 0
        }),
        ("the answer to an atomic", atomic, 8, |headers, before| {
            headers.bth.opcode == Opcode::RcAtomicAck && before < 3
        }),
    ];
    for (what, op, len, lost) in cases {
        let ((probes, timeouts), took) = with_lost_again(op, len, lost);
        assert!(took < Duration::from_millis(200), "{what}: {took:?}, {probes} probes");
        assert!((1..=20).contains(&probes) && timeouts == 0, "{what}: {probes} probes, {timeouts} timeouts, {took:?}");
    }
}

/// A peer that is gone is asked less and less often.
#[test]
fn silence_is_not_answered_with_ever_more() {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (a, _b) = pair(&network, 64, |attr| (attr.timeout, attr.retry_cnt) = (Some(20), Some(1)));
    network.set_policy(Box::new(Script(0, |_, _: &Headers| Some(LOST))));
    a.qp.post_send(&[SendWr::send(1, &[a.mr.sge(..).unwrap()])]).unwrap();
    assert!(network.run_until_idle(Duration::from_secs(60)));
    assert_eq!(drain(&a.cq).iter().map(|wc| wc.status).collect::<Vec<_>>(), [WcStatus::RetryExcErr]);
    // Two timeouts of 8.6 and 12.9 s, and before each one probe for each power of two of a millisecond.
    assert_eq!(network.stats().sent, 2 + 14 + 14, "{:?}", network.stats());
}

/// Each copy that finds no receive has an answer of its own, and it may come when the wait that the one before asked for is over.
#[test]
fn a_distant_peer_without_a_receive_is_not_asked_more_and_more_often() {
    // How many may be asked for in vain; for how long there is no receive; and how often a packet may be sent again meanwhile.
    for (rnr_retry, wait, most) in [(6, Duration::from_secs(5), 1), (7, Duration::from_secs(5), 5)] {
        let network = MemoryNetwork::new(MemoryConfig::default());
        let (a, b) = pair(&network, 64, |attr| (attr.rnr_retry, attr.timeout) = (Some(rnr_retry), Some(20)));
        // Ten milliseconds to the peer and back.
        network.set_policy(Box::new(Script(0, |_, _: &Headers| Some(after(5000)))));
        a.qp.post_send(&[SendWr::send(1, &[a.mr.sge(..).unwrap()])]).unwrap();
        network.advance(wait);
        let probes = counter(&a, "tail_loss_probes");
        assert!((1..=most).contains(&probes), "{probes} probes at {rnr_retry} retries");
        b.qp.post_recv(&[RecvWr::new(2, &[b.mr.sge(..).unwrap()])]).unwrap();
        network.advance(Duration::from_secs(1));
        let expected = if rnr_retry == 7 { WcStatus::Success } else { WcStatus::RnrRetryExcErr };
        assert_eq!(drain(&a.cq).iter().map(|wc| wc.status).collect::<Vec<_>>(), [expected]);
    }
}
