//! Every scenario, over as many seeds as a test run has time for: see [`Sweep::seeds_to_test`].

use ferroce_sim::{Failed, Options, Scenario, Sweep};

fn check(scenario: Scenario, debug: u64, release: u64) {
    let seeds = Sweep::seeds_to_test(if cfg!(debug_assertions) { debug } else { release });
    let sweep = Sweep { scenario, seeds: 0..seeds, jobs: 1, twice: false, options: Options::default() };
    let result = sweep.run(&|_: Option<&Failed>| {});
    let failed: Vec<String> = result.failed.iter().take(5).map(ToString::to_string).collect();
    assert!(failed.is_empty(), "{} of {seeds} seeds failed:\n{}", result.failed.len(), failed.join("\n"));
    // That something happened at all.
    let total = result.total;
    assert!(total.completed > 4 * seeds && total.bytes > 1000 * seeds, "{seeds} seeds did only {total:?}");
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
