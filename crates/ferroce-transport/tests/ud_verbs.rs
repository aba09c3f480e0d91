//! ud_verbs on the software device: messages both ways, and address handles that are there whenever something is sent.

mod waiting;

use ferroce_soft::{FaultConfig, LinkMode, SoftConfig, SoftDevice};
use ferroce_transport::ud::{Cause, Config, SendError};
use ferroce_transport::ud_verbs::{InterfaceAddress, UdEndpoint, UdOptions, UdVerbs};
use ferroce_verbs::ah_cache::{AhResolver, Resolution};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Ah, AhAttr, AhCacheConfig, AhCacheOptions, Context, Error, Gid, Pd, Ttl};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use waiting::until;

fn context(config: SoftConfig) -> Context {
    SoftDevice::new(config).open().unwrap()
}

fn options() -> UdOptions {
    UdOptions { address: Some("127.0.0.1".parse().unwrap()), ..UdOptions::default() }
}

/// What came to an interface: who sent it, and the number in it.
type Log = Arc<Mutex<Vec<(InterfaceAddress, u32)>>>;

fn interface(context: &Context, options: UdOptions) -> (UdVerbs, Log) {
    let interface = UdVerbs::open(context, options).unwrap();
    let log = Log::default();
    let to = log.clone();
    let handler = move |message: ferroce_transport::ud_verbs::Message<'_>| {
        let number = u32::from_be_bytes(message.payload[..4].try_into().unwrap());
        assert_eq!(message.payload.len(), len(number));
        assert!(message.payload[4..].iter().all(|byte| *byte == number as u8));
        to.lock().unwrap().push((message.peer, number));
    };
    interface.set_am_handler(5, handler).unwrap();
    (interface, log)
}

fn len(number: u32) -> usize {
    4 + (number as usize * 97) % 900
}

fn message(number: u32) -> Vec<u8> {
    let mut bytes = number.to_be_bytes().to_vec();
    bytes.resize(len(number), number as u8);
    bytes
}

fn send(endpoint: &UdEndpoint, interfaces: &[&UdVerbs], number: u32) {
    until(interfaces, || match endpoint.am(5, &message(number)) {
        Ok(()) => true,
        Err(SendError::Busy(_)) => false,
        Err(error) => panic!("{error}: {:?}", endpoint.failure()),
    });
}

fn numbers(log: &Log, from: InterfaceAddress) -> Vec<u32> {
    log.lock().unwrap().iter().filter(|(peer, _)| *peer == from).map(|(_, number)| *number).collect()
}

fn both_ways(config: SoftConfig, count: u32) {
    both_ways_at(config, count, "127.0.0.1");
}

fn both_ways_at(config: SoftConfig, count: u32, address: &str) {
    let (ca, cb) = (context(config.clone()), context(config));
    let options = || UdOptions { address: Some(address.parse().unwrap()), ..UdOptions::default() };
    let ((a, at_a), (b, at_b)) = (interface(&ca, options()), interface(&cb, options()));
    let (to_b, to_a) = (a.connect(b.address()).unwrap(), b.connect(a.address()).unwrap());
    for number in 0..count {
        send(&to_b, &[&a, &b], number);
        send(&to_a, &[&a, &b], number);
    }
    until(&[&a, &b], || to_b.flush().unwrap() && to_a.flush().unwrap());
    let expected: Vec<u32> = (0..count).collect();
    assert!(numbers(&at_b, a.address()) == expected && numbers(&at_a, b.address()) == expected);
    assert!(to_b.is_connected(b.address()) && !to_b.is_connected(a.address()));
    // An initiator and an acceptor each, and one address handle for both at each end, which is leased twice.
    assert_eq!((a.counters().endpoints, a.counters().leases), (2, 2));
    let cache = ca.ah_cache().unwrap().counters();
    assert_eq!((cache.live, cache.misses), (1, 1), "{cache:?}");
    drop((to_a, to_b));
    until(&[&a, &b], || a.counters().endpoints + b.counters().endpoints == 0);
    assert_eq!((a.counters().leases, b.counters().leases), (0, 0));
    // What was sent last lets go of its address handle when its completion is seen.
    let cache = ca.ah_cache().unwrap();
    until(&[&a, &b], || cache.counters().idle == cache.counters().live);
}

#[test]
fn both_ways_over_shared_memory() {
    both_ways(SoftConfig { link: LinkMode::Shm, ..SoftConfig::default() }, 3000);
}

#[test]
fn both_ways_over_udp() {
    both_ways(SoftConfig { link: LinkMode::Udp, ..SoftConfig::default() }, 3000);
}

#[test]
fn both_ways_over_a_bad_link() {
    for link in [LinkMode::Udp, LinkMode::Shm] {
        let fault = FaultConfig { seed: 3, loss: 0.05, duplicate: 0.02, reorder: 0.05, corrupt: 0.02 };
        both_ways(SoftConfig { link, fault: Some(fault), ..SoftConfig::default() }, 1000);
    }
}

/// UCX report 10209: which IP version a datagram has is read from its GRH.
#[test]
fn r10209_both_ways_over_ipv6() {
    for link in [LinkMode::Udp, LinkMode::Shm] {
        both_ways_at(SoftConfig { link, ..SoftConfig::default() }, 500, "::1");
    }
}

/// UCX report 6520: who has let go of an endpoint hears nothing of it any more, whatever becomes of it.
#[test]
fn r6520_nothing_is_said_of_an_endpoint_that_was_closed() {
    let (ca, cb) = (context(SoftConfig::default()), context(SoftConfig::default()));
    let quick = Duration::from_millis(100);
    let protocol = Config { connect_timeout: quick, peer_timeout: quick, linger: quick, ..Config::default() };
    let (a, _) = interface(&ca, UdOptions { protocol, ..options() });
    let (b, _) = interface(&cb, options());
    let told = Arc::new(AtomicU64::new(0));
    let tell = || {
        let told = told.clone();
        move |_| {
            told.fetch_add(1, Ordering::SeqCst);
        }
    };
    let connected = a.connect_or(b.address(), tell()).unwrap();
    send(&connected, &[&a, &b], 1);
    until(&[&a, &b], || connected.flush().unwrap());
    let connecting = a.connect_or(b.address(), tell()).unwrap();
    let kept = a.connect_or(b.address(), tell()).unwrap();
    connecting.am(5, &message(2)).unwrap();
    connected.am(5, &message(3)).unwrap();
    drop((connecting, connected));
    // Their packets are on their way, and nobody answers.
    drop((b, cb));
    until(&[&a], || kept.failure().is_some() && a.counters().endpoints == 1);
    assert_eq!(told.load(Ordering::SeqCst), 1, "only the one that is kept is told");
}

/// T1, T2 (UCX 11845): endpoints are closed and made anew while their peers still send to them, at every time to live. Each message
/// arrives, and no address handle is left.
#[test]
fn t1_t2_linger_at_every_time_to_live() {
    for ttl in [Ttl::Infinite, Ttl::Bypass, Ttl::Finite(Duration::from_millis(1)), Ttl::Finite(Duration::from_secs(1))]
    {
        let fault = FaultConfig { seed: 9, loss: 0.1, duplicate: 0.05, reorder: 0.1, corrupt: 0.0 };
        let config = SoftConfig { fault: Some(fault), ..SoftConfig::default() };
        let (ca, cb) = (context(config.clone()), context(config));
        let caches = [&ca, &cb].map(|context| {
            let config = AhCacheConfig { ttl, ..AhCacheConfig::default() };
            context.ah_cache_with(AhCacheOptions::new(config)).unwrap()
        });
        let ((a, at_a), (b, at_b)) = (interface(&ca, options()), interface(&cb, options()));
        for round in 0..40 {
            let (to_b, to_a) = (a.connect(b.address()).unwrap(), b.connect(a.address()).unwrap());
            for number in 0..5 {
                send(&to_b, &[&a, &b], 5 * round + number);
                send(&to_a, &[&a, &b], 5 * round + number);
            }
            // Closed with all of it on its way, or not even connected.
            drop((to_b, to_a));
        }
        until(&[&a, &b], || a.counters().endpoints + b.counters().endpoints == 0);
        for (log, from) in [(&at_b, a.address()), (&at_a, b.address())] {
            let mut got = numbers(log, from);
            // Sessions are in order, each by itself.
            got.sort_unstable();
            assert_eq!(got, (0..200).collect::<Vec<_>>(), "{ttl:?}");
        }
        assert_eq!((a.counters().leases, b.counters().leases, a.counters().send_errors), (0, 0, 0));
        drop((a, b));
        for cache in caches {
            let counters = cache.counters();
            assert_eq!(counters.live, counters.idle, "{ttl:?}: {counters:?}");
        }
    }
}

/// A resolver that answers when it is told to.
#[derive(Default)]
struct Slow {
    waiting: Mutex<Vec<Resolution>>,
    started: AtomicUsize,
}

struct Told(Arc<Slow>);

impl AhResolver for Told {
    fn resolve(&self, pd: &Pd, attr: &AhAttr) -> ferroce_verbs::Result<Ah> {
        pd.create_ah(attr)
    }

    fn start(&self, resolution: Resolution) {
        self.0.started.fetch_add(1, Ordering::SeqCst);
        self.0.waiting.lock().unwrap().push(resolution);
    }
}

/// T16, T17: a slow resolution holds up nobody else; a failed one fails its endpoint at once, with the reason.
#[test]
fn t16_t17_resolution_is_waited_for_by_those_who_need_it() {
    let (ca, cb) = (context(SoftConfig::default()), context(SoftConfig::default()));
    let resolver = Arc::new(Slow::default());
    let _cache =
        ca.ah_cache_with(AhCacheOptions::new(AhCacheConfig::default()).resolver(Told(resolver.clone()))).unwrap();
    let ((a, _), (b, at_b)) = (interface(&ca, options()), interface(&cb, options()));
    let endpoints: Vec<_> = (0..10).map(|_| a.connect(b.address()).unwrap()).collect();
    for (number, endpoint) in endpoints.iter().enumerate() {
        endpoint.am(5, &message(number as u32)).unwrap();
    }
    let unreachable: InterfaceAddress = InterfaceAddress::from_bytes(
        &[&Gid::from(std::net::Ipv4Addr::new(127, 0, 0, 9)).to_bytes()[..], &[0, 1, 2, 3]].concat(),
    )
    .unwrap();
    let (told, failures) = mpsc::channel();
    let lost = a.connect_or(unreachable, move |failure| told.send(failure).unwrap()).unwrap();
    for _ in 0..1000 {
        a.progress().unwrap();
        b.progress().unwrap();
    }
    // Ten endpoints to one peer share one resolution.
    assert_eq!(resolver.started.load(Ordering::SeqCst), 2);
    assert!(numbers(&at_b, a.address()).is_empty() && failures.try_recv().is_err());
    let mut waiting = std::mem::take(&mut *resolver.waiting.lock().unwrap());
    let second = waiting.pop().unwrap();
    for resolution in waiting {
        let outcome = resolution.pd().create_ah(resolution.attr());
        resolution.finish(outcome);
    }
    until(&[&a, &b], || numbers(&at_b, a.address()).len() == 10);
    assert!(failures.try_recv().is_err());
    second.finish(Err(Error::invalid("route", "there is none")));
    until(&[&a, &b], || lost.failure().is_some());
    assert_eq!(failures.try_recv().unwrap().cause, Cause::Unreachable);
    assert!(a.last_resolution_error().unwrap().to_string().contains("there is none"));
    assert!(matches!(lost.am(5, &[0; 4]), Err(SendError::Failed(_))));
}

/// A peer that is not there, and one that goes away: the endpoint fails in time, once, with evidence. UCX reports 8151, 8075: who closes an
/// interface says so; 5159, 6679, 6522, 7785, 5543: a failure that nobody asked to be told of ends nothing else.
#[test]
fn r8151_r5159_a_peer_that_is_gone() {
    let (ca, cb) = (context(SoftConfig::default()), context(SoftConfig::default()));
    let quick = Config {
        connect_timeout: Duration::from_millis(300),
        peer_timeout: Duration::from_millis(300),
        ..Config::default()
    };
    let (a, _) = interface(&ca, UdOptions { protocol: quick, ..options() });
    let (b, at_b) = interface(&cb, options());
    let address = b.address();
    let here = a.connect(address).unwrap();
    send(&here, &[&a, &b], 1);
    until(&[&a, &b], || here.flush().unwrap());
    assert_eq!(numbers(&at_b, a.address()), [1]);
    // It says goodbye.
    drop(b);
    until(&[&a], || here.failure().is_some());
    assert_eq!(here.failure().unwrap().cause, Cause::Reset);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let gone = a
        .connect_or(address, move |failure| {
            assert_eq!(failure.cause, Cause::ConnectTimeout);
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
    until(&[&a], || gone.failure().is_some());
    for _ in 0..100 {
        a.progress().unwrap();
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    drop((here, gone));
    until(&[&a], || a.counters().endpoints == 0);
}

/// Handlers send, connect and close; several threads send and make progress. UCX reports 6356, 6366, 6401, 8084.
#[test]
fn r6356_r8084_handlers_and_threads_do_as_they_like() {
    const THREADS: u32 = 4;
    const EACH: u32 = 500;
    let (ca, cb) = (context(SoftConfig::default()), context(SoftConfig::default()));
    let (a, at_a) = interface(&ca, options());
    let (b, _) = interface(&cb, options());
    // b answers each message over an endpoint that it makes for it.
    let answerer = b.clone();
    b.set_am_handler(5, move |message| {
        let endpoint = answerer.connect(message.peer).unwrap();
        endpoint.am(5, message.payload).unwrap();
        assert_eq!(answerer.progress().unwrap(), 0, "one thread makes progress, and it is in this handler");
    })
    .unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (a, b, at_a) = (&a, &b, &at_a);
            scope.spawn(move || {
                let to_b = a.connect(b.address()).unwrap();
                for number in 0..EACH {
                    send(&to_b, &[a, b], thread * EACH + number);
                }
                until(&[a, b], || to_b.flush().unwrap());
                until(&[a, b], || at_a.lock().unwrap().len() == (THREADS * EACH) as usize);
            });
        }
    });
    let mut got = numbers(&at_a, b.address());
    got.sort_unstable();
    assert_eq!(got, (0..THREADS * EACH).collect::<Vec<_>>());
    until(&[&a, &b], || a.counters().endpoints + b.counters().endpoints == 0);
    // The handler holds its interface: taking it away lets both go.
    b.set_am_handler(5, |_| {}).unwrap();
}

#[test]
fn what_cannot_be_sent_says_so() {
    let context = context(SoftConfig::default());
    let (a, _) = interface(&context, options());
    let to_self = a.connect(a.address()).unwrap();
    let most = a.max_message();
    assert!(matches!(to_self.am(0, &vec![0; most + 1]), Err(SendError::TooLong { .. })));
    assert!(matches!(to_self.am(32, &[]), Err(SendError::AmId(32))));
    assert!(a.set_am_handler(32, |_| {}).is_err());
    // An interface talks to itself, too.
    let (told, got) = mpsc::channel();
    let told = Mutex::new(told);
    a.set_am_handler(1, move |message| told.lock().unwrap().send(message.payload.len()).unwrap()).unwrap();
    to_self.am(1, &vec![7; most]).unwrap();
    until(&[&a], || to_self.flush().unwrap());
    assert_eq!(got.try_recv(), Ok(most));
    let missing = UdOptions { address: Some("192.0.2.1".parse().unwrap()), ..UdOptions::default() };
    assert!(UdVerbs::open(&context, missing).is_err());
}

/// Who sends what nobody takes shows at who does not take it: messages without a handler, and datagrams to another address of the port.
#[test]
fn what_is_dropped_is_counted() {
    let config = SoftConfig { link: LinkMode::Shm, ..SoftConfig::default() };
    let at = |address: &str| UdOptions { address: Some(address.parse().unwrap()), ..UdOptions::default() };
    let (ca, cb) = (context(config.clone()), context(config));
    let ((a, _), (b, at_b)) = (interface(&ca, at("::1")), interface(&cb, at("::1")));
    let endpoint = a.connect(b.address()).unwrap();
    endpoint.am(6, b"nobody wants this").unwrap();
    endpoint.am(6, b"nor this").unwrap();
    send(&endpoint, &[&a, &b], 1);
    until(&[&a, &b], || numbers(&at_b, a.address()) == [1]);
    assert_eq!((b.counters().no_handler, a.counters().no_handler), (2, 0));
    // Its queue pair under this address, which is another's.
    let (c, _) = interface(&cb, at("127.0.0.1"));
    let mut wrong = b.address().to_bytes();
    wrong[16..].copy_from_slice(&c.address().to_bytes()[16..]);
    let lost = a.connect(InterfaceAddress::from_bytes(&wrong).unwrap()).unwrap();
    until(&[&a, &b, &c], || c.counters().other_address != 0);
    assert_eq!((c.counters().endpoints, b.counters().other_address), (0, 0));
    drop((lost, endpoint));
}

/// Resolves as the device does, and looks at the interface that asks.
#[derive(Clone, Default)]
struct Looking(Arc<Mutex<Option<UdVerbs>>>);

impl AhResolver for Looking {
    fn resolve(&self, pd: &Pd, attr: &AhAttr) -> Result<Ah, Error> {
        pd.create_ah(attr)
    }

    fn start(&self, resolution: Resolution) {
        let interface = self.0.lock().unwrap().clone();
        if let Some(interface) = interface {
            assert!(interface.counters().endpoints != 0);
        }
        let ah = self.resolve(resolution.pd(), resolution.attr());
        resolution.finish(ah);
    }
}

/// No lock is held while somebody else's code resolves an address: neither for who connects, nor for who answers.
#[test]
fn a_resolver_may_look_at_the_interface() {
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        let config = SoftConfig { link: LinkMode::Shm, ..SoftConfig::default() };
        let (ca, cb) = (context(config.clone()), context(config));
        let (here, there) = (Looking::default(), Looking::default());
        let caches = [(&ca, &here), (&cb, &there)].map(|(context, resolver)| {
            let options = AhCacheOptions::new(AhCacheConfig::default()).resolver(resolver.clone());
            context.ah_cache_with(options).unwrap()
        });
        let ((a, _), (b, at_b)) = (interface(&ca, options()), interface(&cb, options()));
        *here.0.lock().unwrap() = Some(a.clone());
        *there.0.lock().unwrap() = Some(b.clone());
        let endpoint = a.connect(b.address()).unwrap();
        send(&endpoint, &[&a, &b], 1);
        until(&[&a, &b], || numbers(&at_b, a.address()) == [1]);
        assert!(ferroce_transport::uct::Interface::is_reachable(&a, &b.address().to_bytes()).is_ok());
        assert_eq!(caches.map(|cache| cache.counters().misses), [1, 1]);
        (*here.0.lock().unwrap(), *there.0.lock().unwrap()) = (None, None);
        done.send(()).unwrap();
    });
    assert_eq!(is_done.recv_timeout(Duration::from_secs(60)), Ok(()), "it waits for itself");
}
