//! Peers that lie, flood, or send anything at all.

use crate::params::*;
use crate::peer::{ACTIVE, PASSIVE, PEER_ID, Scripted};
use ferroce_cm::proto::{Address, Config, Endpoint, Event, State};
use ferroce_verbs::Gid;
use ferroce_wire::cm::{CmMad, CmMessage, RejectReason, Rep, Req, SidrStatus};
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::net::Ipv4Addr;

/// A flood of forged requests, from one address and from many: memory stays within the limits, established connections
/// are not touched, and an honest peer is still served.
#[test]
fn a_flood_of_forged_requests() {
    for sources in [1, 50] {
        let mut config = Config::new(guid(0), 9);
        config.limits.half_open = 1000;
        let mut s = Scripted::with(config);
        s.reach(State::Established, false);
        let mut rng = StdRng::seed_from_u64(401);
        let req = s.req();
        let mut waiting = Vec::new();
        for n in 0..20_000_u32 {
            let forger = Gid::from(Ipv4Addr::from(0x0b00_0000 + n % sources));
            let from = Address { local: gid(0), remote: forger, scope_id: 0 };
            // Some aim at the connection's numbers.
            let aims = n % 3 == 0;
            let mut forged = Req {
                local_comm_id: if aims { PEER_ID } else { rng.random() },
                local_ca_guid: if aims { guid(1) } else { rng.random() },
                local_qpn: if aims { req.local_qpn } else { rng.random_range(0..1 << 24) },
                ..req
            };
            forged.primary.local_gid = forger.to_bytes();
            let mut mad = [0; 256];
            CmMad { tid: rng.random(), ece_options: 0, message: forged.into() }.emit(&mut mad);
            s.endpoint.handle_mad(s.now, &from, &mad);
            while let Some(event) = s.endpoint.poll_event() {
                // The user reads each at once, but does not decide.
                if let Event::ConnectRequest(request) = event {
                    s.endpoint.request_read(s.now, request.conn).unwrap();
                    waiting.push(request.conn);
                }
            }
            s.sent();
        }
        let usage = s.endpoint.usage();
        assert!(usage.half_open <= 1000 && usage.connection_slots <= 1001, "{usage:?}");
        assert!(usage.names <= 3 * 1001, "{usage:?}");
        assert_eq!(s.state(), Some(State::Established));
        assert!(s.endpoint.counters().limit_rejected > 1000);
        // An honest peer has room.
        let mut honest = Req { local_comm_id: 1, local_qpn: 1, ..req };
        honest.primary.local_gid = gid(2).to_bytes();
        s.receive_from(2, 5, honest);
        assert_eq!(s.events().iter().map(kind).collect::<Vec<_>>(), ["request"], "{sources} sources");
        for conn in waiting {
            s.endpoint.destroy(s.now, conn).unwrap();
            s.sent();
        }
        s.sleep(100 * S);
        assert_eq!(s.state(), Some(State::Established));
        assert!(s.endpoint.usage().names <= 6, "{:?}", s.endpoint.usage());
    }
}

/// What has ended takes bounded memory, however much ends.
#[test]
fn timewait_and_lingering_are_bounded() {
    let mut config = Config::new(guid(0), 9);
    config.limits.timewait = 100;
    config.limits.lingering = 50;
    let mut s = Scripted::with(config);
    for n in 0..1000 {
        s.receive(Req { local_comm_id: n, local_qpn: n, ..s.req() });
        let events = s.events();
        let [Event::ConnectRequest(request)] = events[..] else { panic!("{events:?}") };
        s.endpoint.accept(s.now, request.conn, &accept_params(n)).unwrap();
        s.endpoint.destroy(s.now, request.conn).unwrap();
        s.sent();
        let usage = s.endpoint.usage();
        assert!(usage.timewait <= 100 && usage.lingering <= 51, "{usage:?}");
    }
    assert_eq!(s.endpoint.counters().linger_skipped, 950);
    assert_eq!(s.endpoint.counters().timewait_evicted, 850);
    s.sleep(100 * S);
    assert_eq!(s.endpoint.usage().names, 0);
}

/// Messages that nobody takes are bounded, and timers wait rather than lose them.
#[test]
fn untaken_messages_are_bounded() {
    let mut config = Config::new(guid(0), 9);
    config.limits.transmit = 10;
    let mut s = Scripted::with(config);
    for n in 0..100 {
        let params = connect_params(address(0, 1), n, s.now + S);
        s.endpoint.connect(s.now, &params).unwrap();
    }
    assert_eq!(s.endpoint.usage().transmits, 10);
    assert_eq!(s.endpoint.counters().tx_dropped, 90);
    let mut retried = 0;
    s.now = 130 * MS;
    while s.endpoint.poll_timeout().is_some_and(|at| at <= s.now) {
        retried += s.sent().len();
        s.endpoint.handle_timeout(s.now);
        assert!(s.endpoint.usage().transmits <= 10);
    }
    assert!(retried + s.sent().len() >= 100);
    s.now = 2 * S;
    while s.endpoint.poll_timeout().is_some_and(|at| at <= s.now) {
        s.sent();
        s.endpoint.handle_timeout(s.now);
    }
    assert_eq!(s.events().len(), 100, "all are told that it is over");
}

#[test]
fn another_version_is_answered_in_ours() {
    let mut s = Scripted::new();
    let mut mad = [0; 256];
    CmMad { tid: 8, ece_options: 0, message: s.req().into() }.emit(&mut mad);
    mad[2] = 1;
    s.endpoint.handle_mad(1, &address(0, 1), &mad);
    let sent = s.sent();
    let [CmMessage::Rej(rej)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((rej.reason, rej.remote_comm_id), (RejectReason::InvalidClassVersion, PEER_ID));
    mad[17] = 0x17;
    s.endpoint.handle_mad(1, &address(0, 1), &mad);
    let sent = s.sent();
    let [CmMessage::SidrRep(rep)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((rep.status, rep.request_id), (SidrStatus::UnsupportedVersion, PEER_ID));
    for attr_id in [0x11, 0x12, 0x15, 0x18] {
        mad[17] = attr_id;
        s.endpoint.handle_mad(1, &address(0, 1), &mad);
    }
    assert!(s.sent().is_empty(), "an answer is not answered");
    assert_eq!(s.endpoint.counters().rx_class_version, 6);
    s.endpoint.handle_mad(1, &address(0, 1), &mad[..255]);
    s.endpoint.handle_mad(1, &address(0, 1), &[]);
    mad[2] = 2;
    mad[17] = 0x55;
    s.endpoint.handle_mad(1, &address(0, 1), &mad);
    mad[1] = 3;
    s.endpoint.handle_mad(1, &address(0, 1), &mad);
    assert_eq!(s.endpoint.counters().rx_malformed, 4);
}

/// A second answer to one request, of a peer that has restarted in between, is refused and does not replace the first.
#[test]
fn a_second_answer_is_refused() {
    let mut s = Scripted::new();
    s.reach(State::RepRcvd, true);
    s.receive(Rep { local_comm_id: PEER_ID + 1, local_qpn: 9, starting_psn: 9, ..s.rep() });
    let sent = s.sent();
    let [CmMessage::Rej(rej)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((rej.reason, rej.remote_comm_id), (RejectReason::InvalidCommInstance, PEER_ID + 1));
    assert_eq!(s.state(), Some(State::RepRcvd));
}

/// Ids, PSNs and transaction ids are those of the seed, and of no other.
#[test]
fn what_peers_must_not_guess_depends_on_the_seed() {
    let made_up = |seed| {
        let mut endpoint = Endpoint::new(Config::new(guid(0), 9), StdRng::seed_from_u64(seed));
        let psn = endpoint.random_psn();
        endpoint.connect(1, &connect_params(address(0, 1), 5, S)).unwrap();
        let mad = CmMad::parse(&endpoint.poll_transmit().unwrap().mad).unwrap();
        let CmMessage::Req(req) = mad.message else { panic!("not a REQ") };
        assert_eq!(req.local_comm_id >> 24, 9, "the id names the process");
        (psn, mad.tid, req.local_comm_id)
    };
    let (one, again, other) = (made_up(1), made_up(1), made_up(2));
    assert_eq!(one, again);
    assert!(one.0 != other.0 && one.1 != other.1 && one.2 != other.2);
}

fn states() -> impl Strategy<Value = (State, bool)> {
    let side = |states: &'static [State], active| prop::sample::select(states).prop_map(move |state| (state, active));
    prop_oneof![side(&ACTIVE, true), side(&PASSIVE, false)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any bytes in any state, some of them with the right ids in the right places: nothing panics, at most one terminal
    /// event, and everything is reclaimed.
    #[test]
    fn anything_in_any_state(
        (state, active) in states(),
        mads in prop::collection::vec((any::<[u8; 32]>(), 0x0e..0x1d_u8, any::<u8>(), any::<bool>()), 1..12),
    ) {
        let mut s = Scripted::new();
        s.reach(state, active);
        let conn = s.conn.unwrap();
        for (noise, attr_id, mask, right) in mads {
            let mut rng = StdRng::from_seed(noise);
            let mut mad: [u8; 256] = std::array::from_fn(|_| rng.random());
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[16..18].copy_from_slice(&[0, attr_id]);
            if right {
                mad[24..28].copy_from_slice(&PEER_ID.to_be_bytes());
                mad[28..32].copy_from_slice(&s.our_id.to_be_bytes());
            }
            if mask & 1 != 0 && attr_id == 0x10 {
                mad[32..40].copy_from_slice(&SERVICE.0.to_be_bytes());
                mad[40..48].copy_from_slice(&guid(1).to_be_bytes());
                mad[24 + 72..24 + 88].copy_from_slice(&gid(0).to_bytes());
            }
            if mask & 6 == 0 {
                mad[usize::from(mask)] ^= mask | 1;
            }
            s.endpoint.handle_mad(s.now, &address(0, 1), &mad);
            s.sent();
        }
        let events = s.events();
        let ends = events.iter().filter(|event| is_terminal(event) && subject(event) == Some(conn)).count();
        prop_assert!(ends <= 1, "{:?}", events);
        s.endpoint.destroy(s.now, conn).unwrap();
        for event in events {
            if let Event::ConnectRequest(request) = event {
                s.endpoint.destroy(s.now, request.conn).unwrap();
            }
        }
        s.sleep(200 * S);
        let usage = s.endpoint.usage();
        prop_assert_eq!([usage.connections, usage.lingering, usage.half_open, usage.timewait, usage.names], [0; 5]);
    }
}
