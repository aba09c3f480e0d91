//! Interfaces of the UD transport, a peer that lies, and whatever calls, packets and time the bytes ask for.

use super::input::Input;
use super::session::{Arrived, Program, payload};
use crate::failure::{Checked, Failure, ensure};
use ferroce_soft::memory::Random;
use ferroce_transport::ud::{
    AM_IDS, Config, EndpointId, HEADER_LEN, Interface, MAX_WINDOW, Nanos, PeerAddress, SendError, Transmit,
};
use ferroce_verbs::Gid;
use ferroce_verbs::ah_cache::ResolveCause;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

/// Commands of one input, so that every input ends soon.
const COMMANDS: u32 = 400;
/// Endpoints that a program has open, so that all are met again.
const OPEN: usize = 12;
/// Packets in flight between honest hosts.
const FLIGHTS: usize = 256;
/// Packets that a hostile neighbour remembers.
const SEEN: usize = 24;
/// The hosts that keep to the protocol; after them one that does not, and one that nobody is at.
const HONEST: usize = 2;
const HOSTILE: usize = HONEST;
const NOBODY: usize = HONEST + 1;
const MS: Nanos = 1_000_000;

struct Host {
    interface: Interface,
    program: Program,
    /// Its queue is full: nothing leaves.
    stalled: bool,
}

/// A packet, from where to where.
type Packet = (usize, usize, Vec<u8>);

struct World {
    now: Nanos,
    config: Config,
    random: Random,
    hosts: Vec<Host>,
    flights: VecDeque<Packet>,
    seen: VecDeque<Packet>,
    arrived: Arrived,
}

/// The UD transport: no panic, no message that its sender did not send, once and in order, what is held stays within bounds, every
/// endpoint ends once, and in the end nothing is left.
///
/// # Errors
///
/// What does not hold.
pub fn ud(data: &[u8]) -> Result<(), Failure> {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    for _ in 0..COMMANDS {
        if input.is_empty() {
            break;
        }
        world.command(&mut input)?;
        world.settle()?;
    }
    world.finish()
}

fn address(host: usize) -> PeerAddress {
    PeerAddress { gid: Gid::from(Ipv4Addr::new(10, 0, 0, host as u8 + 1)), qpn: 7 }
}

impl Host {
    fn new(config: &Config, random: &mut Random) -> Self {
        let mut own = random.fork(1);
        let _ = random.next_u64();
        let interface = Interface::new(config.clone(), move || own.next_u64());
        Self { interface, program: Program::default(), stalled: false }
    }
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let mut random = Random::new(input.u8().into());
        let mut flags = input.flags();
        let config = Config {
            mtu: 256,
            connect_timeout: Duration::from_secs(3),
            peer_timeout: Duration::from_secs(3),
            linger: Duration::from_secs(2),
            keepalive: flags().then_some(Duration::from_secs(1)),
            max_half_open: 8,
            max_accepted: 10,
            max_held: if flags() { 64 } else { 4096 },
        };
        let hosts = (0..HONEST).map(|_| Host::new(&config, &mut random)).collect();
        let (flights, seen) = (VecDeque::new(), VecDeque::new());
        Self { now: 0, config, random, hosts, flights, seen, arrived: Arrived::default() }
    }

    fn command(&mut self, input: &mut Input<'_>) -> Checked {
        let choice = input.u8();
        let host = usize::from(choice & 1);
        match choice >> 1 & 0xf {
            0 => self.connect(host, input.pick(&[0, 1, 1 - host, 1 - host, HOSTILE, NOBODY]))?,
            1 | 2 => self.send(host, input)?,
            3 => self.call(host, input),
            4 | 5 => {
                for _ in 0..=input.u8() % 64 {
                    self.deliver()?;
                }
            }
            6 => self.disturb(input)?,
            7 | 8 => {
                let by = input.pick(&[1, 10_000, MS / 2, 2 * MS, 25 * MS, 200 * MS, 1000 * MS, 2900 * MS, 4000 * MS]);
                self.advance(by);
            }
            9 => self.replay(input)?,
            10 => self.forge(host, input)?,
            11..=13 => self.lie(host, input)?,
            14 => self.hosts[host].stalled = input.u8().is_multiple_of(2),
            _ => self.begin_anew(host, input),
        }
        Ok(())
    }

    fn connect(&mut self, host: usize, peer: usize) -> Checked {
        let this = &mut self.hosts[host];
        if this.program.open.len() < OPEN {
            let id = this.interface.connect(self.now, address(peer))?;
            let tag = self.arrived.begin(host, peer);
            this.program.begin(id, tag)?;
        }
        Ok(())
    }

    fn pick(&self, host: usize, which: u8) -> Option<EndpointId> {
        let open = &self.hosts[host].program.open;
        usize::from(which).checked_rem(open.len()).map(|at| open[at])
    }

    /// Numbered messages, as many as there is room for.
    fn send(&mut self, host: usize, input: &mut Input<'_>) -> Checked {
        let (which, count) = (input.u8(), input.u8());
        let Some(id) = self.pick(host, which) else { return Ok(()) };
        // Now and then more than any window.
        let count = if count == u8::MAX { MAX_WINDOW + 10 } else { u32::from(count % 24) };
        let this = &mut self.hosts[host];
        for _ in 0..count {
            let (tag, number) = this.program.next(id)?;
            let message = payload(tag, number, self.config.max_message());
            match this.interface.send(self.now, id, (number % u32::from(AM_IDS)) as u8, &message) {
                Ok(()) => this.program.sent(id, &mut self.arrived)?,
                Err(SendError::Busy(_)) => {
                    this.program.refused(id)?;
                    break;
                }
                Err(SendError::Failed(_)) => break,
                Err(error) => return Err(Failure::new(error)),
            }
        }
        Ok(())
    }

    /// A call on an endpoint that is open, or on any.
    fn call(&mut self, host: usize, input: &mut Input<'_>) {
        let (what, which) = (input.u8(), input.u8());
        let Some(id) = self.pick(host, which) else { return };
        let Host { interface, program, .. } = &mut self.hosts[host];
        // What they return is the program's business, but for the last.
        match what % 8 {
            0 | 1 => drop(interface.flush(self.now, id)),
            2 | 3 => drop(interface.check(self.now, id)),
            4 => interface.unresolved(self.now, id, ResolveCause::Unreachable),
            _ => {
                let _ = interface.close(self.now, id);
                program.open.retain(|open| *open != id);
            }
        }
    }

    /// The next packet arrives.
    fn deliver(&mut self) -> Checked {
        let Some((from, to, packet)) = self.flights.pop_front() else { return Ok(()) };
        self.arrive(from, to, &packet)
    }

    fn arrive(&mut self, from: usize, to: usize, packet: &[u8]) -> Checked {
        let Some(host) = self.hosts.get_mut(to) else { return Ok(()) };
        let mut checked = Ok(());
        let arrived = &mut self.arrived;
        host.interface.receive(self.now, address(from), packet, &mut |delivery| {
            if checked.is_ok() {
                checked = if delivery.peer != address(from) {
                    Err(Failure::new("a message that somebody else sent"))
                } else if from < HONEST {
                    arrived.check(from, to, &delivery)
                } else {
                    Ok(())
                };
            }
        });
        checked
    }

    fn disturb(&mut self, input: &mut Input<'_>) -> Checked {
        let (what, count) = (input.u8(), usize::from(input.u8() % 32));
        let count = count.min(self.flights.len());
        match what % 4 {
            0 => drop(self.flights.drain(..count)),
            1 => self.flights.rotate_left(count),
            2 => self.flights.truncate(self.flights.len() - count),
            _ => {
                let copies: Vec<Packet> = self.flights.iter().take(count).cloned().collect();
                for copy in copies {
                    self.launch(copy);
                }
            }
        }
        Ok(())
    }

    fn launch(&mut self, packet: Packet) {
        if self.flights.len() < FLIGHTS {
            self.flights.push_back(packet);
        }
    }

    fn advance(&mut self, by: Nanos) {
        self.now += by;
        for host in &mut self.hosts {
            host.interface.on_timeout(self.now);
        }
    }

    /// A packet that was sent comes once more, from its sender or from somebody else.
    fn replay(&mut self, input: &mut Input<'_>) -> Checked {
        let (which, from) = (usize::from(input.u8()), input.u8());
        let Some(at) = which.checked_rem(self.seen.len()) else { return Ok(()) };
        let (sender, to, packet) = self.seen[at].clone();
        let from = if from.is_multiple_of(4) { HOSTILE } else { sender };
        self.arrive(from, to, &packet)
    }

    /// A packet in an honest host's name, from somebody who saw none of its sessions.
    fn forge(&mut self, to: usize, input: &mut Input<'_>) -> Checked {
        let from = usize::from(input.u8() % 2);
        let mut packet = vec![1, input.u8() % 7, input.u8() % 34, input.u8() % 3];
        let len = usize::from(input.u8() % 64);
        packet.extend(input.bytes(len));
        self.arrive(from, to, &packet)
    }

    /// The hostile peer sends: one of its own sessions, or what it saw of others, with any fields.
    fn lie(&mut self, to: usize, input: &mut Input<'_>) -> Checked {
        let mut packet = vec![1, input.u8() % 7, input.u8() % 34, input.u8() % 3];
        let which = usize::from(input.u8());
        let mut flags = input.flags();
        let known = which.checked_rem(self.seen.len()).map(|at| &self.seen[at].2);
        let known = known.filter(|packet| packet.len() >= HEADER_LEN);
        let field = |known: &[u8], at: usize| u64::from_be_bytes(known[at..at + 8].try_into().unwrap_or_default());
        // The receiver's endpoint is the sender of what was seen, and the other way round.
        let (mut dest, mut src) = known.map_or((0, 0), |known| (field(known, 16), field(known, 8)));
        if flags() {
            (dest, src) = (src, dest);
        }
        if src == 0 || flags() {
            src = 1 << 24 | u64::from(input.u8() % 8);
        }
        let near = |input: &mut Input<'_>| u32::from(input.u16() % 1100).wrapping_sub(50);
        packet.extend(near(input).to_be_bytes());
        packet.extend(dest.to_be_bytes());
        packet.extend(src.to_be_bytes());
        packet.extend(near(input).to_be_bytes());
        match (packet[1], known.filter(|known| known.len() == HEADER_LEN + 8)) {
            // The nonce that was seen, or a new one.
            (3 | 4, Some(known)) if flags() => packet.extend(&known[HEADER_LEN..]),
            (3 | 4, _) => packet.extend(u64::from(input.u8()).to_be_bytes()),
            _ => {
                let len = usize::from(input.u8());
                packet.extend(input.bytes(len));
            }
        }
        self.arrive(HOSTILE, to, &packet)
    }

    fn begin_anew(&mut self, host: usize, input: &mut Input<'_>) {
        match input.u8() % 8 {
            0 => self.hosts[host] = Host::new(&self.config, &mut self.random),
            1 => {
                let this = &mut self.hosts[host];
                this.interface.shut_down();
                this.program.open.clear();
            }
            _ => {}
        }
    }

    /// Takes what the interfaces have to say, and looks at what they hold.
    fn settle(&mut self) -> Checked {
        for host in 0..HONEST {
            while !self.hosts[host].stalled
                && let Some(Transmit { to, endpoint, packet }) = self.hosts[host].interface.poll_transmit(self.now)
            {
                ensure!(packet.len() <= self.config.mtu, "a packet of {} bytes", packet.len());
                let gone = endpoint.is_some_and(|id| self.hosts[host].program.is_gone(id));
                ensure!(!gone, "{endpoint:?} sends after it was gone");
                let to = (0..=NOBODY).find(|peer| address(*peer) == to);
                let Some(to) = to else { return Err(Failure::new("a packet to an address that nobody gave")) };
                if self.seen.len() == SEEN {
                    self.seen.pop_front();
                }
                self.seen.push_back((host, to, packet.clone()));
                self.launch((host, to, packet));
            }
            let Host { interface, program, .. } = &mut self.hosts[host];
            while let Some(event) = interface.poll_event() {
                program.note(&event)?;
            }
            self.check_bounds(host)?;
        }
        Ok(())
    }

    fn check_bounds(&self, host: usize) -> Checked {
        let Host { interface, program, .. } = &self.hosts[host];
        let usage = interface.usage();
        let own = usage.endpoints - usage.accepted;
        // One is gone only when its last word has left.
        let within = (own..=own + usage.control).contains(&program.len())
            && usage.half_open <= self.config.max_half_open
            && usage.accepted <= self.config.max_accepted
            && usage.held <= self.config.max_held
            && usage.timers <= 2 * usage.endpoints + 64
            // While nothing leaves, what was said of endpoints that are gone waits.
            && (self.hosts[host].stalled || usage.control + usage.ready == 0)
            && usage.events == 0;
        ensure!(within, "more than is allowed, of {} own: {usage:?}", program.len());
        Ok(())
    }

    /// Everybody lets go, nobody disturbs, and time passes.
    fn finish(mut self) -> Checked {
        for host in &mut self.hosts {
            host.stalled = false;
            for id in std::mem::take(&mut host.program.open) {
                host.interface.close(self.now, id)?;
            }
        }
        let end = self.now + 60_000 * MS;
        while self.now < end {
            self.settle()?;
            while !self.flights.is_empty() {
                self.deliver()?;
                self.settle()?;
            }
            let next = self.hosts.iter().filter_map(|host| host.interface.next_timeout()).min();
            let Some(next) = next else { break };
            self.advance(next.clamp(self.now + 1, end) - self.now);
        }
        for host in self.hosts {
            let usage = host.interface.usage();
            ensure!(usage == Default::default(), "something is left: {usage:?}");
            ensure!(host.program.len() == 0, "an endpoint never ended");
        }
        Ok(())
    }
}
