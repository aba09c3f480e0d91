//! Datagram ids: questions, answers, and multicast groups.

use super::device::{Answer, HERE, THERE, cq};
use super::search::{exhaust, sample};
use super::{What, World, tolerate};
use crate::{ConnParam, Error, EventKind, Id, Membership, PortSpace};
use ferroce_verbs::{QpInitAttr, QpType};
use ferroce_wire::cm::SidrStatus;
use shuttle::thread;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));

impl World {
    fn datagram_id(&self, addr: SocketAddr) -> Id {
        let id = self.cm.create_id(&self.channel, PortSpace::Udp);
        self.meet(&id);
        id.bind_addr(addr).unwrap();
        id
    }

    /// An id that has asked; the answer is under way.
    fn asking(&self) -> Id {
        let id = self.datagram_id(SocketAddr::new(HERE.ip(), 1));
        id.resolve_addr(None, THERE).unwrap();
        id.resolve_route().unwrap();
        while let Some(event) = self.channel.try_next().unwrap() {
            assert!(matches!(event.kind(), EventKind::AddrResolved | EventKind::RouteResolved));
        }
        id.connect(&ConnParam::default()).unwrap();
        id
    }

    fn member(&self) -> Id {
        let id = self.datagram_id(SocketAddr::new(HERE.ip(), 1));
        id.create_qp(&self.pd, &QpInitAttr::new(QpType::Ud, &cq())).unwrap();
        id
    }
}

/// The answer comes, is read, and two threads destroy the id.
fn answered(answer: Answer) {
    let world = World::new(answer);
    let id = world.asking();
    world.watch(&id);
    let reader = world.reader(&world.channel, |event| {
        let granted = matches!(event.kind(), EventKind::Established);
        assert_eq!(event.ud_param().is_some(), granted);
    });
    let others = vec![world.progress(), world.destroyer(id.clone()), world.destroyer(id)];
    world.join(others, &world.channel, vec![reader]);
    world.finish();
}

#[test]
fn an_answer_comes_while_two_threads_destroy_the_id() {
    exhaust(1, || answered(Answer::Grant));
    sample(2000, || answered(Answer::Grant));
    sample(2000, || answered(Answer::Refuse));
}

/// Nobody destroys it: there is one answer, and it is read.
fn once() {
    let world = World::new(Answer::Grant);
    let id = world.asking();
    let readers = vec![world.reader(&world.channel, drop), world.reader(&world.channel, drop)];
    world.join(vec![world.progress()], &world.channel, readers);
    assert_eq!(world.all(&id), [What::Established]);
    drop(id);
    world.finish();
}

#[test]
fn an_answer_is_read_once() {
    exhaust(2, once);
    sample(2000, once);
}

/// A peer asks; one thread answers, another one destroys the id, a third one the listener.
fn question() {
    let world = World::new(Answer::Grant);
    let listener = world.datagram_id(HERE);
    listener.listen(0).unwrap();
    world.host.question();
    let reader = world.reader(&world.channel, |event| {
        if let EventKind::ConnectRequest { id, .. } = event.kind() {
            let closer = id.clone();
            let closer = thread::spawn(move || closer.destroy());
            tolerate(id.accept(&ConnParam { qp_num: Some(7), ..ConnParam::default() }));
            closer.join().unwrap();
        }
    });
    let others = vec![world.progress(), thread::spawn(move || listener.destroy())];
    world.join(others, &world.channel, vec![reader]);
    // The peer has one answer, whatever it is, and does not have to ask for long.
    let answers = world.host.answers();
    assert!(
        matches!(answers[..], [Some(SidrStatus::Success | SidrStatus::Reject | SidrStatus::Unsupported)]),
        "{answers:?}"
    );
    world.finish();
}

#[test]
fn a_question_is_answered_whoever_closes_what() {
    exhaust(1, question);
    sample(2000, question);
}

/// It joins a group, leaves it, loses its queue pair and is destroyed, all at once.
fn group() {
    let world = World::new(Answer::Grant);
    let id = world.member();
    world.watch(&id);
    let reader = world.reader(&world.channel, drop);
    let [joiner, leaver, taker] = [(); 3].map(|()| id.clone());
    let others = vec![
        thread::spawn(move || {
            let joined = joiner.join_multicast(GROUP, Membership::Full);
            assert!(matches!(joined, Ok(()) | Err(Error::Destroyed)), "{joined:?}");
        }),
        thread::spawn(move || {
            let left = leaver.leave_multicast(GROUP);
            // It is not a member yet, or not any more.
            assert!(
                matches!(left, Ok(()) | Err(Error::Destroyed | Error::Address { .. } | Error::Phase { .. })),
                "{left:?}"
            );
        }),
        thread::spawn(move || drop(taker.take_qp())),
        world.destroyer(id),
    ];
    world.join(others, &world.channel, vec![reader]);
    assert_eq!(world.host.members(), 0, "a queue pair is still in the group");
    world.finish();
}

#[test]
fn a_group_is_joined_and_left_by_whoever_likes_to() {
    sample(4000, group);
}

/// Its queue pair is taken while it joins: that is in no group then, though the id lives.
fn taken() {
    let world = World::new(Answer::Grant);
    let id = world.member();
    let [joiner, taker] = [(); 2].map(|()| id.clone());
    super::join(vec![
        thread::spawn(move || joiner.join_multicast(GROUP, Membership::Full).unwrap()),
        thread::spawn(move || drop(taker.take_qp())),
    ]);
    assert_eq!(world.host.members(), 0, "a queue pair that nobody knows of is in the group");
    id.leave_multicast(GROUP).unwrap();
    drop(id);
    world.drain(&world.channel);
    world.finish();
}

#[test]
fn a_queue_pair_that_is_taken_while_its_id_joins_is_in_no_group() {
    exhaust(2, taken);
    sample(2000, taken);
}

/// Two threads join and leave; whoever stays in it has its queue pair attached, and nobody else.
fn two_members() {
    let world = World::new(Answer::Grant);
    let id = world.member();
    let threads = (0..2).map(|_| {
        let id = id.clone();
        thread::spawn(move || {
            if id.join_multicast(GROUP, Membership::Full).is_ok() {
                // Of the two only one can be the member.
                id.leave_multicast(GROUP).unwrap();
            }
        })
    });
    super::join(threads.collect());
    assert_eq!(world.host.members(), 0);
    id.join_multicast(GROUP, Membership::Full).unwrap();
    assert_eq!(world.host.members(), 1);
    drop(id);
    assert_eq!(world.host.members(), 0);
    world.drain(&world.channel);
    world.finish();
}

#[test]
fn a_group_is_joined_by_two() {
    exhaust(2, two_members);
    sample(2000, two_members);
}
