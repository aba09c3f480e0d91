//! Interfaces on a network that loses, repeats, delays and damages packets: what is sent arrives once and in order, or its endpoint
//! fails once; and at the end nothing is left.

use ferroce_transport::ud::{
    Cause, Config, Delivery, EndpointId, Event, Interface, MAX_WINDOW, Nanos, PeerAddress, SendError,
};
use ferroce_verbs::Gid;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::Ipv4Addr;
use std::time::Duration;

const SECOND: Nanos = 1_000_000_000;

/// SplitMix64.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    loss: u64,
    duplicate: u64,
    reorder: u64,
    corrupt: u64,
}

const BAD: Faults = Faults { loss: 10, duplicate: 5, reorder: 10, corrupt: 2 };

/// The seeds of a test: `UD_SIM_MORE` times as many if it is set, `UD_SIM_SEED` alone to see one again.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("UD_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..count * number("UD_SIM_MORE").unwrap_or(1),
    }
}

fn address(host: usize) -> PeerAddress {
    PeerAddress { gid: Gid::from(std::net::IpAddr::from(Ipv4Addr::new(10, 0, 0, host as u8 + 1))), qpn: 7 }
}

/// What the program at one endpoint knows.
#[derive(Default)]
struct Program {
    peer: usize,
    /// Messages that it has queued.
    sent: u32,
    failed: Option<Cause>,
    connected: u32,
    closed: bool,
    gone: bool,
}

struct Host {
    interface: Interface,
    programs: BTreeMap<EndpointId, Program>,
    /// What came to each endpoint, from which endpoint of the peer, and how far its numbers got.
    received: HashMap<EndpointId, (u32, u32)>,
}

struct World {
    seed: u64,
    now: Nanos,
    random: Random,
    faults: Faults,
    hosts: Vec<Host>,
    flights: BinaryHeap<Reverse<(Nanos, u64, usize, usize, Vec<u8>)>>,
    sequence: u64,
    /// Hosts that hear and say nothing.
    cut: Vec<bool>,
    /// The highest number that arrived from each sending endpoint.
    arrived: HashMap<(usize, u32), u32>,
    tags: u32,
    tag_of: HashMap<(usize, EndpointId), u32>,
    packets: u64,
}

fn interface(config: &Config, seed: u64) -> Host {
    let mut random = Random(seed);
    let interface = Interface::new(config.clone(), move || random.next());
    Host { interface, programs: BTreeMap::new(), received: HashMap::new() }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, at {} ns", self.seed, self.now);
        }
    }
}

impl World {
    fn new(seed: u64, hosts: usize, config: &Config, faults: Faults) -> Self {
        let mut random = Random(seed);
        let hosts: Vec<Host> = (0..hosts).map(|_| interface(config, random.next())).collect();
        let cut = vec![false; hosts.len()];
        Self {
            seed,
            now: 0,
            random,
            faults,
            hosts,
            flights: BinaryHeap::new(),
            sequence: 0,
            cut,
            arrived: HashMap::new(),
            tags: 0,
            tag_of: HashMap::new(),
            packets: 0,
        }
    }

    fn connect(&mut self, host: usize, peer: usize) -> EndpointId {
        let id = self.hosts[host].interface.connect(self.now, address(peer)).unwrap();
        let program = Program { peer, ..Program::default() };
        assert!(self.hosts[host].programs.insert(id, program).is_none(), "an id is used twice");
        self.tags += 1;
        self.tag_of.insert((host, id), self.tags);
        id
    }

    /// Sends the next numbered message, if there is room.
    fn send(&mut self, host: usize, id: EndpointId) -> Result<(), SendError> {
        let tag = self.tag_of[&(host, id)];
        let number = self.hosts[host].programs[&id].sent;
        let mut message = [tag.to_be_bytes(), number.to_be_bytes()].concat();
        message.resize(8 + (number as usize * 37) % 200, number as u8);
        self.hosts[host].interface.send(self.now, id, (number % 32) as u8, &message)?;
        self.hosts[host].programs.get_mut(&id).unwrap().sent += 1;
        Ok(())
    }

    fn close(&mut self, host: usize, id: EndpointId) {
        self.hosts[host].interface.close(self.now, id).unwrap();
        self.hosts[host].programs.get_mut(&id).unwrap().closed = true;
        assert_eq!(self.hosts[host].interface.close(self.now, id), Err(SendError::NoEndpoint(id)));
    }

    /// A host starts again: whatever it was in the middle of is forgotten.
    fn restart(&mut self, host: usize, config: &Config) {
        self.hosts[host] = interface(config, self.random.next());
    }

    /// Everything that is due now.
    fn run_now(&mut self) {
        loop {
            let mut idle = true;
            for host in 0..self.hosts.len() {
                self.hosts[host].interface.on_timeout(self.now);
                while let Some(transmit) = self.hosts[host].interface.poll_transmit(self.now) {
                    idle = false;
                    let peer = (0..self.hosts.len()).find(|peer| address(*peer) == transmit.to).unwrap();
                    if let Some(id) = transmit.endpoint {
                        // A packet that names an endpoint which is gone has no address handle.
                        let gone = self.hosts[host].programs.get(&id).is_some_and(|program| program.gone);
                        assert!(!gone, "{id} sends after it was gone");
                    }
                    self.launch(host, peer, transmit.packet);
                }
                while let Some(event) = self.hosts[host].interface.poll_event() {
                    self.note(host, event);
                }
            }
            while self.flights.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
                idle = false;
                let Reverse((_, _, from, to, packet)) = self.flights.pop().unwrap();
                self.arrive(from, to, &packet);
            }
            if idle {
                return;
            }
        }
    }

    fn launch(&mut self, from: usize, to: usize, packet: Vec<u8>) {
        self.packets += 1;
        let faults = self.faults;
        if self.cut[from] || self.cut[to] || self.random.chance(faults.loss) {
            return;
        }
        let copies = if self.random.chance(faults.duplicate) { 2 } else { 1 };
        for _ in 0..copies {
            let late = if self.random.chance(faults.reorder) { self.random.below(3_000_000) } else { 0 };
            let at = self.now + 20_000 + late;
            let mut packet = packet.clone();
            if self.random.chance(faults.corrupt) {
                // The ICRC drops what is damaged on a wire. What comes in its place is from somebody who has none of our ids.
                for byte in &mut packet[1..] {
                    *byte = self.random.next() as u8;
                }
            }
            self.sequence += 1;
            self.flights.push(Reverse((at, self.sequence, from, to, packet)));
        }
    }

    fn arrive(&mut self, from: usize, to: usize, packet: &[u8]) {
        let Host { interface, received, .. } = &mut self.hosts[to];
        let arrived = &mut self.arrived;
        interface.receive(self.now, address(from), packet, &mut |Delivery { endpoint, peer, am, payload }| {
            assert_eq!(peer, address(from));
            let word = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            let (tag, number) = (word(0), word(4));
            assert!(am == (number % 32) as u8 && payload[8..].iter().all(|byte| *byte == number as u8));
            assert_eq!(payload.len(), 8 + (number as usize * 37) % 200);
            // One session, one sender.
            let (known, next) = received.entry(endpoint).or_insert((tag, 0));
            assert_eq!((*known, *next), (tag, number), "out of order, twice, or of another session");
            *next += 1;
            let highest = arrived.entry((to, tag)).or_insert(0);
            assert_eq!(*highest, number, "delivered at two endpoints");
            *highest += 1;
        });
    }

    fn note(&mut self, host: usize, event: Event) {
        let programs = &mut self.hosts[host].programs;
        match event {
            Event::Connected(id) => {
                let program = programs.get_mut(&id).unwrap();
                program.connected += 1;
                assert!(program.connected == 1 && program.failed.is_none() && !program.closed, "{id}");
            }
            Event::Failed(id, failure) => {
                let program = programs.get_mut(&id).unwrap();
                assert!(program.failed.is_none() && !program.closed, "{id} failed twice, or after it was closed");
                program.failed = Some(failure.cause);
            }
            // Those that a peer made and nobody took come and go unseen.
            Event::Gone(id) => {
                if let Some(program) = programs.get_mut(&id) {
                    assert!(program.closed && !program.gone, "{id}");
                    program.gone = true;
                }
            }
        }
    }

    /// Goes on until `until`, or nothing can happen any more.
    fn run_until(&mut self, until: Nanos) {
        loop {
            self.run_now();
            let timers = self.hosts.iter().filter_map(|host| host.interface.next_timeout());
            let flight = self.flights.peek().map(|Reverse((at, ..))| *at);
            match timers.chain(flight).min() {
                Some(at) if at <= until => self.now = self.now.max(at),
                _ => {
                    self.now = until;
                    return self.run_now();
                }
            }
        }
    }

    fn is_over(&self) -> bool {
        self.hosts.iter().all(|host| host.interface.is_empty())
    }

    fn received_of(&self, host: usize, id: EndpointId) -> u32 {
        let peer = self.hosts[host].programs[&id].peer;
        self.arrived.get(&(peer, self.tag_of[&(host, id)])).copied().unwrap_or(0)
    }
}

/// Sends `count` messages on each endpoint as the windows allow, and waits until all are acknowledged.
fn send_all(world: &mut World, ends: &[(usize, EndpointId)], count: u32) {
    let deadline = world.now + 3600 * SECOND;
    let mut left: VecDeque<_> = ends.iter().map(|&(host, id)| (host, id, count)).collect();
    while let Some((host, id, mut more)) = left.pop_front() {
        while more != 0 {
            match world.send(host, id) {
                Ok(()) => more -= 1,
                Err(SendError::Busy(_)) => break,
                Err(error) => panic!("{error}, after {:?}", world.hosts[host].programs[&id].failed),
            }
        }
        if more != 0 {
            left.push_back((host, id, more));
        }
        let next = world.now + 1_000_000;
        world.run_until(next);
        assert!(world.now < deadline, "stuck");
    }
    while !ends.iter().all(|&(host, id)| world.hosts[host].interface.flush(world.now, id).unwrap()) {
        let next = world.now + 10_000_000;
        world.run_until(next);
        assert!(world.now < deadline, "never acknowledged");
    }
}

#[test]
fn everything_arrives_once_and_in_order() {
    for seed in seeds(150) {
        let config = Config { mtu: 512, ..Config::default() };
        let mut world = World::new(seed, 2, &config, BAD);
        let ends = [(0, world.connect(0, 1)), (0, world.connect(0, 1))];
        send_all(&mut world, &ends, 300);
        for (host, id) in ends {
            assert_eq!(world.received_of(host, id), 300, "seed {seed}");
            world.close(host, id);
        }
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        assert!(world.is_over(), "seed {seed}");
    }
}

/// Several endpoints at both ends connect to the other one at once: each has its session, and ending one does not end another
/// (UCX reports 6040, 2453, 892, 544, 953, 1005).
#[test]
fn simultaneous_connects_agree() {
    for seed in seeds(300) {
        let faults = if seed % 2 == 0 { Faults::default() } else { BAD };
        let mut world = World::new(seed, 2, &Config::default(), faults);
        let mut ends = vec![];
        for _ in 0..1 + seed % 4 {
            ends.push((0, world.connect(0, 1)));
            ends.push((1, world.connect(1, 0)));
        }
        send_all(&mut world, &ends, 10);
        for &(host, id) in &ends {
            assert_eq!(world.received_of(host, id), 10, "seed {seed}");
            assert!(world.hosts[host].interface.is_connected(id, address(1 - host)));
            assert!(!world.hosts[host].interface.is_connected(id, address(host)));
        }
        for host in 0..2 {
            // An initiator here for each acceptor there, if nothing came twice.
            let many = world.hosts[host].interface.len();
            assert!(many == ends.len() || seed % 2 != 0, "seed {seed}: {many}");
        }
        let (host, id) = ends.pop().unwrap();
        world.close(host, id);
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        send_all(&mut world, &ends, 10);
        for (host, id) in ends {
            assert_eq!(world.received_of(host, id), 20, "seed {seed}");
            world.close(host, id);
        }
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        assert!(world.is_over(), "seed {seed}");
    }
}

/// What is sent and closed at once still arrives, also if the endpoint was not even connected.
#[test]
fn a_closed_endpoint_delivers_what_was_sent() {
    for seed in seeds(300) {
        let mut world = World::new(seed, 2, &Config::default(), BAD);
        let id = world.connect(0, 1);
        if seed % 3 == 0 {
            world.run_until(SECOND);
        }
        for _ in 0..50 {
            world.send(0, id).unwrap();
        }
        world.close(0, id);
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        assert_eq!(world.received_of(0, id), 50, "seed {seed}");
        assert!(world.is_over(), "seed {seed}");
    }
}

/// A peer that started again under the same address does not know the session: the endpoint fails, and a new one works.
#[test]
fn a_restart_is_a_new_session() {
    for seed in seeds(200) {
        let config = Config::default();
        let faults = if seed % 2 == 0 { Faults::default() } else { BAD };
        let mut world = World::new(seed, 2, &config, faults);
        let old = world.connect(0, 1);
        send_all(&mut world, &[(0, old)], 10);
        world.restart(1, &config);
        let new = world.connect(0, 1);
        send_all(&mut world, &[(0, new)], 10);
        assert_eq!(world.received_of(0, new), 10, "seed {seed}");
        // The old one hears of it when it asks.
        let _ = world.send(0, old);
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        assert_eq!(world.hosts[0].programs[&old].failed, Some(Cause::Reset), "seed {seed}");
        assert_eq!(world.hosts[0].interface.send(world.now, old, 0, &[]), Err(SendError::Failed(old)));
        world.close(0, old);
        world.close(0, new);
        let until = world.now + 60 * SECOND;
        world.run_until(until);
        assert!(world.is_over(), "seed {seed}");
    }
}

/// Nobody is there: connecting ends in time, and so does what was connected.
#[test]
fn silence_ends_in_time() {
    let config = Config { keepalive: Some(Duration::from_secs(5)), ..Config::default() };
    let mut world = World::new(1, 2, &config, Faults::default());
    let (busy, idle) = (world.connect(0, 1), world.connect(0, 1));
    send_all(&mut world, &[(0, busy), (0, idle)], 1);
    // Idle for ten minutes, but alive.
    world.run_until(600 * SECOND);
    assert!(world.hosts[0].programs.values().all(|program| program.failed.is_none()));
    world.cut[1] = true;
    let late = world.connect(0, 1);
    world.send(0, busy).unwrap();
    let since = world.now;
    world.run_until(since + 29 * SECOND);
    assert!(world.hosts[0].programs.values().all(|program| program.failed.is_none()));
    world.run_until(since + 31 * SECOND);
    assert_eq!(world.hosts[0].programs[&busy].failed, Some(Cause::PeerTimeout));
    assert_eq!(world.hosts[0].programs[&late].failed, Some(Cause::ConnectTimeout));
    world.run_until(since + 36 * SECOND);
    assert_eq!(world.hosts[0].programs[&idle].failed, Some(Cause::PeerTimeout));
    for id in [busy, idle, late] {
        world.close(0, id);
    }
    world.run_until(since + 120 * SECOND);
    assert!(world.is_over());
}

/// A storm of endpoints that come and go, with restarts and partitions in between: each ends once, and nothing is left.
#[test]
fn storms_leave_nothing_behind() {
    let config = Config {
        connect_timeout: Duration::from_secs(3),
        peer_timeout: Duration::from_secs(3),
        linger: Duration::from_secs(3),
        ..Config::default()
    };
    for seed in seeds(60) {
        let mut world = World::new(seed, 4, &config, BAD);
        let mut random = Random(seed ^ 0x5eed);
        let mut open: Vec<(usize, EndpointId)> = vec![];
        for _ in 0..400 {
            match random.below(100) {
                0..30 => {
                    let (host, peer) = (random.below(4) as usize, random.below(4) as usize);
                    let id = world.connect(host, peer);
                    open.push((host, id));
                }
                30..75 if !open.is_empty() => {
                    let (host, id) = open[random.below(open.len() as u64) as usize];
                    for _ in 0..random.below(20) {
                        let _ = world.send(host, id);
                    }
                }
                75..92 if !open.is_empty() => {
                    let (host, id) = open.swap_remove(random.below(open.len() as u64) as usize);
                    world.close(host, id);
                }
                92..94 => {
                    let host = random.below(4) as usize;
                    world.restart(host, &config);
                    open.retain(|(of, _)| *of != host);
                }
                94..97 => {
                    let host = random.below(4) as usize;
                    world.cut[host] = !world.cut[host];
                }
                _ => {}
            }
            let until = world.now + random.below(50_000_000);
            world.run_until(until);
        }
        world.cut.fill(false);
        let until = world.now + 20 * SECOND;
        world.run_until(until);
        for (host, id) in open {
            world.close(host, id);
        }
        let until = world.now + 20 * SECOND;
        world.run_until(until);
        for host in &world.hosts {
            assert!(host.programs.values().all(|program| program.closed == program.gone), "seed {seed}");
        }
        assert!(
            world.is_over(),
            "seed {seed}: {:?}",
            world.hosts.iter().map(|host| host.interface.len()).collect::<Vec<_>>()
        );
    }
}

/// A flood of forged CONNECTs is bounded, and does not keep others out for longer than they wait.
#[test]
fn forged_connects_cost_a_bounded_amount() {
    let config = Config { max_half_open: 64, connect_timeout: Duration::from_secs(5), ..Config::default() };
    let mut world = World::new(1, 2, &config, Faults::default());
    let id = world.connect(0, 1);
    send_all(&mut world, &[(0, id)], 5);
    let before = world.hosts[1].interface.len();
    let mut random = Random(9);
    for host in 0..2000_u32 {
        let mut packet = vec![1, 3, 0, 0, 0, 0, 0, 0];
        packet.extend(0_u64.to_be_bytes());
        packet.extend((random.next() | 1).to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(random.next().to_be_bytes());
        let from = PeerAddress { gid: address(0).gid, qpn: 1000 + host };
        world.hosts[1].interface.receive(world.now, from, &packet, &mut |_| panic!("nothing was sent"));
        assert!(world.hosts[1].interface.len() <= before + 64);
    }
    assert_eq!(world.hosts[1].interface.counters().refused, 2000 - 64);
    while world.hosts[1].interface.poll_transmit(world.now).is_some() {}
    send_all(&mut world, &[(0, id)], 5);
    let now = world.now + 6 * SECOND;
    world.hosts[1].interface.on_timeout(now);
    assert_eq!(world.hosts[1].interface.len(), before);
}

/// Random bytes, and random fields in the right places, in every state: no panic, no message, no memory.
#[test]
fn what_comes_from_strangers_changes_nothing() {
    for seed in seeds(200) {
        let mut world = World::new(seed, 2, &Config::default(), Faults::default());
        let id = world.connect(0, 1);
        if seed % 4 != 0 {
            send_all(&mut world, &[(0, id)], 5);
        }
        if seed % 4 == 2 {
            world.close(0, id);
        }
        let mut random = Random(seed);
        let before = world.hosts[0].interface.len();
        for _ in 0..300 {
            let mut packet = vec![1, random.below(7) as u8, random.below(33) as u8, random.below(3) as u8];
            packet.extend((0..random.below(60)).map(|_| random.next() as u8));
            if packet[1] == 3 {
                packet[1] = 0;
            }
            // From the peer's own address, which can be forged.
            let from = address(if random.chance(80) { 1 } else { 0 });
            world.hosts[0].interface.receive(world.now, from, &packet, &mut |_| panic!("nobody sent that"));
        }
        assert_eq!(world.hosts[0].interface.len(), before);
        while world.hosts[0].interface.poll_transmit(world.now).is_some() {}
        if seed % 4 == 1 {
            send_all(&mut world, &[(0, id)], 5);
            assert_eq!(world.received_of(0, id), 10);
        }
    }
}

#[test]
fn the_window_is_a_bound_that_says_so() {
    let mut world = World::new(1, 2, &Config::default(), Faults::default());
    let id = world.connect(0, 1);
    let mut queued = 0;
    while world.send(0, id).is_ok() {
        queued += 1;
    }
    assert_eq!(queued, MAX_WINDOW);
    assert_eq!(world.send(0, id), Err(SendError::Busy(id)));
    let most = world.hosts[0].interface.config().max_message();
    let long = vec![0; most + 1];
    assert_eq!(world.hosts[0].interface.send(0, id, 0, &long), Err(SendError::TooLong { len: most + 1, most }));
    assert_eq!(world.hosts[0].interface.send(0, id, 32, &[]), Err(SendError::AmId(32)));
}

/// Whatever of its handshake is lost, a connection on which nothing is sent stays.
#[test]
fn a_connection_survives_the_loss_of_its_handshake() {
    for seed in seeds(300) {
        let mut world = World::new(seed, 2, &Config::default(), Faults { loss: 20, ..BAD });
        let id = world.connect(0, 1);
        world.run_until(100 * SECOND);
        assert!(world.hosts[0].interface.is_connected(id, address(1)), "seed {seed}");
        assert_eq!(world.hosts[1].interface.len(), 1, "seed {seed}");
        send_all(&mut world, &[(0, id)], 3);
    }
}

/// An initiator has given up, and its peer did not hear of that: it is told when it asks.
#[test]
fn an_end_that_gave_up_says_so() {
    let mut world = World::new(1, 2, &Config::default(), Faults::default());
    let id = world.connect(0, 1);
    send_all(&mut world, &[(0, id)], 3);
    world.run_until(25 * SECOND);
    world.cut[0] = true;
    world.send(0, id).unwrap();
    world.run_until(56 * SECOND);
    assert_eq!(world.hosts[0].programs[&id].failed, Some(Cause::PeerTimeout));
    assert_eq!(world.hosts[1].interface.len(), 1);
    world.cut[0] = false;
    world.run_until(59 * SECOND);
    assert_eq!(world.hosts[1].interface.len(), 0);
}

/// Packets of a session that come from another address or endpoint, as somebody would send them who has seen them.
#[test]
fn a_session_belongs_to_an_address() {
    let mut world = World::new(1, 3, &Config::default(), Faults::default());
    let id = world.connect(0, 1);
    send_all(&mut world, &[(0, id)], 3);
    world.send(0, id).unwrap();
    while let Some(transmit) = world.hosts[0].interface.poll_transmit(world.now) {
        let other = PeerAddress { qpn: 8, ..address(0) };
        for from in [address(2), other] {
            let receiver = &mut world.hosts[1].interface;
            receiver.receive(world.now, from, &transmit.packet, &mut |_| panic!("it is not from the peer"));
        }
        let mut other = transmit.packet.clone();
        other[17] ^= 1;
        let receiver = &mut world.hosts[1].interface;
        receiver.receive(world.now, address(0), &other, &mut |_| panic!("it is not of the session"));
        world.launch(0, 1, transmit.packet);
    }
    assert_eq!(world.hosts[1].interface.counters().wrong_source, 3);
    let until = world.now + SECOND;
    world.run_until(until);
    assert_eq!(world.received_of(0, id), 4);
}

/// 100,000 endpoints over one queue pair connect, talk and close.
#[test]
fn many_endpoints_over_one_interface() {
    const COUNT: usize = 100_000;
    let mut world = World::new(1, 2, &Config::default(), Faults { loss: 1, ..Faults::default() });
    let ids: Vec<EndpointId> = (0..COUNT).map(|_| world.connect(0, 1)).collect();
    for &id in &ids {
        world.send(0, id).unwrap();
    }
    world.run_until(20 * SECOND);
    // More than may be half open at once: the others waited.
    assert!(world.hosts[1].interface.counters().refused != 0);
    for &id in &ids {
        assert_eq!(world.received_of(0, id), 1);
        world.close(0, id);
    }
    let until = world.now + 60 * SECOND;
    world.run_until(until);
    assert!(world.is_over());
    assert!(world.hosts[0].programs.values().all(|program| program.gone && program.failed.is_none()));
}
