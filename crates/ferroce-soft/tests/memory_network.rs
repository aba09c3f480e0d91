//! The network in memory: what a test of a verbs program relies on.

use ferroce_soft::memory::{Clock, MemoryConfig, MemoryFaults, MemoryNetwork, TraceKind};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Context, Cq, Gid, Mr, Mtu, Qp, QpAttr, QpInitAttr, QpState, QpType, RecvWr, SendOp, SendWr, UdDest,
    WcStatus, WorkCompletion,
};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

const LEN: usize = 64 << 10;

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

fn end(network: &MemoryNetwork, host: IpAddr, qp_type: QpType) -> End {
    let context = network.host(host).open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(256, None).unwrap();
    let qp = pd.create_qp(&QpInitAttr::new(qp_type, &cq)).unwrap();
    let mr = pd.alloc_mr(LEN, Access::ALL).unwrap();
    qp.modify(&if qp_type == QpType::Ud { QpAttr::init_ud(1) } else { QpAttr::init(Access::ALL) }).unwrap();
    End { context, cq, qp, mr }
}

fn connect(from: &End, to: &End) {
    let gid = to.context.query_gid(1, 0).unwrap().gid;
    from.qp.modify(&QpAttr::rtr(AhAttr::roce(gid, 0), Mtu::Mtu1024, to.qp.qp_num(), 0xff_fff0)).unwrap();
    from.qp.modify(&QpAttr::rts(0xff_fff0)).unwrap();
}

fn pair(network: &MemoryNetwork) -> (End, End) {
    let (a, b) = (end(network, ip(1), QpType::Rc), end(network, ip(2), QpType::Rc));
    connect(&a, &b);
    connect(&b, &a);
    (a, b)
}

fn poll(cq: &Cq) -> Option<WorkCompletion> {
    let mut wc = [WorkCompletion::default()];
    (cq.poll(&mut wc).unwrap() == 1).then(|| wc[0])
}

fn bad_network(seed: u64) -> MemoryConfig {
    let faults = MemoryFaults {
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
        reorder_by: Duration::from_micros(30),
        corrupt: 0.1,
        min_delay: Duration::from_micros(1),
        max_delay: Duration::from_micros(5),
    };
    MemoryConfig { seed, faults, answer_within: Duration::from_micros(2), ..MemoryConfig::default() }
}

/// Sends, writes and reads 64 KiB each; returns what the network did, in a hash.
fn exchange(config: MemoryConfig) -> u64 {
    let network = MemoryNetwork::new(config);
    let trace = Arc::new(Mutex::new(0_u64));
    let sink = trace.clone();
    network.observe(move |event| {
        let mut hash = sink.lock().unwrap();
        for part in [event.at.as_nanos() as u64, event.kind as u64, event.packet.len() as u64] {
            *hash = (hash.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    });
    let (a, b) = pair(&network);
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7) as u8).collect();
    a.mr.write(0, &bytes).unwrap();
    b.qp.post_recv(&[RecvWr::new(5, &[b.mr.sge(..).unwrap()])]).unwrap();
    a.qp.post_send(&[SendWr::send(7, &[a.mr.sge(..).unwrap()])]).unwrap();
    let done = |end: &End| loop {
        if let Some(wc) = poll(&end.cq) {
            break wc;
        }
        assert!(network.step(), "nothing left to happen");
    };
    assert_eq!((done(&b).wr_id, done(&a).status), (5, WcStatus::Success));
    let mut got = vec![0; LEN];
    b.mr.read(0, &mut got).unwrap();
    assert!(got == bytes);
    for op in [
        SendOp::Write { remote_addr: a.mr.addr(), rkey: a.mr.rkey() },
        SendOp::Read { remote_addr: a.mr.addr(), rkey: a.mr.rkey() },
    ] {
        b.qp.post_send(&[SendWr::new(1, op, &[b.mr.sge(..).unwrap()])]).unwrap();
        assert_eq!(done(&b).status, WcStatus::Success);
    }
    assert!(network.run_until_idle(Duration::from_secs(10)));
    let stats = network.stats();
    assert!(stats.is_consistent() && stats.in_flight == 0, "{stats:?}");
    trace.lock().map(|hash| *hash).unwrap()
}

#[test]
fn a_perfect_network_needs_no_time() {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (a, b) = pair(&network);
    b.qp.post_recv(&[RecvWr::new(5, &[b.mr.sge(..).unwrap()])]).unwrap();
    a.qp.post_send(&[SendWr::send(7, &[a.mr.sge(..).unwrap()])]).unwrap();
    assert_eq!(poll(&b.cq).map(|wc| (wc.wr_id, wc.byte_len)), Some((5, LEN as u32)));
    assert_eq!(poll(&a.cq).map(|wc| wc.wr_id), Some(7));
    assert_eq!(network.now(), Duration::ZERO);
    exchange(MemoryConfig::default());
}

#[test]
fn a_bad_network_delivers_all_the_same_and_a_seed_reproduces_it() {
    let hashes: Vec<u64> = (0..20).map(|seed| exchange(bad_network(seed))).collect();
    for (seed, &hash) in hashes.iter().enumerate() {
        assert_eq!(exchange(bad_network(seed as u64)), hash, "seed {seed}");
    }
    assert_ne!(hashes[0], hashes[1]);
}

#[test]
fn damage_is_caught_by_the_icrc() {
    let mut config = bad_network(1);
    config.faults = MemoryFaults { corrupt: 1.0, ..MemoryFaults::default() };
    let network = MemoryNetwork::new(config);
    let (a, b) = pair(&network);
    b.qp.post_recv(&[RecvWr::new(5, &[b.mr.sge(..).unwrap()])]).unwrap();
    a.qp.post_send(&[SendWr::send(7, &[a.mr.sge(..).unwrap()])]).unwrap();
    assert!(network.run_until_idle(Duration::from_secs(10)));
    let stats = network.stats();
    assert_eq!((stats.delivered, stats.rejected), (0, stats.sent));
    assert_eq!(poll(&a.cq).map(|wc| wc.status), Some(WcStatus::RetryExcErr));
    assert_eq!(poll(&b.cq), None);
}

#[test]
fn a_partition_heals() {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (a, b) = pair(&network);
    b.qp.post_recv(&[RecvWr::new(5, &[b.mr.sge(..64).unwrap()])]).unwrap();
    network.isolate(ip(2));
    a.qp.post_send(&[SendWr::send(7, &[a.mr.sge(..64).unwrap()])]).unwrap();
    network.advance(Duration::from_millis(200));
    assert_eq!((poll(&b.cq), poll(&a.cq)), (None, None));
    network.restore(ip(2));
    network.block(ip(2), ip(1));
    network.advance(Duration::from_millis(200));
    assert_eq!(poll(&b.cq).map(|wc| wc.wr_id), Some(5));
    assert_eq!(poll(&a.cq), None, "its acknowledgement is blocked");
    network.unblock(ip(2), ip(1));
    network.advance(Duration::from_millis(200));
    assert_eq!(poll(&a.cq).map(|wc| wc.status), Some(WcStatus::Success));
    network.isolate(ip(2));
    a.qp.post_send(&[SendWr::send(8, &[a.mr.sge(..64).unwrap()])]).unwrap();
    assert!(network.run_until_idle(Duration::from_secs(10)));
    assert_eq!(poll(&a.cq).map(|wc| wc.status), Some(WcStatus::RetryExcErr));
    assert_eq!(a.qp.state(), QpState::Err);
}

#[test]
fn a_polled_clock_moves_by_itself() {
    let config = MemoryConfig { clock: Clock::Polled, ..bad_network(4) };
    let network = MemoryNetwork::new(config);
    let (a, b) = pair(&network);
    // No receive is posted: the send has to be tried again, which takes time.
    a.qp.post_send(&[SendWr::send(7, &[a.mr.sge(..).unwrap()])]).unwrap();
    while network.now() < Duration::from_millis(2) {
        assert_eq!(poll(&a.cq), None);
    }
    b.qp.post_recv(&[RecvWr::new(5, &[b.mr.sge(..).unwrap()])]).unwrap();
    let done = |cq: &Cq| (0..1_000_000).find_map(|_| poll(cq));
    assert_eq!(done(&b.cq).map(|wc| wc.wr_id), Some(5));
    assert_eq!(done(&a.cq).map(|wc| wc.status), Some(WcStatus::Success));
}

#[test]
fn contexts_of_one_host_have_slots_of_their_own() {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let ends: Vec<End> = (0..3).map(|_| end(&network, ip(1), QpType::Rc)).collect();
    let slots: Vec<u32> = ends.iter().map(|end| end.qp.qp_num() >> 16).collect();
    assert_eq!(slots, [0, 1, 2]);
    connect(&ends[0], &ends[2]);
    connect(&ends[2], &ends[0]);
    ends[2].qp.post_recv(&[RecvWr::new(5, &[ends[2].mr.sge(..).unwrap()])]).unwrap();
    ends[0].qp.post_send(&[SendWr::send(7, &[ends[0].mr.sge(..100).unwrap()])]).unwrap();
    assert_eq!(poll(&ends[2].cq).map(|wc| wc.byte_len), Some(100));
    drop(ends);
    // A slot that was given up is reused as late as possible.
    assert_eq!(end(&network, ip(1), QpType::Rc).qp.qp_num() >> 16, 3);
    let many: Vec<Context> = (0..255).map(|_| network.host(ip(1)).open().unwrap()).collect();
    assert!(network.host(ip(1)).open().is_err());
    drop(many);
    assert!(network.host(ip(1)).open().is_ok());
}

#[test]
fn multicast_reaches_every_member() {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let hosts = [ip(1), ip(2), ip(2), ip(3)];
    let ends: Vec<End> = hosts.iter().map(|&host| end(&network, host, QpType::Ud)).collect();
    let group = Gid::from(IpAddr::from([239, 1, 2, 3]));
    for end in &ends {
        end.qp.modify(&QpAttr::to(QpState::Rtr)).unwrap();
        end.qp.modify(&QpAttr::rts_unreliable(0)).unwrap();
        end.qp.post_recv(&[RecvWr::new(5, &[end.mr.sge(..).unwrap()])]).unwrap();
    }
    for end in &ends[1..] {
        end.qp.attach_mcast(group).unwrap();
    }
    ends[3].qp.detach_mcast(group).unwrap();
    let sender = network.host(ip(4)).open().unwrap();
    let pd = sender.alloc_pd().unwrap();
    let cq = sender.create_cq(8, None).unwrap();
    let qp = pd.create_qp(&QpInitAttr::new(QpType::Ud, &cq)).unwrap();
    let mr = pd.alloc_mr(64, Access::empty()).unwrap();
    qp.modify(&QpAttr::init_ud(1)).unwrap();
    qp.modify(&QpAttr::to(QpState::Rtr)).unwrap();
    qp.modify(&QpAttr::rts_unreliable(0)).unwrap();
    let ah = pd.create_ah(&AhAttr::roce(group, 0)).unwrap();
    let dest = UdDest { ah: &ah, qpn: 0xff_ffff, qkey: 1 };
    qp.post_send(&[SendWr::send(1, &[mr.sge(..).unwrap()]).to(dest)]).unwrap();
    let got: Vec<Option<u32>> = ends.iter().map(|end| poll(&end.cq).map(|wc| wc.byte_len)).collect();
    assert_eq!(got, [None, Some(104), Some(104), None]);
}

#[test]
fn a_slow_link_takes_its_time_and_pushes_back() {
    let config = MemoryConfig { rate: 1_000_000_000, send_buffer: 8 << 10, ..MemoryConfig::default() };
    let network = MemoryNetwork::new(config);
    let lost = Arc::new(Mutex::new(0));
    let sink = lost.clone();
    network.observe(move |event| *sink.lock().unwrap() += u32::from(event.kind == TraceKind::Lost));
    let (a, b) = pair(&network);
    b.qp.post_recv(&[RecvWr::new(5, &[b.mr.sge(..).unwrap()])]).unwrap();
    a.qp.post_send(&[SendWr::send(7, &[a.mr.sge(..).unwrap()])]).unwrap();
    assert!(network.stats().in_flight < 16, "{:?}", network.stats());
    assert!(network.run_until_idle(Duration::from_secs(1)));
    assert_eq!(poll(&a.cq).map(|wc| wc.status), Some(WcStatus::Success));
    let stats = network.stats();
    assert_eq!(*lost.lock().unwrap(), 0);
    assert!(stats.max_in_flight < 16 && stats.sent < 80, "{stats:?}");
    // 64 packets of 1024 bytes and their headers at one byte a nanosecond, and what the ACK timer waits for to stop.
    assert!(network.now() > Duration::from_nanos(64 * 1024));
}
