//! Hosts on a network in memory: virtual time for the network, the transport, the address-handle caches and their resolvers.

use ferroce_soft::memory::{MemoryConfig, MemoryNetwork, Random};
use ferroce_transport::ud::{Config, SendError};
use ferroce_transport::ud_verbs::{InterfaceAddress, Message, UdEndpoint, UdOptions, UdVerbs};
use ferroce_verbs::ah_cache::{AhResolver, Clock, Resolution};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Ah, AhAttr, AhCache, AhCacheConfig, AhCacheOptions, Context, Error, Pd, Result, Ttl};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) const MILLI: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The time to live of every kind: none, shorter than anything, shorter than an endpoint's life, for ever.
pub(crate) const TTLS: [Ttl; 4] = [Ttl::Bypass, Ttl::Finite(MILLI), Ttl::Finite(SECOND), Ttl::Infinite];

pub(crate) fn ttl(ttl: Ttl) -> AhCacheConfig {
    AhCacheConfig { ttl, ..AhCacheConfig::default() }
}

pub(crate) fn ip(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, host as u8 + 1])
}

/// The network's time.
#[derive(Clone)]
struct VirtualTime(MemoryNetwork);

impl Clock for VirtualTime {
    fn now(&self) -> u64 {
        self.0.now().as_nanos() as u64
    }
}

type Failure = fn() -> Error;
/// When it is told, to whom, and what.
type Outcome = (u64, Resolution, Result<Ah>);

/// Takes a while of virtual time for each address, without blocking anybody.
#[derive(Clone)]
pub(crate) struct Slow {
    clock: VirtualTime,
    delay: Duration,
    /// Makes what every resolution fails with, if it does.
    pub(crate) failure: Arc<Mutex<Option<Failure>>>,
    waiting: Arc<Mutex<Vec<Outcome>>>,
}

impl Slow {
    /// When the next one ends.
    fn next(&self) -> Option<Duration> {
        self.waiting.lock().unwrap().iter().map(|(due, ..)| Duration::from_nanos(*due)).min()
    }

    pub(crate) fn progress(&self) {
        let now = self.clock.now();
        let due: Vec<_> = self.waiting.lock().unwrap().extract_if(.., |(due, ..)| *due <= now).collect();
        for (_, resolution, ah) in due {
            resolution.finish(ah);
        }
    }
}

impl AhResolver for Slow {
    fn resolve(&self, pd: &Pd, attr: &AhAttr) -> Result<Ah> {
        pd.create_ah(attr)
    }

    fn start(&self, resolution: Resolution) {
        // What comes out is as old as the beginning.
        let failure = *self.failure.lock().unwrap();
        let ah = match failure {
            Some(failure) => Err(failure()),
            None => resolution.pd().create_ah(resolution.attr()),
        };
        if self.delay.is_zero() {
            return resolution.finish(ah);
        }
        let due = self.clock.now() + self.delay.as_nanos() as u64;
        self.waiting.lock().unwrap().push((due, resolution, ah));
    }
}

/// How each host is made.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) cache: AhCacheConfig,
    /// What a resolution takes.
    pub(crate) delay: Duration,
    pub(crate) protocol: Config,
    /// Of the queues.
    pub(crate) depth: u32,
}

/// What came to an interface: from whom, and the number in it.
type Log = Arc<Mutex<Vec<(InterfaceAddress, u32)>>>;

pub(crate) struct Host {
    pub(crate) interface: UdVerbs,
    pub(crate) log: Log,
    pub(crate) cache: AhCache,
    pub(crate) resolver: Slow,
    pub(crate) context: Context,
}

pub(crate) struct World {
    pub(crate) network: MemoryNetwork,
    pub(crate) hosts: Vec<Host>,
}

impl World {
    pub(crate) fn new(hosts: usize, cache: AhCacheConfig) -> Self {
        Self::slow(hosts, cache, Duration::ZERO)
    }

    /// A world whose addresses take `delay` to be resolved.
    pub(crate) fn slow(hosts: usize, cache: AhCacheConfig, delay: Duration) -> Self {
        let setup = Setup { cache, delay, protocol: Config::default(), depth: 64 };
        Self::with(MemoryConfig::default(), hosts, setup)
    }

    pub(crate) fn with(memory: MemoryConfig, hosts: usize, setup: Setup) -> Self {
        let network = MemoryNetwork::new(memory);
        let hosts = (0..hosts).map(|host| Host::new(&network, host, &setup)).collect();
        Self { network, hosts }
    }

    pub(crate) fn address(&self, host: usize) -> InterfaceAddress {
        self.hosts[host].interface.address()
    }

    pub(crate) fn connect(&self, from: usize, to: usize) -> UdEndpoint {
        self.hosts[from].interface.connect(self.address(to)).unwrap()
    }

    /// A host loses power, and its program begins anew under the same addresses.
    pub(crate) fn restart(&mut self, host: usize, setup: &Setup) {
        let Self { network, hosts } = self;
        network.isolate(ip(host));
        drop(hosts.remove(host));
        network.restore(ip(host));
        network.reboot(ip(host));
        hosts.insert(host, Host::new(network, host, setup));
    }

    /// All that is due now; then time passes until something happens, at most for so long.
    fn step(&self, most: Duration) {
        for host in &self.hosts {
            host.resolver.progress();
            host.interface.progress().unwrap();
        }
        let now = self.network.now();
        let timers = self.hosts.iter().filter_map(|host| host.interface.next_timeout()).map(|left| now + left);
        let resolutions = self.hosts.iter().filter_map(|host| host.resolver.next());
        let next = timers.chain(resolutions).chain(self.network.next_event()).min().unwrap_or(now + most);
        self.network.advance(next.saturating_sub(now).clamp(Duration::from_micros(1), most));
    }

    /// Lets time pass.
    pub(crate) fn run(&self, time: Duration) {
        let end = self.network.now() + time;
        while self.network.now() < end {
            let left = end - self.network.now();
            self.step(left.max(Duration::from_micros(1)));
        }
    }

    /// Lets time pass until something is so.
    pub(crate) fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let end = self.network.now() + 300 * SECOND;
        while !is_so() {
            self.step(10 * MILLI);
            assert!(self.network.now() < end, "{what}: never");
        }
    }

    pub(crate) fn send(&self, endpoint: &UdEndpoint, number: u32) {
        self.until("room", || match endpoint.am(3, &number.to_be_bytes()) {
            Ok(()) => true,
            Err(SendError::Busy(_)) => false,
            Err(error) => panic!("{error}: {:?}", endpoint.failure()),
        });
    }

    /// Sends a message and waits until it has arrived.
    pub(crate) fn exchange(&self, endpoint: &UdEndpoint, to: usize, number: u32) {
        let before = self.hosts[to].log.lock().unwrap().len();
        self.send(endpoint, number);
        self.until("the message", || self.hosts[to].log.lock().unwrap().len() > before);
        let last = self.hosts[to].log.lock().unwrap().last().copied();
        assert_eq!(last.unwrap().1, number);
    }

    pub(crate) fn numbers(&self, at: usize, from: usize) -> Vec<u32> {
        let from = self.address(from);
        self.hosts[at].log.lock().unwrap().iter().filter(|(peer, _)| *peer == from).map(|(_, number)| *number).collect()
    }

    /// All endpoints have been let go of: they end, and nothing is left of them. Returns how long that took.
    pub(crate) fn ends(self) -> Duration {
        let begin = self.network.now();
        self.until("the end", || {
            self.hosts.iter().all(|host| {
                let (counters, cache) = (host.interface.counters(), host.cache.counters());
                // What nobody waits for any more may still be on its way.
                let resolving = !host.resolver.waiting.lock().unwrap().is_empty();
                counters.endpoints == 0 && cache.live == cache.idle && !resolving
            })
        });
        let took = self.network.now() - begin;
        for host in self.hosts {
            let Host { interface, log, cache, resolver, context } = host;
            let counters = interface.counters();
            assert_eq!((counters.leases, counters.send_errors, counters.receive_errors), (0, 0, 0), "{counters:?}");
            drop((interface, log, resolver));
            let report = cache.close();
            assert_eq!((report.held, report.leases), (0, 0));
            drop(cache);
            let left = |name| context.counters().iter().find(|(known, _)| *known == name).unwrap().1;
            let kinds = ["address_handles", "queue_pairs", "completion_queues", "memory_regions", "protection_domains"];
            for kind in kinds {
                assert_eq!(left(kind), 0, "{kind}");
            }
        }
        took
    }
}

impl Host {
    fn new(network: &MemoryNetwork, host: usize, setup: &Setup) -> Self {
        let Setup { cache: config, delay, ref protocol, depth } = *setup;
        let context = network.host(ip(host)).open().unwrap();
        let clock = VirtualTime(network.clone());
        let resolver = Slow { clock: clock.clone(), delay, failure: Arc::default(), waiting: Arc::default() };
        let options = AhCacheOptions::new(config).clock(clock.clone()).resolver(resolver.clone());
        let cache = context.ah_cache_with(options).unwrap();
        let mut random = Random::new(network.now().as_nanos() as u64 + host as u64);
        let options =
            UdOptions { protocol: protocol.clone(), send_depth: depth, receive_depth: depth, ..UdOptions::default() };
        let interface = UdVerbs::open_with(&context, options, clock, move || random.next_u64()).unwrap();
        let log = Log::default();
        let to = log.clone();
        let handler = move |message: Message<'_>| {
            let number = u32::from_be_bytes(message.payload.try_into().unwrap());
            to.lock().unwrap().push((message.peer, number));
        };
        interface.set_am_handler(3, handler).unwrap();
        Self { interface, log, cache, resolver, context }
    }
}
