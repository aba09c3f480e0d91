//! What public reports on connection managers say goes wrong with one connection or two; each test is named after one.

use crate::params::*;
use crate::world::*;
use ferroce_cm::proto::{ConnId, DisconnectCause, Event, State};
use ferroce_wire::cm::{AdditionalInfo, CmMessage, RejectReason};

/// B13: the peer disconnects right after its RTU. Even if the DREQ overtakes the RTU, there is one order of events, and
/// the end is seen once.
#[test]
fn b13_disconnect_right_after_rtu() {
    for overtakes in [false, true] {
        let mut w = World::pair(113);
        w.listen(1, 0);
        if overtakes {
            w.filter = Some(Box::new(|_, mad| match mad.message {
                CmMessage::Rtu(_) => Fate::Delay(MS),
                _ => Fate::Deliver,
            }));
        }
        let active = w.connect(0, 1, 1);
        let passive = w.request(1).conn;
        let now = w.now;
        w.ep(1).accept(now, passive, &accept_params(2)).unwrap();
        w.response(0);
        let now = w.now;
        w.ep(0).establish(active, b"").unwrap();
        w.ep(0).disconnect(now, active, b"").unwrap();
        w.run(50 * MS);
        let expected = if overtakes { vec!["disconnected"] } else { vec!["established", "disconnected"] };
        assert_eq!(w.kinds(1), expected);
        let now = w.now;
        w.ep(1).destroy(now, passive).unwrap();
        w.run(5 * S);
        assert_eq!(w.kinds(0), ["disconnected", "timewait exit"]);
        let now = w.now;
        w.ep(0).destroy(now, active).unwrap();
        w.run(5 * S);
        w.assert_clean();
    }
}

/// B14: ten thousand connections come and go, and nothing is left, nor does memory grow with their number.
#[test]
fn b14_churn_leaves_nothing() {
    let mut w = World::pair(114);
    w.keep_log = false;
    w.listen(1, 0);
    for round in 0..10_000 {
        let (active, passive) = w.established([round + 1, round + 1]);
        let now = w.now;
        if round % 2 == 0 {
            w.ep(0).destroy(now, active).unwrap();
            assert_eq!(kind(&w.event(1)), "disconnected");
            w.ep(1).destroy(now, passive).unwrap();
        } else {
            w.ep(1).disconnect(now, passive, b"").unwrap();
            assert_eq!(kind(&w.event(0)), "disconnected");
            let now = w.now;
            w.ep(0).disconnect(now, active, b"").unwrap();
            assert_eq!(kind(&w.event(1)), "disconnected");
            w.ep(0).destroy(now, active).unwrap();
            w.ep(1).destroy(now, passive).unwrap();
        }
    }
    w.run(20 * S);
    for host in 0..2 {
        assert!(w.ep(host).usage().connection_slots < 10, "{:?}", w.ep(host).usage());
        assert_eq!(w.kinds(host), [""; 0]);
    }
    w.assert_clean();
}

/// B15: the peer has died. Whoever waits for it is told within the time that the configuration says, and whoever does not
/// wait is rid of the connection at once.
#[test]
fn b15_dead_peer_has_a_bounded_end() {
    let mut w = World::pair(115);
    w.listen(1, 0);
    let (waits, _) = w.established([1, 2]);
    let (leaves, _) = w.established([3, 4]);
    w.crash(1);
    let now = w.now;
    w.ep(0).disconnect(now, waits, b"").unwrap();
    w.ep(0).destroy(now, leaves).unwrap();
    assert_eq!(w.ep(0).usage().connections, 1);
    match w.event(0) {
        Event::Disconnected { conn, cause, .. } => assert_eq!((conn, cause), (waits, DisconnectCause::TimedOut)),
        other => panic!("{other:?}"),
    }
    assert_eq!(w.now, now + 10 * S);
    let now = w.now;
    w.ep(0).destroy(now, waits).unwrap();
    w.run(32 * S);
    w.assert_clean();
}

/// B16: a peer that was power-cycled uses the same QPNs as before, and connects at the second try at the latest, whichever
/// side it is on; the survivor is told that the old connection has ended.
#[test]
fn b16_restart_with_the_same_qpns() {
    for restarts in 0..2 {
        let mut w = World::pair(116 + restarts as u64);
        w.listen(1, 0);
        let old = w.established([0x11, 0x22]);
        let survivor = if restarts == 0 { (1, old.1) } else { (0, old.0) };
        w.restart(restarts);
        if restarts == 1 {
            w.listen(1, 0);
        }
        let mut tries = 0;
        let (active, passive) = loop {
            tries += 1;
            let active = w.connect(0, 1, 0x11);
            w.run(50 * MS);
            let request = w.hosts[1].events.iter().find_map(|event| match event {
                Event::ConnectRequest(request) => Some(request.conn),
                _ => None,
            });
            if let Some(passive) = request {
                let now = w.now;
                w.ep(1).accept(now, passive, &accept_params(0x22)).unwrap();
                w.run(50 * MS);
                let granted = w.hosts[0].events.iter().any(|event| matches!(event, Event::Response(_)));
                if granted {
                    w.ep(0).establish(active, b"").unwrap();
                    w.run(50 * MS);
                    break (active, passive);
                }
            }
            assert!(tries < 2, "rejected as stale again and again");
            let now = w.now;
            w.ep(0).destroy(now, active).unwrap();
        };
        assert_eq!(
            (w.ep(0).state(active), w.ep(1).state(passive)),
            (Some(State::Established), Some(State::Established))
        );
        let ends: Vec<_> = w.hosts[survivor.0]
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Disconnected { conn, cause, .. } => Some((*conn, *cause)),
                _ => None,
            })
            .collect();
        assert_eq!(ends, [(survivor.1, DisconnectCause::Stale)]);
        if restarts == 1 {
            assert_eq!(tries, 1, "a REP that answers our REQ is the truth, and the old connection the lie");
        }
    }
}

/// B20: the peer gives up, or disconnects, before its request was looked at.
#[test]
fn b20_gone_before_the_request_is_processed() {
    let mut w = World::pair(120);
    w.listen(1, 0);
    let active = w.connect(0, 1, 1);
    let now = w.now;
    w.ep(0).destroy(now, active).unwrap();
    w.run(50 * MS);
    let Some(Event::ConnectRequest(request)) = w.hosts[1].events.pop_front() else { panic!("no request") };
    assert_eq!(w.kinds(1), ["rejected"]);
    let now = w.now;
    assert!(w.ep(1).accept(now, request.conn, &accept_params(2)).is_err());
    w.ep(1).destroy(now, request.conn).unwrap();

    // The REJ overtakes the REQ: the request is from nobody, and its acceptance is refused at once.
    w.filter = Some(Box::new(|_, mad| match mad.message {
        CmMessage::Req(_) => Fate::Delay(MS),
        _ => Fate::Deliver,
    }));
    let active = w.connect(0, 1, 3);
    let begin = w.now;
    w.ep(0).destroy(begin, active).unwrap();
    let request = w.request(1);
    let now = w.now;
    w.ep(1).accept(now, request.conn, &accept_params(4)).unwrap();
    match w.event(1) {
        Event::Rejected(rejected) => {
            assert_eq!((rejected.conn, rejected.reason), (request.conn, RejectReason::Timeout));
        }
        other => panic!("{other:?}"),
    }
    assert!(w.now < begin + 50 * MS);
    let now = w.now;
    w.ep(1).destroy(now, request.conn).unwrap();
    w.run(20 * S);
    w.assert_clean();
}

/// B29, B35: a reject crosses a close, closes cross each other, and are repeated: one terminal event at most, none after
/// destroying, and nothing hangs.
#[test]
fn b29_b35_everything_crosses_everything() {
    type Act = fn(&mut World, ConnId, usize);
    let acts: [Act; 4] = [
        |w, conn, host| {
            let _ = w.hosts[host].endpoint.destroy(w.now, conn);
        },
        |w, conn, host| {
            let _ = w.hosts[host].endpoint.disconnect(w.now, conn, b"");
        },
        |w, conn, host| {
            let (reason, none) = (RejectReason::ConsumerDefined, AdditionalInfo::EMPTY);
            let _ = w.hosts[host].endpoint.reject(w.now, conn, reason, none, b"");
        },
        |w, conn, host| {
            let _ = w.hosts[host].endpoint.disconnect(w.now, conn, b"");
            let _ = w.hosts[host].endpoint.disconnect(w.now, conn, b"");
        },
    ];
    // Step 0: requested. 1: granted, the REP is on its way. 2: the REP is there. 3: confirmed, the RTU is on its way.
    // 4: established.
    for step in 0..5 {
        for left in acts {
            for right in acts {
                let mut w = World::pair(129);
                w.listen(1, 0);
                let active = w.connect(0, 1, 1);
                let passive = w.request(1).conn;
                let now = w.now;
                if step > 0 {
                    w.ep(1).accept(now, passive, &accept_params(2)).unwrap();
                }
                if step > 1 {
                    w.response(0);
                }
                if step > 2 {
                    w.ep(0).establish(active, b"").unwrap();
                }
                if step > 3 {
                    w.event(1);
                }
                let mut events = [Vec::new(), Vec::new()];
                left(&mut w, active, 0);
                right(&mut w, passive, 1);
                for host in 0..2 {
                    let conn = if host == 0 { active } else { passive };
                    if w.ep(host).state(conn).is_none() {
                        w.hosts[host].events.clear();
                    }
                }
                // Whatever else the users do when they are told.
                for _ in 0..400 {
                    w.run(500 * MS);
                    for (host, told) in events.iter_mut().enumerate() {
                        for event in w.hosts[host].events.drain(..).collect::<Vec<_>>() {
                            if let Event::Response(response) = &event {
                                let _ = w.ep(host).establish(response.conn, b"");
                            }
                            told.push(event);
                        }
                    }
                }
                for (host, told) in events.iter().enumerate() {
                    let conn = if host == 0 { active } else { passive };
                    let ends = told.iter().filter(|event| is_terminal(event)).count();
                    let is_live = w.ep(host).state(conn).is_some();
                    assert!(ends <= 1, "step {step}, host {host}: {told:?}");
                    assert!(is_live || ends == 0, "step {step}, host {host}: told of what was destroyed: {told:?}");
                    assert!(!is_live || w.ep(host).state(conn) != Some(State::DreqSent), "step {step}: hangs");
                    let now = w.now;
                    let _ = w.ep(host).destroy(now, conn);
                }
                w.run(20 * S);
                w.assert_clean();
            }
        }
    }
}

/// B29: a connection that failed does not stand in the way of the next, with the same QP.
#[test]
fn b29_b35_again_after_a_failure() {
    let mut w = World::pair(1290);
    let refused = w.connect(0, 1, 7);
    assert_eq!(kind(&w.event(0)), "rejected");
    let now = w.now;
    w.ep(0).destroy(now, refused).unwrap();
    w.listen(1, 0);
    for _ in 0..20 {
        let (active, passive) = w.established([7, 8]);
        let now = w.now;
        w.ep(0).disconnect(now, active, b"").unwrap();
        w.ep(0).disconnect(now, active, b"").unwrap();
        assert_eq!(kind(&w.event(1)), "disconnected");
        w.ep(1).destroy(now, passive).unwrap();
        assert_eq!(kind(&w.event(0)), "disconnected");
        w.ep(0).destroy(now, active).unwrap();
    }
    assert_eq!(w.sent(1, |message| matches!(message, CmMessage::Rej(_))), 1, "reconnecting at once is not refused");
}

/// B36: both sides ask each other at the same moment, with the same QPs. These are two connections, and neither touches
/// the other; which of the two is kept is for the users to decide.
#[test]
fn b36_simultaneous_connect() {
    let mut w = World::pair(136);
    w.listen(0, 0);
    w.listen(1, 0);
    let active = [w.connect(0, 1, 0x10), w.connect(1, 0, 0x20)];
    let passive = [w.request(0).conn, w.request(1).conn];
    for (host, conn) in passive.into_iter().enumerate() {
        let now = w.now;
        w.ep(host).accept(now, conn, &accept_params(0x30 + host as u32)).unwrap();
    }
    for (host, conn) in active.into_iter().enumerate() {
        assert_eq!(w.response(host).conn, conn);
        w.ep(host).establish(conn, b"").unwrap();
    }
    w.run(MS);
    for (host, conn) in active.into_iter().enumerate() {
        assert_eq!(w.kinds(host), ["established"]);
        assert_eq!(w.ep(host).state(conn), Some(State::Established));
    }
    // Each side closes the one that it asked for, at once.
    for (host, conn) in active.into_iter().enumerate() {
        let now = w.now;
        w.ep(host).destroy(now, conn).unwrap();
    }
    for (host, conn) in passive.into_iter().enumerate() {
        assert_eq!(kind(&w.event(host)), "disconnected");
        let now = w.now;
        w.ep(host).destroy(now, conn).unwrap();
    }
    w.run(20 * S);
    w.assert_clean();
}

/// B37: what comes late, from an earlier connection of the same QPs or for an earlier attempt, does not touch the one that
/// there is now; and no timer of the attempt fires once it is established.
#[test]
fn b37_late_messages_do_not_touch_the_new_connection() {
    let mut w = World::pair(137);
    w.listen(1, 0);
    // Each message of the first connection comes again, 300 ms later.
    w.filter = Some(Box::new(|_, _| Fate::Twice(300 * MS)));
    let (active, passive) = w.established([1, 2]);
    let now = w.now;
    w.ep(0).destroy(now, active).unwrap();
    assert_eq!(kind(&w.event(1)), "disconnected");
    w.ep(1).destroy(now, passive).unwrap();
    w.run(50 * MS);
    w.filter = None;
    let (active, passive) = w.established([1, 2]);
    w.run(200 * S);
    assert_eq!((w.kinds(0), w.kinds(1)), (vec![], vec![]), "no ghost request, no late reply, no late timeout");
    assert_eq!((w.ep(0).state(active), w.ep(1).state(passive)), (Some(State::Established), Some(State::Established)));
    assert!(w.ep(1).counters().rx_duplicates.req >= 1);
}

/// B41 and the report on padded private data: who refuses, and why, can be told apart; private data has its true length
/// in every message, zeros at its end included, and the padded field from a peer that does not say the length.
#[test]
fn b41_typed_reasons_and_true_lengths() {
    let mut w = World::pair(141);
    let nobody = w.connect(0, 1, 1);
    let Event::Rejected(rejected) = w.event(0) else { panic!("not rejected") };
    assert_eq!((rejected.conn, rejected.reason), (nobody, RejectReason::InvalidServiceId));
    assert!(!rejected.private_data.is_exact() && rejected.private_data.as_slice() == [0; 148]);

    w.listen(1, 0);
    for len in [0, 1, 92] {
        let data = vec![0; len];
        let now = w.now;
        let params = connect_params(address(0, 1), 5, now + S);
        let params = ferroce_cm::proto::ConnectParams { private_data: &data, ..params };
        let active = w.ep(0).connect(now, &params).unwrap();
        let request = w.request(1);
        assert_eq!((request.private_data.as_slice(), request.private_data.is_exact()), (&data[..], true));
        assert_eq!(request.private_data.padded(), [0; 92]);
        let now = w.now;
        w.ep(1).reject(now, request.conn, RejectReason::ConsumerDefined, AdditionalInfo::EMPTY, &data).unwrap();
        let Event::Rejected(rejected) = w.event(0) else { panic!("not rejected") };
        assert_eq!((rejected.conn, rejected.reason), (active, RejectReason::ConsumerDefined));
        assert_eq!(rejected.private_data.as_slice(), &data[..]);
    }
    let now = w.now;
    let params = connect_params(address(0, 1), 5, now + S);
    let too_much = ferroce_cm::proto::ConnectParams { private_data: &[1; 93], ..params };
    assert!(w.ep(0).connect(now, &too_much).is_err());
}
