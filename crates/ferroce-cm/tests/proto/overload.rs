//! What public reports on connection managers say goes wrong under load; each test is named after one.

use crate::params::*;
use crate::world::*;
use ferroce_cm::proto::{ConnId, Event};
use ferroce_wire::cm::{CmMessage, RejectReason};
use std::collections::BTreeSet;

/// B3, B23, B24: many clients ask at once; each gets one connection, none waits for a retry of seconds.
#[test]
fn b3_b23_b24_a_thousand_requests_at_once() {
    let mut w = World::pair(103);
    w.keep_log = false;
    w.listen(1, 1000);
    let conns: BTreeSet<ConnId> = (0..1000).map(|n| w.connect(0, 1, n + 1)).collect();
    assert_eq!(conns.len(), 1000);
    let mut requests = Vec::new();
    while requests.len() < 1000 {
        requests.push(w.request(1));
    }
    assert!(w.now < 10 * MS, "all are there at once, without a retry: {} ns", w.now);
    let qpns: BTreeSet<u32> = requests.iter().map(|request| request.remote_qpn).collect();
    assert_eq!(qpns.len(), 1000, "no request came twice");
    for (n, request) in (0..).zip(&requests) {
        let now = w.now;
        w.ep(1).accept(now, request.conn, &accept_params(5000 + n)).unwrap();
    }
    for _ in 0..1000 {
        let conn = w.response(0).conn;
        assert!(conns.contains(&conn));
        w.ep(0).establish(conn, b"").unwrap();
    }
    w.run(MS);
    assert_eq!(w.kinds(1), vec!["established"; 1000]);
    assert_eq!(w.ep(0).counters().tx_retries.req, 0);
    assert!(w.now < S);
}

/// B22: four lost REQs cost 18.5 s elsewhere.
#[test]
fn b22_lost_requests_cost_little() {
    let mut w = World::pair(122);
    w.listen(1, 0);
    let mut lost = 0;
    w.filter = Some(Box::new(move |_, mad| match mad.message {
        CmMessage::Req(_) if lost < 4 => {
            lost += 1;
            Fate::Drop
        }
        _ => Fate::Deliver,
    }));
    w.established([1, 2]);
    assert!(w.now < 2 * S, "100 + 200 + 400 + 800 ms, more or less: {} ns", w.now);
}

/// B22: a listener whose user does nothing for a second does not lose anything, and does not make anyone wait longer.
#[test]
fn b22_a_listener_that_stalls() {
    let mut w = World::pair(1220);
    w.listen(1, 500);
    for n in 0..100 {
        w.connect(0, 1, n + 1);
    }
    w.run(S);
    let begin = w.now;
    for n in 0..100 {
        let request = w.request(1);
        let now = w.now;
        w.ep(1).accept(now, request.conn, &accept_params(n + 1)).unwrap();
    }
    for _ in 0..100 {
        let conn = w.response(0).conn;
        w.ep(0).establish(conn, b"").unwrap();
    }
    assert!(w.now < begin + 10 * MS, "{} ns after the listener woke", w.now - begin);
    assert_eq!(w.sent(1, |message| matches!(message, CmMessage::Rej(_))), 0);
    assert!(w.ep(0).counters().tx_retries.req <= 100, "an MRA stops the retries");
}

/// B25, B26: a burst larger than the backlog. What does not fit is told so at once: to come again while the listener
/// takes requests, and no once it does not. The backlog is what was asked for.
#[test]
fn b25_b26_full_backlog_is_answered() {
    let mut w = World::pair(125);
    w.listen(1, 50);
    for n in 0..80 {
        w.connect(0, 1, n + 1);
    }
    w.run(10 * MS);
    assert_eq!(w.ep(1).counters().backlog_busy, 30);
    assert_eq!(w.sent(1, |message| matches!(message, CmMessage::Mra(_))), 30);
    // The listener wakes, and those that were put off are served when they come again.
    for n in 0..80 {
        let request = w.request(1);
        let now = w.now;
        w.ep(1).accept(now, request.conn, &accept_params(n + 1)).unwrap();
    }
    assert!(w.now < 2 * S, "{} ns", w.now);
    for _ in 0..80 {
        assert_eq!(kind(&w.event(0)), "response");
    }

    // It sleeps: after its second of patience it is a no.
    for n in 0..50 {
        w.connect(0, 1, 1000 + n);
    }
    w.run(3 * S);
    let before = w.now;
    let late = w.connect(0, 1, 2000);
    match w.event(0) {
        Event::Rejected(rejected) => assert_eq!((rejected.conn, rejected.reason), (late, RejectReason::NoResources)),
        other => panic!("{other:?}"),
    }
    assert!(w.now < before + MS);
    assert_eq!(w.ep(1).counters().backlog_rejected, 1);
}

/// Reading a request makes room for another one, before it is decided.
#[test]
fn b25_reading_makes_room() {
    let mut w = World::pair(1250);
    w.listen(1, 1);
    for n in 0..20 {
        let conn = w.connect(0, 1, n + 1);
        let request = w.request(1);
        let now = w.now;
        w.ep(1).request_read(now, request.conn).unwrap();
        let _ = conn;
    }
    assert_eq!(w.ep(1).counters().backlog_busy + w.ep(1).counters().backlog_rejected, 0);
}

/// B45: more clients than the server can serve. It serves as many per second as it can, all the time, and everybody in the
/// end: neither the refusals nor the retries take its place.
#[test]
fn b45_past_saturation_throughput_is_flat() {
    const CLIENTS: u32 = 3000;
    const EACH: u64 = 2 * MS;
    let mut w = World::pair(145);
    w.keep_log = false;
    w.listen(1, 100);
    for n in 0..CLIENTS {
        w.connect(0, 1, n + 1);
    }
    let begin = w.now;
    let mut served = 0;
    let mut idle = 0;
    while served < CLIENTS {
        w.pump();
        w.run(EACH);
        let request = w.hosts[1].events.iter().position(|event| matches!(event, Event::ConnectRequest(_)));
        let Some(at) = request else {
            idle += 1;
            assert!(idle < 5000, "served {served}, and then nobody came for ten seconds");
            continue;
        };
        let Some(Event::ConnectRequest(request)) = w.hosts[1].events.remove(at) else { unreachable!() };
        let now = w.now;
        w.ep(1).accept(now, request.conn, &accept_params(served + 1)).unwrap();
        served += 1;
        while let Some(event) = w.hosts[0].events.pop_front() {
            match event {
                Event::Response(response) => w.ep(0).establish(response.conn, b"").unwrap(),
                other => panic!("{other:?}"),
            }
        }
    }
    let took = w.now - begin;
    assert!(took < 2 * u64::from(CLIENTS) * EACH, "{took} ns for {CLIENTS} clients");
    let retries = w.ep(0).counters().tx_retries.req;
    assert!(retries < 20 * u64::from(CLIENTS), "{retries} retries");
}
