//! How connections begin and end when nothing goes wrong, and when one message is lost.

use crate::params::*;
use crate::peer::Scripted;
use crate::world::*;
use ferroce_cm::proto::{CmError, DisconnectCause, Ece, Event, State};
use ferroce_wire::cm::{AdditionalInfo, Answered, CmMessage, Mra, RejectReason};

#[test]
fn a_connection_from_connect_to_destroy() {
    let mut w = World::pair(1);
    let listener = w.listen(1, 0);
    let now = w.now;
    let params = ferroce_cm::proto::ConnectParams {
        cookie: 5,
        ece: Some(Ece { vendor_id: 0x15b3, options: 9 }),
        ..connect_params(address(0, 1), 0x11, now + S)
    };
    let active = w.ep(0).connect(now, &params).unwrap();
    assert_eq!(w.ep(0).state(active), Some(State::ReqSent));

    let request = w.request(1);
    assert_eq!((request.listener, request.listener_cookie, request.address), (listener, 77, address(1, 0)));
    assert_eq!((request.remote_qpn, request.remote_psn, request.remote_ca_guid), (0x11, 0x1234, guid(0)));
    assert_eq!((request.responder_resources, request.initiator_depth), (1, 2));
    assert_eq!((request.retry_count, request.rnr_retry_count, request.srq), (7, 6, false));
    assert_eq!((request.pkey, request.path_mtu, request.path.local_ack_timeout), (0xffff, 3, 14));
    assert_eq!(request.ece, Some(Ece { vendor_id: 0x15b3, options: 9 }));
    assert_eq!((request.private_data.as_slice(), request.private_data.is_exact()), (&b"hello"[..], true));
    let passive = request.conn;
    assert_eq!(w.ep(1).state(passive), Some(State::ReqRcvd));

    let now = w.now;
    w.ep(1).accept(now, passive, &ferroce_cm::proto::AcceptParams { cookie: 6, ..accept_params(0x22) }).unwrap();
    assert_eq!(w.ep(1).state(passive), Some(State::RepSent));
    let response = w.response(0);
    assert_eq!((response.conn, response.cookie), (active, 5));
    assert_eq!((response.remote_qpn, response.remote_psn, response.remote_ca_guid), (0x22, 0x4321, guid(1)));
    assert_eq!((response.responder_resources, response.initiator_depth), (2, 1));
    assert_eq!((response.rnr_retry_count, response.srq, response.target_ack_delay), (5, true, 15));
    assert_eq!(response.private_data.as_slice(), b"welcome");
    assert_eq!(w.ep(0).state(active), Some(State::RepRcvd));

    w.ep(0).establish(active, b"go").unwrap();
    assert_eq!(w.ep(0).state(active), Some(State::Established));
    match w.event(1) {
        Event::Established { conn, cookie, private_data } => {
            assert_eq!((conn, cookie, private_data.as_slice()), (passive, 6, &b"go"[..]));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(w.ep(1).state(passive), Some(State::Established));
    w.run(100 * S);
    assert_eq!(w.ep(0).poll_timeout(), None, "an established connection costs no timer");

    let now = w.now;
    w.ep(0).disconnect(now, active, b"bye").unwrap();
    assert_eq!(w.ep(0).state(active), Some(State::DreqSent));
    match w.event(1) {
        Event::Disconnected { conn, cookie, cause, private_data } => {
            assert_eq!((conn, cookie, cause), (passive, 6, DisconnectCause::Requested));
            assert_eq!(private_data.as_slice(), b"bye");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(w.ep(1).state(passive), Some(State::DreqRcvd));
    let now = w.now;
    w.ep(1).disconnect(now, passive, b"bye bye").unwrap();
    match w.event(0) {
        Event::Disconnected { conn, cookie, cause, private_data } => {
            assert_eq!((conn, cookie, cause), (active, 5, DisconnectCause::Agreed));
            assert_eq!(private_data.as_slice(), b"bye bye");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!((w.ep(0).state(active), w.ep(1).state(passive)), (Some(State::TimeWait), Some(State::TimeWait)));
    w.run(2 * S);
    assert_eq!((w.kinds(0), w.kinds(1)), (vec!["timewait exit"], vec!["timewait exit"]));
    let now = w.now;
    w.ep(0).destroy(now, active).unwrap();
    w.ep(1).destroy(now, passive).unwrap();
    assert_eq!(w.ep(0).destroy(now, active), Err(CmError::Stale));
    w.assert_clean();
    let all = [(0, 0x10), (1, 0x13), (0, 0x14), (0, 0x15), (1, 0x16)];
    assert_eq!(w.log.iter().map(|(from, mad)| (*from, mad.message.attr_id())).collect::<Vec<_>>(), all);
    let tids: Vec<u64> = w.log.iter().map(|(_, mad)| mad.tid).collect();
    assert!(tids.iter().all(|&tid| tid == tids[0]), "every message repeats the REQ's transaction id: {tids:x?}");
}

#[test]
fn nobody_listens() {
    let mut w = World::pair(2);
    let active = w.connect(0, 1, 1);
    match w.event(0) {
        Event::Rejected(rejected) => {
            assert_eq!((rejected.conn, rejected.reason), (active, RejectReason::InvalidServiceId));
        }
        other => panic!("{other:?}"),
    }
    assert!(w.now < MS, "at once");
    let now = w.now;
    w.ep(0).destroy(now, active).unwrap();
    w.run(5 * S);
    assert_eq!(w.ep(1).counters().rx_no_listener, 1);
    w.assert_clean();
}

#[test]
fn a_request_is_rejected_with_private_data() {
    let mut w = World::pair(3);
    w.listen(1, 0);
    let active = w.connect(0, 1, 1);
    let passive = w.request(1).conn;
    let now = w.now;
    w.ep(1).reject(now, passive, RejectReason::ConsumerDefined, AdditionalInfo::new(b"why"), b"no\0").unwrap();
    w.ep(1).destroy(now, passive).unwrap();
    match w.event(0) {
        Event::Rejected(rejected) => {
            assert_eq!((rejected.conn, rejected.reason), (active, RejectReason::ConsumerDefined));
            assert_eq!((rejected.info.as_slice(), rejected.private_data.as_slice()), (&b"why"[..], &b"no\0"[..]));
        }
        other => panic!("{other:?}"),
    }
    let now = w.now;
    w.ep(0).destroy(now, active).unwrap();
    w.run(5 * S);
    assert_eq!((w.kinds(0), w.kinds(1)), (vec![], vec![]));
    w.assert_clean();
}

#[test]
fn a_lost_reject_is_repeated_as_it_was() {
    let mut w = World::pair(4);
    w.listen(1, 0);
    let mut lost = 0;
    w.filter = Some(Box::new(move |_, mad| match mad.message {
        CmMessage::Rej(_) if lost < 2 => {
            lost += 1;
            Fate::Drop
        }
        _ => Fate::Deliver,
    }));
    w.connect(0, 1, 1);
    let passive = w.request(1).conn;
    let now = w.now;
    w.ep(1).reject(now, passive, RejectReason::ConsumerDefined, AdditionalInfo::EMPTY, b"no").unwrap();
    w.ep(1).destroy(now, passive).unwrap();
    match w.event(0) {
        Event::Rejected(rejected) => {
            assert_eq!(rejected.reason, RejectReason::ConsumerDefined);
            assert_eq!(rejected.private_data.as_slice(), b"no");
        }
        other => panic!("{other:?}"),
    }
    assert!(w.now < S, "{}", w.now);
    assert_eq!(w.kinds(1), [""; 0], "no second request");
}

/// Each kind of message is lost once; a connection that is established, used and disconnected comes of it all the same.
#[test]
fn each_message_lost_once() {
    for attr_id in 0x10..=0x16 {
        let mut w = World::pair(5);
        w.listen(1, 0);
        let mut lost = false;
        w.filter = Some(Box::new(move |_, mad| {
            if mad.message.attr_id() == attr_id && !std::mem::replace(&mut lost, true) {
                Fate::Drop
            } else {
                Fate::Deliver
            }
        }));
        let (active, passive) = w.established([1, 2]);
        assert!(w.now < S, "{attr_id:#x}: established within a second, not {} ns", w.now);
        let begin = w.now;
        w.ep(0).disconnect(begin, active, b"").unwrap();
        assert_eq!(kind(&w.event(1)), "disconnected");
        let now = w.now;
        w.ep(1).destroy(now, passive).unwrap();
        assert_eq!(kind(&w.event(0)), "disconnected");
        assert!(w.now < begin + S, "{attr_id:#x}: disconnected within a second, not {} ns", w.now - begin);
        let now = w.now;
        w.ep(0).destroy(now, active).unwrap();
        w.run(20 * S);
        w.assert_clean();
    }
}

#[test]
fn nobody_answers() {
    let mut w = World::pair(6);
    w.crash(1);
    let now = w.now;
    let deadline = now + 3 * S;
    let active = w.ep(0).connect(now, &connect_params(address(0, 1), 1, deadline)).unwrap();
    match w.event(0) {
        Event::Unreachable(event) => {
            assert_eq!((event.conn, event.state), (active, State::ReqSent));
            assert!(event.sent >= 4, "100, 200, 400, 800 ms: {}", event.sent);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(w.now, deadline);
    let now = w.now;
    w.ep(0).destroy(now, active).unwrap();
    w.run(5 * S);
    assert_eq!(w.kinds(0), [""; 0]);
    w.assert_clean();
}

#[test]
fn destroy_in_each_state_tells_the_peer() {
    // Requested, and not decided.
    let mut w = World::pair(7);
    w.listen(1, 0);
    let active = w.connect(0, 1, 1);
    let passive = w.request(1).conn;
    let now = w.now;
    w.ep(0).destroy(now, active).unwrap();
    match w.event(1) {
        Event::Rejected(rejected) => assert_eq!((rejected.conn, rejected.reason), (passive, RejectReason::Timeout)),
        other => panic!("{other:?}"),
    }
    w.ep(1).destroy(now, passive).unwrap();

    // Granted, and not confirmed.
    let active = w.connect(0, 1, 2);
    let passive = w.request(1).conn;
    let now = w.now;
    w.ep(1).accept(now, passive, &accept_params(9)).unwrap();
    w.response(0);
    let now = w.now;
    w.ep(0).destroy(now, active).unwrap();
    match w.event(1) {
        Event::Rejected(rejected) => {
            assert_eq!((rejected.conn, rejected.reason), (passive, RejectReason::ConsumerDefined));
        }
        other => panic!("{other:?}"),
    }
    w.ep(1).destroy(now, passive).unwrap();

    // The same, by the other side.
    let active = w.connect(0, 1, 3);
    let passive = w.request(1).conn;
    let now = w.now;
    w.ep(1).accept(now, passive, &accept_params(9)).unwrap();
    w.response(0);
    let now = w.now;
    w.ep(1).destroy(now, passive).unwrap();
    assert_eq!(kind(&w.event(0)), "rejected");
    w.ep(0).destroy(now, active).unwrap();

    // Established, both sides.
    for closer in 0..2 {
        let (active, passive) = w.established([10 + closer, 20 + closer]);
        let now = w.now;
        let (first, second) = if closer == 0 { (active, passive) } else { (passive, active) };
        w.ep(closer as usize).destroy(now, first).unwrap();
        assert_eq!(kind(&w.event(1 - closer as usize)), "disconnected");
        let now = w.now;
        w.ep(1 - closer as usize).destroy(now, second).unwrap();
    }
    w.run(20 * S);
    assert_eq!((w.kinds(0), w.kinds(1)), (vec![], vec![]));
    w.assert_clean();
}

#[test]
fn data_before_the_rtu_establishes() {
    let mut w = World::pair(8);
    w.listen(1, 0);
    w.filter =
        Some(Box::new(|_, mad| if matches!(mad.message, CmMessage::Rtu(_)) { Fate::Delay(S) } else { Fate::Deliver }));
    let active = w.connect(0, 1, 1);
    let passive = w.request(1).conn;
    let now = w.now;
    assert!(w.ep(1).notify_established(passive).is_err(), "not granted yet");
    w.ep(1).accept(now, passive, &accept_params(2)).unwrap();
    w.response(0);
    w.ep(0).establish(active, b"").unwrap();
    w.run(MS);
    w.ep(1).notify_established(passive).unwrap();
    w.ep(1).notify_established(passive).unwrap();
    assert_eq!(w.kinds(1), ["established"]);
    w.run(5 * S);
    assert_eq!(w.kinds(1), [""; 0], "the RTU comes late and says nothing new");
    assert_eq!(w.ep(1).counters().rx_duplicates.rtu, 1);
}

/// A kernel asks for time when it gets a second REP and its program has not had the first (`CMA_CM_MRA_SETTING`: 69 s). Then it says RTU, once.
#[test]
fn an_rtu_that_is_lost_after_the_peer_has_asked_for_time() {
    let mut s = Scripted::new();
    s.reach(State::RepSent, false);
    s.sent();
    s.receive(Mra { service_timeout: 24, ..s.mra(Answered::Rep) });
    assert_eq!(s.state(), Some(State::MraRepRcvd));
    // The RTU is lost. It is said again if it is asked for again, which does not take as long as the peer has asked for.
    assert!(matches!(s.hear(3 * S)[..], [CmMessage::Rep(_), ..]), "it is not asked again");
    s.receive(s.rtu());
    assert_eq!(s.state(), Some(State::Established));
}

/// Who is to answer a request gets all the time that it asks for: it answers by itself.
#[test]
fn a_request_is_not_repeated_while_the_peer_has_asked_for_time() {
    let mut s = Scripted::new();
    s.reach(State::ReqSent, true);
    s.sent();
    s.receive(Mra { service_timeout: 22, ..s.mra(Answered::Req) });
    assert!(s.hear(16 * S).is_empty());
    assert!(matches!(s.hear(8 * S)[..], [CmMessage::Req(_), ..]));
}
