//! Peers that die or misbehave.

use crate::support::{AM, a_while, message, numbers, open, options, pair, quick, raw_pair, until, when_possible};
use ferroce_transport::rc_verbs::{EndpointAddress, RcEndpoint, RcOptions};
use ferroce_transport::uct::{
    Cause, CompletionCounter, Endpoint as _, FlushKind, Interface as _, Iov, OpError, PendingError, PendingStatus,
    Remote, Unreachable,
};
use ferroce_verbs::{Access, QpAttr, QpState};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Reports 7854, 6520: whatever was outstanding completes once when the peer dies; the failure is told once, with evidence (8971); other
/// endpoints go on, and nobody's process ends (5159, 6679, 6522, 7785, 5543).
#[test]
fn report_7854_a_dead_peer_fails_its_endpoint_and_no_other() {
    let ((a, _), (c, at_c)) = (open(quick()), open(options()));
    let ((dying, raw), (to_c, of_c)) = (raw_pair(&a, 512), pair(&a, &c));
    dying.am_short(AM, &message(1, 8)).unwrap();
    until(&[&a], || raw.receive().is_some());
    until(&[&a], || a.flush());
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    dying.on_failure(Box::new(move |failure| {
        assert_eq!(failure.cause, Cause::PeerTimeout, "{failure}");
        assert!(failure.evidence.last_ack.is_some() && failure.evidence.status.is_some(), "{failure:?}");
        counted.fetch_add(1, Ordering::SeqCst);
    }));
    raw.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    let done = CompletionCounter::new();
    let memory = a.pd().alloc_mr(4096, Access::LOCAL_WRITE).unwrap();
    for number in 0..20 {
        let iov = [Iov::new(&memory, 0..4096)];
        dying.am_zcopy(AM, &message(number, 8), &iov, Some(done.token())).unwrap();
    }
    dying.flush(FlushKind::Local, Some(done.token())).unwrap();
    until(&[&a, &c], || calls.load(Ordering::SeqCst) == 1 && done.outstanding() == 0);
    assert_eq!((done.failed(), done.succeeded(), done.canceled()), (21, 0, 0));
    assert!(matches!(dying.am_short(AM, &[]), Err(OpError::Failed(..))));
    assert!(matches!(dying.pending_add(Box::new(|_| PendingStatus::Done)), Err(PendingError::Over(_, Some(_)))));
    assert_eq!(dying.failure().unwrap().cause, Cause::PeerTimeout);
    for number in 0..100 {
        when_possible(&[&a, &c], || to_c.am_short(AM, &message(number, 8)));
    }
    until(&[&a, &c], || numbers(&at_c, &of_c).len() == 100);
    a_while(&[&a, &c]);
    assert_eq!((calls.load(Ordering::SeqCst), a.counters().failures), (1, 1));
    let flushed = CompletionCounter::new();
    dying.flush(FlushKind::Cancel, Some(flushed.token())).map(|_| ()).unwrap();
    drop(dying);
    until(&[&a, &c], || a.counters().endpoints == 1);
    assert_eq!(a.counters().free_buffers, 512);
}

/// The same with pending requests: they are handed back, or dropped with the endpoint; nobody calls them any more.
#[test]
fn pending_requests_of_a_failed_endpoint_are_handed_back() {
    let (a, _) = open(quick());
    let (dying, raw) = raw_pair(&a, 4);
    while dying.am_short(AM, &[1]).is_ok() {}
    for _ in 0..3 {
        // Called in vain, perhaps: whether there is enough only the request knows.
        let request = |endpoint: &dyn ferroce_transport::uct::Endpoint| {
            assert!(matches!(endpoint.am_short(AM, &[2]), Err(OpError::NoResource)));
            PendingStatus::NoResource
        };
        dying.pending_add(Box::new(request)).unwrap();
    }
    // Those four are acknowledged, and nothing is granted.
    until(&[&a], || a.flush());
    raw.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    dying.check().unwrap();
    until(&[&a], || dying.failure().is_some());
    let mut back = 0;
    dying.pending_purge(&mut |_| back += 1);
    assert_eq!(back, 3);
}

/// Begins something that does not end well.
type Begin<'a> = dyn Fn(&RcEndpoint) -> Result<(), OpError> + 'a;

/// An access that the peer does not allow ends the connection, and says whose fault it was.
#[test]
fn what_the_peer_does_not_allow() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let theirs = b.pd().alloc_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let remote = Remote::of(&theirs);
    let (mine, read_only) =
        (a.pd().alloc_mr(4096, Access::LOCAL_WRITE).unwrap(), a.pd().alloc_mr(4096, Access::empty()).unwrap());
    let cases: [(&str, &Begin<'_>, Cause); 4] = [
        ("no right", &|to_b| to_b.put_short(&[1], remote), Cause::RemoteAccess),
        (
            "beyond",
            &|to_b| to_b.get_zcopy(&[Iov::new(&mine, 0..1)], remote.at(4096), None).map(|_| ()),
            Cause::RemoteAccess,
        ),
        ("no key", &|to_b| to_b.put_short(&[1], Remote { addr: remote.addr, rkey: 0xdead_beef }), Cause::RemoteAccess),
        (
            "own memory",
            &|to_b| to_b.get_zcopy(&[Iov::new(&read_only, 0..8)], remote, None).map(|_| ()),
            Cause::LocalMemory,
        ),
    ];
    for (what, begin, cause) in cases {
        let (to_b, _to_a) = pair(&a, &b);
        begin(&to_b).unwrap();
        to_b.flush(FlushKind::Local, None).unwrap();
        until(&[&a, &b], || to_b.failure().is_some());
        assert_eq!(to_b.failure().unwrap().cause, cause, "{what}");
    }
    until(&[&a, &b], || a.counters().endpoints + b.counters().endpoints == 0);
}

/// Report 8151: who is connected by address learns that the peer has closed, at once and without sending anything.
#[test]
fn report_8151_the_peer_says_that_it_closes() {
    let ((a, at_a), (b, _)) = (open(options()), open(options()));
    let (to_b, to_a) = pair(&a, &b);
    to_a.am_short(AM, &message(7, 8)).unwrap();
    until(&[&b], || b.flush());
    drop(to_a);
    until(&[&a, &b], || to_b.failure().is_some());
    assert_eq!(to_b.failure().unwrap().cause, Cause::Closed);
    assert_eq!(numbers(&at_a, &to_b), [7], "what came before is delivered");
}

/// Report 6850, with a peer that grants twice and late: nothing stalls, nothing is granted twice.
#[test]
fn report_6850_grants_that_come_twice_or_late() {
    let (a, _) = open(options());
    let (to_raw, raw) = raw_pair(&a, 8);
    let mut got = 0_u32;
    let send = |sent: &mut u32| {
        while to_raw.am_short(AM, &message(*sent, 8)).is_ok() {
            *sent += 1;
        }
    };
    let mut sent = 0;
    for round in 0..200 {
        // What was granted may be seen only now.
        until(&[&a], || {
            send(&mut sent);
            sent != got
        });
        let before = got;
        until(&[&a], || {
            while let Some(bytes) = raw.receive() {
                assert_eq!(bytes[0] & 0x1f, AM);
                got += 1;
                raw.post_receive();
            }
            got == sent
        });
        // Two were asked for: an old one and the right one, or the right one twice.
        for total in [if round % 2 == 0 { before + 8 } else { got + 8 }, got + 8] {
            raw.send(&[&[0xe0][..], &total.to_be_bytes()].concat());
        }
        a_while(&[&a]);
        assert!(sent - got <= 8);
    }
    assert_eq!((sent, to_raw.failure()), (1600, None));
}

/// Reports 8219, 8201: that this side sends, or is asked to, is no sign of life of the peer's. And 7093, 7301: one that answers lives.
#[test]
fn report_8219_keepalive_finds_a_dead_peer_and_spares_a_living_one() {
    let keepalive = Some(Duration::from_millis(10));
    let ((a, _), (c, _)) = (open(RcOptions { keepalive, ..quick() }), open(options()));
    let ((dying, raw), (to_c, _of_c)) = (raw_pair(&a, 8), pair(&a, &c));
    // Another one that goes must not disturb the others' deadlines.
    drop(raw_pair(&a, 8));
    until(&[&a, &c], || a.counters().probes >= 4);
    assert!(dying.failure().is_none() && to_c.failure().is_none());
    raw.qp.modify(&QpAttr::to(QpState::Err)).unwrap();
    until(&[&a, &c], || dying.failure().is_some());
    let failure = dying.failure().unwrap();
    assert_eq!(failure.cause, Cause::PeerTimeout);
    assert!(failure.evidence.probes >= 1, "{failure}");
    let probes = a.counters().probes;
    until(&[&a, &c], || a.counters().probes >= probes + 3);
    assert!(to_c.failure().is_none());
    assert!(a.next_timeout().is_some());
}

/// Peers are told apart by GID and queue pair (T10, T11): nothing else about an address matters.
#[test]
fn who_is_connected_to_whom() {
    let ((a, _), (b, _)) = (open(options()), open(options()));
    let ((one, of_one), (two, of_two)) = (pair(&a, &b), pair(&a, &b));
    let is = |endpoint: &RcEndpoint, address: EndpointAddress| endpoint.is_connected(&address.to_bytes());
    assert!(is(&one, of_one.address()) && is(&two, of_two.address()));
    assert!(!is(&one, of_two.address()) && !is(&one, one.address()));
    let mut other_psn = of_one.address().to_bytes();
    other_psn[23] ^= 1;
    assert!(one.is_connected(&other_psn));
    assert!(!one.is_connected(&[]));
    assert_eq!(one.peer(), Some((of_one.address().gid(), of_one.qpn())));
    assert!(one.connect_to_ep(&of_two.address()).is_err(), "it is connected");
    drop(of_one);
    until(&[&a, &b], || one.failure().is_some());
    assert!(!one.is_connected(&two.address().to_bytes()));
}

#[test]
fn reachability_has_a_reason() {
    let (a, _) = open(options());
    let endpoint = a.create_endpoint().unwrap();
    a.is_reachable(&a.address_bytes()).unwrap();
    a.is_reachable(&endpoint.address().to_bytes()).unwrap();
    assert!(matches!(a.is_reachable(&[1, 2, 3]), Err(Unreachable::Malformed { len: 3, .. })));
    let six = ferroce_verbs::Gid::from(std::net::Ipv6Addr::LOCALHOST);
    assert!(matches!(a.is_reachable(&six.to_bytes()), Err(Unreachable::Family { .. })));
    let nobody = ferroce_verbs::Gid::from(std::net::Ipv4Addr::UNSPECIFIED);
    assert!(matches!(
        a.is_reachable(&nobody.to_bytes()),
        Err(Unreachable::NoRoute { .. } | Unreachable::Loopback { .. })
    ));
}

/// An address that cannot be connected to leaves the endpoint as it was: another can be tried.
#[test]
fn a_wrong_address_can_be_put_right() {
    let ((a, _), (b, at_b)) = (open(options()), open(options()));
    let (to_b, to_a) = (a.create_endpoint().unwrap(), b.create_endpoint().unwrap());
    let mut wrong = to_a.address().to_bytes();
    wrong[2..18].copy_from_slice(&ferroce_verbs::Gid::from(std::net::Ipv6Addr::LOCALHOST).to_bytes());
    let request = |endpoint: &dyn ferroce_transport::uct::Endpoint| match endpoint.am_short(AM, &message(1, 8)) {
        Ok(()) => PendingStatus::Done,
        Err(OpError::NoResource | OpError::NotConnected(_)) => PendingStatus::NoResource,
        Err(error) => panic!("{error}"),
    };
    to_b.pending_add(Box::new(request)).unwrap();
    assert!(to_b.connect_to_ep(&EndpointAddress::from_bytes(&wrong).unwrap()).is_err());
    assert!(to_b.peer().is_none() && to_b.failure().is_none());
    assert!(matches!(to_b.am_short(AM, &[]), Err(OpError::NotConnected(_))));
    to_b.connect_to_ep(&to_a.address()).unwrap();
    to_a.connect_to_ep(&to_b.address()).unwrap();
    until(&[&a, &b], || numbers(&at_b, &to_a) == [1]);
}
