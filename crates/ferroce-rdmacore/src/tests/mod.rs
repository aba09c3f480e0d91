//! The contract's rules on a library without a device.

mod drain;
mod gone;

use crate::fake::{self, Posted};
use ferroce_abi::types::value;
use ferroce_verbs::{
    Access, AhAttr, AsyncEvent, Context, Cq, Error, EventType, Gid, LinkLayer, Mtu, Pd, Qp, QpAttr, QpCap, QpInitAttr,
    QpState, QpType, RecvWr, SendFlags, SendOp, SendWr, SrqInitAttr, UdDest, WcFlags, WcStatus, WorkCompletion,
};
use std::net::Ipv4Addr;

fn peer() -> AhAttr {
    AhAttr::roce(Ipv4Addr::new(10, 77, 0, 2).into(), 1)
}

struct Bench {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp,
}

/// A queue pair that can send.
fn bench(qp_type: QpType) -> Bench {
    let context = fake::open();
    let pd = context.alloc_pd().unwrap();
    let cq = context.create_cq(64, None).unwrap();
    let cap = QpCap { max_send_sge: 2, ..QpCap::default() };
    let qp = pd.create_qp(&QpInitAttr { cap, ..QpInitAttr::new(qp_type, &cq) }).unwrap();
    match qp_type {
        QpType::Ud => {
            qp.modify(&QpAttr::init_ud(1)).unwrap();
            qp.modify(&QpAttr::to(QpState::Rtr)).unwrap();
            qp.modify(&QpAttr::rts_unreliable(0)).unwrap();
        }
        QpType::Uc => {
            qp.modify(&QpAttr::init(Access::empty())).unwrap();
            qp.modify(&QpAttr::rtr_uc(peer(), Mtu::Mtu1024, 1, 0)).unwrap();
            qp.modify(&QpAttr::rts_unreliable(0)).unwrap();
        }
        QpType::Rc => {
            qp.modify(&QpAttr::init(Access::empty())).unwrap();
            qp.modify(&QpAttr::rtr(peer(), Mtu::Mtu1024, 1, 0)).unwrap();
            qp.modify(&QpAttr::rts(0)).unwrap();
        }
    }
    Bench { context, pd, cq, qp }
}

fn polled(cq: &Cq) -> Vec<(u64, WcStatus)> {
    let mut all = Vec::new();
    let mut out = [WorkCompletion::default(); 3];
    loop {
        let got = cq.poll(&mut out).unwrap();
        all.extend(out[..got].iter().map(|wc| (wc.wr_id, wc.status)));
        if got < out.len() {
            return all;
        }
    }
}

/// Handles are numbers of a context, and a provider does not look whose a queue is.
#[test]
fn queues_of_another_context_are_refused() {
    let (ours, other) = (fake::open(), fake::open());
    let pd = ours.alloc_pd().unwrap();
    let (cq, stranger) = (ours.create_cq(16, None).unwrap(), other.create_cq(16, None).unwrap());
    for (send_cq, recv_cq, what) in [(&stranger, &cq, "send_cq"), (&cq, &stranger, "recv_cq")] {
        let refused = pd.create_qp(&QpInitAttr { recv_cq: recv_cq.clone(), ..QpInitAttr::new(QpType::Rc, send_cq) });
        assert!(matches!(&refused, Err(Error::Invalid { what: named, .. }) if *named == what), "{refused:?}");
    }
    let channel = other.create_comp_channel().unwrap();
    let refused = ours.create_cq(16, Some(&channel));
    assert!(matches!(&refused, Err(Error::Invalid { what: "channel", .. })), "{refused:?}");
}

/// Whatever is dropped first, parents are destroyed after their children: the fake library checks it.
#[test]
fn any_order_of_drops_destroys_children_first() {
    for rotation in 0..8 {
        let context = fake::open();
        let pd = context.alloc_pd().unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(16, Some(&channel)).unwrap();
        let srq = pd.create_srq(&SrqInitAttr { max_wr: 16, max_sge: 1 }).unwrap();
        let qp = pd.create_qp(&QpInitAttr { srq: Some(srq.clone()), ..QpInitAttr::new(QpType::Rc, &cq) }).unwrap();
        let mr = pd.alloc_mr(64, Access::ALL).unwrap();
        let ah = pd.create_ah(&peer()).unwrap();
        assert_eq!(fake::live().len(), 8);
        let mut handles: Vec<Box<dyn std::any::Any>> = vec![
            Box::new(context),
            Box::new(pd),
            Box::new(channel),
            Box::new(cq),
            Box::new(srq),
            Box::new(qp),
            Box::new(mr),
            Box::new(ah),
        ];
        handles.rotate_left(rotation);
        handles.into_iter().for_each(drop);
        assert!(fake::live().is_empty(), "{:?} lives", fake::live());
        assert_eq!(fake::destroyed().last(), Some(&"context"));
    }
}

/// The objects that a context has, by kind and number; those that it has none of are left out.
fn counted(context: &Context) -> Vec<(&'static str, u64)> {
    let kinds = [
        "protection_domains",
        "address_handles",
        "memory_regions",
        "completion_queues",
        "queue_pairs",
        "shared_receive_queues",
        "completion_channels",
    ];
    context.counters().into_iter().filter(|(name, count)| kinds.contains(name) && *count != 0).collect()
}

#[test]
fn what_there_is_is_counted() {
    let Bench { context, pd, cq, qp } = bench(QpType::Rc);
    let srq = pd.create_srq(&SrqInitAttr { max_wr: 16, max_sge: 1 }).unwrap();
    let mr = pd.alloc_mr(64, Access::ALL).unwrap();
    let ahs = [pd.create_ah(&peer()).unwrap(), pd.create_ah(&peer()).unwrap()];
    let all = [
        ("protection_domains", 1),
        ("address_handles", 2),
        ("memory_regions", 1),
        ("completion_queues", 1),
        ("queue_pairs", 1),
        ("shared_receive_queues", 1),
    ];
    assert_eq!(counted(&context), all);
    // Another opening of the device has its own.
    assert_eq!(counted(&fake::open()), []);
    qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    drop((srq, mr, ahs, qp));
    let draining = [("protection_domains", 1), ("completion_queues", 1), ("queue_pairs", 1)];
    assert_eq!(counted(&context), draining, "what drains is there");
    while !polled(&cq).is_empty() {}
    fake::settle();
    assert_eq!(counted(&context), [("protection_domains", 1), ("completion_queues", 1)]);
    drop((pd, cq));
    assert_eq!(counted(&context), []);
    let channel = context.create_comp_channel().unwrap();
    assert_eq!(counted(&context), [("completion_channels", 1)]);
    drop(channel);
    assert_eq!(counted(&context), []);
}

/// Nothing panics, and nothing is freed that the library may still use.
#[test]
fn what_cannot_be_destroyed_is_left_alone() {
    let Bench { context, pd, cq, qp } = bench(QpType::Rc);
    let ah = pd.create_ah(&peer()).unwrap();
    fake::fail_to_destroy(libc::EIO);
    drop(ah);
    assert_eq!(context.ops().base().ah_destroy_failures(), 1);
    drop((qp, cq, pd));
    let left = ["protection_domains", "address_handles", "completion_queues", "queue_pairs"].map(|kind| (kind, 1));
    assert_eq!(counted(&context), left, "it is there as far as one knows");
    drop(context);
    assert!(fake::live().contains(&"qp"));
}

#[test]
fn a_list_is_posted_as_it_is_up_to_the_first_that_is_wrong() {
    let Bench { pd, qp, .. } = bench(QpType::Rc);
    let mr = pd.alloc_mr(64, Access::ALL).unwrap();
    let sges = [mr.sge(..8).unwrap(), mr.sge(8..).unwrap(), mr.sge(..).unwrap()];
    let mut wrs: Vec<SendWr<'_>> = (0..9).map(|wr_id| SendWr::send(wr_id, &sges[..2])).collect();
    wrs.push(SendWr::inline(9, SendOp::SendImm(0x0102_0304), b"inline").flags(SendFlags::SOLICITED | SendFlags::FENCE));
    wrs.push(SendWr::new(10, SendOp::Write { remote_addr: 77, rkey: 5 }, &[]));
    wrs.push(SendWr::send(11, &sges));
    wrs.push(SendWr::send(12, &[]));
    let refused = qp.post_send(&wrs).unwrap_err();
    assert_eq!(refused.index, 11);
    assert!(refused.to_string().contains("3 elements, the queue pair was made for 2"), "{refused}");
    let posts = fake::posts();
    assert_eq!(posts.iter().map(Vec::len).collect::<Vec<_>>(), [8, 3], "in batches");
    let posts: Vec<Posted> = posts.into_iter().flatten().collect();
    assert!(posts.iter().map(|post| post.wr_id).eq(0..11));
    assert_eq!((posts[0].opcode, posts[0].flags, posts[0].sges), (value::IBV_WR_SEND, value::IBV_SEND_SIGNALED, 2));
    let flags = value::IBV_SEND_SOLICITED | value::IBV_SEND_FENCE | value::IBV_SEND_INLINE;
    assert_eq!((posts[9].opcode, posts[9].flags), (value::IBV_WR_SEND_WITH_IMM, flags));
    assert_eq!(posts[9].inline.as_deref(), Some(&b"inline"[..]));
    assert_eq!(posts[9].imm_data, 0x0102_0304_u32.to_be());
    assert_eq!((posts[10].opcode, posts[10].remote_addr), (value::IBV_WR_RDMA_WRITE, 77));
}

#[test]
fn a_full_queue_is_told_with_the_index_of_the_first_that_did_not_fit() {
    let Bench { qp, .. } = bench(QpType::Rc);
    fake::set_room(11);
    let wrs: Vec<SendWr<'_>> = (0..20).map(|wr_id| SendWr::send(wr_id, &[])).collect();
    let refused = qp.post_send(&wrs).unwrap_err();
    assert_eq!(refused.index, 11);
    assert!(matches!(refused.error, Error::QueueFull { .. }), "{refused}");
    let receives: Vec<RecvWr<'_>> = (0..20).map(|wr_id| RecvWr::new(wr_id, &[])).collect();
    assert_eq!(qp.post_recv(&receives).unwrap_err().index, 11);
    fake::set_room(usize::MAX);
}

/// A send holds its address, also when the program does not.
#[test]
fn datagrams_hold_their_address() {
    let Bench { context, pd, cq, qp } = bench(QpType::Ud);
    let ah = pd.create_ah(&peer()).unwrap();
    qp.post_send(&[SendWr::send(1, &[]).to(UdDest { ah: &ah, qpn: 1, qkey: 1 })]).unwrap();
    assert!(fake::posts()[0][0].to_ah);
    drop(ah);
    assert!(fake::live().contains(&"ah"));
    // As many more as can be outstanding: the first is certainly complete.
    let other = pd.create_ah(&peer()).unwrap();
    fake::calls();
    for wr_id in 0..128 {
        qp.post_send(&[SendWr::send(wr_id, &[]).to(UdDest { ah: &other, qpn: 1, qkey: 1 })]).unwrap();
    }
    assert_eq!(fake::calls(), 0, "whoever posts destroys the address");
    assert_eq!(fake::live().iter().filter(|what| **what == "ah").count(), 1);
    drop(other);
    drop(qp);
    assert_eq!(polled(&cq).len(), 129);
    assert!(!fake::live().contains(&"ah"), "it is kept for ever");
    drop((context, pd, cq));
    assert!(fake::live().is_empty());
}

#[test]
fn another_domains_address_is_refused() {
    let Bench { context, qp, .. } = bench(QpType::Ud);
    let ah = context.alloc_pd().unwrap().create_ah(&peer()).unwrap();
    let refused = qp.post_send(&[SendWr::send(1, &[]).to(UdDest { ah: &ah, qpn: 1, qkey: 1 })]).unwrap_err();
    assert!(refused.to_string().contains("another protection domain"), "{refused}");
    assert!(qp.post_send(&[SendWr::send(1, &[])]).unwrap_err().to_string().contains("needs a destination"));
}

#[test]
fn the_state_is_known_without_asking_until_something_fails() {
    let Bench { cq, qp, .. } = bench(QpType::Rc);
    assert_eq!(qp.state(), QpState::Rts);
    qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    fake::fail_qp(qp.qp_num());
    assert_eq!(qp.state(), QpState::Rts, "nobody has seen it yet");
    assert_eq!(polled(&cq), [(1, WcStatus::WrFlushErr)]);
    assert_eq!(qp.state(), QpState::Err);
    qp.modify(&QpAttr::to(QpState::Reset)).unwrap();
    assert_eq!(qp.state(), QpState::Reset);
    let refused = qp.post_recv(&[RecvWr::new(1, &[])]).unwrap_err();
    assert!(matches!(refused.error, Error::State { state: QpState::Reset, .. }), "{refused}");
}

/// A receive that comes after its queue pair has failed by itself is flushed, too, and not only when the queue pair goes.
#[test]
fn receives_that_come_too_late_are_flushed() {
    let Bench { cq, qp, .. } = bench(QpType::Rc);
    qp.post_recv(&[RecvWr::new(1, &[])]).unwrap();
    fake::fail_qp(qp.qp_num());
    assert_eq!(polled(&cq), [(1, WcStatus::WrFlushErr)]);
    for wr_id in [2, 3] {
        qp.post_recv(&[RecvWr::new(wr_id, &[])]).unwrap();
        assert_eq!(polled(&cq), [(wr_id, WcStatus::WrFlushErr)]);
    }
}

#[test]
fn events_hold_what_they_are_about_and_are_acknowledged_at_once() {
    let Bench { context, qp, .. } = bench(QpType::Rc);
    assert!(context.next_async_event().unwrap().is_none());
    fake::raise(value::IBV_EVENT_LID_CHANGE, "port");
    fake::raise(value::IBV_EVENT_QP_ACCESS_ERR, "qp");
    let event = context.next_async_event().unwrap().unwrap();
    assert!(matches!(&event, AsyncEvent::Qp(EventType::QpAccessErr, of) if *of == qp), "{event:?}");
    assert!(context.next_async_event().unwrap().is_none());
    // The event holds the queue pair; destroying it waits for nobody.
    drop(qp);
    assert!(fake::live().contains(&"qp"));
    drop(event);
    assert!(!fake::live().contains(&"qp"));
    // One that its owner let go of is of no use to anybody.
    fake::raise(value::IBV_EVENT_QP_FATAL, "qp");
    assert!(context.next_async_event().unwrap().is_none());
}

#[test]
fn addresses_of_rocev1_and_of_other_ports_are_left_out() {
    let context = fake::open();
    let table = context.gid_table(1).unwrap();
    assert_eq!(table.len(), 1);
    assert_eq!((table[0].index, table[0].mtu), (1, Mtu::Mtu1024));
    assert!(!table[0].gid.is_zero() && table[0].gid != Gid::default());
    // Ports have tables of different lengths.
    assert_eq!(context.gid_table(2).unwrap().len(), 6);
    assert!(matches!(context.gid_table(3), Err(Error::NotFound { .. })));
    let attr = context.query_device().unwrap();
    assert_eq!((attr.fw_ver.as_str(), attr.node_guid, attr.max_inline_data), ("1.2.3", 0x0102_0304_0506_0708, 1024));
}

/// The first 40 bytes of a connected receive are data, whatever the device says.
#[test]
fn only_datagrams_have_a_grh() {
    let Bench { pd, cq, qp, .. } = bench(QpType::Rc);
    let flags = |qp: &Qp| {
        fake::receive(qp.qp_num());
        let mut out = [WorkCompletion::default()];
        assert_eq!(cq.poll(&mut out).unwrap(), 1);
        out[0].flags.contains(WcFlags::GRH)
    };
    assert!(!flags(&qp));
    let datagrams = pd.create_qp(&QpInitAttr::new(QpType::Ud, &cq)).unwrap();
    assert!(flags(&datagrams));
    assert!(!flags(&qp));
}
