//! Peers that send what they should not, or take nothing: they harm their own connection at most.

use crate::support::{AM, Raw, a_while, message, numbers, open, options, pair, raw_pair, until};
use ferroce_transport::rc_verbs::{EndpointAddress, RcOptions};
use ferroce_transport::uct::{Cause, CompletionCounter, Endpoint as _, FlushKind, Interface as _, OpError, Remote};
use ferroce_verbs::Access;
use std::time::Duration;

/// What a hostile peer does.
type Act<'a> = dyn Fn(&Raw) + 'a;

#[test]
fn what_the_protocol_does_not_allow_ends_the_connection() {
    let ((a, at_a), (c, _)) = (open(RcOptions { window: 8, ..options() }), open(options()));
    let (to_c, of_c) = pair(&a, &c);
    let memory = a.pd().alloc_mr(64, Access::ALL).unwrap();
    let shared = Remote::of(&memory);
    let acts: [(&str, &Act<'_>); 10] = [
        ("nothing at all", &|raw| raw.send(&[])),
        ("a control word that does not exist", &|raw| raw.send(&[0xe2, 0, 0, 0, 0])),
        ("a total that is cut short", &|raw| raw.send(&[0x80])),
        ("another", &|raw| raw.send(&[0x85, 0, 0, 0])),
        ("junk", &|raw| raw.send(&[0xff; 5])),
        ("more than it was granted", &|raw| (0..9).for_each(|_| raw.send(&[AM]))),
        ("a grant beyond its own window", &|raw| raw.send(&[0xe0, 0, 0, 0, 100])),
        ("a grant that nobody asked for", &|raw| raw.send(&[0xe0, 0, 0, 0, 8])),
        ("more than a buffer has", &|raw| raw.send(&[AM; 10_000])),
        // It takes a receive, whose buffer holds a message of long ago.
        ("a write with immediate", &|raw| raw.write_imm(shared)),
    ];
    // So that each buffer holds one.
    for _ in 0..3000 {
        of_c.am_short(AM, &message(1, 8))
            .or_else(|_| a.progress().and(c.progress()).map(|_| ()).map_err(OpError::from))
            .unwrap();
    }
    until(&[&a, &c], || c.flush() && a.flush());
    a_while(&[&a, &c]);
    for (what, act) in acts {
        let (broken, raw) = raw_pair(&a, 8);
        act(&raw);
        until(&[&a], || broken.failure().is_some());
        assert_eq!(broken.failure().unwrap().cause, Cause::Protocol, "{what}");
        let most = if what.starts_with("more than it was") { 8 } else { 0 };
        assert_eq!(numbers_of(&at_a, &broken), most, "{what}");
    }
    assert!(a.counters().malformed >= 9, "{:?}", a.counters());
    to_c.am_short(AM, b"fine").unwrap();
    until(&[&a, &c], || a.flush());
    assert!(to_c.failure().is_none() && of_c.failure().is_none());
    drop((to_c, of_c));
    until(&[&a, &c], || a.counters().endpoints + c.counters().endpoints == 0);
}

/// How many messages came to an endpoint.
fn numbers_of(log: &crate::support::Log, endpoint: &ferroce_transport::rc_verbs::RcEndpoint) -> usize {
    log.lock().unwrap().iter().filter(|(id, _)| *id == endpoint.id()).count()
}

/// A grant for each that was asked for is what honest peers send; a flood of them is none.
#[test]
fn grants_are_counted_though_they_cost_no_credit() {
    let (a, _) = open(options());
    let (to_raw, raw) = raw_pair(&a, 8);
    for _ in 0..8 {
        to_raw.am_short(AM, &[1]).unwrap();
    }
    until(&[&a], || a.flush());
    // Two of those asked at once.
    for _ in 0..2 {
        raw.send(&[0xe0, 0, 0, 0, 16]);
    }
    a_while(&[&a]);
    assert!(to_raw.failure().is_none());
    raw.send(&[0xe0, 0, 0, 0, 16]);
    until(&[&a], || to_raw.failure().is_some());
    assert_eq!(to_raw.failure().unwrap().cause, Cause::Protocol);
}

/// A peer may take less than this side could send, whichever way it goes.
#[test]
fn what_the_peer_takes_bounds_every_message() {
    let (a, _) = open(options());
    let (to_raw, raw) = (a.create_endpoint().unwrap(), Raw::new());
    raw.connect(&to_raw.address());
    let mut address = raw.address(64).to_bytes();
    address[28..].copy_from_slice(&64_u32.to_be_bytes());
    to_raw.connect_to_ep(&EndpointAddress::from_bytes(&address).unwrap()).unwrap();
    assert_eq!(to_raw.max_message(), 59);
    assert!(matches!(to_raw.am_short(AM, &[1; 60]), Err(OpError::TooLong { most: 59, .. })));
    let packed = to_raw.am_bcopy(AM, &mut |packer| assert!(packer.put(&[1; 60]).is_err()));
    assert!(matches!(packed, Err(OpError::TooLong { .. })));
    assert!(matches!(to_raw.am_zcopy(AM, &[1; 60], &[], None), Err(OpError::TooLong { .. })));
    for _ in 0..3 {
        to_raw.am_short(AM, &[1; 59]).unwrap();
        until(&[&a], || raw.receive().is_some_and(|bytes| bytes.len() == 60));
    }
}

/// A program that takes no messages is tried again for ever by its peer's device: the endpoint fails all the same, and gives back what it holds.
#[test]
fn a_peer_that_takes_nothing_is_given_up() {
    let (a, _) = open(RcOptions { peer_timeout: Some(Duration::from_millis(100)), ..options() });
    let (stuck, _raw) = raw_pair(&a, 512);
    let done = CompletionCounter::new();
    // It has 64 receives.
    for number in 0..100 {
        stuck.am_bcopy(AM, &mut |packer| packer.put(&message(number, 100)).unwrap()).unwrap();
    }
    stuck.flush(FlushKind::Local, Some(done.token())).unwrap();
    until(&[&a], || stuck.failure().is_some());
    let failure = stuck.failure().unwrap();
    assert_eq!(failure.cause, Cause::NotReceiving, "{failure}");
    until(&[&a], || done.outstanding() == 0 && a.counters().free_buffers == 512);
    assert_eq!(done.failed(), 1);
    drop(stuck);
    until(&[&a], || a.counters().endpoints == 0);
}

/// It is progress that counts, not rest: who has nothing to do, or whose last operations did not say that they are complete, is not given up, and not
/// looked at for ever.
#[test]
fn an_idle_peer_is_not_given_up() {
    let (a, _) = open(RcOptions { peer_timeout: Some(Duration::from_millis(20)), ..options() });
    let (b, at_b) = open(options());
    let (to_b, to_a) = pair(&a, &b);
    for round in 0..3 {
        to_b.am_short(AM, &message(round, 8)).unwrap();
        assert!(a.next_timeout().is_some());
        until(&[&a, &b], || a.next_timeout().is_none());
        assert!(to_b.failure().is_none());
    }
    until(&[&a, &b], || numbers(&at_b, &to_a) == [0, 1, 2]);
}

/// Peers that take nothing do not starve the others of buffers, however many there are.
#[test]
fn stuck_peers_leave_buffers_for_others() {
    let bounded = RcOptions { buffers: 64, peer_timeout: None, ..options() };
    let ((a, _), (b, at_b)) = (open(bounded), open(options()));
    let stuck: Vec<_> = (0..3).map(|_| raw_pair(&a, 512)).collect();
    let (to_b, to_a) = pair(&a, &b);
    let send = |endpoint: &ferroce_transport::rc_verbs::RcEndpoint, number: u32| {
        endpoint.am_bcopy(AM, &mut |packer| packer.put(&message(number, 100)).unwrap())
    };
    for (endpoint, _) in &stuck {
        // It has 64 receives; what is beyond stays here.
        let mut sent = 0;
        until(&[&a], || {
            sent += u32::from(send(endpoint, 1).is_ok());
            sent >= 64 + 8
        });
        while send(endpoint, 1).is_ok() {}
    }
    for number in 0..200 {
        until(&[&a, &b], || send(&to_b, number).is_ok());
    }
    until(&[&a, &b], || numbers(&at_b, &to_a).len() == 200);
    drop(stuck);
    until(&[&a, &b], || a.flush());
    assert_eq!(a.counters().free_buffers, 64);
}
