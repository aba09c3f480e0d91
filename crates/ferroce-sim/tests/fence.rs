//! A fenced send starts when all reads before it are complete (IBTA 10.8.3.3): so it can send what they read.

use ferroce_soft::memory::{Clock, MemoryConfig, MemoryFaults, MemoryNetwork};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Mtu, QpAttr, QpInitAttr, QpType, RecvWr, SendFlags, SendOp, SendWr, WcStatus, WorkCompletion,
};
use std::net::IpAddr;
use std::time::Duration;

const LEN: usize = 10_000;

fn run(seed: u64, flags: SendFlags) -> bool {
    let faults = MemoryFaults {
        loss: 0.05,
        duplicate: 0.05,
        reorder: 0.05,
        min_delay: Duration::from_micros(5),
        max_delay: Duration::from_micros(9),
        reorder_by: Duration::from_micros(20),
        ..MemoryFaults::default()
    };
    let network = MemoryNetwork::new(MemoryConfig { seed, faults, clock: Clock::Polled, ..MemoryConfig::default() });
    let ips = [1, 2].map(|host| IpAddr::from([10, 0, 0, host]));
    let ends = ips.map(|ip| {
        let pd = network.host(ip).open().unwrap().alloc_pd().unwrap();
        let cq = pd.context().create_cq(8, None).unwrap();
        let qp = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq)).unwrap();
        qp.modify(&QpAttr::init(Access::ALL)).unwrap();
        (pd.alloc_mr(2 * LEN, Access::ALL).unwrap(), cq, qp)
    });
    let [(a_mr, a_cq, a), (b_mr, b_cq, b)] = &ends;
    for (qp, peer, ip) in [(a, b, ips[1]), (b, a, ips[0])] {
        qp.modify(&QpAttr::rtr(AhAttr::roce(ip.into(), 0), Mtu::Mtu256, peer.qp_num(), 0)).unwrap();
        qp.modify(&QpAttr::rts(0)).unwrap();
    }
    let secret: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8 + 1).collect();
    b_mr.write(0, &secret).unwrap();
    b.post_recv(&[RecvWr::new(1, &[b_mr.sge(LEN..).unwrap()])]).unwrap();
    let here = [a_mr.sge(..LEN).unwrap()];
    let read = SendOp::Read { remote_addr: b_mr.addr(), rkey: b_mr.rkey() };
    a.post_send(&[SendWr::new(2, read, &here), SendWr::send(3, &here).flags(flags)]).unwrap();
    for cq in [a_cq, a_cq, b_cq] {
        let mut wc = [WorkCompletion::default()];
        while cq.poll(&mut wc).unwrap() == 0 {
            assert!(network.now() < Duration::from_secs(60), "seed {seed}: it does not end");
        }
        assert_eq!(wc[0].status, WcStatus::Success, "seed {seed}: {:?}", wc[0]);
    }
    let mut back = vec![0; LEN];
    b_mr.read(LEN, &mut back).unwrap();
    back == secret
}

#[test]
fn fenced_sends_wait_for_reads() {
    for seed in 0..200 {
        assert!(run(seed, SendFlags::SIGNALED | SendFlags::FENCE), "seed {seed}: it sent what was not read yet");
    }
    // And the others do not, or this test would show nothing.
    assert!((0..20).any(|seed| !run(seed, SendFlags::SIGNALED)));
}
