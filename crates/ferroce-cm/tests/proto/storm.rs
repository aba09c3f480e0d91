//! Many connections between hosts whose users do anything at any time, over a network that loses, duplicates, delays and
//! reorders, with partitions and with hosts that crash and come back. A seed is a run.

use crate::params::*;
use crate::world::{Fate, Link, World};
use ferroce_cm::proto::{ConnId, Event, ListenId, Nanos, State};
use ferroce_wire::cm::{AdditionalInfo, RejectReason};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

/// A connection as the user of one side sees it.
#[derive(Debug)]
struct Record {
    host: usize,
    conn: ConnId,
    active: bool,
    /// Which attempt it belongs to: the private data of the request.
    tag: u32,
    established: bool,
    ended: Option<&'static str>,
    destroyed: bool,
    /// Its host has crashed.
    lost: bool,
}

/// What a user is going to do.
#[derive(Clone, Copy, Debug)]
enum Act {
    Connect { from: usize, to: usize, tag: u32 },
    Accept(usize),
    Reject(usize),
    Establish(usize),
    Disconnect(usize),
    Destroy(usize),
    NotifyEstablished(usize),
    CheckDeadline(usize),
    Crash(usize),
    Restart(usize),
    CloseListener(usize),
}

struct Storm {
    world: World,
    rng: StdRng,
    acts: BTreeMap<(Nanos, u64), Act>,
    next: u64,
    records: Vec<Record>,
    by_conn: HashMap<(usize, ConnId), usize>,
    listeners: Vec<Option<ListenId>>,
    /// Listeners that were closed with requests left.
    unreleased: HashSet<(usize, ListenId)>,
    crashes: bool,
    /// Of each host. One that has crashed begins anew, and so its QPNs come again.
    next_qpn: Vec<u32>,
    established: usize,
}

/// Longer than any message is on its way, and shorter than timewait.
const MAX_DELAY: Nanos = 400 * MS;

impl Storm {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let hosts = rng.random_range(2..=4);
        let mut world = World::new(hosts, rng.random());
        world.keep_log = false;
        let bad = rng.random_bool(0.7);
        let max_delay = *[50_000, MS, 20 * MS, MAX_DELAY].get(rng.random_range(0..4)).expect("one of four");
        world.link = Link {
            loss: if bad { rng.random_range(0.0..0.2) } else { 0.0 },
            duplication: if bad { rng.random_range(0.0..0.3) } else { 0.0 },
            min_delay: 10_000,
            max_delay,
        };
        let mut storm = Self {
            world,
            rng,
            acts: BTreeMap::new(),
            next: 0,
            records: Vec::new(),
            by_conn: HashMap::new(),
            listeners: vec![None; hosts],
            unreleased: HashSet::new(),
            crashes: false,
            next_qpn: vec![0; hosts],
            established: 0,
        };
        for host in 0..hosts {
            storm.listen(host);
        }
        storm.plan();
        storm
    }

    fn listen(&mut self, host: usize) {
        let backlog = *[1, 3, 1000].get(self.rng.random_range(0..3)).expect("one of three");
        self.listeners[host] = Some(self.world.listen(host, backlog));
    }

    fn plan(&mut self) {
        let hosts = self.world.hosts.len();
        for tag in 0..self.rng.random_range(1..=16) {
            let from = self.rng.random_range(0..hosts);
            let to = (from + self.rng.random_range(1..hosts)) % hosts;
            let within = *[10 * MS, 3 * S, 15 * S].get(self.rng.random_range(0..3)).expect("one of three");
            self.after(within, Act::Connect { from, to, tag });
        }
        if self.rng.random_bool(0.3) {
            self.crashes = true;
            for _ in 0..self.rng.random_range(1..4) {
                let host = self.rng.random_range(0..hosts);
                self.after(10 * S, Act::Crash(host));
            }
        }
        if self.rng.random_bool(0.2) {
            let host = self.rng.random_range(0..hosts);
            self.after(5 * S, Act::CloseListener(host));
        }
        if self.rng.random_bool(0.3) {
            // For some seconds nothing comes from one of the hosts.
            let host = self.rng.random_range(0..hosts);
            let begin = self.rng.random_range(0..5 * S);
            let end = begin + self.rng.random_range(0..4 * S);
            let clock = Rc::clone(&self.world.clock);
            self.world.filter = Some(Box::new(move |from, _| {
                let is_cut = from == host && (begin..end).contains(&*RefCell::borrow(&clock));
                if is_cut { Fate::Drop } else { Fate::Deliver }
            }));
        }
    }

    /// Plans an act for any time from now until then.
    fn after(&mut self, within: Nanos, act: Act) {
        let at = self.world.now + self.rng.random_range(0..=within);
        self.at(at, act);
    }

    fn at(&mut self, at: Nanos, act: Act) {
        self.acts.insert((at, self.next), act);
        self.next += 1;
    }

    /// Short or long.
    fn patience(&mut self) -> Nanos {
        *[0, MS, 50 * MS, S, 3 * S].get(self.rng.random_range(0..5)).expect("one of five")
    }

    fn run_until(&mut self, end: Nanos) {
        loop {
            self.take_events();
            let act_at = self.acts.first_key_value().map_or(Nanos::MAX, |(&(at, _), _)| at);
            let world_at = self.world.next_at().unwrap_or(Nanos::MAX);
            if act_at.min(world_at) > end {
                self.world.now = end;
                return;
            }
            if act_at <= world_at {
                let ((at, _), act) = self.acts.pop_first().expect("there is one");
                self.world.now = self.world.now.max(at);
                self.act(act);
                self.world.pump();
            } else {
                self.world.step(end);
            }
            self.world.tick();
        }
    }

    fn act(&mut self, act: Act) {
        let now = self.world.now;
        let record = match act {
            Act::Connect { from, to, tag } => return self.connect(from, to, tag),
            Act::Crash(host) => {
                self.world.crash(host);
                for record in self.records.iter_mut().filter(|record| record.host == host) {
                    record.lost = true;
                }
                self.by_conn.retain(|&(of, _), _| of != host);
                self.listeners[host] = None;
                self.unreleased.retain(|&(of, _)| of != host);
                return self.after(3 * S, Act::Restart(host));
            }
            Act::Restart(host) => {
                if !self.world.hosts[host].is_up {
                    self.world.restart(host);
                    self.next_qpn[host] = 0;
                    self.listen(host);
                }
                return;
            }
            Act::CloseListener(host) => {
                if let Some(listener) = self.listeners[host].take() {
                    if !self.world.ep(host).close_listener(now, listener).expect("it is open") {
                        self.unreleased.insert((host, listener));
                    }
                    // That destroys what was not read.
                    for record in self.records.iter_mut().filter(|record| record.host == host && !record.lost) {
                        record.destroyed |= self.world.hosts[host].endpoint.state(record.conn).is_none();
                    }
                    self.listen(host);
                }
                return;
            }
            Act::Accept(record)
            | Act::Reject(record)
            | Act::Establish(record)
            | Act::Disconnect(record)
            | Act::Destroy(record)
            | Act::NotifyEstablished(record)
            | Act::CheckDeadline(record) => record,
        };
        let Record { host, conn, lost, tag, active, .. } = self.records[record];
        if lost {
            return;
        }
        let qpn = self.qpn(host);
        let endpoint = self.world.ep(host);
        // The users do not look whether it makes sense: that is what errors are for.
        match act {
            Act::Accept(_) => {
                let _ = endpoint.accept(now, conn, &accept_params(qpn));
            }
            Act::Reject(_) => {
                let (reason, none) = (RejectReason::ConsumerDefined, AdditionalInfo::EMPTY);
                if endpoint.reject(now, conn, reason, none, b"no").is_ok() {
                    assert_eq!(self.records[record].ended, None);
                    self.records[record].ended = Some("own reject");
                    self.after(S, Act::Destroy(record));
                }
            }
            Act::Establish(_) => {
                if endpoint.establish(conn, b"").is_ok() {
                    self.records[record].established = true;
                    self.established += 1;
                    self.data_follows(tag);
                }
            }
            Act::Disconnect(_) => {
                let _ = endpoint.disconnect(now, conn, b"");
            }
            Act::NotifyEstablished(_) => {
                let _ = endpoint.notify_established(conn);
            }
            Act::Destroy(_) => {
                let is_first = !self.records[record].destroyed;
                assert_eq!(endpoint.destroy(now, conn).is_ok(), is_first, "only the first is no error");
                self.records[record].destroyed = true;
            }
            Act::CheckDeadline(_) => {
                let state = endpoint.state(conn);
                let is_open =
                    matches!(state, Some(State::ReqSent | State::MraReqRcvd | State::RepRcvd | State::MraRepSent));
                assert!(!is_open, "attempt {tag} (active: {active}) is not decided by its deadline: {state:?}");
                let record = &self.records[record];
                assert!(record.established || record.destroyed || record.ended.is_some(), "{record:?}");
            }
            Act::Connect { .. } | Act::Crash(_) | Act::Restart(_) | Act::CloseListener(_) => unreachable!(),
        }
    }

    /// Data may come before the RTU.
    fn data_follows(&mut self, tag: u32) {
        let mut asked = (0..self.records.len()).filter(|&number| {
            let record = &self.records[number];
            record.tag == tag && !record.active
        });
        if let (Some(number), None) = (asked.next(), asked.next())
            && self.rng.random_bool(0.3)
        {
            self.after(50 * MS, Act::NotifyEstablished(number));
        }
    }

    fn qpn(&mut self, host: usize) -> u32 {
        self.next_qpn[host] += 1;
        self.next_qpn[host]
    }

    fn connect(&mut self, from: usize, to: usize, tag: u32) {
        if !self.world.hosts[from].is_up {
            return;
        }
        let now = self.world.now;
        let deadline = now + self.rng.random_range(S..20 * S);
        let params = connect_params(address(from, to), self.qpn(from), deadline);
        let params = ferroce_cm::proto::ConnectParams { private_data: &tag.to_be_bytes(), ..params };
        let conn = self.world.ep(from).connect(now, &params).expect("there is room");
        let record = self.record(from, conn, true, tag);
        self.at(deadline + 1, Act::CheckDeadline(record));
        match self.rng.random_range(0..10) {
            0 => self.after(10 * MS, Act::Destroy(record)),
            1 => self.after(5 * S, Act::Destroy(record)),
            2 => self.after(5 * S, Act::Disconnect(record)),
            _ => {}
        }
    }

    fn record(&mut self, host: usize, conn: ConnId, active: bool, tag: u32) -> usize {
        let number = self.records.len();
        let fresh = Record { host, conn, active, tag, established: false, ended: None, destroyed: false, lost: false };
        self.records.push(fresh);
        assert_eq!(self.by_conn.insert((host, conn), number), None, "a name is given once");
        number
    }

    fn take_events(&mut self) {
        for host in 0..self.world.hosts.len() {
            while let Some(event) = self.world.hosts[host].events.pop_front() {
                self.on_event(host, &event);
            }
        }
    }

    fn on_event(&mut self, host: usize, event: &Event) {
        if let Event::ListenerReleased { listener } = event {
            assert!(self.unreleased.remove(&(host, *listener)), "it had requests left, and is released once");
            return;
        }
        let conn = subject(event).expect("all others are about connections");
        if let Event::ConnectRequest(request) = event {
            return self.on_request(host, request);
        }
        let number = self.by_conn[&(host, conn)];
        let patience = self.patience();
        let record = &mut self.records[number];
        assert!(!record.destroyed && !record.lost, "an event after destroying: {event:?}, {record:?}");
        if is_terminal(event) {
            assert_eq!(record.ended, None, "a second end: {event:?}, {record:?}");
            record.ended = Some(kind(event));
            if self.rng.random_bool(0.5) {
                self.after(patience, Act::Disconnect(number));
            }
            return self.after(patience + S, Act::Destroy(number));
        }
        match event {
            Event::Response(_) => {
                assert!(record.active && !record.established && record.ended.is_none(), "{event:?}, {record:?}");
                match self.rng.random_range(0..10) {
                    0 => self.after(patience, Act::Reject(number)),
                    1 => self.after(patience, Act::Destroy(number)),
                    // Not at all: the deadline ends it.
                    2 => {}
                    _ => {
                        self.after(patience, Act::Establish(number));
                        self.close_later(number);
                    }
                }
            }
            Event::Established { .. } => {
                assert!(!record.active && !record.established && record.ended.is_none(), "{event:?}, {record:?}");
                record.established = true;
                self.close_later(number);
            }
            Event::TimewaitExit { .. } => assert!(record.ended.is_some(), "{record:?}"),
            other => panic!("{other:?}"),
        }
    }

    /// Some close in the end, and some do not, whatever happened to the connection meanwhile.
    fn close_later(&mut self, number: usize) {
        let patience = self.patience();
        match self.rng.random_range(0..4) {
            0 => self.after(patience + S, Act::Disconnect(number)),
            1 => self.after(patience + S, Act::Destroy(number)),
            _ => {}
        }
    }

    fn on_request(&mut self, host: usize, request: &ferroce_cm::proto::ConnectRequest) {
        let tag = u32::from_be_bytes(request.private_data.as_slice().try_into().expect("four bytes"));
        if !self.crashes {
            let asked = self.records.iter().find(|record| record.active && record.tag == tag).expect("somebody asked");
            assert!(!asked.established, "a ghost: the attempt is established already: {asked:?}");
        }
        let number = self.record(host, request.conn, false, tag);
        let now = self.world.now;
        if self.rng.random_bool(0.5) {
            self.world.ep(host).request_read(now, request.conn).expect("it was given now");
        }
        let patience = self.patience();
        match self.rng.random_range(0..12) {
            0 => self.after(patience, Act::Reject(number)),
            1 => self.after(patience, Act::Destroy(number)),
            // Not at all: the request waits.
            2 => {}
            3 => {
                self.after(patience, Act::Accept(number));
                self.after(2 * patience, Act::Destroy(number));
            }
            4 => {
                self.after(patience, Act::Accept(number));
                self.after(2 * patience, Act::Disconnect(number));
            }
            _ => self.after(patience, Act::Accept(number)),
        }
    }

    /// Of one attempt, either both sides have a connection or neither.
    fn assert_both_or_neither(&mut self) {
        let mut sides: BTreeMap<u32, [usize; 2]> = BTreeMap::new();
        for number in 0..self.records.len() {
            let Record { host, conn, active, tag, lost, .. } = self.records[number];
            if !lost && self.world.ep(host).state(conn) == Some(State::Established) {
                sides.entry(tag).or_default()[usize::from(active)] += 1;
            }
        }
        for (tag, sides) in sides {
            assert_eq!(sides, [1, 1], "attempt {tag}: established by this many passive and active sides");
        }
    }

    fn run(&mut self) -> usize {
        self.run_until(40 * S);
        // The network recovers, and what was under way comes to an end.
        self.world.link = Link { min_delay: 10_000, max_delay: 50_000, ..Link::default() };
        self.run_until(140 * S);
        if !self.crashes {
            self.assert_both_or_neither();
        }
        for record in 0..self.records.len() {
            if !self.records[record].destroyed && !self.records[record].lost {
                self.act(Act::Destroy(record));
            }
        }
        self.run_until(220 * S);
        self.world.assert_clean();
        assert!(self.unreleased.is_empty(), "services are kept for nobody");
        self.established
    }
}

/// The seed of a run that failed is in the message; `FERROCE_CM_SEED` runs it alone, and `FERROCE_CM_SEEDS` says how many
/// runs there are.
#[test]
fn storms() {
    let number = |name| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    if let Some(seed) = number("FERROCE_CM_SEED") {
        Storm::new(seed).run();
        return;
    }
    let mut established = 0;
    for seed in 0..number("FERROCE_CM_SEEDS").unwrap_or(10_000) {
        match std::panic::catch_unwind(|| Storm::new(seed).run()) {
            Ok(count) => established += count,
            Err(_) => panic!("FERROCE_CM_SEED={seed}"),
        }
    }
    assert!(established > 20_000, "only {established} connections came about: the storms prove little");
}

/// A seed is a run: what is sent, to the last bit, and when.
#[test]
fn seeds_repeat() {
    let log = |seed| {
        let mut storm = Storm::new(seed);
        storm.world.keep_log = true;
        storm.run();
        storm.world.log
    };
    for seed in 0..50 {
        assert_eq!(log(seed), log(seed));
    }
    assert_ne!(log(1), log(2));
}
