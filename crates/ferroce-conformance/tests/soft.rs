//! The suite on the software device, over each of its links.

use ferroce_conformance::{CaseReport, OneDevice, Options, SkipList, Testbed, Verdict, cases, run};
use ferroce_soft::{LinkMode, SoftConfig, SoftDevice};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tempfile::TempDir;

/// The address belongs to one registry at a time, so all tests of this process share one. The device makes the directory
/// itself, closed to others.
fn runtime_dir() -> PathBuf {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    DIR.get_or_init(|| tempfile::tempdir().expect("a directory for the registry")).path().join("registry")
}

fn check(link: LinkMode) {
    let config = SoftConfig { link, runtime_dir: Some(runtime_dir()), ..SoftConfig::default() };
    let testbed: Arc<dyn Testbed> = Arc::new(OneDevice::new(Arc::new(SoftDevice::new(config)), None));
    let filter = std::env::var("CONFORMANCE_FILTER").ok();
    let options = Options { filter, skip: skips(), workers: 2, ..Options::default() };
    let progress = |case: &CaseReport| {
        // Passed cases only where somebody looks: cargo shows the output of a failed test.
        if case.verdict != Verdict::Passed || std::env::var_os("CONFORMANCE_VERBOSE").is_some() {
            println!("{case}");
        }
    };
    let report = run(&testbed, cases(), &options, &progress);
    println!("{link:?}: {report}");
    assert!(report.is_success(), "{link:?}: {report}");
}

/// What the software device leaves out on purpose.
fn skips() -> SkipList {
    SkipList::new()
}

#[test]
fn over_auto() {
    check(LinkMode::Auto);
}

#[test]
fn over_udp() {
    check(LinkMode::Udp);
}

#[test]
fn over_shared_memory() {
    check(LinkMode::Shm);
}
