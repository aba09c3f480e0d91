use crate::world::{SECOND, Setup, World, ttl};
use ferroce_soft::memory::MemoryConfig;
use ferroce_transport::ud::Config;
use ferroce_transport::ud_verbs::UdEndpoint;
use ferroce_verbs::Ttl;
use std::time::Duration;

/// 100,000 endpoints over one UD queue pair connect, talk and close: each message arrives once, one address handle serves them all, and
/// nothing is left.
#[test]
fn a_hundred_thousand_endpoints_over_one_queue_pair() {
    const COUNT: usize = 100_000;
    /// So many that the receive queue has room for what they say first.
    const WAVE: usize = 500;
    let setup = Setup { cache: ttl(Ttl::Infinite), delay: Duration::ZERO, protocol: Config::default(), depth: 1024 };
    let world = World::with(MemoryConfig::default(), 2, setup);
    let mut endpoints: Vec<UdEndpoint> = Vec::new();
    while endpoints.len() < COUNT {
        for _ in 0..WAVE {
            let endpoint = world.connect(0, 1);
            endpoint.am(3, &(endpoints.len() as u32).to_be_bytes()).unwrap();
            endpoints.push(endpoint);
        }
        world.until("all messages", || world.hosts[1].log.lock().unwrap().len() == endpoints.len());
    }
    let mut numbers = world.numbers(1, 0);
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..COUNT as u32));
    let counters = [0, 1].map(|host| world.hosts[host].interface.counters());
    assert_eq!(counters.map(|counters| (counters.endpoints, counters.leases)), [(COUNT, COUNT); 2]);
    let live = [0, 1].map(|host| world.hosts[host].cache.counters().live);
    assert_eq!(live, [1, 1]);
    assert!(endpoints.iter().all(|endpoint| endpoint.is_connected(world.address(1))));
    let begin = world.network.now();
    while !endpoints.is_empty() {
        endpoints.truncate(endpoints.len() - WAVE);
        let left = endpoints.len();
        world.until("the end", || [0, 1].iter().all(|host| world.hosts[*host].interface.counters().endpoints == left));
    }
    let took = world.network.now() - begin;
    assert!(took < SECOND, "{took:?}");
    world.ends();
}

/// T17 with many: thousands of endpoints wait for one address, some give up meanwhile, and another one goes on as if they were not there.
#[test]
fn t17_thousands_wait_for_one_address() {
    const COUNT: usize = 4000;
    let setup = Setup { cache: ttl(Ttl::Infinite), delay: 3 * SECOND, protocol: Config::default(), depth: 1024 };
    let world = World::with(MemoryConfig::default(), 3, setup);
    let other = world.connect(0, 2);
    world.exchange(&other, 2, 0);
    let mut slow: Vec<UdEndpoint> = (0..COUNT).map(|_| world.connect(0, 1)).collect();
    for number in 1..500 {
        world.exchange(&other, 2, number);
        // Half of them.
        for _ in 0..4 {
            drop(slow.pop());
        }
    }
    assert_eq!(world.hosts[0].interface.counters().endpoints, slow.len() + 1);
    for (number, endpoint) in slow.iter().enumerate() {
        endpoint.am(3, &(number as u32).to_be_bytes()).unwrap();
    }
    world.until("all messages", || world.hosts[1].log.lock().unwrap().len() == slow.len());
    let counters = world.hosts[0].cache.counters();
    assert_eq!((counters.misses, counters.shared_waits), (2, COUNT as u64 - 1), "{counters:?}");
    drop((other, slow));
    world.ends();
}
