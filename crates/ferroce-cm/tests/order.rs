//! In which order a program hears of things, on a network in memory, where nothing is left to chance.

use ferroce_cm::proto::DisconnectCause;
use ferroce_cm::{ConnParam, ConnectionManager, Event, EventChannel, EventKind, Id, PortSpace};
use ferroce_soft::memory::{MemoryConfig, MemoryNetwork};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{QpInitAttr, QpState, QpType};
use std::net::SocketAddr;
use std::time::Duration;

struct Side {
    cm: ConnectionManager,
    channel: EventChannel,
}

impl Side {
    fn new(network: &MemoryNetwork, ip: &str) -> Self {
        let context = network.host(ip.parse().unwrap()).open().unwrap();
        Self { cm: ConnectionManager::new(&context).unwrap(), channel: EventChannel::new().unwrap() }
    }

    fn connect(&self, peer: SocketAddr, qp_num: u32, private_data: &[u8]) -> Id {
        let id = self.cm.create_id(&self.channel, PortSpace::Tcp);
        id.resolve_addr(None, peer).unwrap();
        id.resolve_route().unwrap();
        id.connect(&ConnParam { private_data, qp_num: Some(qp_num), ..ConnParam::default() }).unwrap();
        id
    }
}

fn next(channel: &EventChannel) -> Event {
    channel.try_next().unwrap().expect("no event came")
}

/// A client, and a listener that two of its ids have asked for a connection; the second has taken that back.
fn asked_and_taken_back() -> (Side, Side, Id, [Id; 2]) {
    let network = MemoryNetwork::new(MemoryConfig::default());
    let (client, server) = (Side::new(&network, "10.0.0.1"), Side::new(&network, "10.0.0.2"));
    let addr = "10.0.0.2:7471".parse().unwrap();
    let listener = server.cm.create_id(&server.channel, PortSpace::Tcp);
    listener.bind_addr(addr).unwrap();
    listener.listen(0).unwrap();
    let first = client.connect(addr, 0x17, b"first");
    let second = client.connect(addr, 0x18, b"second");
    network.advance(Duration::from_millis(1));
    second.destroy();
    network.advance(Duration::from_millis(1));
    (client, server, listener, [first, second])
}

/// Whoever has not heard of a connection yet does not hear that it is over.
#[test]
fn what_happens_to_an_id_comes_after_the_event_that_announces_it() {
    let (_client, server, _listener, _ids) = asked_and_taken_back();
    let mut ids = Vec::new();
    for data in [&b"first"[..], b"second"] {
        let event = next(&server.channel);
        let EventKind::ConnectRequest { id, .. } = event.kind() else { panic!("{event:?}") };
        assert_eq!(event.private_data(), data);
        ids.push(id.clone());
    }
    let event = next(&server.channel);
    assert!(matches!(event.kind(), EventKind::Rejected { .. }), "{event:?}");
    assert_eq!(event.id(), &ids[1]);
    assert!(server.channel.try_next().unwrap().is_none());
}

/// Sideway #39: an id belongs to the channel where the event that announces it is read.
#[test]
fn an_id_is_where_its_listener_is() {
    let (_client, server, listener, _ids) = asked_and_taken_back();
    let other = EventChannel::new().unwrap();
    listener.migrate(&other).unwrap();
    assert!(server.channel.try_next().unwrap().is_none(), "the old channel still has events");
    let requests = [next(&other), next(&other)];
    for request in &requests {
        assert!(matches!(request.kind(), EventKind::ConnectRequest { .. }), "{request:?}");
    }
    assert!(matches!(next(&other).kind(), EventKind::Rejected { .. }));
}

/// B15: a connection on which nothing is sent ends when its peer does, though no message says so.
#[test]
fn b15_the_end_of_a_silent_peer_is_an_event_of_an_idle_connection() {
    let network =
        MemoryNetwork::new(MemoryConfig { keepalive: Some(Duration::from_secs(20)), ..MemoryConfig::default() });
    let sides = [Side::new(&network, "10.0.0.1"), Side::new(&network, "10.0.0.2")];
    let [client, server] = &sides;
    let addr = "10.0.0.2:7471".parse().unwrap();
    let listener = server.cm.create_id(&server.channel, PortSpace::Tcp);
    listener.bind_addr(addr).unwrap();
    listener.listen(0).unwrap();
    let queues = sides.each_ref().map(|side| {
        let context = side.cm.context();
        (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap())
    });
    let active = client.cm.create_id(&client.channel, PortSpace::Tcp);
    active.resolve_addr(None, addr).unwrap();
    active.resolve_route().unwrap();
    active.create_qp(&queues[0].0, &QpInitAttr::new(QpType::Rc, &queues[0].1)).unwrap();
    active.connect(&ConnParam::default()).unwrap();
    network.advance(Duration::from_millis(1));
    let request = next(&server.channel);
    let EventKind::ConnectRequest { id: passive, .. } = request.kind() else { panic!("{request:?}") };
    passive.create_qp(&queues[1].0, &QpInitAttr::new(QpType::Rc, &queues[1].1)).unwrap();
    passive.accept(&ConnParam::default()).unwrap();
    // Each hears, and answers.
    let mut kinds = [Vec::new(), Vec::new()];
    for turn in 0..8 {
        let (side, kinds) = (&sides[turn % 2], &mut kinds[turn % 2]);
        network.advance(Duration::from_millis(1));
        while let Some(event) = side.channel.try_next().unwrap() {
            kinds.push(format!("{:?}", event.kind()));
        }
    }
    let established = |kinds: &Vec<String>| kinds.last().is_some_and(|kind| kind == "Established");
    assert!(kinds.iter().all(established), "{kinds:?}");
    network.advance(Duration::from_secs(600));
    for side in &sides {
        assert!(side.channel.try_next().unwrap().is_none());
    }
    network.isolate("10.0.0.2".parse().unwrap());
    network.advance(Duration::from_secs(62));
    for (side, id) in [(client, &active), (server, passive)] {
        let event = next(&side.channel);
        assert_eq!(event.id(), id);
        assert!(matches!(event.kind(), EventKind::Disconnected(DisconnectCause::PeerLost)), "{event:?}");
        assert_eq!(id.qp().unwrap().query().unwrap().state, Some(QpState::Err));
    }
    network.advance(Duration::from_secs(120));
    for side in &sides {
        while let Some(event) = side.channel.try_next().unwrap() {
            assert!(matches!(event.kind(), EventKind::TimewaitExit), "{event:?}");
        }
    }
}
