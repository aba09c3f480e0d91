use ferroce_soft::memory::*;
use ferroce_verbs::provider::Device;
use ferroce_verbs::*;
use std::time::Duration;
fn main() {
    let seed: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let faults = MemoryFaults {
        loss: 0.1,
        duplicate: 0.1,
        reorder: 0.1,
        reorder_by: Duration::from_micros(30),
        corrupt: 0.1,
        min_delay: Duration::from_micros(1),
        max_delay: Duration::from_micros(5),
    };
    let network = MemoryNetwork::new(MemoryConfig {
        seed,
        faults,
        answer_within: Duration::from_micros(2),
        ..MemoryConfig::default()
    });
    let mut ends = vec![];
    for ip in ["10.0.0.1", "10.0.0.2"] {
        let context = network.host(ip.parse().unwrap()).open().unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let qp = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq)).unwrap();
        qp.modify(&QpAttr::init(Access::ALL)).unwrap();
        ends.push((context.query_gid(1, 0).unwrap().gid, qp, cq, pd.alloc_mr(65536, Access::ALL).unwrap()));
    }
    let [a, b] = &ends[..] else { unreachable!() };
    for (from, to) in [(a, b), (b, a)] {
        from.1.modify(&QpAttr::rtr(AhAttr::roce(to.0, 0), Mtu::Mtu1024, to.1.qp_num(), 0)).unwrap();
        from.1.modify(&QpAttr::rts(0)).unwrap();
    }
    network.observe(|e| println!("{}", ferroce_sim::log::line(e)));
    if std::env::args().nth(2).is_none() {
        b.1.post_recv(&[RecvWr::new(1, &[b.3.sge(..).unwrap()])]).unwrap();
    }
    a.1.post_send(&[SendWr::send(2, &[a.3.sge(..).unwrap()])]).unwrap();
    for _ in 0..2000 {
        let mut wc = [WorkCompletion::default()];
        for e in &ends {
            if e.2.poll(&mut wc).unwrap() == 1 {
                println!("{:?}", wc[0]);
            }
        }
        if !network.step() {
            break;
        }
    }
}
