//! Contexts that open and close on the UDP port beside a connection: it must not notice, and the port must not be shared by those
//! who cannot agree on it.

use ferroce_soft::host::Registry;
use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{
    Access, AhAttr, Context, Cq, Mr, Mtu, Qp, QpAttr, QpInitAttr, QpType, RecvWr, SendOp, SendWr, WcStatus,
    WorkCompletion,
};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

const LEN: usize = 20_000;
/// A hang becomes a failure after this.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(registry: &Path) -> Context {
    let config = SoftConfig { link: LinkMode::Udp, runtime_dir: Some(registry.into()), ..SoftConfig::default() };
    SoftDevice::new(config).open().expect("a context")
}

struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    gid_index: u32,
}

impl End {
    fn new(context: Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(256, None).unwrap();
        let qp = pd.create_qp(&QpInitAttr::new(QpType::Rc, &cq)).unwrap();
        let mr = pd.alloc_mr(2 * LEN, Access::ALL).unwrap();
        qp.modify(&QpAttr::init(Access::ALL)).unwrap();
        let gid_index = context.find_gid(1, "127.0.0.1".parse().unwrap()).unwrap().index;
        Self { context, cq, qp, mr, gid_index }
    }

    fn connect(&self, to: &Self) {
        let gid = to.context.query_gid(1, to.gid_index).unwrap().gid;
        let path = AhAttr::roce(gid, self.gid_index);
        self.qp.modify(&QpAttr::rtr(path, Mtu::Mtu1024, to.qp.qp_num(), 0x10)).unwrap();
        self.qp.modify(&QpAttr::rts(0x10)).unwrap();
    }

    fn completion(&self) -> WorkCompletion {
        let deadline = Instant::now() + PATIENCE;
        let mut wcs = [WorkCompletion::default()];
        while self.cq.poll(&mut wcs).unwrap() == 0 {
            assert!(Instant::now() < deadline, "nothing completes");
        }
        wcs[0]
    }

    fn strays(&self) -> u64 {
        let counters = self.context.counters();
        counters.iter().find(|(name, _)| *name == "strays").expect("a counter for strays").1
    }
}

fn pair(registry: &Path) -> (End, End) {
    let (a, b) = (End::new(open(registry)), End::new(open(registry)));
    a.connect(&b);
    b.connect(&a);
    (a, b)
}

/// One message from `a` to `b`, checked.
fn exchange(a: &End, b: &End, number: u32) {
    let bytes: Vec<u8> = (0..LEN).map(|at| (at as u32 * 31 + number) as u8).collect();
    a.mr.write(0, &bytes).unwrap();
    b.qp.post_recv(&[RecvWr::new(1, &[b.mr.sge(LEN..).unwrap()])]).unwrap();
    a.qp.post_send(&[SendWr::new(2, SendOp::SendImm(number), &[a.mr.sge(..LEN).unwrap()])]).unwrap();
    let received = b.completion();
    assert_eq!((received.status, received.imm_data()), (WcStatus::Success, Some(number)));
    assert_eq!(a.completion().status, WcStatus::Success);
    let mut got = vec![0; LEN];
    b.mr.read(LEN, &mut got).unwrap();
    assert!(got == bytes, "message {number}");
}

/// The conformance suite once ended in `transport retry counter exceeded` because other cases opened and closed contexts.
#[test]
fn a_connection_outlives_all_that_come_and_go_beside_it() {
    const OPENED: u32 = 120;
    ferroce_testing::isolate();
    let directory = tempfile::tempdir().unwrap();
    let registry = directory.path().join("registry");
    // The first one closes early, so that the sockets of the connection change their places, too.
    let first = open(&registry);
    let (a, b) = pair(&registry);
    let (opened, failed) = (AtomicU32::new(0), AtomicBool::new(false));
    let namespace = std::fs::File::open("/proc/thread-self/ns/net").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (registry, opened, namespace) = (&registry, &opened, &namespace);
            scope.spawn(move || {
                ferroce_testing::enter(std::os::fd::AsFd::as_fd(namespace));
                let mut held = Vec::new();
                while opened.fetch_add(1, Ordering::Relaxed) < OPENED {
                    held.push(open(registry));
                    if held.len() > thread {
                        held.swap_remove(0);
                    }
                }
            });
        }
        drop(first);
        let mut number = 0;
        while opened.load(Ordering::Relaxed) < OPENED && !failed.load(Ordering::Relaxed) {
            exchange(&a, &b, number);
            exchange(&b, &a, number);
            number += 1;
        }
    });
}

#[test]
fn packets_find_their_socket_again_after_others_closed() {
    ferroce_testing::isolate();
    let directory = tempfile::tempdir().unwrap();
    let registry = directory.path().join("registry");
    let mut others: Vec<Context> = (0..6).map(|_| open(&registry)).collect();
    let (a, b) = pair(&registry);
    let mut number = 0;
    let deadline = Instant::now() + PATIENCE;
    while !others.is_empty() {
        others.swap_remove(others.len() / 2);
        // How long the thread of the closed context takes is its affair; in the end nothing goes astray.
        loop {
            let before = a.strays() + b.strays();
            for _ in 0..10 {
                exchange(&a, &b, number);
                exchange(&b, &a, number);
                number += 1;
            }
            if a.strays() + b.strays() == before {
                break;
            }
            assert!(Instant::now() < deadline, "packets still go astray");
        }
    }
}

/// Says where the registry is to the copy of this program that is to be killed.
const VICTIM: &str = "FERROCE_TEST_CHURN_VICTIM";

/// Holds two contexts until it is killed, if this is the copy that is to be.
fn be_the_victim() {
    let Some(registry) = std::env::var_os(VICTIM) else { return };
    let _contexts = [open(Path::new(&registry)), open(Path::new(&registry))];
    println!("open");
    loop {
        std::thread::park();
    }
}

/// Starts the victim, waits until it has its contexts, kills it.
fn kill_one(registry: &Path) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "packets_find_their_socket_again_after_others_were_killed", "--nocapture"])
        .env(VICTIM, registry)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("open")), "the victim opens no context");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A probe to an index that no socket had was once believed by whoever the kernel gave it to: then packets went astray where
/// nobody had been killed since, until the next probes.
#[test]
fn packets_find_their_socket_again_after_others_were_killed() {
    const EXCHANGES: u32 = 500;
    be_the_victim();
    ferroce_testing::isolate();
    let directory = tempfile::tempdir().unwrap();
    let registry = directory.path().join("registry");
    let mut number = 0;
    for _ in 0..4 {
        kill_one(&registry);
        // Finds the dead, and makes the others look for their sockets.
        let (a, b) = pair(&registry);
        kill_one(&registry);
        let (c, d) = pair(&registry);
        let deadline = Instant::now() + PATIENCE;
        let strays = || [&a, &b, &c, &d].iter().map(|end| end.strays()).sum::<u64>();
        let (mut before, mut clean) = (strays(), 0);
        while clean < EXCHANGES {
            for (from, to) in [(&a, &b), (&d, &c)] {
                exchange(from, to, number);
            }
            number += 1;
            let now = strays();
            clean = if now == before { clean + 1 } else { 0 };
            before = now;
            assert!(Instant::now() < deadline, "packets still go astray");
        }
        let contexts = Registry::list(Some(&registry)).unwrap();
        let indices: BTreeSet<u32> = contexts.iter().filter(|slot| slot.alive).map(|slot| slot.udp_index).collect();
        assert_eq!(indices, (1..=4).collect(), "{contexts:?}");
    }
}

/// A program that starts another one while it closes a context: the new process has a copy of the socket for a moment, and a packet
/// that came there was lost.
#[test]
fn a_context_has_left_once_no_copy_of_its_socket_is_in_the_group() {
    ferroce_testing::isolate();
    let directory = tempfile::tempdir().unwrap();
    let registry = directory.path().join("registry");
    let first = open(&registry);
    let copy = copy_of_the_socket();
    let (a, b) = pair(&registry);
    let closed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            closed.store(true, Ordering::SeqCst);
            drop(copy);
        });
        drop(first);
        let deadline = Instant::now() + PATIENCE;
        while Registry::list(Some(&registry)).unwrap().len() > 2 {
            assert!(Instant::now() < deadline, "it does not leave");
            std::thread::yield_now();
        }
        assert!(closed.load(Ordering::SeqCst), "it left before its socket was gone");
    });
    exchange(&a, &b, 1);
    exchange(&b, &a, 2);
}

/// A copy of the only socket of this network namespace that is bound to the RoCEv2 port.
fn copy_of_the_socket() -> OwnedFd {
    let table = std::fs::read_to_string("/proc/thread-self/net/udp6").unwrap();
    let line = table.lines().find(|line| line.contains(":12B7 ")).expect("port 4791 in the table");
    let name = format!("socket:[{}]", line.split_ascii_whitespace().nth(9).unwrap());
    let fd = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .find(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == name.as_str()))
        .expect("a descriptor of this process");
    let fd = fd.file_name().to_str().unwrap().parse().unwrap();
    let this = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
    pidfd_getfd(this, fd, PidfdGetfdFlags::empty()).unwrap()
}

#[test]
fn a_second_registry_on_the_port_is_refused() {
    ferroce_testing::isolate();
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (directory.path().join("one"), directory.path().join("other"));
    let first = open(&one);
    let config = SoftConfig { runtime_dir: Some(other.clone()), ..SoftConfig::default() };
    let error = SoftDevice::new(config).open().expect_err("two registries share a port").to_string();
    for part in ["port 4791", "FERROCE_RUNTIME_DIR", &format!("process {}", std::process::id())] {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
    // The first is as it was; once it is gone the port is free.
    drop(open(&one));
    drop(first);
    drop(open(&other));
}
