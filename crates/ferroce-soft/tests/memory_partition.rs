//! Packets of another partition are not for us (IBTA 10.9.3, 9.6.1.1.2).

use ferroce_soft::memory::{MemoryConfig, MemoryNetwork};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Access, AhAttr, Mtu, QpAttr, QpInitAttr, QpState, QpType, RecvWr, WcStatus, WorkCompletion};
use ferroce_wire::{Bth, Deth, Ext, Headers, Opcode};
use std::net::IpAddr;
use std::time::Duration;

const QKEY: u32 = 5;

/// Sends one packet with `pkey` to a queue pair that waits for it; returns whether it was received.
fn is_received(qp_type: QpType, pkey: u16) -> bool {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (ours, theirs) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let context = network.host(ours).open().unwrap();
    let peer = network.host(theirs).open().unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(4, None).unwrap();
    let qp = pd.create_qp(&QpInitAttr::new(qp_type, &cq)).unwrap();
    let mr = pd.alloc_mr(64, Access::LOCAL_WRITE).unwrap();
    let av = AhAttr::roce(peer.query_gid(1, 0).unwrap().gid, 0);
    let ext = if qp_type == QpType::Ud { Ext::Deth(Deth { qkey: QKEY, src_qpn: 7 }) } else { Ext::None };
    let opcode = match qp_type {
        QpType::Rc => Opcode::RcSendOnly,
        QpType::Uc => Opcode::UcSendOnly,
        QpType::Ud => Opcode::UdSendOnly,
    };
    match qp_type {
        QpType::Ud => {
            qp.modify(&QpAttr::init_ud(QKEY)).unwrap();
            qp.modify(&QpAttr::to(QpState::Rtr)).unwrap();
        }
        QpType::Uc => {
            qp.modify(&QpAttr::init(Access::empty())).unwrap();
            qp.modify(&QpAttr::rtr_uc(av, Mtu::Mtu1024, 7, 0)).unwrap();
        }
        QpType::Rc => {
            qp.modify(&QpAttr::init(Access::empty())).unwrap();
            qp.modify(&QpAttr::rtr(av, Mtu::Mtu1024, 7, 0)).unwrap();
        }
    }
    qp.post_recv(&[RecvWr::new(1, &[mr.sge(..).unwrap()])]).unwrap();
    let bth = Bth { opcode, dest_qpn: qp.qp_num(), pkey, ..Bth::default() };
    let headers = Headers { bth, ext };
    let mut packet = vec![0; headers.len() + 8];
    headers.emit(&mut packet);
    network.inject(theirs, ours, &packet);
    assert!(network.run_until_idle(Duration::from_secs(1)));
    let mut wc = [WorkCompletion::default()];
    let received = cq.poll(&mut wc).unwrap() == 1;
    assert!(!received || wc[0].status == WcStatus::Success, "{wc:?}");
    let (_, violations) = context.counters().into_iter().find(|(name, _)| *name == "pkey_violation").unwrap();
    assert_eq!(violations, u64::from(!received));
    received
}

#[test]
fn only_packets_of_the_partition_are_taken() {
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        // Full and limited members of the default partition; its port is a full member.
        for pkey in [0xffff, 0x7fff] {
            assert!(is_received(qp_type, pkey), "{qp_type} {pkey:#06x}");
        }
        for pkey in [0x8001, 0x0001, 0xfffe, 0x7ffe, 0x8000, 0] {
            assert!(!is_received(qp_type, pkey), "{qp_type} {pkey:#06x}");
        }
    }
}
