//! The port space UDP: which queue pair serves a port (SIDR), from beginning to end, and ways in which it ends early.

use crate::support::Side;
use crate::support::bed::Bed;
use ferroce_cm::{ConnParam, Error, Event, EventKind, Id, Phase, PortSpace, RejectReason, UDP_QKEY};
use ferroce_verbs::{QpState, QpType, RecvWr, SendOp, SendWr, UdDest, WcStatus};
use std::net::SocketAddr;

/// Bytes before a datagram in its receive buffer.
const GRH: usize = 40;

pub(crate) fn ask(side: &Side, peer: SocketAddr, private_data: &[u8]) -> Id {
    let id = side.resolved_in(PortSpace::Udp, peer);
    id.connect(&ConnParam { private_data, ..ConnParam::default() }).unwrap();
    id
}

fn is_rejected(event: &Event, wanted: RejectReason) -> bool {
    matches!(event.kind(), EventKind::Rejected { reason } if *reason == wanted)
}

/// A datagram from `a` to where its event says, and one back to where the first came from.
fn exchange((a, asker): (&Side, &Id), (b, server): (&Side, &Id), established: &Event) {
    let (asker, server) = (asker.qp().unwrap(), server.qp().unwrap());
    let (out, back) = (b"from the client", b"and back, from the server");
    for (side, qp) in [(a, &asker), (b, &server)] {
        assert_eq!((qp.qp_type(), qp.state()), (QpType::Ud, QpState::Rts));
        qp.post_recv(&[RecvWr::new(1, &[side.mr.sge(..1024).unwrap()])]).unwrap();
    }
    let ud = established.ud_param().expect("it says where datagrams go");
    let ah = a.pd.create_ah(&ud.ah_attr).unwrap();
    a.mr.write(2048, out).unwrap();
    let op = SendOp::SendImm(asker.qp_num());
    let to = UdDest { ah: &ah, qpn: ud.qp_num, qkey: ud.qkey };
    asker.post_send(&[SendWr::new(2, op, &[a.mr.sge(2048..2048 + out.len()).unwrap()]).to(to)]).unwrap();
    assert_eq!(a.completion().status, WcStatus::Success);
    let came = b.completion();
    assert_eq!((came.status, came.imm_data(), came.src_qp), (WcStatus::Success, Some(asker.qp_num()), asker.qp_num()));
    assert_eq!(came.byte_len as usize, GRH + out.len());
    let mut got = vec![0; GRH + out.len()];
    b.mr.read(0, &mut got).unwrap();
    let (grh, text) = got.split_first_chunk::<GRH>().unwrap();
    assert_eq!(text, out);
    let ah = b.pd.create_ah_from_wc(&came, grh, 1).unwrap();
    b.mr.write(2048, back).unwrap();
    let to = UdDest { ah: &ah, qpn: came.src_qp, qkey: UDP_QKEY };
    server.post_send(&[SendWr::send(3, &[b.mr.sge(2048..2048 + back.len()).unwrap()]).to(to)]).unwrap();
    assert_eq!(b.completion().status, WcStatus::Success);
    assert_eq!(a.completion().byte_len as usize, GRH + back.len());
    let mut got = vec![0; back.len()];
    a.mr.read(GRH, &mut got).unwrap();
    assert_eq!(got, back);
}

pub(crate) fn whole_life(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let (listener, addr) = b.listen_in(PortSpace::Udp);
    let asker = ask(&a, addr, b"hello");
    let (server, private_data) = b.request();
    bed.same(&private_data, b"hello");
    assert_eq!((server.local_addr(), server.peer_addr()), (Some(addr), asker.local_addr()));
    server.accept(&ConnParam { private_data: b"welcome", ..ConnParam::default() }).unwrap();
    assert!(matches!(server.accept(&ConnParam::default()), Err(Error::Phase { .. })), "answered once");
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Established), "{event:?}");
    assert_eq!(event.id(), &asker);
    bed.same(event.private_data(), b"welcome");
    let ud = event.ud_param().unwrap();
    assert_eq!((ud.qp_num, ud.qkey), (server.qp().unwrap().qp_num(), UDP_QKEY));
    assert_eq!(ud.ah_attr.grh.unwrap().dgid.ip(), addr.ip());
    assert_eq!((asker.phase(), server.phase()), (Phase::Connected, Phase::Connected));
    exchange((&a, &asker), (&b, &server), &event);
    // There is no connection that could be established at the server, or end.
    assert!(matches!(asker.disconnect(), Err(Error::Phase { .. })));
    assert!(b.channel.try_next().unwrap().is_none());
    drop(event);
    for id in [asker, server, listener] {
        id.destroy();
        id.destroy();
        assert!(matches!(id.accept(&ConnParam::default()), Err(Error::Destroyed)));
        assert!(matches!(id.reject(b""), Err(Error::Destroyed)));
        assert!(matches!(id.connect(&ConnParam::default()), Err(Error::Destroyed)));
    }
    a.is_clean();
    b.is_clean();
    assert!(a.channel.try_next().unwrap().is_none() && b.channel.try_next().unwrap().is_none());
}

pub(crate) fn nobody_listens_and_the_user_refuses_are_two_things(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let (listener, addr) = b.listen_in(PortSpace::Udp);
    let refused = ask(&a, addr, b"");
    let (server, _) = b.request();
    server.reject(b"not you").unwrap();
    assert!(matches!(server.accept(&ConnParam::default()), Err(Error::Phase { .. })));
    let event = a.event();
    assert!(is_rejected(&event, RejectReason::ConsumerDefined), "{event:?}");
    assert_eq!(event.ud_param(), None);
    bed.same(event.private_data(), b"not you");
    assert_eq!(refused.phase(), Phase::Disconnected);
    // It is of use to others.
    assert_eq!(refused.qp().unwrap().state(), QpState::Rts);
    listener.destroy();
    let _unheard = ask(&a, addr, b"");
    assert!(is_rejected(&a.event(), RejectReason::InvalidServiceId));
    // Who grants connections at the port does not grant datagrams, and there may be both.
    let at = addr.to_string();
    let (_connections, _) = b.listen_at(PortSpace::Tcp, &at);
    let _unheard = ask(&a, addr, b"");
    assert!(is_rejected(&a.event(), RejectReason::InvalidServiceId));
    let (_datagrams, _) = b.listen_at(PortSpace::Udp, &at);
    let _heard = ask(&a, addr, b"");
    drop(b.event());
    assert!(is_rejected(&a.event(), RejectReason::ConsumerDefined), "a request that is dropped is rejected");
}

pub(crate) fn a_listener_that_is_destroyed_rejects_what_nobody_has_read(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let (listener, addr) = b.listen_in(PortSpace::Udp);
    let read = ask(&a, addr, b"");
    let (server, _) = b.request();
    let pending: Vec<Id> = (0..5).map(|_| ask(&a, addr, b"")).collect();
    b.is_asked(6, 1);
    listener.destroy();
    for _ in 0..5 {
        let event = a.event();
        assert!(is_rejected(&event, RejectReason::ConsumerDefined) && pending.contains(event.id()), "{event:?}");
    }
    assert!(b.channel.try_next().unwrap().is_none());
    // What was read lives on.
    server.accept(&ConnParam::default()).unwrap();
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Established) && *event.id() == read, "{event:?}");
    drop((read, event, pending, server, listener));
    a.is_clean();
    b.is_clean();
}

pub(crate) fn no_event_comes_after_destroy(bed: &Bed) {
    let (a, b) = (bed.open(), bed.open());
    let (listener, addr) = b.listen_in(PortSpace::Udp);
    for round in 0..60 {
        let asker = ask(&a, addr, b"");
        let event = b.event();
        let EventKind::ConnectRequest { id: server, .. } = event.kind() else { panic!("{event:?}") };
        match round % 3 {
            // The answer is on its way, or here already.
            0 => server.accept(&ConnParam { qp_num: Some(7), ..ConnParam::default() }).unwrap(),
            1 => server.destroy(),
            _ => {}
        }
        asker.destroy();
        assert!(a.channel.try_next().unwrap().is_none());
    }
    listener.destroy();
    a.is_clean();
    b.is_clean();
    assert!(a.channel.try_next().unwrap().is_none() && b.channel.try_next().unwrap().is_none());
}
