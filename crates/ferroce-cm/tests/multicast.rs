//! Multicast groups, on a network in memory.

use ferroce_cm::{ConnectionManager, Error, Event, EventChannel, EventKind, Id, Membership, PortSpace, UDP_QKEY};
use ferroce_soft::memory::{MemoryConfig, MemoryNetwork};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Access, Cq, Mr, Pd, Qp, QpInitAttr, QpType, RecvWr, SendWr, UdDest, WcStatus, WorkCompletion};
use std::net::IpAddr;
use std::time::Duration;

const GRH: usize = 40;

struct Member {
    id: Id,
    channel: EventChannel,
    qp: Qp,
    cq: Cq,
    mr: Mr,
    pd: Pd,
}

fn group() -> IpAddr {
    "239.1.2.3".parse().unwrap()
}

impl Member {
    /// Bound to its address, with a queue pair and a receive.
    fn new(network: &MemoryNetwork, ip: &str) -> Self {
        let context = network.host(ip.parse().unwrap()).open().unwrap();
        let cm = ConnectionManager::new(&context).unwrap();
        let channel = EventChannel::new().unwrap();
        let id = cm.create_id(&channel, PortSpace::Udp);
        id.bind_addr((ip.parse::<IpAddr>().unwrap(), 7174).into()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let qp = id.create_qp(&pd, &QpInitAttr::new(QpType::Ud, &cq)).unwrap();
        let mr = pd.alloc_mr(128, Access::LOCAL_WRITE).unwrap();
        qp.post_recv(&[RecvWr::new(1, &[mr.sge(..64).unwrap()])]).unwrap();
        Self { id, channel, qp, cq, mr, pd }
    }

    fn event(&self) -> Option<Event> {
        self.channel.try_next().unwrap()
    }

    fn join(&self, membership: Membership) -> Event {
        self.id.join_multicast(group(), membership).unwrap();
        let event = self.event().expect("no event came");
        assert!(matches!(event.kind(), EventKind::MulticastJoin { group: which } if *which == group()), "{event:?}");
        event
    }

    /// Sends one datagram to where the event says.
    fn send(&self, event: &Event, bytes: &[u8]) {
        let ud = event.ud_param().unwrap();
        assert_eq!((ud.qp_num, ud.qkey), (0xff_ffff, UDP_QKEY));
        let ah = self.pd.create_ah(&ud.ah_attr).unwrap();
        self.mr.write(64, bytes).unwrap();
        let sge = [self.mr.sge(64..64 + bytes.len()).unwrap()];
        let ud = UdDest { ah: &ah, qpn: ud.qp_num, qkey: ud.qkey };
        self.qp.post_send(&[SendWr { ud: Some(ud), ..SendWr::send(2, &sge) }]).unwrap();
    }

    /// What came, if anything did.
    fn received(&self) -> Option<Vec<u8>> {
        let mut wcs = [WorkCompletion::default(); 4];
        let count = self.cq.poll(&mut wcs).unwrap();
        let wc = wcs[..count].iter().find(|wc| wc.wr_id == 1)?;
        assert_eq!(wc.status, WcStatus::Success);
        let mut bytes = vec![0; wc.byte_len as usize - GRH];
        self.mr.read(GRH, &mut bytes).unwrap();
        Some(bytes)
    }
}

fn three() -> (MemoryNetwork, [Member; 3]) {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let members = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|ip| Member::new(&network, ip));
    (network, members)
}

#[test]
fn members_get_what_is_sent_to_the_group() {
    let (network, [a, b, c]) = three();
    b.join(Membership::Full);
    // It sends without being told what others send.
    c.join(Membership::SendOnly);
    let joined = a.join(Membership::Full);
    a.send(&joined, b"to all");
    network.advance(Duration::from_millis(1));
    assert_eq!(b.received().as_deref(), Some(&b"to all"[..]));
    assert_eq!(c.received(), None);
}

#[test]
fn who_has_left_or_is_destroyed_gets_nothing() {
    let (network, [a, b, c]) = three();
    let joined = a.join(Membership::SendOnly);
    b.join(Membership::Full);
    c.join(Membership::Full);
    b.id.leave_multicast(group()).unwrap();
    // Its queue pair lives on.
    c.id.destroy();
    a.send(&joined, b"to nobody");
    network.advance(Duration::from_millis(1));
    assert_eq!((b.received(), c.received()), (None, None));
    assert!(matches!(b.id.leave_multicast(group()), Err(Error::Address { .. })));
    assert!(matches!(c.id.join_multicast(group(), Membership::Full), Err(Error::Destroyed)));
    // And again.
    b.join(Membership::Full);
    a.send(&joined, b"to one");
    network.advance(Duration::from_millis(1));
    assert_eq!(b.received().as_deref(), Some(&b"to one"[..]));
}

/// Race R10 of librdmacm: leaving while the event that one has joined is unread.
#[test]
fn who_has_left_does_not_hear_of_having_joined() {
    let (_network, [a, ..]) = three();
    a.id.join_multicast(group(), Membership::Full).unwrap();
    a.id.leave_multicast(group()).unwrap();
    assert!(a.event().is_none());
    a.join(Membership::Full);
}

#[test]
fn the_queue_pair_takes_its_membership_along() {
    let (network, [a, b, _]) = three();
    let joined = a.join(Membership::Full);
    b.join(Membership::Full);
    let qp = b.id.take_qp().unwrap();
    a.send(&joined, b"to nobody");
    network.advance(Duration::from_millis(1));
    assert_eq!(b.received(), None);
    drop(qp);
    b.id.leave_multicast(group()).unwrap();
}

#[test]
fn what_is_no_group_is_named() {
    let (_network, [a, ..]) = three();
    for (group, why) in [("10.0.0.9", "no multicast group"), ("ff02::17", "other family")] {
        let error = a.id.join_multicast(group.parse().unwrap(), Membership::Full).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    a.join(Membership::Full);
    let error = a.id.join_multicast(group(), Membership::Full).unwrap_err();
    assert!(error.to_string().contains("already"), "{error}");
}
