//! `ferroce storm`: connections that come and go, between two processes.

use crate::support::{ferroce, free_port, run, start};
use serde_json::Value;

/// Runs a storm that must go well, and checks what holds for each.
fn storm(args: &[&str]) -> Value {
    let json = run(&[&["storm", "--json", "--timeout", "60"], args].concat()).ok().json();
    for run in json["runs"].as_array().unwrap() {
        assert_eq!(run["errors"], 0, "{run}");
        for what in ["ids", "connections", "events", "qps", "ahs", "mrs"] {
            assert_eq!(run["leaked"][what], 0, "{what}: {run}");
        }
        check_figures(run);
    }
    json
}

fn check_figures(run: &Value) {
    let setup = |name: &str| run["setup_us"][name].as_f64().unwrap_or_else(|| panic!("no {name}: {run}"));
    assert!(setup("mean") > 0.0 && setup("p50") > 0.0, "{run}");
    assert!(setup("p50") <= setup("p99") && setup("p99") <= setup("max"), "{run}");
    assert!(setup("mean") <= setup("max"), "{run}");
    for name in ["rate_per_s", "cpu_us_per_connection"] {
        assert!(run[name].as_f64().unwrap() > 0.0, "{run}");
    }
}

#[test]
fn every_policy_and_link_with_cancellation() {
    for link in ["shm", "udp"] {
        let json = storm(&["--link", link, "--policy", "all", "--io-threads", "1,4", "-n", "300", "--cancel", "30"]);
        let runs = json["runs"].as_array().unwrap();
        let shape: Vec<_> =
            runs.iter().map(|run| (run["io_threads"].as_u64().unwrap(), run["policy"].as_str().unwrap())).collect();
        let policies = ["per-id", "deferred", "channel-lock"];
        let expected: Vec<_> = [1, 4].into_iter().flat_map(|io| policies.map(|policy| (io, policy))).collect();
        assert_eq!(shape, expected);
        for run in runs {
            assert_eq!((run["connections"].as_u64(), run["link"].as_str()), (Some(300), Some(link)), "{run}");
            assert_eq!((run["setup_in"].as_str(), run["nic"].as_str()), (Some("event"), Some("none")), "{run}");
            assert_eq!(run["nic_is_modelled"], false);
            // Those that are established before their time comes are made up for.
            let cancelled = run["cancelled"].as_u64().unwrap();
            assert!((1..=90).contains(&cancelled), "{run}");
        }
        assert!(json.get("tcp").is_none(), "{json}");
    }
}

#[test]
fn io_threads_set_up_too() {
    for policy in ["per-id", "deferred", "channel-lock"] {
        let json = storm(&["--setup-in", "io", "--policy", policy, "-n", "300", "--cancel", "20"]);
        assert_eq!(json["runs"][0]["setup_in"], "io", "{json}");
        assert!(json["runs"][0]["cancelled"].as_u64().unwrap() > 0, "{json}");
    }
}

#[test]
fn a_slow_nic_is_modelled_and_says_so() {
    let args = ["--nic", "slow", "--policy", "all", "-n", "40", "--cancel", "20", "--io-threads", "2"];
    let json = storm(&args);
    for run in json["runs"].as_array().unwrap() {
        assert_eq!((run["nic"].as_str(), run["nic_is_modelled"].as_bool()), (Some("slow"), Some(true)), "{run}");
        // Creating the queue pair, and moving it three times.
        assert!(run["setup_us"]["mean"].as_f64().unwrap() >= 750.0, "{run}");
    }
    let human = run(&["storm", "--nic", "slow", "-n", "5", "--setup-in", "io"]).ok();
    assert!(human.out.contains("modelled"), "{}", human.out);
}

/// A process that dies sends no word to its peers: what they had with it must end all the same, and leave nothing.
#[test]
fn a_server_that_is_killed_and_started_anew_interrupts_only_its_own() {
    for link in ["shm", "udp"] {
        let args = ["--kill-every", "0.3", "--nic", "slow", "-n", "500", "--cancel", "10", "--io-threads", "4"];
        let json = storm(&[&args[..], &["--link", link]].concat());
        let count = |name: &str| json["runs"][0][name].as_u64().unwrap_or_else(|| panic!("no {name}: {json}"));
        assert!(count("kills") > 0 && count("cancelled") > 0, "{json}");
        assert!(count("interrupted") > 0 && count("interrupted") < 500, "{json}");
        // What is over is remembered for a while. It took several tenths of a second, and one looks every 20 ms.
        let taken = |what: &str, half: &str| json["runs"][0][what]["client"][half].as_u64().unwrap();
        assert!(taken("memory_kib", "first_half") > 1000 && taken("memory_kib", "second_half") > 1000, "{json}");
        assert!((1..=600).contains(&taken("timewait", "second_half")), "{json}");
    }
}

#[test]
fn connections_that_stay_open() {
    // Those are not among the ones that are counted.
    let json = storm(&["--hold", "300", "-n", "200", "--cancel", "10"]);
    assert_eq!(json["runs"][0]["connections"], 200, "{json}");
    let json = storm(&["--keep", "-n", "300", "--hold", "5", "--policy", "all"]);
    assert_eq!(json["runs"].as_array().unwrap().len(), 3, "{json}");
    let refused = run(&["storm", "--hold", "60000"]);
    assert!(refused.code == Some(2) && refused.err.contains("at most 50000 connections"), "{}", refused.err);
}

#[test]
fn kernel_tcp_beside_it() {
    let json = storm(&["--baseline", "tcp", "--io-threads", "1,2", "-n", "200", "--policy", "all"]);
    let runs = json["tcp"]["runs"].as_array().unwrap();
    let threads: Vec<_> = runs.iter().map(|run| run["io_threads"].as_u64().unwrap()).collect();
    assert_eq!(threads, [1, 2]);
    for run in runs {
        assert_eq!((run["connections"].as_u64(), run["errors"].as_u64()), (Some(200), Some(0)), "{run}");
        check_figures(run);
    }
    let human = run(&["storm", "--baseline", "tcp", "-n", "50"]).ok();
    for part in ["per-id", "kernel TCP", "setup mean", "leaked"] {
        assert!(human.out.contains(part), "no {part} in {}", human.out);
    }
}

#[test]
fn one_connection_at_a_time_and_more_than_there_are() {
    for window in ["1", "1000"] {
        let json = storm(&["-n", "50", "--window", window]);
        assert_eq!(json["runs"][0]["window"].as_u64(), window.parse().ok(), "{json}");
        assert_eq!(json["runs"][0]["cancelled"], 0);
    }
}

#[test]
fn two_ends_that_were_started_by_hand() {
    let port = free_port();
    let at = format!("127.0.0.1:{port}");
    let mut server = start(ferroce(&["storm", "--listen", &at, "--json"]));
    server.says("waiting for a client");
    let json = storm(&["--connect", &at, "-n", "200", "--cancel", "10", "--baseline", "tcp"]);
    assert_eq!(json["runs"].as_array().unwrap().len(), 1);
    let seen = server.end().ok().json();
    // The storm's own run and TCP's.
    let runs = seen["runs"].as_array().unwrap();
    assert_eq!((seen["role"].as_str(), runs.len()), (Some("server"), 2), "{seen}");
    assert!(runs.iter().all(|run| run["errors"] == 0 && run["exchanged"].as_u64() <= Some(200)), "{seen}");
    run(&["storm", "--connect", &at, "-n", "1"]).failed(1, "start the server first");
}

#[test]
fn a_server_that_is_killed_is_noticed() {
    let port = free_port();
    let at = format!("127.0.0.1:{port}");
    let mut server = start(ferroce(&["storm", "--listen", &at]));
    server.says("waiting for a client");
    let mut command = ferroce(&["storm", "--connect", &at, "-n", "100000000", "--timeout", "2"]);
    command.env("FERROCE_LOG", "ferroce=debug");
    let mut client = start(command);
    client.says("storming");
    server.kill();
    client.end().failed(1, "the peer");
}
