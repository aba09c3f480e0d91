use crate::world::{MILLI, SECOND, Setup, TTLS, World, ttl};
use ferroce_soft::memory::MemoryConfig;
use ferroce_transport::uct::{Endpoint, FlushKind, Posted};
use ferroce_transport::ud::{Cause, Config};
use ferroce_verbs::Ttl;
use std::time::Duration;

/// T1, T2, T13: endpoints end while traffic of their peers still arrives, at every time to live, with resolutions that take no time or a
/// while: each message arrives, each acknowledgement and each answer to what is for no endpoint any more finds an address handle,
/// and so nobody waits for its linger to run out.
#[test]
fn t1_t2_t13_teardown_with_traffic_arriving() {
    for ttl_of in TTLS {
        for delay in [Duration::ZERO, 30 * MILLI] {
            let world = World::slow(2, ttl(ttl_of), delay);
            for round in 0..10 {
                let (to_b, to_a) = (world.connect(0, 1), world.connect(1, 0));
                for number in 0..20 {
                    world.send(&to_b, 20 * round + number);
                    world.send(&to_a, 20 * round + number);
                }
                // One of them while nothing is connected yet, the other in the middle.
                drop(to_b);
                world.run(Duration::from_millis(u64::from(round) * 7));
                drop(to_a);
            }
            world.until("all messages", || world.numbers(1, 0).len() + world.numbers(0, 1).len() == 400);
            for (at, from) in [(1, 0), (0, 1)] {
                let mut got = world.numbers(at, from);
                got.sort_unstable();
                assert_eq!(got, (0..200).collect::<Vec<_>>(), "{ttl_of} {delay:?}");
            }
            let took = world.ends();
            assert!(took < SECOND, "{ttl_of} {delay:?}: the end took {took:?}");
        }
    }
}

/// T13: RESET is an answer that no endpoint sends. Whoever sends to a peer that started again learns of it, at every time to live, also
/// if the answer's address must be resolved first.
#[test]
fn t13_an_answer_for_no_endpoint_waits_for_its_address_handle() {
    for ttl_of in TTLS {
        let setup = Setup { cache: ttl(ttl_of), delay: 40 * MILLI, protocol: Config::default(), depth: 64 };
        let mut world = World::with(MemoryConfig::default(), 2, setup.clone());
        let endpoint = world.connect(0, 1);
        world.exchange(&endpoint, 1, 1);
        world.restart(1, &setup);
        let begin = world.network.now();
        endpoint.am(3, &2_u32.to_be_bytes()).unwrap();
        world.until("the failure", || endpoint.failure().is_some());
        assert_eq!(endpoint.failure().unwrap().cause, Cause::Reset);
        let took = world.network.now() - begin;
        assert!(took < SECOND, "{ttl_of}: after {took:?}");
        drop(endpoint);
        world.ends();
    }
}

/// Reports 8151, 8075: an endpoint that was canceled says so, though it was not dropped.
#[test]
fn report_8151_a_canceled_endpoint_says_that_it_closes() {
    let world = World::new(2, ttl(Ttl::Infinite));
    let endpoint = world.connect(0, 1);
    world.exchange(&endpoint, 1, 1);
    // Nothing is on its way that would find nobody.
    world.until("quiet", || endpoint.flush().unwrap());
    world.run(SECOND);
    assert_eq!(world.hosts[1].interface.counters().endpoints, 1);
    let begin = world.network.now();
    let canceled = Endpoint::flush(&endpoint, FlushKind::Cancel, None);
    assert!(matches!(canceled, Ok(Posted::Done)), "{canceled:?}");
    world.until("the peer's end to go", || world.hosts[1].interface.counters().endpoints == 0);
    assert!(world.network.now() - begin < SECOND);
    // A second time there is nothing to say, and nobody is told of a failure.
    assert!(Endpoint::flush(&endpoint, FlushKind::Cancel, None).is_ok());
    assert!(Endpoint::failure(&endpoint).is_none());
    drop(endpoint);
    // One that is not connected yet, whose peer may have made its end.
    let endpoint = world.connect(0, 1);
    assert!(Endpoint::flush(&endpoint, FlushKind::Cancel, None).is_ok());
    let begin = world.network.now();
    world.run(SECOND / 10);
    world.until("the peer's end to go", || world.hosts[1].interface.counters().endpoints == 0);
    assert!(world.network.now() - begin < SECOND);
    drop(endpoint);
    world.ends();
}

/// T3: the context is closed while endpoints hold address handles. They keep them, send with them, and the device goes with the last.
#[test]
fn t3_the_context_closes_under_endpoints() {
    let world = World::new(2, ttl(Ttl::Infinite));
    let (endpoint, idle) = (world.connect(0, 1), world.connect(0, 1));
    world.exchange(&endpoint, 1, 1);
    let report = world.hosts[0].context.clone().close();
    // An endpoint each, and what was posted last.
    assert!(report.held == 1 && report.leases >= 2, "{report:?}");
    for number in 2..10 {
        world.exchange(&endpoint, 1, number);
    }
    // What needs a new one fails, and says why.
    let late = world.connect(0, 1);
    world.until("the failure", || late.failure().is_some());
    assert_eq!(late.failure().unwrap().cause, Cause::Unreachable);
    let why = world.hosts[0].interface.last_resolution_error().unwrap().to_string();
    assert!(why.contains("closed"), "{why}");
    drop((endpoint, idle, late));
    world.ends();
}

/// T3: the interface goes with endpoints lingering: their address handles go with it, and what is posted has them until then.
#[test]
fn t3_the_interface_closes_under_endpoints() {
    let world = World::new(2, ttl(Ttl::Finite(MILLI)));
    let endpoint = world.connect(0, 1);
    world.exchange(&endpoint, 1, 1);
    for number in 2..40 {
        endpoint.am(3, &u32::to_be_bytes(number)).unwrap();
    }
    drop(endpoint);
    let World { network, mut hosts } = world;
    let crate::world::Host { interface, cache, context, .. } = hosts.remove(0);
    assert!(cache.counters().live >= 1);
    drop(interface);
    // Nobody looks at its completions any more, and its queue pair is gone.
    network.advance(SECOND);
    cache.close();
    let left = context.counters().iter().find(|(name, _)| *name == "address_handles").unwrap().1;
    assert_eq!(left, 0);
    drop((cache, context));
    let world = World { network, hosts };
    world.until("the peer to notice", || world.hosts[0].interface.counters().endpoints == 0);
}
