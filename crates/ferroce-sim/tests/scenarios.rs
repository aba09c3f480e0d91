//! Every scenario, over as many seeds as a test run has time for: see [`Sweep::seeds_to_test`].

use ferroce_sim::{Failed, Options, Scenario, Sweep};

fn check(scenario: Scenario, debug: u64, release: u64) {
    let seeds = Sweep::seeds_to_test(if cfg!(debug_assertions) { debug } else { release });
    let seeds = (seeds / scenario.weight()).max(1);
    let (mut completed, mut bytes) = (0, 0);
    // What is broken mostly fails for many seeds, and may take long for each: a few are enough.
    for from in (0..seeds).step_by(8) {
        let seeds = from..seeds.min(from + 8);
        let sweep = Sweep { scenario, seeds, jobs: 1, twice: false, options: Options::default() };
        let result = sweep.run(&|_: Option<&Failed>| {});
        let failed: Vec<String> = result.failed.iter().map(ToString::to_string).collect();
        assert!(failed.is_empty(), "{} of seeds {:?} failed:\n{}", failed.len(), sweep.seeds, failed.join("\n"));
        completed += result.total.completed;
        bytes += result.total.bytes;
    }
    // That something happened at all.
    let (requests, sum) = match scenario {
        Scenario::Connections => (4, 40),
        Scenario::Hosts => (500, 5000),
        _ => (4, 1000),
    };
    assert!(
        completed > requests * seeds && bytes > sum * seeds,
        "{seeds} seeds did only {completed} requests, {bytes} bytes"
    );
}

/// 10 % each of loss, duplication, reordering and damage: every message once, in order and byte-exact, atomics executed once,
/// nothing left.
#[test]
fn rc() {
    check(Scenario::Rc, 300, 3000);
}

#[test]
fn rc_storm() {
    check(Scenario::RcStorm, 200, 1000);
}

#[test]
fn partition() {
    check(Scenario::Partition, 200, 1000);
}

#[test]
fn restart() {
    check(Scenario::Restart, 200, 1000);
}

#[test]
fn rnr() {
    check(Scenario::Rnr, 200, 1000);
}

#[test]
fn uc() {
    check(Scenario::Uc, 300, 3000);
}

#[test]
fn ud() {
    check(Scenario::Ud, 300, 3000);
}

/// Connection storms between a few hosts: see [`Scenario::Connections`].
#[test]
fn connections() {
    check(Scenario::Connections, 400, 3000);
}

/// The same between a thousand hosts.
#[test]
fn hosts() {
    check(Scenario::Hosts, 250, 1000);
}
