//! The tool without a peer: help, bad arguments, what is missing.

use crate::support::{ferroce, free_port, run, server, start};

#[test]
fn every_command_has_help_with_examples() {
    let root = run(&["--help"]).ok();
    for part in [
        "info",
        "pingpong",
        "perf",
        "demo",
        "storm",
        "cmatose",
        "udaddy",
        "cmtime",
        "bench",
        "Exit codes:",
        "FERROCE_LINK",
        "FERROCE_RUNTIME_DIR",
        "Examples:",
    ] {
        assert!(root.out.contains(part), "no {part} in {}", root.out);
    }
    for command in [
        &["info"][..],
        &["pingpong", "rc"],
        &["pingpong", "uc"],
        &["pingpong", "ud"],
        &["pingpong", "srq"],
        &["perf"],
        &["demo"],
        &["storm"],
        &["rping"],
        &["cmatose"],
        &["udaddy"],
        &["cmtime"],
        &["bench", "ah"],
    ] {
        let help = run(&[command, &["--help"]].concat()).ok();
        for part in ["Examples:", "--json", "--device", "--link", "--gid-index"] {
            assert!(help.out.contains(part), "{command:?}: no {part} in {}", help.out);
        }
    }
}

#[test]
fn bad_arguments_are_usage_errors() {
    for (args, part) in [
        (&["pingpong"][..], "Usage:"),
        (&["frobnicate"], "frobnicate"),
        (&["pingpong", "rc", "-m", "1000"], "256, 512, 1024, 2048, 4096"),
        (&["pingpong", "rc", "-s", "0"], "at least one byte"),
        (&["pingpong", "rc", "-s", "1T"], "K, M, G"),
        (&["pingpong", "rc", "-g", "eth0"], "neither an index"),
        (&["pingpong", "rc", "-p", "70000"], "70000"),
        (&["pingpong", "rc", "--link", "tcp"], "auto, udp, shm"),
        (&["pingpong", "srq", "-q", "256"], "256"),
        (&["pingpong", "srq", "-q", "16", "-r", "8"], "at least one receive"),
        (&["pingpong", "ud", "-m", "1024"], "-m"),
        (&["perf", "send"], "--lat"),
        (&["perf", "send", "--lat", "--bw"], "cannot be used with"),
        (&["perf", "erase", "--lat"], "atomic"),
        (&["perf", "send", "--bw", "--local", "--cq-mod", "9", "--depth", "8"], "--cq-mod"),
        (&["perf", "send", "--lat", "--local", "-q", "2"], "one queue pair"),
        (&["perf", "write", "--bw", "--local", "-s", "2G"], "1 GiB"),
        (&["storm", "--policy", "none"], "channel-lock"),
        (&["storm", "--cancel", "95"], "--cancel"),
        (&["storm", "--io-threads", "0"], "--io-threads"),
        (&["storm", "--listen", "somewhere"], "no IP address"),
        (&["storm", "--listen", "::", "--connect", "host"], "cannot be used with"),
        (&["cmtime", "-s", "::1", "--once"], "cannot be used with"),
        (&["cmatose", "-c", "0"], "--connections"),
        (&["udaddy", "-s", "somewhere"], "invalid IP address"),
    ] {
        let ended = run(args).failed(2, part);
        assert!(ended.out.is_empty(), "{ended:?}");
    }
}

#[test]
fn the_environment_is_checked_by_name() {
    for (name, value, part) in [
        ("FERROCE_LINK", "tcp", "FERROCE_LINK: there is no link \"tcp\""),
        ("FERROCE_FAULT", "loss=2", "FERROCE_FAULT: loss=\"2\""),
        ("FERROCE_FAULT", "lag=1", "no fault \"lag\""),
        ("FERROCE_LOG", "[[", "FERROCE_LOG"),
        ("FERROCE_AH_CACHE_TTL", "soon", "FERROCE_AH_CACHE_TTL: \"soon\" is no time: it is inf, 0"),
        ("FERROCE_AH_CACHE_MAX_AGE", "0", "FERROCE_AH_CACHE_MAX_AGE: it is 0"),
        ("FERROCE_AH_CACHE_CAPACITY", "many", "FERROCE_AH_CACHE_CAPACITY: \"many\" is no capacity"),
    ] {
        let mut command = ferroce(&["info"]);
        command.env(name, value);
        start(command).end().failed(2, part);
    }
    let mut command = ferroce(&["info"]);
    command.env("FERROCE_DEVICE", "mlx5_0");
    start(command).end().failed(3, "no device mlx5_0: this machine has soft0");
}

#[test]
fn what_is_not_there_is_said_with_what_there_is() {
    run(&["info", "-d", "mlx5_0"]).failed(3, "this machine has soft0");
    run(&["pingpong", "rc", "-d", "mlx5_0"]).failed(3, "this machine has soft0");
    run(&["pingpong", "rc", "-g", "9999"]).failed(3, "no GID index 9999: the device has 0 = ");
    run(&["perf", "send", "--lat", "-g", "203.0.113.77"]).failed(3, "203.0.113.77: the device has 0 = ");
    run(&["demo", "-d", "mlx5_0"]).failed(3, "this machine has soft0");
    run(&["pingpong", "rc", "no-such-host.invalid"]).failed(1, "cannot be found");
    run(&["perf", "send", "--lat", "127.0.0.1", "-p", &free_port()]).failed(1, "start the server first");
}

#[test]
fn failures_are_json_too() {
    let json = run(&["pingpong", "rc", "--json", "-g", "9999"]).failed(3, "the device has").json();
    assert!(json["error"]["message"].as_str().unwrap().contains("GID index 9999"), "{json}");
    assert_eq!(json["error"]["exit_code"], 3);
    let json = run(&["perf", "send", "--lat", "--json", "127.0.0.1", "-p", &free_port()]).failed(1, "hint").json();
    assert!(json["error"]["hint"].as_str().unwrap().contains("start the server"), "{json}");
}

/// A command line that is not understood leaves one document as well, if it asks for JSON.
#[test]
fn usage_errors_are_json_too() {
    for (args, part) in [
        (&["perf", "send", "--lat", "--json", "-s", "4G"][..], "less than 4 GiB"),
        (&["pingpong", "rc", "--json", "-m", "1000"], "256, 512, 1024, 2048, 4096"),
        (&["perf", "--json"], "<OP>"),
        (&["frobnicate", "--json"], "frobnicate"),
        (&["info", "--json", "--frobnicate"], "--frobnicate"),
    ] {
        let json = run(args).failed(2, part).json();
        assert!(json["error"]["message"].as_str().unwrap().contains(part), "{json}");
        assert_eq!(json["error"]["exit_code"], 2);
    }
    // What follows `--` is no option, and help is no error.
    assert!(run(&["perf", "send", "--lat", "--", "a", "--json"]).failed(2, "unexpected").out.is_empty());
    assert!(run(&["perf", "--json", "--help"]).ok().out.contains("Usage:"));
}

#[test]
fn a_tcp_port_in_use_is_named() {
    let port = free_port();
    let _first = server(&["pingpong", "rc"], &port);
    run(&["pingpong", "rc", "-p", &port]).failed(3, "with -p");
    run(&["perf", "send", "--lat", "-p", &port]).failed(3, &port);
}

#[test]
fn info_shows_the_device() {
    let json = run(&["info", "--json", "--counters"]).ok().json();
    let device = &json["devices"][0];
    assert_eq!(device["name"], "soft0");
    assert_eq!(device["provider"], "soft");
    for limit in ["max_qp", "max_qp_wr", "max_sge", "max_cqe", "max_mr", "max_srq", "max_inline_data"] {
        assert!(device["limits"][limit].as_u64().unwrap() > 0, "{limit}: {device}");
    }
    let port = &device["ports"][0];
    assert_eq!((port["port"].as_u64(), port["state"].as_str()), (Some(1), Some("active")));
    let gids = port["gids"].as_array().unwrap();
    assert!(gids.iter().any(|gid| gid["gid"] == "::ffff:127.0.0.1" && gid["loopback"] == true), "{port}");
    let counters = device["counters"].as_object().unwrap();
    for name in [
        "hits",
        "misses",
        "shared_waits",
        "requeries",
        "bypasses",
        "failures",
        "repeats",
        "refusals",
        "evictions",
        "invalidations",
        "live",
        "entries",
        "idle",
        "in_flight",
        "resolutions",
        "resolution_p50_us",
        "resolution_p99_us",
        "resolution_max_us",
    ] {
        let name = format!("ah_cache_{name}");
        assert_eq!(counters.get(&name).and_then(serde_json::Value::as_u64), Some(0), "{name}: this process used none");
    }
    assert!(counters.keys().any(|name| !name.starts_with("ah_cache_")), "the device's own");
    let buckets = device["ah_cache_resolution_buckets"].as_array().unwrap();
    let below: Vec<_> = buckets.iter().map(|bucket| bucket["below_us"].as_u64().unwrap()).collect();
    assert!(below.starts_with(&[1, 2, 4, 8]) && below.is_sorted(), "{below:?}");
    assert!(buckets.iter().all(|bucket| bucket["count"].as_u64() == Some(0)), "{buckets:?}");
    let without = run(&["info", "--json"]).ok().json();
    assert!(without["devices"][0].get("ah_cache_resolution_buckets").is_none());
    assert!(run(&["info", "--help"]).ok().out.contains("of the context that this process opens"));
    assert!(device["missing"].is_array());
    let one = run(&["info", "--json", "-g", "127.0.0.1"]).ok().json();
    assert_eq!(one["devices"][0]["ports"][0]["gids"].as_array().unwrap().len(), 1);
    let human = run(&["info"]).ok();
    assert!(human.out.contains("device soft0") && human.out.contains("::ffff:127.0.0.1"), "{}", human.out);
}
