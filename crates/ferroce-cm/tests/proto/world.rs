//! Hosts, the link between them, and time.

use crate::params::{address, gid, guid};
use ferroce_cm::proto::{Address, Config, ConnId, Endpoint, Event, ListenId, Nanos, Transmit};
use ferroce_wire::cm::{CmMad, CmMessage};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// What the link does to messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Link {
    pub(crate) loss: f64,
    pub(crate) duplication: f64,
    pub(crate) min_delay: Nanos,
    pub(crate) max_delay: Nanos,
}

/// What becomes of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Deliver,
    Drop,
    /// Delivered this much later than others.
    Delay(Nanos),
    /// Delivered, and once more this much later.
    Twice(Nanos),
}

type Filter = Box<dyn FnMut(usize, &CmMad) -> Fate>;

pub(crate) struct Host {
    pub(crate) endpoint: Endpoint,
    pub(crate) events: VecDeque<Event>,
    pub(crate) is_up: bool,
}

pub(crate) struct World {
    pub(crate) now: Nanos,
    /// `now`, for filters.
    pub(crate) clock: Rc<RefCell<Nanos>>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) link: Link,
    pub(crate) rng: StdRng,
    /// Decides on each message, by its sender, before the link does.
    pub(crate) filter: Option<Filter>,
    /// What was sent: sender, and the message.
    pub(crate) log: Vec<(usize, CmMad)>,
    pub(crate) keep_log: bool,
    flights: BTreeMap<(Nanos, u64), (usize, Address, [u8; 256])>,
    next: u64,
    configs: Vec<Config>,
}

impl World {
    pub(crate) fn new(hosts: usize, seed: u64) -> Self {
        Self::with_config(hosts, seed, |_| {})
    }

    pub(crate) fn with_config(hosts: usize, seed: u64, change: impl Fn(&mut Config)) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let configs: Vec<_> = (0..hosts)
            .map(|host| {
                let mut config = Config::new(guid(host), 3 + host as u8);
                change(&mut config);
                config
            })
            .collect();
        let hosts = configs
            .iter()
            .map(|config| Host {
                endpoint: Endpoint::new(config.clone(), StdRng::from_rng(&mut rng)),
                events: VecDeque::new(),
                is_up: true,
            })
            .collect();
        Self {
            now: 1,
            clock: Rc::default(),
            hosts,
            link: Link { min_delay: 20_000, max_delay: 20_000, ..Link::default() },
            rng,
            filter: None,
            log: Vec::new(),
            keep_log: true,
            flights: BTreeMap::new(),
            next: 0,
            configs,
        }
    }

    /// Two hosts.
    pub(crate) fn pair(seed: u64) -> Self {
        Self::new(2, seed)
    }

    pub(crate) fn ep(&mut self, host: usize) -> &mut Endpoint {
        &mut self.hosts[host].endpoint
    }

    /// The host forgets everything and begins anew, as after a power cycle.
    pub(crate) fn restart(&mut self, host: usize) {
        let endpoint = Endpoint::new(self.configs[host].clone(), StdRng::from_rng(&mut self.rng));
        self.hosts[host] = Host { endpoint, events: VecDeque::new(), is_up: true };
    }

    /// The host is gone: what is sent to it is lost.
    pub(crate) fn crash(&mut self, host: usize) {
        self.restart(host);
        self.hosts[host].is_up = false;
    }

    /// Takes what the hosts have to send and to tell.
    pub(crate) fn pump(&mut self) {
        for host in 0..self.hosts.len() {
            while let Some(transmit) = self.hosts[host].endpoint.poll_transmit() {
                self.send(host, &transmit);
            }
            while let Some(event) = self.hosts[host].endpoint.poll_event() {
                self.hosts[host].events.push_back(event);
            }
        }
    }

    /// Tells filters what time it is.
    pub(crate) fn tick(&self) {
        *self.clock.borrow_mut() = self.now;
    }

    fn send(&mut self, from: usize, transmit: &Transmit) {
        let mad = CmMad::parse(&transmit.mad).expect("endpoints send valid messages");
        if self.keep_log {
            self.log.push((from, mad));
        }
        let fate = self.filter.as_mut().map_or(Fate::Deliver, |filter| filter(from, &mad));
        match fate {
            Fate::Drop => {}
            Fate::Deliver => self.fly(transmit, 0),
            Fate::Delay(delay) => self.fly(transmit, delay),
            Fate::Twice(delay) => {
                self.fly(transmit, 0);
                self.fly(transmit, delay);
            }
        }
    }

    fn fly(&mut self, transmit: &Transmit, delay: Nanos) {
        let copies = 1 + u32::from(self.rng.random_bool(self.link.duplication));
        for _ in 0..copies {
            if self.rng.random_bool(self.link.loss) {
                continue;
            }
            let delay = delay + self.rng.random_range(self.link.min_delay..=self.link.max_delay);
            let to = (0..self.hosts.len()).find(|&host| gid(host) == transmit.to.remote);
            let Some(to) = to else { continue };
            let at = Address { local: transmit.to.remote, remote: transmit.to.local, scope_id: 0 };
            self.flights.insert((self.now + delay, self.next), (to, at, transmit.mad));
            self.next += 1;
        }
    }

    /// When something happens next by itself.
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        let flight = self.flights.first_key_value().map(|(&(at, _), _)| at);
        let timers = self.hosts.iter().filter(|host| host.is_up).filter_map(|host| host.endpoint.poll_timeout());
        timers.chain(flight).min()
    }

    /// Lets the next thing happen, if it does by `until`.
    pub(crate) fn step(&mut self, until: Nanos) -> bool {
        self.pump();
        let Some(at) = self.next_at().filter(|&at| at <= until) else {
            self.now = self.now.max(until);
            return false;
        };
        self.now = self.now.max(at);
        let now = self.now;
        if let Some(entry) = self.flights.first_entry()
            && entry.key().0 <= now
        {
            let (to, from, mad) = entry.remove();
            if self.hosts[to].is_up {
                self.hosts[to].endpoint.handle_mad(now, &from, &mad);
            }
        } else {
            for host in self.hosts.iter_mut().filter(|host| host.is_up) {
                host.endpoint.handle_timeout(now);
            }
        }
        self.pump();
        true
    }

    /// Lets time pass.
    pub(crate) fn run(&mut self, duration: Nanos) {
        let until = self.now + duration;
        while self.step(until) {}
    }

    /// The next event of a host.
    ///
    /// # Panics
    ///
    /// If there is none within two minutes.
    pub(crate) fn event(&mut self, host: usize) -> Event {
        let until = self.now + 120 * crate::params::S;
        loop {
            self.pump();
            if let Some(event) = self.hosts[host].events.pop_front() {
                return event;
            }
            assert!(self.step(until), "no event for host {host}");
        }
    }

    /// The events that a host has not looked at.
    pub(crate) fn kinds(&mut self, host: usize) -> Vec<&'static str> {
        self.pump();
        self.hosts[host].events.drain(..).map(|event| crate::params::kind(&event)).collect()
    }

    /// How often a host has sent a message of which this is true.
    pub(crate) fn sent(&self, host: usize, is: impl Fn(&CmMessage) -> bool) -> usize {
        self.log.iter().filter(|(from, mad)| *from == host && is(&mad.message)).count()
    }

    pub(crate) fn listen(&mut self, host: usize, backlog: usize) -> ListenId {
        self.ep(host).listen(&crate::params::listen_params(backlog)).expect("nobody else listens")
    }

    /// Host `from` asks host `to` for a connection.
    pub(crate) fn connect(&mut self, from: usize, to: usize, qpn: u32) -> ConnId {
        let now = self.now;
        let params = crate::params::connect_params(address(from, to), qpn, now + 60 * crate::params::S);
        self.ep(from).connect(now, &params).expect("there is room")
    }

    /// The request that host `host` gets next.
    pub(crate) fn request(&mut self, host: usize) -> ferroce_cm::proto::ConnectRequest {
        match self.event(host) {
            Event::ConnectRequest(request) => request,
            other => panic!("not a request: {other:?}"),
        }
    }

    pub(crate) fn response(&mut self, host: usize) -> ferroce_cm::proto::Response {
        match self.event(host) {
            Event::Response(response) => response,
            other => panic!("not a response: {other:?}"),
        }
    }

    /// A connection from host 0 to host 1, which listens.
    pub(crate) fn established(&mut self, qpns: [u32; 2]) -> (ConnId, ConnId) {
        let active = self.connect(0, 1, qpns[0]);
        let passive = self.request(1).conn;
        let now = self.now;
        self.ep(1).accept(now, passive, &crate::params::accept_params(qpns[1])).expect("accept");
        assert_eq!(self.response(0).conn, active);
        self.ep(0).establish(active, b"go").expect("establish");
        match self.event(1) {
            Event::Established { conn, .. } => assert_eq!(conn, passive),
            other => panic!("not established: {other:?}"),
        }
        (active, passive)
    }

    /// Everything was reclaimed.
    ///
    /// # Panics
    ///
    /// If not.
    pub(crate) fn assert_clean(&mut self) {
        for (number, host) in self.hosts.iter().enumerate() {
            let usage = host.endpoint.usage();
            let held = [
                usage.connections,
                usage.lingering,
                usage.half_open,
                usage.timewait,
                usage.sidr_sent,
                usage.sidr_received,
                usage.names,
                usage.transmits,
                usage.events,
            ];
            assert_eq!(held, [0; 9], "host {number} still holds {usage:?}");
            assert_eq!(host.endpoint.poll_timeout(), None, "host {number} still has a timer");
        }
    }
}
