//! Unreliable connections on a network that does not keep packets in order.

use ferroce_soft::memory::{Arrival, Fate, FaultPolicy, InFlight, MemoryConfig, MemoryNetwork};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Mtu, QpAttr, QpInitAttr, QpType, RecvWr, SendOp, SendWr, WcOpcode, WorkCompletion,
};
use std::net::IpAddr;
use std::time::Duration;

/// How late the copies of each packet are, in microseconds.
struct Script(Vec<&'static [u64]>);

impl FaultPolicy for Script {
    fn fate(&mut self, _: &InFlight<'_>) -> Fate {
        let delays = if self.0.is_empty() { &[1_u64][..] } else { self.0.remove(0) };
        let copy = |delay: &u64| Arrival { delay: Duration::from_micros(*delay), ..Arrival::default() };
        Fate { copies: [delays.first().map(copy), delays.get(1).map(copy)] }
    }
}

/// Sends messages of `lens` bytes over packets of 256 with sequence numbers that wrap; returns which arrived, in order.
fn arrived(lens: &[usize], script: &[&'static [u64]]) -> Vec<u32> {
    let network = MemoryNetwork::new(MemoryConfig::default());
    network.set_policy(Box::new(Script(script.to_vec())));
    let ends = [1, 2].map(|last| {
        let context = network.host(IpAddr::from([10, 0, 0, last])).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64, None).unwrap();
        let qp = pd.create_qp(&QpInitAttr::new(QpType::Uc, &cq)).unwrap();
        qp.modify(&QpAttr::init(Access::empty())).unwrap();
        (context.query_gid(1, 0).unwrap().gid, qp, cq, pd.alloc_mr(4096, Access::LOCAL_WRITE).unwrap())
    });
    let [a, b] = &ends;
    for (from, to) in [(a, b), (b, a)] {
        let ah_attr = AhAttr::roce(to.0, 0);
        from.1.modify(&QpAttr::rtr_uc(ah_attr, Mtu::Mtu256, to.1.qp_num(), 0xff_ffff)).unwrap();
        from.1.modify(&QpAttr::rts_unreliable(0xff_ffff)).unwrap();
    }
    for _ in 0..8 {
        b.1.post_recv(&[RecvWr::new(0, &[b.3.sge(..).unwrap()])]).unwrap();
    }
    for (index, &len) in lens.iter().enumerate() {
        let op = SendOp::SendImm(index as u32);
        a.1.post_send(&[SendWr::new(0, op, &[a.3.sge(..len).unwrap()])]).unwrap();
    }
    assert!(network.run_until_idle(Duration::from_secs(1)));
    let mut wcs = [WorkCompletion::default(); 32];
    let polled = b.2.poll(&mut wcs).unwrap();
    assert!(wcs[..polled].iter().all(|wc| wc.is_ok() && wc.opcode == WcOpcode::Recv));
    wcs[..polled].iter().map(|wc| wc.imm).collect()
}

#[test]
fn messages_arrive_once_and_in_order_whatever_the_network_does() {
    assert_eq!(arrived(&[10, 10, 10], &[]), [0, 1, 2]);
    // The second is overtaken by the third: it comes too late.
    assert_eq!(arrived(&[10, 10, 10], &[&[1], &[9], &[1]]), [0, 2]);
    // The first comes again after the second, and the second at once.
    assert_eq!(arrived(&[10, 10, 10], &[&[1, 9], &[1, 1], &[1]]), [0, 1, 2]);
}

#[test]
fn a_late_packet_does_not_disturb_the_message_that_is_under_way() {
    // Two messages of three packets; a second copy of the first message's first packet arrives within the second one.
    assert_eq!(arrived(&[700, 700], &[&[1, 3], &[1], &[1], &[2], &[4], &[5]]), [0, 1]);
    // A packet of a message is lost, and so the message; the next one is whole.
    assert_eq!(arrived(&[700, 700], &[&[1], &[], &[1], &[2], &[4], &[5]]), [1]);
}
