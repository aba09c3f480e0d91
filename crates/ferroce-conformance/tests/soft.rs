//! The suite on the software device, over each of its links, and what must survive a bad one.
//!
//! `CONFORMANCE_FILTER=text` runs the cases whose name contains the text, `CONFORMANCE_VERBOSE=1` lists those that pass.

use ferroce_conformance::{Case, CaseReport, End, OneDevice, Options, Side, SkipList, Testbed, Verdict, cases, run};
use ferroce_soft::{FaultConfig, LinkMode, SoftConfig, SoftDevice};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;

/// A network namespace for each case. Contexts of other cases that come and go would share its UDP port: the kernel renumbers the
/// sockets of a port when one goes, and until it is told, packets take a detour in which unreliable ones may be overtaken.
struct Isolated(SoftConfig);

impl Testbed for Isolated {
    fn open(&self, end: End) -> ferroce_verbs::Result<Side> {
        let own = || std::fs::read_link("/proc/thread-self/ns/net").expect("the thread's namespace");
        let mut namespace = own();
        if namespace == std::fs::read_link("/proc/self/ns/net").expect("the process's namespace") {
            ferroce_testing::isolate();
            namespace = own();
        }
        let directory = runtime_dir().join(namespace);
        let config = SoftConfig { runtime_dir: Some(directory), ..self.0.clone() };
        OneDevice::new(Arc::new(SoftDevice::new(config)), None).open(end)
    }
}

/// Where the registries of all cases are.
fn runtime_dir() -> PathBuf {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    DIR.get_or_init(|| tempfile::tempdir().expect("a directory for the registries")).path().to_owned()
}

fn check(name: &str, config: SoftConfig, cases: Vec<Case>, skip: SkipList) {
    let testbed: Arc<dyn Testbed> = Arc::new(Isolated(config));
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
    check("shm", SoftConfig { link: LinkMode::Shm, ..SoftConfig::default() }, cases(), skip);
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
