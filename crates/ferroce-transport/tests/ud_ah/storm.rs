//! Endpoints that come and go over a network that loses, repeats, delays and damages packets, while hosts crash and start again, addresses
//! move, the network is cut, and address handles expire, are evicted, and take their time: each message arrives once and in order, or its
//! endpoint fails, once and with a cause; and in the end nothing is left. More seeds: `UD_SIM_MORE=100`; one again: `UD_SIM_SEED=7`.

use crate::seeds::seeds;
use crate::world::{Host, MILLI, SECOND, Setup, TTLS, World, ip, ttl};
use ferroce_soft::memory::{MemoryConfig, MemoryFaults, Random};
use ferroce_transport::ud::{Cause, Config, SendError};
use ferroce_transport::ud_verbs::{Message, UdEndpoint};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const AM: u8 = 9;

/// One endpoint of a program.
struct End {
    endpoint: UdEndpoint,
    tag: u32,
    from: usize,
    to: usize,
    sent: u32,
    failed: Arc<Mutex<Option<Cause>>>,
}

/// How many messages of each endpoint arrived: each at the right host, from the right peer, in order.
#[derive(Clone, Default)]
struct Arrived(Arc<Mutex<HashMap<u32, u32>>>);

impl Arrived {
    fn of(&self, tag: u32) -> u32 {
        self.0.lock().unwrap().get(&tag).copied().unwrap_or(0)
    }
}

struct Storm {
    seed: u64,
    random: Random,
    setup: Setup,
    world: World,
    arrived: Arrived,
    ends: Vec<End>,
    tags: u32,
}

impl Drop for Storm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, at {:?}", self.seed, self.world.network.now());
        }
    }
}

/// The bytes of a message, which say whose it is.
fn message(from: usize, to: usize, tag: u32, number: u32) -> Vec<u8> {
    let mut bytes = [tag.to_be_bytes(), number.to_be_bytes()].concat();
    bytes.extend([from as u8, to as u8]);
    bytes.resize(10 + (tag as usize * 7 + number as usize * 131) % 700, (tag ^ number) as u8);
    bytes
}

impl Storm {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed).fork(11);
        let hosts = random.within(2, 4) as usize;
        let faults = if random.chance(0.2) {
            MemoryFaults::default()
        } else {
            let mut upto = |most: f64| most * random.below(1000) as f64 / 1000.0;
            let [loss, duplicate, reorder, corrupt] = [0.2, 0.1, 0.2, 0.05].map(&mut upto);
            let max_delay = *random.pick(&[Duration::from_micros(20), MILLI, 20 * MILLI]);
            let min_delay = Duration::from_micros(10);
            MemoryFaults { loss, duplicate, reorder, corrupt, reorder_by: 3 * max_delay, min_delay, max_delay }
        };
        let mut cache = ttl(*random.pick(&TTLS));
        cache.capacity = random.chance(0.2).then(|| random.within(1, 3) as usize);
        cache.max_age = random.chance(0.2).then_some(30 * MILLI);
        let setup = Setup {
            cache,
            delay: *random.pick(&[Duration::ZERO, Duration::ZERO, MILLI, 60 * MILLI]),
            protocol: Config {
                mtu: 1024,
                connect_timeout: 3 * SECOND,
                peer_timeout: 3 * SECOND,
                linger: 3 * SECOND,
                keepalive: random.chance(0.5).then_some(SECOND),
                ..Config::default()
            },
            depth: *random.pick(&[16, 64]),
        };
        let world = World::with(MemoryConfig { seed, faults, ..MemoryConfig::default() }, hosts, setup.clone());
        let storm = Self { seed, random, setup, world, arrived: Arrived::default(), ends: Vec::new(), tags: 0 };
        for host in 0..hosts {
            storm.listen(host);
        }
        storm
    }

    fn listen(&self, host: usize) {
        let arrived = self.arrived.clone();
        let Host { interface, .. } = &self.world.hosts[host];
        let handler = move |Message { peer, payload }: Message<'_>| {
            let word = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            let (tag, number, from) = (word(0), word(4), usize::from(payload[8]));
            assert!(payload == message(from, host, tag, number), "not what was sent, or not to this host");
            let peer = peer.to_bytes();
            assert_eq!(peer[12..16], [10, 0, 0, from as u8 + 1], "of another peer");
            let mut arrived = arrived.0.lock().unwrap();
            let count = arrived.entry(tag).or_default();
            assert_eq!(*count, number, "twice, or out of order");
            *count += 1;
        };
        interface.set_am_handler(AM, handler).unwrap();
    }

    fn connect(&mut self, from: usize, to: usize) {
        let failed = Arc::new(Mutex::new(None));
        let told = failed.clone();
        let endpoint = self.world.hosts[from]
            .interface
            .connect_or(self.world.address(to), move |failure| {
                let before = told.lock().unwrap().replace(failure.cause);
                assert_eq!(before, None, "it failed twice");
            })
            .unwrap();
        self.ends.push(End { endpoint, tag: self.tags, from, to, sent: 0, failed });
        self.tags += 1;
    }

    fn send(&mut self, which: usize, count: u64) {
        let end = &mut self.ends[which];
        for _ in 0..count {
            match end.endpoint.am(AM, &message(end.from, end.to, end.tag, end.sent)) {
                Ok(()) => end.sent += 1,
                Err(SendError::Busy(_)) => return,
                Err(SendError::Failed(_)) => {
                    assert!(end.endpoint.failure().is_some());
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn pick(&mut self) -> Option<usize> {
        (!self.ends.is_empty()).then(|| self.random.below(self.ends.len() as u64) as usize)
    }

    fn host(&mut self) -> usize {
        self.random.below(self.world.hosts.len() as u64) as usize
    }

    fn act(&mut self) {
        match self.random.below(100) {
            0..25 => {
                let (from, to) = (self.host(), self.host());
                self.connect(from, to);
            }
            25..30 => {
                // Both at once.
                let (a, b) = (self.host(), self.host());
                self.connect(a, b);
                self.connect(b, a);
            }
            30..70 => {
                if let Some(which) = self.pick() {
                    let count = self.random.below(20);
                    self.send(which, count);
                }
            }
            70..85 => {
                if let Some(which) = self.pick() {
                    drop(self.ends.swap_remove(which));
                }
            }
            85..88 => {
                let host = self.host();
                self.ends.retain(|end| end.from != host);
                self.world.restart(host, &self.setup);
                self.listen(host);
            }
            88..91 => {
                let host = self.host();
                self.world.network.move_address(ip(host));
            }
            91..94 => {
                let host = self.host();
                if self.random.chance(0.5) {
                    self.world.network.isolate(ip(host));
                } else {
                    self.world.network.restore(ip(host));
                }
            }
            94..96 => {
                let host = self.host();
                let change = ferroce_verbs::AddressChange::Unknown;
                self.world.hosts[host].cache.invalidate(&change);
                self.world.hosts[host].cache.sweep();
            }
            _ => {
                if let Some(which) = self.pick() {
                    let _ = self.ends[which].endpoint.check();
                }
            }
        }
        let pause = *self.random.pick(&[0, 10, 1000, 30_000, 100_000]);
        let pause = self.random.below(pause + 1);
        self.world.run(Duration::from_micros(pause));
    }

    /// How many endpoints delivered everything, and how many failed for which cause.
    fn run(mut self) -> HashMap<Option<Cause>, u32> {
        let mut tally = HashMap::new();
        for _ in 0..250 {
            self.act();
        }
        for host in 0..self.world.hosts.len() {
            self.world.network.restore(ip(host));
        }
        // Longer than anybody waits for anything.
        self.world.run(15 * SECOND);
        for End { endpoint, tag, sent, failed, .. } in &self.ends {
            let arrived = self.arrived.of(*tag);
            assert!(arrived <= *sent, "more than was sent");
            let cause = *failed.lock().unwrap();
            *tally.entry(cause).or_default() += 1;
            assert_eq!(endpoint.failure().map(|failure| failure.cause), cause);
            match endpoint.flush() {
                Ok(true) => assert!(cause.is_none() && arrived == *sent, "{arrived} of {sent}, and it did not fail"),
                Ok(false) => panic!("it neither failed nor delivered all: {endpoint:?}"),
                Err(error) => assert!(matches!(error, SendError::Failed(_)) && cause.is_some(), "{error}"),
            }
        }
        self.ends.clear();
        self.world.run(15 * SECOND);
        // Whatever happened, whoever connects now gets through.
        let hosts = self.world.hosts.len();
        for (from, to) in (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to))) {
            self.connect(from, to);
            let which = self.ends.len() - 1;
            self.send(which, 3);
            let End { tag, .. } = self.ends[which];
            self.world.until("a new endpoint", || self.arrived.of(tag) == 3);
            self.ends.clear();
        }
        let Self { world, .. } = &mut self;
        let network = world.network.clone();
        let world = std::mem::replace(world, World { network, hosts: Vec::new() });
        world.ends();
        tally
    }
}

#[test]
fn storms_leave_nothing_behind() {
    let mut tally: HashMap<Option<Cause>, u32> = HashMap::new();
    for seed in seeds("UD", 80) {
        for (cause, count) in Storm::new(seed).run() {
            *tally.entry(cause).or_default() += count;
        }
    }
    // It is no storm if all went well, or if nothing did.
    let all = [None, Some(Cause::Reset), Some(Cause::PeerTimeout), Some(Cause::ConnectTimeout)];
    println!("{tally:?}");
    assert!(std::env::var_os("UD_SIM_SEED").is_some() || all.iter().all(|cause| tally[cause] > 20), "{tally:?}");
}
