//! Two hosts with a wire between them: network namespaces of threads of this program, and a pair of virtual Ethernet devices.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The first host's address.
pub const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// The second host's address.
pub const THERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// A station's address.
pub type Mac = [u8; 6];

type Job = Box<dyn FnOnce() + Send>;

/// A thread in a network namespace of its own, which does what it is told.
pub struct Host {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    fn new() -> Self {
        let (jobs, todo) = channel::<Job>();
        let thread = std::thread::spawn(move || {
            crate::isolate();
            todo.iter().for_each(|job| job());
        });
        Self { jobs: Some(jobs), thread: Some(thread) }
    }

    /// Does something there, and waits for it.
    ///
    /// # Panics
    ///
    /// If what it does panics.
    pub fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let (result, done) = channel();
        let job: Job = Box::new(move || {
            let _ = result.send(f());
        });
        self.jobs.as_ref().unwrap().send(job).unwrap();
        done.recv().expect("the other host has panicked")
    }

    /// Runs `ip`, of iproute2, there.
    ///
    /// # Panics
    ///
    /// If it fails.
    pub fn ip(&self, args: &str) {
        let args = args.to_owned();
        self.run(move || {
            let status = Command::new("ip").args(args.split(' ')).status().expect("ip of iproute2");
            assert!(status.success(), "ip {args}");
        });
    }

    fn set(&self, setting: &str, value: &str) {
        let (path, value) = (format!("/proc/sys/net/ipv4/{setting}"), value.to_owned());
        self.run(move || std::fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}")));
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.jobs = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The hosts: what is called `here` on the first is connected with what is called `there` on the second.
pub fn wire() -> (Host, Host) {
    let (a, b) = (Host::new(), Host::new());
    let other = b.run(|| rustix::thread::gettid().as_raw_nonzero());
    a.ip("link add here type veth peer name there");
    a.ip(&format!("link set there netns {other}"));
    a.ip("address add 10.9.0.1/24 dev here");
    b.ip("address add 10.9.0.2/24 dev there");
    // Who changes its MAC says so at once, and is believed at once.
    b.set("conf/there/arp_notify", "1");
    a.set("neigh/here/locktime", "0");
    a.ip("link set here up");
    b.ip("link set there up");
    wait_for("the wire", || a.run(neighbour_answers));
    (a, b)
}

/// Has the kernel find out the MAC of the other end.
fn neighbour_answers() -> bool {
    let socket = UdpSocket::bind((HERE, 0)).unwrap();
    let _ = socket.send_to(&[0], (THERE, 9));
    let output = Command::new("ip").args(["neigh", "show", "10.9.0.2"]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("lladdr")
}

/// Waits until something is so.
///
/// # Panics
///
/// If that takes 20 seconds.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// As `ip` takes it.
pub fn text(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}
