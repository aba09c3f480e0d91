//! Every message, every call and the timer in every state: what becomes of the connection, what is sent, and what the
//! user is told.

use crate::params::{S, accept_params, is_terminal, subject};
use crate::peer::{ACTIVE, NOBODY, PASSIVE, PEER_ID, Scripted};
use ferroce_cm::proto::{CmError, ConnId, Event, State};
use ferroce_wire::cm::{AdditionalInfo, Answered, RejectReason};
use std::fmt::Write;

/// Where a connection can be: active or not, and destroyed there or not.
#[derive(Clone, Copy)]
struct Start {
    state: State,
    active: bool,
    destroyed: bool,
}

fn starts() -> Vec<Start> {
    let sides = [(true, ACTIVE), (false, PASSIVE)];
    let mut starts = Vec::new();
    for destroyed in [false, true] {
        for (active, states) in sides {
            starts.extend(states.map(|state| Start { state, active, destroyed }));
        }
    }
    starts
}

type Step = fn(&mut Scripted);

const STEPS: &[(&str, Step)] = &[
    ("REQ again", |s| s.receive(s.req())),
    ("REQ of the same id", |s| s.receive_tid(1, s.req())),
    ("REQ of the same QP", |s| s.receive_tid(1, ferroce_wire::cm::Req { local_comm_id: 1, ..s.req() })),
    ("REQ to nobody", |s| {
        s.receive_tid(1, ferroce_wire::cm::Req { local_comm_id: 1, local_qpn: 1, service_id: NOBODY, ..s.req() });
    }),
    ("MRA(Req)", |s| s.receive(s.mra(Answered::Req))),
    ("MRA(Rep)", |s| s.receive(s.mra(Answered::Rep))),
    ("MRA(Other)", |s| s.receive(s.mra(Answered::Other))),
    ("REJ(Req)", |s| s.receive(s.rej(Answered::Req, RejectReason::ConsumerDefined))),
    ("REJ(Req) without id", |s| {
        let rej = s.rej(Answered::Req, RejectReason::InvalidServiceId);
        s.receive(ferroce_wire::cm::Rej { local_comm_id: 0, ..rej });
    }),
    ("REJ(Rep)", |s| s.receive(s.rej(Answered::Rep, RejectReason::ConsumerDefined))),
    ("REJ(Other)", |s| s.receive(s.rej(Answered::Other, RejectReason::ConsumerDefined))),
    ("REJ(Other) timeout", |s| s.receive(s.cancel())),
    ("REJ(Other) of another id", |s| {
        let rej = s.rej(Answered::Other, RejectReason::ConsumerDefined);
        s.receive(ferroce_wire::cm::Rej { local_comm_id: PEER_ID + 1, ..rej });
    }),
    ("REP", |s| s.receive(s.rep())),
    ("REP of another id", |s| s.receive(ferroce_wire::cm::Rep { local_comm_id: PEER_ID + 1, ..s.rep() })),
    ("RTU", |s| s.receive(s.rtu())),
    ("RTU of another id", |s| s.receive(ferroce_wire::cm::Rtu { local_comm_id: PEER_ID + 1, ..s.rtu() })),
    ("DREQ", |s| s.receive(s.dreq())),
    ("DREQ of another QP", |s| s.receive(ferroce_wire::cm::Dreq { remote_qpn: 1, ..s.dreq() })),
    ("DREQ of another id", |s| s.receive(ferroce_wire::cm::Dreq { local_comm_id: PEER_ID + 1, ..s.dreq() })),
    ("DREP", |s| s.receive(s.drep())),
    ("DREP of another id", |s| s.receive(ferroce_wire::cm::Drep { local_comm_id: PEER_ID + 1, ..s.drep() })),
    ("LAP", |s| s.receive(s.lap())),
    ("APR", |s| s.receive(s.apr())),
    ("everything from elsewhere", |s| {
        s.receive_from(2, 1, s.mra(Answered::Req));
        s.receive_from(2, 1, s.mra(Answered::Rep));
        s.receive_from(2, 1, s.rej(Answered::Other, RejectReason::ConsumerDefined));
        s.receive_from(2, 1, s.cancel());
        s.receive_from(2, 1, s.rtu());
        s.receive_from(2, 1, s.drep());
        s.receive_from(2, 1, s.lap());
    }),
];

type Call = fn(&mut Scripted, ConnId) -> Result<(), CmError>;

const CALLS: &[(&str, Call)] = &[
    ("accept()", |s, conn| s.endpoint.accept(s.now, conn, &accept_params(7))),
    ("reject()", |s, conn| s.endpoint.reject(s.now, conn, RejectReason::ConsumerDefined, AdditionalInfo::EMPTY, b"no")),
    ("establish()", |s, conn| s.endpoint.establish(conn, b"")),
    ("notify_established()", |s, conn| s.endpoint.notify_established(conn)),
    ("disconnect()", |s, conn| s.endpoint.disconnect(s.now, conn, b"")),
    ("request_read()", |s, conn| s.endpoint.request_read(s.now, conn)),
    ("destroy()", |s, conn| s.endpoint.destroy(s.now, conn)),
];

fn begin(start: Start) -> (Scripted, ConnId) {
    let mut s = Scripted::new();
    s.reach(start.state, start.active);
    let conn = s.conn.expect("there is a connection");
    if start.destroyed {
        s.endpoint.destroy(s.now, conn).expect("the name is fresh");
        s.sent();
        assert!(s.events().is_empty(), "no event after destroying");
    }
    (s, conn)
}

fn table() -> String {
    let mut table = String::new();
    for start in starts() {
        let Start { state, active, destroyed } = start;
        let side = if active { "active" } else { "passive" };
        writeln!(table, "# {state:?}, {side}{}", if destroyed { ", destroyed" } else { "" }).unwrap();
        let idle = begin(start).0.outcome();
        let mut row = |what: &str, outcome: String| {
            let outcome = if outcome == idle { "-".to_owned() } else { outcome };
            writeln!(table, "{what}: {}", outcome.trim_end_matches([' ', '|'])).unwrap();
        };
        for (what, step) in STEPS {
            let (mut s, _) = begin(start);
            step(&mut s);
            row(what, s.outcome());
        }
        if !destroyed {
            for (what, call) in CALLS {
                let (mut s, conn) = begin(start);
                let result = call(&mut s, conn);
                let outcome = s.outcome();
                row(what, if result.is_err() { format!("error, {outcome}") } else { outcome });
            }
        }
        let (mut s, _) = begin(start);
        s.sleep(200 * S);
        row("time", s.outcome());
    }
    table
}

#[test]
fn every_state_has_an_outcome_for_everything() {
    let expected = include_str!("table.txt");
    let actual = table();
    if expected == actual {
        return;
    }
    let mut differences = String::new();
    let mut lines = expected.lines();
    for actual in actual.lines() {
        let expected = lines.next().unwrap_or("nothing");
        if expected != actual {
            writeln!(differences, "expected {expected}\n     got {actual}").unwrap();
        }
    }
    if let Ok(path) = std::env::var("FERROCE_WRITE_TABLE") {
        std::fs::write(path, actual).unwrap();
    }
    panic!("table.txt says otherwise:\n{differences}");
}

/// Whatever happens to a connection in whatever state, twice, there is at most one terminal event, and nothing is left
/// once it is destroyed and time has passed.
#[test]
fn no_two_steps_leave_anything() {
    for start in starts() {
        for (first, one) in STEPS {
            for (second, other) in STEPS {
                let (mut s, conn) = begin(start);
                let is_over = matches!(start.state, State::DreqRcvd | State::TimeWait | State::Idle);
                one(&mut s);
                other(&mut s);
                let events = s.events();
                let mine = |event: &&Event| is_terminal(event) && subject(event) == Some(conn);
                let told = events.iter().filter(mine).count();
                let own = usize::from(is_over);
                assert!(told + own <= 1, "{:?}: {first}, {second}: {events:?}", start.state);
                assert!(!start.destroyed || told == 0, "{:?}: {first}, {second}: {events:?}", start.state);
                let result = s.endpoint.destroy(s.now, conn);
                assert_eq!(result.is_err(), start.destroyed);
                for event in events {
                    if let Event::ConnectRequest(request) = event {
                        s.endpoint.destroy(s.now, request.conn).unwrap();
                    }
                }
                s.sleep(200 * S);
                let usage = s.endpoint.usage();
                let held = [usage.connections, usage.lingering, usage.half_open, usage.timewait, usage.names];
                assert_eq!(held, [0; 5], "{:?}: {first}, {second}: {usage:?}", start.state);
                assert!(s.events().is_empty());
            }
        }
    }
}

/// A stale name touches nothing, not even what is in its place now.
#[test]
fn stale_names_touch_nothing() {
    for (what, call) in CALLS {
        let mut s = Scripted::new();
        s.reach(State::ReqRcvd, false);
        let stale = s.conn.unwrap();
        s.endpoint.destroy(s.now, stale).unwrap();
        s.sent();
        s.sleep(10 * S);
        s.receive_tid(3, s.req());
        let request = s.events();
        let [Event::ConnectRequest(request)] = request[..] else { panic!("{request:?}") };
        s.conn = Some(request.conn);
        assert_ne!(request.conn, stale);
        assert_eq!(call(&mut s, stale), Err(CmError::Stale), "{what}");
        assert_eq!(s.endpoint.set_cookie(stale, 1), Err(CmError::Stale));
        assert_eq!(s.outcome(), "ReqRcvd |  | ", "{what}");
        assert_eq!(ConnId::from_bits(stale.to_bits()), stale);
        assert_eq!(call(&mut s, ConnId::from_bits(u64::MAX)), Err(CmError::Stale));
    }
}
