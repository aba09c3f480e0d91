//! What an endpoint that is idle costs in memory, at both ends, in bytes that are really allocated.

use ferroce_soft::memory::{MemoryConfig, MemoryNetwork, Random};
use ferroce_testing::allocated::{Counting, live};
use ferroce_transport::ud_verbs::{UdEndpoint, UdOptions, UdVerbs};
use ferroce_verbs::ah_cache::Clock;
use ferroce_verbs::provider::Device;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The network's time.
struct VirtualTime(MemoryNetwork);

impl Clock for VirtualTime {
    fn now(&self) -> u64 {
        self.0.now().as_nanos() as u64
    }
}

fn open(network: &MemoryNetwork, host: u8) -> UdVerbs {
    let context = network.host(IpAddr::from([10, 0, 0, host])).open().unwrap();
    let mut random = Random::new(host.into());
    let clock = VirtualTime(network.clone());
    UdVerbs::open_with(&context, UdOptions::default(), clock, move || random.next_u64()).unwrap()
}

/// Endpoints that have connected and talked, in bursts too, and are idle since: at most 512 bytes each, at the end that made them and at the
/// end that did not. `cargo test -p ferroce-transport --test ud_memory -- --nocapture` says how many.
#[test]
fn an_idle_endpoint_takes_at_most_512_bytes() {
    // The worst moment of tables that double is right after they did.
    for count in [20_000_usize, 30_000] {
        let network = MemoryNetwork::new(MemoryConfig::default());
        let (a, b) = (open(&network, 1), open(&network, 2));
        let arrived = Arc::new(AtomicUsize::new(0));
        let counted = arrived.clone();
        b.set_am_handler(0, move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        })
        .unwrap();
        let progress = |time: Duration| {
            network.advance(time);
            (a.progress().unwrap(), b.progress().unwrap())
        };
        let mut endpoints: Vec<UdEndpoint> = Vec::with_capacity(count);
        let talk = |endpoints: &mut Vec<UdEndpoint>, many: usize| {
            for number in 0..many {
                let endpoint = a.connect(b.address()).unwrap();
                // Some of them a lot.
                let messages = if number % 64 == 0 { 200 } else { 1 };
                let before = arrived.load(Ordering::Relaxed);
                for _ in 0..messages {
                    endpoint.am(0, &[7; 100]).unwrap();
                }
                while arrived.load(Ordering::Relaxed) != before + messages || !endpoint.flush().unwrap() {
                    progress(Duration::from_micros(10));
                }
                endpoints.push(endpoint);
            }
        };
        let rest = || {
            for _ in 0..500 {
                progress(Duration::from_millis(10));
            }
        };
        // What an interface has for itself, and the first endpoint's address handle.
        talk(&mut endpoints, 1);
        rest();
        let empty = live();
        talk(&mut endpoints, count - 1);
        rest();
        let both = live() - empty;
        assert_eq!((a.counters().endpoints, b.counters().endpoints), (count, count));
        // Without their handles: those are the program's, and in its own table.
        let before = live();
        let one = open(&network, 3);
        let interface = live() - before;
        drop(one);
        // What the end that did not make them had for them. Its last words would be on their way otherwise.
        network.isolate(IpAddr::from([10, 0, 0, 2]));
        let before = live();
        drop(b);
        let acceptors = before - live() - interface;
        let each = |bytes: isize| bytes / count as isize;
        let (initiator, acceptor) = (each(both - acceptors), each(acceptors));
        let handle = size_of::<UdEndpoint>();
        println!(
            "{count} idle endpoints: {initiator} bytes at the initiator, {acceptor} at the acceptor; a handle {handle}"
        );
        assert!(initiator + handle as isize <= 512 && acceptor <= 512, "{initiator} + {handle}, {acceptor}");
        assert!(initiator > 100 && acceptor > 100, "that cannot be: {initiator}, {acceptor}");
    }
}
