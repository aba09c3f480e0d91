//! Hosts, their programs, and the network between them.

use ferroce_transport::ud::{Cause, Config, Delivery, EndpointId, Event, Interface, Nanos, PeerAddress, SendError};
use ferroce_verbs::Gid;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::net::Ipv4Addr;

pub(crate) const SECOND: Nanos = 1_000_000_000;

/// SplitMix64.
#[derive(Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: u64,
    pub(crate) duplicate: u64,
    pub(crate) reorder: u64,
    pub(crate) corrupt: u64,
}

pub(crate) const BAD: Faults = Faults { loss: 10, duplicate: 5, reorder: 10, corrupt: 2 };

pub(crate) fn address(host: usize) -> PeerAddress {
    PeerAddress { gid: Gid::from(std::net::IpAddr::from(Ipv4Addr::new(10, 0, 0, host as u8 + 1))), qpn: 7 }
}

/// What the program at one endpoint knows.
#[derive(Default)]
pub(crate) struct Program {
    pub(crate) peer: usize,
    /// Messages that it has queued.
    pub(crate) sent: u32,
    /// A message found no room, and nobody has said that there is some.
    pub(crate) refused: bool,
    pub(crate) failed: Option<Cause>,
    pub(crate) connected: u32,
    pub(crate) closed: bool,
    pub(crate) gone: bool,
}

pub(crate) struct Host {
    pub(crate) interface: Interface,
    pub(crate) programs: BTreeMap<EndpointId, Program>,
    /// What came to each endpoint, from which endpoint of the peer, and how far its numbers got.
    pub(crate) received: HashMap<EndpointId, (u32, u32)>,
}

/// When it arrives, what tells it from others of that time, from where to where, and what.
pub(crate) type Flight = (Nanos, u64, usize, usize, Vec<u8>);

pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) now: Nanos,
    pub(crate) random: Random,
    pub(crate) faults: Faults,
    pub(crate) hosts: Vec<Host>,
    pub(crate) flights: BinaryHeap<Reverse<Flight>>,
    pub(crate) sequence: u64,
    /// Hosts that hear and say nothing.
    pub(crate) cut: Vec<bool>,
    /// The highest number that arrived from each sending endpoint.
    pub(crate) arrived: HashMap<(usize, u32), u32>,
    pub(crate) tags: u32,
    pub(crate) tag_of: HashMap<(usize, EndpointId), u32>,
    pub(crate) packets: u64,
}

pub(crate) fn interface(config: &Config, seed: u64) -> Host {
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
    pub(crate) fn new(seed: u64, hosts: usize, config: &Config, faults: Faults) -> Self {
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

    pub(crate) fn connect(&mut self, host: usize, peer: usize) -> EndpointId {
        let id = self.hosts[host].interface.connect(self.now, address(peer)).unwrap();
        let program = Program { peer, ..Program::default() };
        assert!(self.hosts[host].programs.insert(id, program).is_none(), "an id is used twice");
        self.tags += 1;
        self.tag_of.insert((host, id), self.tags);
        id
    }

    /// Sends the next numbered message, if there is room.
    pub(crate) fn send(&mut self, host: usize, id: EndpointId) -> Result<(), SendError> {
        let tag = self.tag_of[&(host, id)];
        let number = self.hosts[host].programs[&id].sent;
        let mut message = [tag.to_be_bytes(), number.to_be_bytes()].concat();
        message.resize(8 + (number as usize * 37) % 200, number as u8);
        let outcome = self.hosts[host].interface.send(self.now, id, (number % 32) as u8, &message);
        let program = self.hosts[host].programs.get_mut(&id).unwrap();
        match outcome {
            Ok(()) => program.sent += 1,
            Err(SendError::Busy(_)) => program.refused = true,
            Err(_) => {}
        }
        outcome
    }

    pub(crate) fn close(&mut self, host: usize, id: EndpointId) {
        self.hosts[host].interface.close(self.now, id).unwrap();
        self.hosts[host].programs.get_mut(&id).unwrap().closed = true;
        assert_eq!(self.hosts[host].interface.close(self.now, id), Err(SendError::NoEndpoint(id)));
    }

    /// A host starts again: whatever it was in the middle of is forgotten.
    pub(crate) fn restart(&mut self, host: usize, config: &Config) {
        self.hosts[host] = interface(config, self.random.next());
    }

    /// Everything that is due now.
    pub(crate) fn run_now(&mut self) {
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

    pub(crate) fn launch(&mut self, from: usize, to: usize, packet: Vec<u8>) {
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

    pub(crate) fn arrive(&mut self, from: usize, to: usize, packet: &[u8]) {
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

    pub(crate) fn note(&mut self, host: usize, event: Event) {
        let programs = &mut self.hosts[host].programs;
        match event {
            Event::Connected(id) => {
                let program = programs.get_mut(&id).unwrap();
                program.connected += 1;
                assert!(program.connected == 1 && program.failed.is_none() && !program.closed, "{id}");
            }
            Event::Room(id) => {
                let program = programs.get_mut(&id).unwrap();
                assert!(program.refused && program.failed.is_none() && !program.closed, "{id} was refused nothing");
                program.refused = false;
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
    pub(crate) fn run_until(&mut self, until: Nanos) {
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

    pub(crate) fn is_over(&self) -> bool {
        self.hosts.iter().all(|host| host.interface.is_empty())
    }

    pub(crate) fn received_of(&self, host: usize, id: EndpointId) -> u32 {
        let peer = self.hosts[host].programs[&id].peer;
        self.arrived.get(&(peer, self.tag_of[&(host, id)])).copied().unwrap_or(0)
    }
}
