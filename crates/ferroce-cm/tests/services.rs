//! A service belongs to one program of a host, for as long as a request for it may come again.

mod support;

use ferroce_cm::{ConnParam, ConnectionManager, Error, EventChannel, EventKind, Id, PortSpace};
use ferroce_soft::LinkMode;
use ferroce_soft::memory::{MemoryConfig, MemoryNetwork};
use ferroce_verbs::provider::Device;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use support::{Host, PATIENCE, Side};

/// Whether somebody else may listen there.
fn is_free(other: &Side, port_space: PortSpace, addr: SocketAddr) -> bool {
    let id = other.id_in(port_space);
    id.bind_addr(addr).unwrap();
    match id.listen(0) {
        Ok(()) => true,
        Err(Error::Address { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// The server reads a request, destroys its listener, as rping does, and takes its time.
fn answered_late(link: LinkMode, port_space: PortSpace) {
    let host = Host::new(link);
    let (a, b, other) = (host.open(), host.open(), host.open());
    let (listener, addr) = b.listen_in(port_space);
    let asker = a.resolved_in(port_space, addr);
    asker.connect(&ConnParam::default()).unwrap();
    let (server, _) = b.request();
    listener.destroy();
    // The client asks again.
    let again = || {
        let duplicates = b.cm.counters().rx_duplicates;
        duplicates.req + duplicates.sidr_req
    };
    let deadline = Instant::now() + PATIENCE;
    while again() == 0 {
        assert!(a.channel.try_next().unwrap().is_none(), "somebody has answered");
        assert!(Instant::now() < deadline, "it does not come again");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!is_free(&other, port_space, addr), "the next one would go to another program");
    server.accept(&ConnParam::default()).unwrap();
    let event = a.event();
    assert!(matches!(event.kind(), EventKind::Established), "{event:?}");
    // Answered, and known to be, or forgotten.
    let deadline = Instant::now() + PATIENCE;
    while !is_free(&other, port_space, addr) {
        assert!(Instant::now() < deadline, "the port is never free again");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((event, asker, server, listener));
    a.is_clean();
    b.is_clean();
}

#[test]
fn a_request_that_was_read_is_its_readers_though_the_listener_is_destroyed() {
    answered_late(LinkMode::Auto, PortSpace::Tcp);
    answered_late(LinkMode::Udp, PortSpace::Tcp);
}

#[test]
fn a_question_that_was_read_is_its_readers_though_the_listener_is_destroyed() {
    answered_late(LinkMode::Auto, PortSpace::Udp);
    answered_late(LinkMode::Udp, PortSpace::Udp);
}

#[test]
fn the_same_program_may_listen_again_at_once() {
    let host = Host::new(LinkMode::Auto);
    let (a, b, other) = (host.open(), host.open(), host.open());
    let (listener, addr) = b.listen();
    let first = a.connect(addr, b"");
    let (server, _) = b.request();
    listener.destroy();
    let (again, same) = b.listen_at(PortSpace::Tcp, &addr.to_string());
    assert_eq!(same, addr);
    // What the first listener has left is settled, and the port is the second one's.
    server.accept(&ConnParam::default()).unwrap();
    assert!(matches!(a.event().kind(), EventKind::Established));
    assert!(matches!(b.event().kind(), EventKind::Established));
    assert!(!is_free(&other, PortSpace::Tcp, addr));
    let second = a.connect(addr, b"");
    let (server_of_second, _) = b.request();
    again.destroy();
    drop(server_of_second);
    assert!(matches!(a.event().kind(), EventKind::Rejected { .. }));
    assert!(is_free(&other, PortSpace::Tcp, addr), "refused requests keep nothing");
    drop((first, second, server));
    a.is_clean();
    b.is_clean();
}

/// The first listens at all addresses, the second at one of them.
#[test]
fn the_same_program_may_listen_again_at_fewer_addresses() {
    let host = Host::new(LinkMode::Auto);
    let (a, b, other) = (host.open(), host.open(), host.open());
    let (listener, all) = b.listen_at(PortSpace::Tcp, "0.0.0.0:0");
    let addr = SocketAddr::new(b.ip, all.port());
    let first = a.connect(addr, b"");
    let (server, _) = b.request();
    listener.destroy();
    let (again, _) = b.listen_at(PortSpace::Tcp, &addr.to_string());
    // At another address another one may, at the same nobody.
    let (elsewhere, _) = b.listen_at(PortSpace::Tcp, &format!("[::1]:{}", all.port()));
    assert!(!is_free(&b, PortSpace::Tcp, addr));
    let second = a.connect(addr, b"");
    let (server_of_second, _) = b.request();
    for server in [&server, &server_of_second] {
        server.accept(&ConnParam::default()).unwrap();
        assert!(matches!(a.event().kind(), EventKind::Established));
        assert!(matches!(b.event().kind(), EventKind::Established));
    }
    assert!(!is_free(&other, PortSpace::Tcp, addr));
    again.destroy();
    assert!(!is_free(&other, PortSpace::Tcp, addr), "what is held is held for all of them");
    elsewhere.destroy();
    assert!(is_free(&other, PortSpace::Tcp, addr));
    drop((first, second, server, server_of_second));
    a.is_clean();
    b.is_clean();
}

#[test]
fn a_manager_that_goes_leaves_no_service_behind() {
    let host = Host::new(LinkMode::Auto);
    let (a, b, other) = (host.open(), host.open(), host.open());
    let (listener, addr) = b.listen_in(PortSpace::Udp);
    let asker = a.resolved_in(PortSpace::Udp, addr);
    asker.connect(&ConnParam::default()).unwrap();
    let (server, _) = b.request();
    server.accept(&ConnParam::default()).unwrap();
    listener.destroy();
    assert!(!is_free(&other, PortSpace::Udp, addr), "the answer may be lost");
    // The context lives on.
    let context = b.cm.context().clone();
    drop((server, listener, b));
    assert!(is_free(&other, PortSpace::Udp, addr));
    drop(context);
}

/// The same on the network in memory: of two programs of a host, the other one is who would refuse.
#[test]
fn a_request_that_was_read_is_its_readers_in_memory() {
    for port_space in [PortSpace::Tcp, PortSpace::Udp] {
        let network = MemoryNetwork::new(MemoryConfig::default());
        let open = |ip: &str| {
            let context = network.host(ip.parse().unwrap()).open().unwrap();
            (ConnectionManager::new(&context).unwrap(), EventChannel::new().unwrap())
        };
        let (_other, (server, requests), (client, answers)) = (open("10.0.0.2"), open("10.0.0.2"), open("10.0.0.1"));
        let addr: SocketAddr = "10.0.0.2:7471".parse().unwrap();
        let listener = server.create_id(&requests, port_space);
        listener.bind_addr(addr).unwrap();
        listener.listen(0).unwrap();
        let asker: Id = client.create_id(&answers, port_space);
        asker.resolve_addr(None, addr).unwrap();
        asker.resolve_route().unwrap();
        asker.connect(&ConnParam { qp_num: Some(0x17), ..ConnParam::default() }).unwrap();
        network.advance(Duration::from_millis(1));
        let (_, kind, _) = requests.try_next().unwrap().expect("a request").into_parts();
        let EventKind::ConnectRequest { id, .. } = kind else { panic!("{kind:?}") };
        listener.destroy();
        network.advance(Duration::from_millis(500));
        let duplicates = server.counters().rx_duplicates;
        assert!(duplicates.req + duplicates.sidr_req > 0, "it came again, and here");
        id.accept(&ConnParam { qp_num: Some(0x18), ..ConnParam::default() }).unwrap();
        network.advance(Duration::from_millis(1));
        let kinds: Vec<_> = std::iter::from_fn(|| answers.try_next().unwrap()).collect();
        assert!(
            kinds.iter().all(|event| !matches!(event.kind(), EventKind::Rejected { .. })) && kinds.len() == 3,
            "{kinds:?}"
        );
    }
}
