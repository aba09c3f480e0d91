//! The device end to end: two contexts of one process exchange messages over each link.

use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Context, Cq, Mr, Mtu, Qp, QpAttr, QpInitAttr, QpState, QpType, RecvWr, SendOp, SendWr, WcOpcode,
    WcStatus, WorkCompletion,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    gid_index: u32,
}

const LEN: usize = 1 << 20;

fn end(link: LinkMode) -> End {
    end_with(SoftConfig { link, ..SoftConfig::default() })
}

fn end_with(config: SoftConfig) -> End {
    let context = SoftDevice::new(config).open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(256, None).unwrap();
    let mut init = QpInitAttr::new(QpType::Rc, &cq);
    init.cap.max_send_sge = 2;
    let qp = pd.create_qp(&init).unwrap();
    let mr = pd.alloc_mr(LEN, Access::ALL).unwrap();
    qp.modify(&QpAttr::init(Access::ALL)).unwrap();
    let gid_index = context.find_gid(1, "127.0.0.1".parse().unwrap()).unwrap().index;
    End { context, cq, qp, mr, gid_index }
}

fn connect(from: &End, to: &End) {
    let gid = to.context.query_gid(1, to.gid_index).unwrap().gid;
    let mtu = Mtu::Mtu1024;
    from.qp.modify(&QpAttr::rtr(AhAttr::roce(gid, from.gid_index), mtu, to.qp.qp_num(), 0xff_fff0)).unwrap();
    from.qp.modify(&QpAttr::rts(0xff_fff0)).unwrap();
}

/// Polls until `count` completions came. The deadline turns a hang into a failure.
fn completions(cq: &Cq, others: &[&Cq], count: usize) -> Vec<WorkCompletion> {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut out = vec![];
    while out.len() < count {
        let mut wcs = [WorkCompletion::default(); 8];
        let n = cq.poll(&mut wcs).unwrap();
        out.extend_from_slice(&wcs[..n]);
        for other in others {
            assert_eq!(other.poll(&mut []).unwrap(), 0);
        }
        assert!(Instant::now() < deadline, "only {out:?} of {count}");
    }
    out
}

fn exchange(link: LinkMode) {
    let (a, b) = (end(link), end(link));
    connect(&a, &b);
    connect(&b, &a);
    for (round, len) in [0, 1, 1023, 1024, 1025, 70_001, LEN].into_iter().enumerate() {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
        a.mr.write(0, &bytes).unwrap();
        b.mr.write(0, &vec![0xee; LEN]).unwrap();
        b.qp.post_recv(&[RecvWr::new(5, &[b.mr.sge(..).unwrap()])]).unwrap();
        a.qp.post_send(&[SendWr::new(7, SendOp::SendImm(99), &[a.mr.sge(..len).unwrap()])]).unwrap();
        let got = completions(&b.cq, &[&a.cq], 1)[0];
        assert_eq!((got.wr_id, got.status, got.opcode), (5, WcStatus::Success, WcOpcode::Recv));
        assert_eq!((got.byte_len as usize, got.imm_data()), (len, Some(99)));
        let sent = completions(&a.cq, &[&b.cq], 1)[0];
        assert_eq!((sent.wr_id, sent.status), (7, WcStatus::Success));
        let mut back = vec![0; len];
        b.mr.read(0, &mut back).unwrap();
        assert!(back == bytes, "message of {len} bytes");

        // Write it back, then read it again.
        a.mr.write(0, &vec![0; LEN]).unwrap();
        let op = SendOp::Write { remote_addr: a.mr.addr(), rkey: a.mr.rkey() };
        b.qp.post_send(&[SendWr::new(8, op, &[b.mr.sge(..len).unwrap()])]).unwrap();
        assert_eq!(completions(&b.cq, &[&a.cq], 1)[0].status, WcStatus::Success);
        a.mr.read(0, &mut back).unwrap();
        assert!(back == bytes, "write of {len} bytes");
        b.mr.write(0, &vec![0; LEN]).unwrap();
        let op = SendOp::Read { remote_addr: a.mr.addr(), rkey: a.mr.rkey() };
        b.qp.post_send(&[SendWr::new(9, op, &[b.mr.sge(..len).unwrap()])]).unwrap();
        assert_eq!(completions(&b.cq, &[], 1)[0].status, WcStatus::Success);
        b.mr.read(0, &mut back).unwrap();
        assert!(back == bytes, "read of {len} bytes");
    }
    a.mr.write(0, &5_u64.to_ne_bytes()).unwrap();
    let op = SendOp::FetchAdd { remote_addr: a.mr.addr(), rkey: a.mr.rkey(), add: 3 };
    b.qp.post_send(&[SendWr::new(10, op, &[b.mr.sge(64..72).unwrap()])]).unwrap();
    assert_eq!(completions(&b.cq, &[], 1)[0].status, WcStatus::Success);
    let mut old = [0; 8];
    b.mr.read(64, &mut old).unwrap();
    assert_eq!(u64::from_ne_bytes(old), 5);
    a.mr.read(0, &mut old).unwrap();
    assert_eq!(u64::from_ne_bytes(old), 8);
}

#[test]
fn over_shared_memory() {
    exchange(LinkMode::Shm);
}

#[test]
fn over_udp() {
    exchange(LinkMode::Udp);
}

/// A packet that was half written to the link when its second part could not be read: its connection ends, and no other one between the
/// same two contexts.
fn fail_half_way(link: LinkMode) {
    let (a, b) = (end(link), end(link));
    connect(&a, &b);
    connect(&b, &a);
    for round in 0..50 {
        let pd = a.context.alloc_pd().unwrap();
        let mut init = QpInitAttr::new(QpType::Rc, &a.cq);
        init.cap.max_send_sge = 2;
        let qp = pd.create_qp(&init).unwrap();
        let mr = pd.alloc_mr(LEN, Access::ALL).unwrap();
        mr.write(0, &[0xff; 4096]).unwrap();
        qp.modify(&QpAttr::init(Access::ALL)).unwrap();
        let gid = b.context.query_gid(1, b.gid_index).unwrap().gid;
        let rtr = QpAttr::rtr(AhAttr::roce(gid, a.gid_index), Mtu::Mtu4096, b.qp.qp_num(), 1);
        qp.modify(&rtr).unwrap();
        qp.modify(&QpAttr::rts(1)).unwrap();
        let mut wrong = mr.sge(..100).unwrap();
        wrong.lkey ^= 1;
        let list = [mr.sge(..100 + round * 20).unwrap(), wrong];
        qp.post_send(&[SendWr::new(1, SendOp::Send, &list)]).unwrap();
        let failed = completions(&a.cq, &[&b.cq], 1)[0];
        assert_eq!((failed.wr_id, failed.status), (1, WcStatus::LocProtErr));
        b.qp.post_recv(&[RecvWr::new(2, &[b.mr.sge(..).unwrap()])]).unwrap();
        a.qp.post_send(&[SendWr::new(3, SendOp::Send, &[a.mr.sge(..8).unwrap()])]).unwrap();
        assert_eq!(completions(&b.cq, &[&a.cq], 1)[0].status, WcStatus::Success, "round {round}");
        assert_eq!(completions(&a.cq, &[&b.cq], 1)[0].status, WcStatus::Success, "round {round}");
    }
}

#[test]
fn a_send_that_fails_half_way_hurts_no_other() {
    fail_half_way(LinkMode::Shm);
    fail_half_way(LinkMode::Udp);
}

/// The segments in the registry `dir` that this process has in memory.
fn mapped(dir: &Path) -> BTreeSet<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let in_dir = |line: &str| line.split_once(dir.to_str().unwrap()).map(|(_, file)| file.to_owned());
    maps.lines().filter_map(in_dir).collect()
}

/// Whoever leaves frees his place himself: nobody finds him dead, and those who sent to him let go of his memory all the same.
#[test]
fn memory_of_who_has_left_is_given_back() {
    ferroce_testing::isolate();
    let dir = tempfile::tempdir().unwrap();
    let registry = dir.path().join("registry");
    let open = || end_with(SoftConfig { runtime_dir: Some(registry.clone()), ..SoftConfig::default() });
    let a = open();
    let own = mapped(&registry);
    for _ in 0..3 {
        let b = open();
        connect(&a, &b);
        connect(&b, &a);
        b.qp.post_recv(&[RecvWr::new(5, &[])]).unwrap();
        a.qp.post_send(&[SendWr::send(7, &[])]).unwrap();
        completions(&b.cq, &[&a.cq], 1);
        completions(&a.cq, &[&b.cq], 1);
        a.qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
        a.qp.modify(&QpAttr::init(Access::ALL)).unwrap();
        drop(b);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while mapped(&registry) != own {
        assert!(Instant::now() < deadline, "{own:?} is its own, and it has {:?}", mapped(&registry));
        std::thread::sleep(Duration::from_millis(20));
    }
}
