//! rc_verbs over a network in memory that loses, repeats, delays and damages packets, while hosts crash and start again and the network is cut: each
//! message arrives once and in order, or an endpoint of its pair fails, once and with a cause; every operation is answered once; and in the end nothing is
//! left. Everything but the evidence of failures runs in virtual time. More seeds: `RC_SIM_MORE=100`; one again: `RC_SIM_SEED=7`.

#[path = "../seeds/mod.rs"]
mod seeds;

use ferroce_soft::memory::{MemoryConfig, MemoryFaults, MemoryNetwork, Random};
use ferroce_transport::rc_verbs::{RcEndpoint, RcOptions, RcVerbs};
use ferroce_transport::uct::{
    Cause, CompletionCounter, Endpoint, FlushKind, Interface, Iov, OpError, PendingError, PendingStatus, Posted, Remote,
};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Access, Context, Mr};
use seeds::seeds;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const AM: u8 = 9;
const HOSTS: usize = 3;
const BUFFERS: u32 = 32;
const SECOND: Duration = Duration::from_secs(1);

fn ip(host: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, host as u8 + 1])
}

/// How many messages with each tag came, each in its turn.
type Arrived = Arc<Mutex<HashMap<u32, u32>>>;

struct Host {
    interface: RcVerbs,
    /// What peers write to and read.
    memory: Mr,
    context: Context,
}

impl Host {
    fn new(network: &MemoryNetwork, host: usize, arrived: &Arrived) -> Self {
        let context = network.host(ip(host)).open().unwrap();
        let options = RcOptions {
            address: Some(ip(host)),
            send_depth: 16,
            receive_depth: 64,
            window: 8,
            buffers: BUFFERS,
            max_bcopy: 3000,
            max_endpoints: 64,
            // 4 ms, which the network's delays are far below.
            ack_timeout: 10,
            // In real time, which has nothing to do with this.
            peer_timeout: None,
            ..RcOptions::default()
        };
        let interface = RcVerbs::open(&context, options).unwrap();
        let to = arrived.clone();
        let handler = move |message: ferroce_transport::uct::Message<'_>| {
            let (tag, number) = parse(message.payload);
            let mut arrived = to.lock().unwrap();
            let next = arrived.entry(tag).or_insert(0);
            assert_eq!(*next, number, "{tag}: lost, twice, or out of order");
            *next += 1;
        };
        interface.set_am_handler(AM, handler).unwrap();
        let memory = interface.pd().alloc_mr(1 << 16, Access::ALL).unwrap();
        Self { interface, memory, context }
    }
}

/// A numbered message, whose rest shows that it is whole.
fn message(tag: u32, number: u32, len: usize) -> Vec<u8> {
    let mut bytes = [tag.to_be_bytes(), number.to_be_bytes()].concat();
    bytes.resize(len.max(8), (tag + number) as u8);
    bytes
}

fn parse(bytes: &[u8]) -> (u32, u32) {
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let (tag, number) = (word(0), word(4));
    assert!(bytes[8..].iter().all(|byte| *byte == (tag + number) as u8), "{tag}, {number}: damaged");
    (tag, number)
}

/// One end of a connection.
struct End {
    host: usize,
    endpoint: RcEndpoint,
    tag: u32,
    /// Messages that were sent; pending requests send some, too.
    sent: Arc<AtomicU32>,
    failed: Arc<Mutex<Vec<Cause>>>,
}

impl End {
    /// Whether it failed. Asks the peer, again and again: what was on its way may have been acknowledged before.
    fn finds_out(&self) -> bool {
        self.endpoint.check().is_err() && !self.failed.lock().unwrap().is_empty()
    }
}

struct Storm {
    seed: u64,
    random: Random,
    network: MemoryNetwork,
    hosts: Vec<Host>,
    arrived: Arrived,
    pairs: Vec<[End; 2]>,
    tags: u32,
    answered: Arc<CompletionCounter>,
    begun: usize,
    tally: Tally,
}

/// What happened in all runs.
#[derive(Debug, Default)]
struct Tally {
    messages: u32,
    whole: u32,
    causes: HashMap<String, u32>,
    succeeded: usize,
    canceled: usize,
    failed: usize,
}

impl Drop for Storm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, at {:?}", self.seed, self.network.now());
        }
    }
}

impl Storm {
    fn new(seed: u64) -> Self {
        let faults =
            MemoryFaults { loss: 0.02, duplicate: 0.02, reorder: 0.03, corrupt: 0.01, ..MemoryFaults::default() };
        let network = MemoryNetwork::new(MemoryConfig { seed, faults, ..MemoryConfig::default() });
        let arrived = Arrived::default();
        let hosts = (0..HOSTS).map(|host| Host::new(&network, host, &arrived)).collect();
        Self {
            seed,
            random: Random::new(seed),
            network,
            hosts,
            arrived,
            pairs: Vec::new(),
            tags: 0,
            answered: CompletionCounter::new(),
            begun: 0,
            tally: Tally::default(),
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.next_u64() as usize % bound
    }

    /// All that is due now; then time passes until something happens.
    fn step(&self) {
        for host in &self.hosts {
            host.interface.progress().unwrap();
        }
        let now = self.network.now();
        let next = self.network.next_event().unwrap_or(now + SECOND / 100).saturating_sub(now);
        self.network.advance(next.clamp(Duration::from_micros(1), SECOND / 100));
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let end = self.network.now() + 300 * SECOND;
        while !is_so() {
            self.step();
            assert!(
                self.network.now() < end,
                "{what}: never; {:#?}",
                self.pairs.iter().flatten().map(|end| &end.endpoint).collect::<Vec<_>>()
            );
        }
    }

    fn end(&mut self, host: usize) -> Option<End> {
        let endpoint = self.hosts[host].interface.create_endpoint().ok()?;
        self.tags += 1;
        let failed: Arc<Mutex<Vec<Cause>>> = Arc::default();
        let to = failed.clone();
        endpoint.on_failure(Box::new(move |failure| to.lock().unwrap().push(failure.cause)));
        Some(End { host, endpoint, tag: self.tags, sent: Arc::default(), failed })
    }

    fn connect(&mut self) {
        let from = self.below(HOSTS);
        let to = (from + 1 + self.below(HOSTS - 1)) % HOSTS;
        let (Some(a), Some(b)) = (self.end(from), self.end(to)) else { return };
        a.endpoint.connect_to_ep(&b.endpoint.address()).unwrap();
        b.endpoint.connect_to_ep(&a.endpoint.address()).unwrap();
        self.pairs.push([a, b]);
    }

    /// Begins something on some endpoint.
    fn act(&mut self) {
        if self.pairs.is_empty() {
            return;
        }
        let (pair, side) = (self.below(self.pairs.len()), self.below(2));
        let (kind, len) = (self.below(8), self.below(3000));
        let [a, b] = &self.pairs[pair];
        let (end, peer) = if side == 0 { (a, b) } else { (b, a) };
        let remote = Remote::of(&self.hosts[peer.host].memory);
        let number = end.sent.load(Ordering::Relaxed);
        let memory = &self.hosts[end.host].memory;
        let completing = |begun: Result<Posted, OpError>| match begun {
            Ok(Posted::InProgress) => Ok(1),
            Ok(Posted::Done) => {
                self.answered.answered();
                Ok(0)
            }
            Err(error) => {
                self.answered.answered();
                Err(error)
            }
        };
        let (sends, outcome) = match kind {
            0 | 1 => (true, end.endpoint.am_short(AM, &message(end.tag, number, len % 200)).map(|()| 0)),
            2 => {
                let bytes = message(end.tag, number, len);
                (true, end.endpoint.am_bcopy(AM, &mut |packer| packer.put(&bytes).unwrap()).map(|_| 0))
            }
            3 => {
                let bytes = message(end.tag, number, len % 200);
                (true, completing(end.endpoint.am_zcopy(AM, &bytes, &[], Some(self.answered.token()))))
            }
            4 => {
                let iov = [Iov::new(memory, 0..10 * len)];
                (false, completing(end.endpoint.put_zcopy(&iov, remote, Some(self.answered.token()))))
            }
            5 => (false, completing(end.endpoint.get_bcopy(len, remote, self.answered.token()))),
            6 => {
                let kind = if len % 2 == 0 { FlushKind::Local } else { FlushKind::Remote };
                (false, completing(end.endpoint.flush(kind, Some(self.answered.token()))))
            }
            _ => {
                let (tag, sent) = (end.tag, end.sent.clone());
                let request = move |endpoint: &dyn Endpoint| match endpoint
                    .am_short(AM, &message(tag, sent.load(Ordering::Relaxed), 50))
                {
                    Ok(()) => {
                        sent.fetch_add(1, Ordering::Relaxed);
                        PendingStatus::Done
                    }
                    Err(OpError::NoResource) => PendingStatus::NoResource,
                    Err(error) => panic!("{error}: it is not called then"),
                };
                match end.endpoint.pending_add(Box::new(request)) {
                    Ok(()) | Err(PendingError::Busy(_) | PendingError::Over(..)) => {}
                }
                (false, Ok(0))
            }
        };
        match outcome {
            Ok(begun) => {
                self.begun += begun;
                if sends {
                    end.sent.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(OpError::NoResource | OpError::Failed(..)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// What is true of a pair whose ends are about to go.
    fn judge(&mut self, pair: &[End; 2], whole: bool) {
        for (end, peer) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
            let (sent, arrived) =
                (end.sent.load(Ordering::Relaxed), self.arrived.lock().unwrap().get(&end.tag).copied());
            let arrived = arrived.unwrap_or(0);
            assert!(arrived <= sent);
            if whole {
                assert_eq!(
                    (sent, end.endpoint.failure(), peer.endpoint.failure()),
                    (arrived, None, None),
                    "{}",
                    end.tag
                );
                self.tally.whole += 1;
            }
            self.tally.messages += arrived;
            self.count(end);
        }
    }

    /// Closes a pair, in either order, with whatever is outstanding.
    fn close(&mut self) {
        if self.pairs.is_empty() {
            return;
        }
        let pair = self.below(self.pairs.len());
        let pair = self.pairs.swap_remove(pair);
        self.judge(&pair, false);
        let [a, b] = pair;
        match self.below(4) {
            0 => drop((a, b)),
            1 => drop((b, a)),
            2 => {
                a.endpoint.flush(FlushKind::Cancel, None).unwrap();
                self.run(20);
                drop((a, b));
            }
            _ => {
                drop(a);
                self.until("the other end finds out", || b.finds_out());
                self.count(&b);
            }
        }
    }

    /// Why an end failed.
    fn count(&mut self, end: &End) {
        let told = end.failed.lock().unwrap().clone();
        assert!(told.len() <= 1, "{told:?}: told twice");
        assert!(told.iter().all(|cause| matches!(cause, Cause::PeerTimeout | Cause::Closed)), "{told:?}");
        for cause in told {
            *self.tally.causes.entry(format!("{cause:?}")).or_insert(0) += 1;
        }
    }

    fn run(&self, steps: usize) {
        for _ in 0..steps {
            self.step();
        }
    }

    /// A host loses power; its program begins anew.
    fn crash(&mut self) {
        let host = self.below(HOSTS);
        self.network.isolate(ip(host));
        let (gone, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pairs).into_iter().partition(|pair| pair.iter().any(|end| end.host == host));
        self.pairs = left;
        for pair in &gone {
            self.judge(pair, false);
        }
        let mut alive = Vec::new();
        for end in gone.into_iter().flatten() {
            // The program of the dead host is gone with all that it had; its peers find out, if they ask.
            if end.host != host {
                alive.push(end);
            }
        }
        drop(self.hosts.remove(host));
        self.network.restore(ip(host));
        self.network.reboot(ip(host));
        self.hosts.insert(host, Host::new(&self.network, host, &self.arrived));
        self.until("peers of a dead host find out", || alive.iter().all(End::finds_out));
        for end in alive {
            self.count(&end);
        }
    }

    /// Two hosts do not hear each other for a while.
    fn cut(&mut self) {
        let (a, b) = (self.below(HOSTS), self.below(HOSTS));
        self.network.block(ip(a), ip(b));
        let steps = self.below(200);
        self.run(steps);
        self.network.unblock(ip(a), ip(b));
    }

    /// Everything that was sent arrives, then all goes.
    fn end_all(mut self, tally: &mut Tally) {
        let pairs = std::mem::take(&mut self.pairs);
        self.until("the rest arrives", || {
            self.hosts.iter().all(|host| host.interface.flush())
                && pairs.iter().all(|pair| {
                    pair.iter().any(|end| end.endpoint.failure().is_some())
                        || pair.iter().all(|end| {
                            let arrived = self.arrived.lock().unwrap().get(&end.tag).copied().unwrap_or(0);
                            arrived == end.sent.load(Ordering::Relaxed)
                        })
                })
        });
        for pair in &pairs {
            let whole = pair.iter().all(|end| end.endpoint.failure().is_none());
            self.judge(pair, whole);
        }
        drop(pairs);
        self.until("the end", || self.hosts.iter().all(|host| host.interface.counters().endpoints == 0));
        let answered = &self.answered;
        assert_eq!(answered.outstanding(), 0);
        assert_eq!(answered.succeeded() + answered.canceled() + answered.failed(), self.begun);
        tally.succeeded += answered.succeeded();
        tally.canceled += answered.canceled();
        tally.failed += answered.failed();
        for host in std::mem::take(&mut self.hosts) {
            let Host { interface, memory, context } = host;
            let counters = interface.counters();
            assert_eq!((counters.free_buffers, counters.malformed), (BUFFERS as usize, 0), "{counters:?}");
            drop((interface, memory));
            let left = |name| context.counters().iter().find(|(known, _)| *known == name).unwrap().1;
            for kind in ["queue_pairs", "completion_queues", "memory_regions", "protection_domains"] {
                assert_eq!(left(kind), 0, "{kind}");
            }
        }
        tally.messages += self.tally.messages;
        tally.whole += self.tally.whole;
        for (cause, count) in self.tally.causes.drain() {
            *tally.causes.entry(cause).or_insert(0) += count;
        }
    }
}

#[test]
fn storms_of_endpoints_over_a_bad_network() {
    let mut tally = Tally::default();
    for seed in seeds("RC", 40) {
        let mut storm = Storm::new(seed);
        for _ in 0..1500 {
            match storm.below(1000) {
                0..10 => storm.connect(),
                10..18 => storm.close(),
                18 => storm.crash(),
                19 | 20 => storm.cut(),
                21..700 => storm.act(),
                _ => storm.step(),
            }
        }
        storm.end_all(&mut tally);
    }
    println!("{tally:?}");
    let seen = |cause: &str| tally.causes.get(cause).is_some_and(|count| *count > 10);
    let enough = tally.whole > 20 && tally.canceled > 20 && tally.failed > 20 && seen("PeerTimeout") && seen("Closed");
    assert!(std::env::var_os("RC_SIM_SEED").is_some() || enough, "{tally:?}");
}
