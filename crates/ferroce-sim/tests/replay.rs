//! A seed names a run: it can be repeated packet by packet, in another process as well.

use ferroce_sim::{Failed, Failure, Options, Scenario};
use std::collections::HashSet;
use std::process::{Command, Output};

#[test]
fn same_seed_same_run() {
    for scenario in Scenario::ALL {
        let mut traces = HashSet::new();
        let seeds = if cfg!(debug_assertions) { 20 } else { 100 };
        // A thousand hosts do what a few do.
        let seeds = if scenario.weight() == 1 { seeds } else { 0 };
        for seed in 0..seeds {
            let [once, again] = [(); 2].map(|()| scenario.run(seed, &Options::default()).unwrap());
            assert_eq!(once, again, "{scenario}, seed {seed}");
            traces.insert(once.trace.value());
        }
        assert_eq!(traces.len(), seeds as usize, "different seeds of {scenario} give the same run");
    }
}

fn simulate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferroce-sim")).args(args).output().unwrap()
}

/// What a failure says is a command that shows the very run that failed: another process prints the same packets and
/// completions, to the nanosecond.
#[test]
fn a_failure_names_the_command_that_repeats_it() {
    for (scenario, seed) in [
        (Scenario::Rc, 3),
        (Scenario::RcStorm, 7),
        (Scenario::Restart, 11),
        (Scenario::Ud, 5),
        (Scenario::Connections, 4),
    ] {
        let text = Failed { scenario, seed, why: Failure::new("a test") }.to_string();
        let (why, command) = text.split_once('\n').unwrap();
        assert_eq!(why, format!("{scenario}, seed {seed}: a test"));
        let args = command.trim().strip_prefix("cargo run -p ferroce-sim --release -- ").expect(command);
        let args: Vec<&str> = args.split(' ').collect();
        let [once, again] = [(); 2].map(|()| simulate(&args));
        assert!(once.status.success(), "{once:?}");
        let packets = String::from_utf8_lossy(&once.stderr).lines().filter(|line| line.contains("Delivered")).count();
        assert!(packets > 10, "the log shows {packets} packets");
        assert!(once.stderr == again.stderr, "two processes log different runs of {scenario}, seed {seed}");
    }
}

#[test]
fn the_program_counts_what_it_ran() {
    let output = simulate(&["--scenario", "uc", "--seeds", "10", "--json", "--twice"]);
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["scenario"], &report["seeds"]), (&"uc".into(), &10.into()));
    assert_eq!(report["failed_seeds"], serde_json::json!([]));
    assert!(report["completed"].as_u64().unwrap() > 40);
}

#[test]
fn unknown_scenarios_are_named() {
    let output = simulate(&["--scenario", "tcp"]);
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("tcp") && error.contains("rc-storm"), "{error}");
}
