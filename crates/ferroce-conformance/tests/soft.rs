//! The suite on the software device, over each of its links, and what must survive a bad one.
//!
//! `CONFORMANCE_FILTER=text` runs the cases whose name contains the text, `CONFORMANCE_VERBOSE=1` lists those that pass.

use ferroce_conformance::{Case, CaseReport, End, OneDevice, Options, Side, SkipList, Testbed, Verdict, cases, run};
use ferroce_soft::{FaultConfig, LinkMode, SoftConfig, SoftDevice};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// Contexts of one registry in a network namespace of its own. All cases of a run share it, as programs share a machine: what
/// comes and goes beside a case must not disturb it.
struct Isolated {
    config: SoftConfig,
    /// The thread that made the namespace, which keeps it.
    namespace: OwnedFd,
    _registry: TempDir,
}

impl Isolated {
    fn new(config: SoftConfig) -> Self {
        let registry = tempfile::tempdir().expect("a directory for the registry");
        let own = || {
            ferroce_testing::isolate();
            File::open("/proc/thread-self/ns/net").expect("the thread's namespace").into()
        };
        let namespace = std::thread::spawn(own).join().expect("a namespace");
        let config = SoftConfig { runtime_dir: Some(registry.path().join("registry")), ..config };
        Self { config, namespace, _registry: registry }
    }
}

impl Testbed for Isolated {
    fn open(&self, end: End) -> ferroce_verbs::Result<Side> {
        ferroce_testing::enter(self.namespace.as_fd());
        OneDevice::new(Arc::new(SoftDevice::new(self.config.clone())), None).open(end)
    }
}

fn check(name: &str, config: SoftConfig, cases: Vec<Case>, skip: SkipList) {
    let testbed: Arc<dyn Testbed> = Arc::new(Isolated::new(config));
    let filter = std::env::var("CONFORMANCE_FILTER").ok();
    let verbose = std::env::var_os("CONFORMANCE_VERBOSE").is_some();
    let options = Options { filter, skip, workers: 2, ..Options::default() };
    let progress = |case: &CaseReport| {
        if verbose || case.verdict != Verdict::Passed {
            println!("{name}: {case}");
        }
    };
    let report = run(&testbed, cases, &options, &progress);
    println!("{name}: {report}");
    assert!(report.is_success(), "{name}: {report}");
}

#[test]
fn over_either_link() {
    check("auto", SoftConfig { link: LinkMode::Auto, ..SoftConfig::default() }, cases(), SkipList::new());
}

#[test]
fn over_udp() {
    check("udp", SoftConfig { link: LinkMode::Udp, ..SoftConfig::default() }, cases(), SkipList::new());
}

#[test]
fn over_shared_memory() {
    // It reaches one known context at a time; who belongs to a group is only known to the network.
    let reason = "multicast goes over UDP, which this link mode does not use";
    let skip = ["mcast/attach-and-detach", "mcast/every-member-has-a-copy", "mcast/needs-the-qkey"]
        .into_iter()
        .fold(SkipList::new(), |skip, case| skip.skip(case, reason));
    // Every byte through the rings: `over_either_link` copies large messages from the sender's memory.
    check("shm", SoftConfig { link: LinkMode::Shm, cma: false, ..SoftConfig::default() }, cases(), skip);
}

/// Reliable connections lose, repeat and swap nothing on a link that does all three.
#[test]
fn over_a_bad_link() {
    let capture = std::env::var_os("CONFORMANCE_CAPTURE").map(PathBuf::from);
    let fault = FaultConfig { seed: 0xfe_220c, loss: 0.01, duplicate: 0.01, reorder: 0.01, corrupt: 0.01 };
    let config = SoftConfig { link: LinkMode::Udp, fault: Some(fault), capture, ..SoftConfig::default() };
    let reliable = |case: &Case| ["data/rc/", "order/rc/", "edge/rc/"].iter().any(|part| case.name().starts_with(part));
    check("bad link", config, cases().into_iter().filter(reliable).collect(), SkipList::new());
}
