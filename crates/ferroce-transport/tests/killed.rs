//! A peer's process is killed in the middle of its traffic: the endpoint that talked to it fails, once and with a cause, in bounded time; everything that was
//! begun on it is answered; others do not notice; and nothing is left.
//!
//! The test program starts itself again as the victim, and lives on beside a second interface of its own with which it exchanges checked messages all
//! the time.

mod waiting;

use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_transport::rc_verbs::{EndpointAddress, RcEndpoint, RcOptions, RcVerbs};
use ferroce_transport::uct::{AmHandler, Cause, CompletionCounter, Endpoint, FlushKind, Interface, OpError, Posted};
use ferroce_transport::ud::Config;
use ferroce_transport::ud_verbs::{InterfaceAddress, UdEndpoint, UdOptions, UdVerbs};
use ferroce_verbs::Context;
use ferroce_verbs::provider::Device;
use std::fmt::Debug;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use waiting::until;

const ROLE: &str = "FERROCE_TEST_VICTIM";
const AM: u8 = 4;
const ROUNDS: u32 = 3;
/// A sign of life is asked for so often, and waited for so long.
const KEEPALIVE: Duration = Duration::from_millis(50);

/// What the test must know of a transport.
trait Transport {
    type Interface: Interface + Debug;
    type Endpoint: Endpoint;
    /// An end whose address is known, and that is not connected.
    type Half;
    const TEST: &'static str;
    fn open(context: &Context) -> Self::Interface;
    fn half(interface: &Self::Interface) -> (Self::Half, Vec<u8>);
    fn join(interface: &Self::Interface, half: Self::Half, peer: &[u8]) -> Self::Endpoint;
    /// Endpoints that exist, of whatever kind, and whether anything of theirs is missing.
    fn left(interface: &Self::Interface) -> (usize, bool);
}

struct Rc;

impl Transport for Rc {
    type Interface = RcVerbs;
    type Endpoint = RcEndpoint;
    type Half = RcEndpoint;
    const TEST: &'static str = "rc_verbs_outlives_a_killed_peer";

    fn open(context: &Context) -> RcVerbs {
        let options = RcOptions {
            address: Some(IpAddr::from([127, 0, 0, 1])),
            max_endpoints: 16,
            ack_timeout: 13,
            retry_count: 4,
            keepalive: Some(KEEPALIVE),
            ..RcOptions::default()
        };
        RcVerbs::open(context, options).unwrap()
    }

    fn half(interface: &RcVerbs) -> (RcEndpoint, Vec<u8>) {
        let endpoint = interface.create_endpoint().unwrap();
        let address = endpoint.address().to_bytes().to_vec();
        (endpoint, address)
    }

    fn join(_: &RcVerbs, half: RcEndpoint, peer: &[u8]) -> RcEndpoint {
        half.connect_to_ep(&EndpointAddress::from_bytes(peer).unwrap()).unwrap();
        half
    }

    fn left(interface: &RcVerbs) -> (usize, bool) {
        let counters = interface.counters();
        (counters.endpoints, counters.free_buffers != 512)
    }
}

struct Ud;

impl Transport for Ud {
    type Interface = UdVerbs;
    type Endpoint = UdEndpoint;
    type Half = ();
    const TEST: &'static str = "ud_verbs_outlives_a_killed_peer";

    fn open(context: &Context) -> UdVerbs {
        // A loaded machine runs neither end for a while.
        let protocol = Config { keepalive: Some(KEEPALIVE), peer_timeout: Duration::from_secs(2), ..Config::default() };
        let options = UdOptions { address: Some(IpAddr::from([127, 0, 0, 1])), protocol, ..UdOptions::default() };
        UdVerbs::open(context, options).unwrap()
    }

    fn half(interface: &UdVerbs) -> ((), Vec<u8>) {
        ((), interface.address_bytes())
    }

    fn join(interface: &UdVerbs, (): (), peer: &[u8]) -> UdEndpoint {
        interface.connect(InterfaceAddress::from_bytes(peer).unwrap()).unwrap()
    }

    fn left(interface: &UdVerbs) -> (usize, bool) {
        let counters = interface.counters();
        (counters.endpoints, counters.leases > counters.endpoints)
    }
}

/// What came with each tag, each in its turn.
type Arrived = Arc<Mutex<[u32; 3]>>;

fn message(tag: usize, number: u32) -> Vec<u8> {
    let mut bytes = [(tag as u32).to_be_bytes(), number.to_be_bytes()].concat();
    bytes.resize(8 + number as usize * 37 % 2000, number as u8);
    bytes
}

fn checking(arrived: &Arrived) -> AmHandler {
    let arrived = arrived.clone();
    Arc::new(move |got| {
        let tag = u32::from_be_bytes(got.payload[..4].try_into().unwrap()) as usize;
        let next = &mut arrived.lock().unwrap()[tag];
        assert!(got.payload == message(tag, *next), "{tag}: message {next} is lost, twice, or damaged");
        *next += 1;
    })
}

/// Sends the next message, if there are resources.
fn send(endpoint: &dyn Endpoint, tag: usize, sent: &mut u32) -> Result<(), OpError> {
    match endpoint.am_bcopy(AM, &mut |packer| packer.put(&message(tag, *sent)).unwrap()) {
        Ok(_) => *sent += 1,
        Err(OpError::NoResource) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn context() -> Context {
    SoftDevice::new(SoftConfig { link: LinkMode::Auto, ..SoftConfig::default() }).open().unwrap()
}

const VICTIM: usize = 0;
const SURVIVOR: usize = 1;
const TO_VICTIM: usize = 2;

/// Talks until it is killed, or whoever started it is gone.
fn victim<T: Transport>() {
    let context = context();
    let interface = T::open(&context);
    interface.set_am(AM, Some(checking(&Arrived::default()))).unwrap();
    let (half, address) = T::half(&interface);
    println!("address {}", hex(&address));
    let mut lines = BufReader::new(std::io::stdin()).lines();
    let peer = lines.next().unwrap().unwrap();
    let endpoint = T::join(&interface, half, &bytes(&peer));
    std::thread::spawn(move || {
        let _ = lines.next();
        std::process::exit(0);
    });
    let mut sent = 0;
    while send(&endpoint, VICTIM, &mut sent).is_ok() {
        interface.progress().unwrap();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// A process that is killed whatever happens.
struct Killed(Child);

impl Killed {
    fn start(test: &str, directory: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(ROLE, "1")
            .env("FERROCE_RUNTIME_DIR", directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    /// Tells it where this side is; says where it is, once it knows. It takes a while to begin.
    fn introduce(&mut self, address: &[u8]) -> Receiver<Vec<u8>> {
        writeln!(self.0.stdin.as_mut().unwrap(), "{}", hex(address)).unwrap();
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let (say, said) = channel();
        std::thread::spawn(move || {
            let mut lines = lines.map_while(Result::ok);
            let line = lines.find_map(|line| line.split_once("address ").map(|(_, hex)| hex.to_owned()));
            let _ = say.send(bytes(&line.expect("it says where it is")));
        });
        said
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // SIGKILL; what is dead already stays so.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn outlives<T: Transport>() {
    if std::env::var_os(ROLE).is_some() {
        return victim::<T>();
    }
    ferroce_testing::isolate();
    let directory = tempfile::Builder::new().prefix("ferroce-test-").tempdir_in("/dev/shm").unwrap();
    let directory = directory.path().join("run");
    // All of this thread's contexts are on the victims' machine.
    let config = SoftConfig { link: LinkMode::Auto, runtime_dir: Some(directory.clone()), ..SoftConfig::default() };
    let open = || T::open(&SoftDevice::new(config.clone()).open().unwrap());
    let (a, b) = (open(), open());
    let (at_a, at_b) = (Arrived::default(), Arrived::default());
    a.set_am(AM, Some(checking(&at_a))).unwrap();
    b.set_am(AM, Some(checking(&at_b))).unwrap();
    let ((half_a, address_a), (half_b, address_b)) = (T::half(&a), T::half(&b));
    let (to_b, to_a) = (T::join(&a, half_a, &address_b), T::join(&b, half_b, &address_a));
    let (mut sent, mut back) = (0, 0);
    let mut before = None;
    for round in 0..ROUNDS {
        at_a.lock().unwrap()[VICTIM] = 0;
        let mut process = Killed::start(T::TEST, &directory);
        let (half, address) = T::half(&a);
        let said = process.introduce(&address);
        let mut peer = None;
        until(&[&a, &b], || {
            peer = said.try_recv().ok();
            peer.is_some()
        });
        let dying = T::join(&a, half, &peer.unwrap());
        let (told, done) = (Arc::new(AtomicU32::new(0)), CompletionCounter::new());
        let tell = told.clone();
        dying.on_failure(Box::new(move |failure| {
            // A peer that is found dead, or whose queue pair nobody knows any more.
            assert!(matches!(failure.cause, Cause::PeerTimeout | Cause::Closed), "{failure}");
            assert!(failure.evidence.last_ack.is_some(), "{failure}");
            tell.fetch_add(1, Ordering::SeqCst);
        }));
        let (mut to_victim, mut process) = (0, Some(process));
        until(&[&a, &b], || {
            send(&to_b, SURVIVOR, &mut sent).unwrap();
            send(&to_a, SURVIVOR, &mut back).unwrap();
            if send(&dying, TO_VICTIM, &mut to_victim).is_ok() && to_victim % 16 == 0 {
                match dying.flush(FlushKind::Local, Some(done.token())) {
                    Ok(Posted::InProgress) => {}
                    _ => done.answered(),
                }
            }
            if at_a.lock().unwrap()[VICTIM] > 100 * (round + 1) {
                // In the middle of it.
                drop(process.take());
            }
            told.load(Ordering::SeqCst) != 0
        });
        assert!(process.is_none(), "it was alive, and was given up: {:?}", dying.failure());
        assert!(matches!(dying.am_short(AM, &[]), Err(OpError::Failed(..))));
        until(&[&a, &b], || done.outstanding() == 0);
        assert_eq!(done.canceled(), 0);
        drop(dying);
        // Both ends of the survivors' connections, and what they had before.
        until(&[&a, &b], || T::left(&a).0 == *before.get_or_insert(T::left(&b).0));
        assert_eq!(told.load(Ordering::SeqCst), 1);
    }
    until(&[&a, &b], || a.flush() && b.flush());
    until(&[&a, &b], || at_b.lock().unwrap()[SURVIVOR] == sent && at_a.lock().unwrap()[SURVIVOR] == back);
    assert!(to_b.failure().is_none() && to_a.failure().is_none() && sent > 100 && back > 100);
    drop((to_a, to_b));
    until(&[&a, &b], || T::left(&a) == (0, false) && T::left(&b) == (0, false));
}

#[test]
fn rc_verbs_outlives_a_killed_peer() {
    outlives::<Rc>();
}

#[test]
fn ud_verbs_outlives_a_killed_peer() {
    outlives::<Ud>();
}
