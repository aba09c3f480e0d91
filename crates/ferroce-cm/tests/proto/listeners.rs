//! Who is asked, and what becomes of requests when a listener closes.

use crate::params::*;
use crate::peer::Scripted;
use crate::world::*;
use ferroce_cm::proto::{Bind, CmError, Event, ListenParams, Service};
use ferroce_wire::cm::{CmMessage, RejectReason, Req, TransportService};

#[test]
fn the_most_specific_listener_is_asked() {
    let mut w = World::pair(301);
    let here = Bind::Gid { gid: gid(1), scope_id: 0 };
    let elsewhere = Bind::Gid { gid: gid(5), scope_id: 0 };
    for bind in [elsewhere, Bind::AnyV6] {
        w.ep(1).listen(&ListenParams { bind, ..listen_params(0) }).unwrap();
    }
    w.connect(0, 1, 1);
    assert_eq!(kind(&w.event(0)), "rejected");
    for (qpn, bind) in [(2, Bind::Any), (3, Bind::AnyV4), (4, here)] {
        let listener = w.ep(1).listen(&ListenParams { bind, ..listen_params(0) }).unwrap();
        assert_eq!(w.ep(1).listen(&ListenParams { bind, ..listen_params(0) }), Err(CmError::AddressInUse));
        w.connect(0, 1, qpn);
        assert_eq!(w.request(1).listener, listener);
    }
}

/// What was not read is rejected, what was lives on.
#[test]
fn closing_rejects_what_was_not_read() {
    let mut w = World::pair(302);
    let listener = w.listen(1, 0);
    let conns = [w.connect(0, 1, 1), w.connect(0, 1, 2), w.connect(0, 1, 3)];
    w.run(MS);
    let read = w.request(1).conn;
    let decided = w.request(1).conn;
    let now = w.now;
    w.ep(1).request_read(now, read).unwrap();
    w.ep(1).accept(now, decided, &accept_params(9)).unwrap();
    assert_eq!(w.ep(1).close_listener(now, listener), Ok(false), "requests are left that may come again");
    assert_eq!(w.ep(1).close_listener(now, listener), Err(CmError::Stale));
    assert_eq!(w.response(0).conn, conns[1]);
    let Event::Rejected(rejected) = w.event(0) else { panic!("not rejected") };
    assert_eq!((rejected.conn, rejected.reason), (conns[2], RejectReason::ConsumerDefined));
    w.ep(1).accept(now, read, &accept_params(10)).unwrap();
    assert_eq!(w.response(0).conn, conns[0]);
    // That of the third request was taken before, and is void.
    assert_eq!(w.kinds(1), ["request"]);
    // Who has heard from us does not ask again.
    for conn in [conns[0], conns[1]] {
        assert!(w.kinds(1).is_empty(), "one is left");
        w.ep(0).establish(conn, &[]).unwrap();
        assert!(matches!(w.event(1), Event::Established { .. }));
    }
    let Event::ListenerReleased { listener: released } = w.event(1) else { panic!("not released") };
    assert_eq!(released, listener);
    let late = w.connect(0, 1, 4);
    let Event::Rejected(rejected) = w.event(0) else { panic!("not rejected") };
    assert_eq!((rejected.conn, rejected.reason), (late, RejectReason::InvalidServiceId));
    assert_eq!(w.ep(1).usage().listeners, 0);
}

/// Requests that are closed without having been taken from the endpoint are never seen.
#[test]
fn closing_makes_queued_requests_void() {
    let mut s = Scripted::new();
    let listener = s.endpoint.listen(&ListenParams { service_id: DATAGRAMS, ..listen_params(0) }).unwrap();
    for n in 0..10 {
        s.receive(Req { service_id: DATAGRAMS, local_comm_id: n, local_qpn: n, ..s.req() });
    }
    assert_eq!(s.endpoint.close_listener(s.now, listener), Ok(true), "nothing is left");
    assert!(s.events().is_empty());
    let refusals = s.sent();
    assert_eq!(refusals.len(), 10);
    assert!(refusals.iter().all(|message| matches!(message, CmMessage::Rej(_))));
    s.sleep(10 * S);
    assert_eq!((s.endpoint.usage().names, s.endpoint.usage().half_open), (0, 0));
}

#[test]
fn what_cannot_be_granted_is_refused_with_the_reason() {
    let mut s = Scripted::new();
    let datagrams = ListenParams { service: Service::Datagram, service_id: DATAGRAMS, ..listen_params(0) };
    s.endpoint.listen(&datagrams).unwrap();
    let mut wrong_gid = s.req();
    wrong_gid.primary.remote_gid = gid(7).to_bytes();
    let refused = [
        (Req { service_id: DATAGRAMS, ..s.req() }, RejectReason::InvalidTransportType),
        (Req { transport: TransportService::Rd, ..s.req() }, RejectReason::InvalidTransportType),
        (Req { transport: TransportService::Xrc, ..s.req() }, RejectReason::InvalidTransportType),
        (Req { path_mtu: 0, ..s.req() }, RejectReason::InvalidMtu),
        (Req { path_mtu: 6, ..s.req() }, RejectReason::InvalidMtu),
        (wrong_gid, RejectReason::InvalidGid),
    ];
    for (req, reason) in refused {
        s.receive(req);
        let sent = s.sent();
        let [CmMessage::Rej(rej)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!(rej.reason, reason);
        if reason == RejectReason::InvalidGid {
            assert_eq!(rej.info.as_slice(), gid(0).to_bytes(), "it says which GID would do");
        }
    }
    assert!(s.events().is_empty());
    assert_eq!(s.endpoint.usage().names, 0);
    s.receive(Req { transport: TransportService::Uc, ..s.req() });
    assert_eq!(s.events().iter().map(kind).collect::<Vec<_>>(), ["request"]);
}
