//! Multicast groups of the kernel's ids.

use super::{HERE, Id, World, exhaust, join, sample};
use crate::model::device::cq;
use crate::{Error, EventKind, Membership, PortSpace};
use ferroce_verbs::{QpInitAttr, QpType};
use shuttle::thread;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));

impl World {
    fn datagram_id(&self) -> Id {
        let id = self.cm.create_id(&self.channel, PortSpace::Udp);
        id.bind_addr(HERE).unwrap();
        id.create_qp(&self.pd, &QpInitAttr::new(QpType::Ud, &cq())).unwrap();
        id
    }
}

/// The queue pair is taken from the id while it joins: it is in no group then, though the id lives.
fn taken() {
    let world = World::new();
    let id = world.datagram_id();
    let [joiner, taker] = [(); 2].map(|()| id.clone());
    let others = vec![
        thread::spawn(move || joiner.join_multicast(GROUP, Membership::Full).unwrap()),
        thread::spawn(move || drop(taker.take_qp())),
        world.pump(),
    ];
    let reader = world.reader(&world.channel, |kind| assert!(matches!(kind, EventKind::MulticastJoin { .. })));
    world.join(others, vec![reader]);
    world.turn();
    while world.channel.try_next().unwrap().is_some() {}
    assert_eq!(world.host.members(), 0, "a queue pair that nobody knows of is in the group");
    assert_eq!(world.kernel.memberships(), 1, "the id is a member that only sends");
    id.leave_multicast(GROUP).unwrap();
    assert_eq!(world.kernel.memberships(), 0);
    drop(id);
    world.finish();
}

#[test]
fn a_queue_pair_that_is_taken_while_its_id_joins_is_in_no_group() {
    exhaust(2, taken);
    sample(2000, taken);
}

/// That it failed may be delivered before the call returns, which has not failed: the id lives. Each attempt has its event.
fn failing() {
    let world = World::new();
    world.kernel.have_no_groups();
    let id = world.datagram_id();
    let joiners = [(); 2].map(|()| {
        let joiner = id.clone();
        thread::spawn(move || match joiner.join_multicast(GROUP, Membership::Full) {
            Ok(()) => 1,
            // The other one's attempt is under way.
            Err(Error::Address { .. }) => 0,
            Err(other) => panic!("{other}"),
        })
    });
    let failed = Arc::<Mutex<u32>>::default();
    let failures = failed.clone();
    let reader = world.reader(&world.channel, move |kind| {
        assert!(matches!(kind, EventKind::MulticastError { .. }), "{kind:?}");
        *failures.lock().unwrap() += 1;
    });
    let pump = world.pump();
    let begun: u32 = joiners.into_iter().map(|joiner| joiner.join().unwrap()).sum();
    join(vec![pump]);
    world.turn();
    world.join(Vec::new(), vec![reader]);
    while world.channel.try_next().unwrap().is_some() {
        *failed.lock().unwrap() += 1;
    }
    assert_eq!(*failed.lock().unwrap(), begun);
    assert_eq!(world.kernel.memberships(), 0);
    drop(id);
    world.finish();
}

#[test]
fn an_id_that_cannot_join_lives() {
    exhaust(2, failing);
    sample(2000, failing);
}
