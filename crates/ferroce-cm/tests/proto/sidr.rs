//! Service id resolution.

use crate::params::*;
use crate::world::*;
use ferroce_cm::proto::{Bind, CmError, Event, ListenParams, ResolveParams, Service, SidrAnswer, SidrId};
use ferroce_wire::MAD_LEN;
use ferroce_wire::cm::{AdditionalInfo, CmMad, CmMessage, PrivateData, SidrReq, SidrStatus};

fn listen(w: &mut World, host: usize, backlog: usize) -> ferroce_cm::proto::ListenId {
    let params =
        ListenParams { bind: Bind::AnyV4, service_id: DATAGRAMS, service: Service::Datagram, backlog, cookie: 88 };
    w.ep(host).listen(&params).expect("nobody else listens")
}

fn resolve(w: &mut World, from: usize, to: usize) -> SidrId {
    let now = w.now;
    let params = ResolveParams {
        address: address(from, to),
        service_id: DATAGRAMS,
        pkey: 0xffff,
        traffic_class: 0,
        flow_label: 0,
        private_data: b"who",
        deadline: now + 10 * S,
        cookie: 9,
    };
    w.ep(from).resolve_service(now, &params).expect("there is room")
}

fn answer(status: SidrStatus) -> SidrAnswer<'static> {
    SidrAnswer { status, qpn: 0x77, qkey: 0x0123_4567, ece: None, info: AdditionalInfo::EMPTY, private_data: b"me" }
}

fn request(w: &mut World, host: usize) -> ferroce_cm::proto::SidrRequest {
    match w.event(host) {
        Event::SidrRequest(request) => request,
        other => panic!("{other:?}"),
    }
}

fn response(w: &mut World, host: usize) -> ferroce_cm::proto::SidrResponse {
    match w.event(host) {
        Event::SidrResponse(response) => response,
        other => panic!("{other:?}"),
    }
}

#[test]
fn question_and_answer_whatever_is_lost() {
    for lose in 0..4 {
        let mut w = World::pair(201);
        let listener = listen(&mut w, 1, 0);
        let mut lost = [false; 2];
        w.filter = Some(Box::new(move |host, _| {
            let wanted = lose & (1 << host) != 0;
            if wanted && !std::mem::replace(&mut lost[host], true) { Fate::Drop } else { Fate::Deliver }
        }));
        let sidr = resolve(&mut w, 0, 1);
        let asked = request(&mut w, 1);
        assert_eq!((asked.listener, asked.listener_cookie, asked.address), (listener, 88, address(1, 0)));
        assert_eq!((asked.private_data.as_slice(), asked.pkey, asked.service_id), (&b"who"[..], 0xffff, DATAGRAMS));
        let now = w.now;
        w.ep(1).answer_sidr(now, asked.sidr, &answer(SidrStatus::Success)).unwrap();
        assert_eq!(w.ep(1).answer_sidr(now, asked.sidr, &answer(SidrStatus::Success)), Err(CmError::Stale));
        let told = response(&mut w, 0);
        assert_eq!((told.sidr, told.cookie, told.status), (sidr, 9, SidrStatus::Success));
        assert_eq!((told.qpn, told.qkey, told.private_data.as_slice()), (0x77, 0x0123_4567, &b"me"[..]));
        w.ep(0).destroy_sidr(sidr).unwrap();
        assert_eq!(w.ep(0).destroy_sidr(sidr), Err(CmError::Stale));
        w.run(100 * S);
        assert_eq!((w.kinds(0), w.kinds(1)), (vec![], vec![]), "asked once, answered once");
        w.assert_clean();
    }
}

#[test]
fn nobody_listens_and_nobody_is_there() {
    let mut w = World::pair(202);
    w.ep(1).listen(&ListenParams { service_id: DATAGRAMS, ..listen_params(0) }).unwrap();
    let sidr = resolve(&mut w, 0, 1);
    assert_eq!(response(&mut w, 0).status, SidrStatus::Unsupported, "who grants connections does not grant datagrams");
    w.ep(0).destroy_sidr(sidr).unwrap();
    w.crash(1);
    let sidr = resolve(&mut w, 0, 1);
    let begin = w.now;
    match w.event(0) {
        Event::SidrUnreachable { sidr: told, cookie: 9, sent } => assert!(told == sidr && sent > 3),
        other => panic!("{other:?}"),
    }
    assert_eq!(w.now, begin + 10 * S);
    w.ep(0).destroy_sidr(sidr).unwrap();
    w.assert_clean();
}

#[test]
fn destroyed_questions_are_not_answered() {
    let mut w = World::pair(203);
    listen(&mut w, 1, 0);
    let sidr = resolve(&mut w, 0, 1);
    let asked = request(&mut w, 1);
    w.ep(0).destroy_sidr(sidr).unwrap();
    let now = w.now;
    w.ep(1).answer_sidr(now, asked.sidr, &answer(SidrStatus::Reject)).unwrap();
    w.run(5 * S);
    assert_eq!(w.kinds(0), [""; 0]);
    assert_eq!(w.ep(0).counters().rx_unexpected.sidr_rep, 1);

    // An unanswered question is forgotten, and its name is stale.
    let sidr = resolve(&mut w, 0, 1);
    let asked = request(&mut w, 1);
    w.run(100 * S);
    assert_eq!(w.kinds(0), ["sidr unreachable"]);
    w.ep(0).destroy_sidr(sidr).unwrap();
    let now = w.now;
    assert_eq!(w.ep(1).answer_sidr(now, asked.sidr, &answer(SidrStatus::Reject)), Err(CmError::Stale));
    w.assert_clean();
}

#[test]
fn full_backlog_and_closed_listener_are_answered() {
    let mut w = World::pair(204);
    let listener = listen(&mut w, 1, 3);
    let sidrs: Vec<_> = (0..4).map(|_| resolve(&mut w, 0, 1)).collect();
    let refused = response(&mut w, 0);
    assert_eq!((refused.sidr, refused.status), (sidrs[3], SidrStatus::NoQp));
    let read = request(&mut w, 1);
    let now = w.now;
    w.ep(1).sidr_request_read(now, read.sidr).unwrap();
    w.ep(1).close_listener(now, listener).unwrap();
    let mut rejected: Vec<_> = (1..3)
        .map(|_| {
            let refused = response(&mut w, 0);
            assert_eq!(refused.status, SidrStatus::Reject);
            refused.sidr
        })
        .collect();
    rejected.sort();
    assert_eq!(rejected, sidrs[1..3]);
    w.ep(1).answer_sidr(now, read.sidr, &answer(SidrStatus::Success)).unwrap();
    assert_eq!(response(&mut w, 0).sidr, sidrs[0], "what was read lives on");
    for sidr in sidrs {
        w.ep(0).destroy_sidr(sidr).unwrap();
    }
    w.hosts[1].events.clear();
    w.run(20 * S);
    w.assert_clean();
}

/// Memory for answers is bounded: the oldest are forgotten.
#[test]
fn a_flood_of_questions_is_bounded() {
    let mut w = World::with_config(2, 205, |config| config.limits.sidr = 50);
    listen(&mut w, 1, 0);
    for _ in 0..500 {
        let sidr = resolve(&mut w, 0, 1);
        let asked = request(&mut w, 1);
        let now = w.now;
        w.ep(1).answer_sidr(now, asked.sidr, &answer(SidrStatus::Success)).unwrap();
        assert_eq!(response(&mut w, 0).status, SidrStatus::Success);
        w.ep(0).destroy_sidr(sidr).unwrap();
        assert!(w.ep(1).usage().sidr_received <= 50);
    }
    // Nobody answers.
    for _ in 0..50 {
        resolve(&mut w, 0, 1);
        w.run(MS);
    }
    let full = resolve_is_full(&mut w);
    assert!(full, "the asking side has a limit, too");
    assert!(w.ep(1).usage().sidr_received <= 50);
    assert_eq!(w.sent(1, |message| matches!(message, CmMessage::SidrRep(_))), 500);
}

/// A peer that asks anew before its question is read does not decide how many events there are.
#[test]
fn questions_that_replace_each_other_are_bounded_by_the_backlog() {
    let mut w = World::pair(206);
    let listener = listen(&mut w, 1, 10);
    let req = SidrReq { request_id: 7, pkey: 0xffff, service_id: DATAGRAMS, private_data: PrivateData::default() };
    for tid in 0..100 {
        let mut mad = [0; MAD_LEN];
        CmMad { tid, ece_options: 0, message: req.into() }.emit(&mut mad);
        let now = w.now;
        w.ep(1).handle_mad(now, &address(1, 0), &mad);
    }
    assert_eq!(w.ep(1).usage().sidr_received, 10);
    assert_eq!(w.ep(1).counters().backlog_rejected, 90);
    let asked: Vec<_> = std::iter::from_fn(|| w.ep(1).poll_event())
        .map(|event| match event {
            Event::SidrRequest(request) => request.sidr,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(asked.len(), 10);
    // All of them were given up for another one.
    let now = w.now;
    for &sidr in &asked[..5] {
        assert_eq!(w.ep(1).sidr_request_read(now, sidr), Err(CmError::Stale));
    }
    assert_eq!(w.ep(1).answer_sidr(now, asked[5], &answer(SidrStatus::Success)), Err(CmError::Stale));
    assert_eq!(w.ep(1).usage().sidr_received, 4);
    w.ep(1).close_listener(now, listener).unwrap();
    assert_eq!(w.sent(1, |message| matches!(message, CmMessage::SidrRep(rep) if rep.status == SidrStatus::Reject)), 0);
    w.run(S);
    w.assert_clean();
}

fn resolve_is_full(w: &mut World) -> bool {
    let now = w.now;
    let params = ResolveParams {
        address: address(0, 1),
        service_id: DATAGRAMS,
        pkey: 0xffff,
        traffic_class: 0,
        flow_label: 0,
        private_data: b"",
        deadline: now + S,
        cookie: 0,
    };
    matches!(w.ep(0).resolve_service(now, &params), Err(CmError::Limit { limit: 50, .. }))
}
