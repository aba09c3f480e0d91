//! `ferroce perf` and `ferroce demo` between two processes.

use crate::support::{both, ferroce, free_port, run, server, start};
use serde_json::Value;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const OPS: [&str; 4] = ["send", "write", "read", "atomic"];

fn measure(args: &[&str]) -> Value {
    run(&[&["perf"], args, &["--local", "--json", "--timeout", "60"]].concat()).ok().json()
}

fn check_latency(json: &Value) {
    let figure = |name: &str| json["latency_us"][name].as_f64().unwrap_or_else(|| panic!("no {name}: {json}"));
    assert!(figure("mean") > 0.0, "{json}");
    assert!(figure("p50") <= figure("p99") && figure("p99") <= figure("p999"), "{json}");
    assert!(figure("p999") <= figure("max"), "{json}");
    assert!(json.get("mb_per_s").is_none(), "{json}");
}

fn check_rate(json: &Value) {
    let (mb, msgs) = (json["mb_per_s"].as_f64().unwrap(), json["msgs_per_s"].as_f64().unwrap());
    let expected = msgs * json["size"].as_f64().unwrap() / 1e6;
    assert!(msgs > 0.0 && (mb - expected).abs() <= 0.001 + expected * 0.001, "{json}");
    assert!(json.get("latency_us").is_none(), "{json}");
}

#[test]
fn every_operation_and_mode_over_both_links() {
    for link in ["shm", "udp"] {
        for op in OPS {
            for mode in ["lat", "bw", "rate"] {
                let flag = format!("--{mode}");
                let json = measure(&[op, &flag, "--link", link, "-n", "200", "--warmup", "10"]);
                assert_eq!((json["op"].as_str(), json["mode"].as_str()), (Some(op), Some(mode)), "{json}");
                assert_eq!((json["link"].as_str(), json["iterations"].as_u64()), (Some(link), Some(200)), "{json}");
                match mode {
                    "lat" => check_latency(&json),
                    _ => check_rate(&json),
                }
                if mode == "lat" {
                    let half = ["send", "write"].contains(&op);
                    assert_eq!(json["latency_of"], if half { "half_round_trip" } else { "round_trip" });
                }
            }
        }
    }
}

/// Operations of transports: each with its transport's name.
#[test]
fn every_operation_of_every_transport() {
    let all =
        [("rc_verbs", "am"), ("rc_verbs", "put"), ("rc_verbs", "get"), ("rc_verbs", "atomic"), ("ud_verbs", "am")];
    for link in ["shm", "udp"] {
        for (transport, op) in all {
            for mode in ["lat", "bw", "rate"] {
                let flag = format!("--{mode}");
                let json =
                    measure(&[op, &flag, "--transport", transport, "--link", link, "-n", "300", "--warmup", "10"]);
                assert_eq!((json["op"].as_str(), json["transport"].as_str()), (Some(op), Some(transport)), "{json}");
                assert_eq!((json["link"].as_str(), json["iterations"].as_u64()), (Some(link), Some(300)), "{json}");
                match mode {
                    "lat" => check_latency(&json),
                    _ => check_rate(&json),
                }
                if mode == "lat" {
                    let half = ["am", "put"].contains(&op);
                    assert_eq!(json["latency_of"], if half { "half_round_trip" } else { "round_trip" });
                }
            }
        }
    }
    let plain = measure(&["atomic", "--lat", "-n", "10"]);
    assert!(plain.get("transport").is_none(), "{plain}");
}

/// Short, packed and registered memory; sleeping ends; what does not fit.
#[test]
fn transports_with_sizes_and_events() {
    for (op, sizes) in [("am", "1,63,251,252,8192"), ("put", "1,256,257,300001"), ("get", "1,8193,300001")] {
        for mode in ["--lat", "--bw"] {
            let json = measure(&[op, mode, "-s", sizes, "-n", "50"]);
            assert_eq!(json.as_array().unwrap().len(), sizes.split(',').count(), "{json}");
        }
    }
    for transport in ["rc_verbs", "ud_verbs"] {
        for mode in ["--lat", "--rate"] {
            let json = measure(&["am", mode, "--transport", transport, "-e", "-D", "0.2"]);
            assert!(json["iterations"].as_u64().unwrap() > 0, "{json}");
        }
    }
    let args = ["perf", "am", "--lat", "--json"];
    let (server, client) = both(&args, &[&args[..], &["-n", "100"]].concat(), "127.0.0.1");
    assert_eq!(server.ok().json(), client.ok().json());
    run(&["perf", "am", "--bw", "-s", "8193", "--local"]).failed(2, "the 8192 that rc_verbs takes");
    run(&["perf", "get", "--lat", "--transport", "ud_verbs", "--local"]).failed(2, "active messages only");
}

#[test]
fn several_sizes_give_a_list() {
    for (op, mode) in [("send", "--lat"), ("write", "--lat"), ("read", "--lat"), ("send", "--bw"), ("write", "--bw")] {
        let json = measure(&[op, mode, "-s", "1,63,64,65,4097,300001", "-n", "50", "-m", "512"]);
        let sizes: Vec<u64> = json.as_array().unwrap().iter().map(|one| one["size"].as_u64().unwrap()).collect();
        assert_eq!(sizes, [1, 63, 64, 65, 4097, 300_001]);
        assert!(json.as_array().unwrap().iter().all(|one| one["mtu"] == 512), "{json}");
    }
}

/// Less than one message a second is not none.
#[test]
fn the_rate_of_large_messages_is_no_whole_number() {
    let json = measure(&["write", "--bw", "-s", "64M", "-n", "3", "--warmup", "1"]);
    check_rate(&json);
}

/// Shared memory that cannot be had is said, with what to do: what fails then says only that the peer did not answer.
#[test]
fn shared_memory_without_room_is_said() {
    let mount = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=1m,mode=700 none "$0" && ip link set lo up && exec "$@""#;
    let inside = |run: &std::process::Command| {
        let mut command = std::process::Command::new("unshare");
        command.args(["--map-root-user", "--mount", "--net", "sh", "-c", script]).arg(mount.path());
        command.arg(run.get_program()).args(run.get_args());
        command.env("FERROCE_RUNTIME_DIR", mount.path().join("registry"));
        command
    };
    if start(inside(&std::process::Command::new("true"))).end().code != Some(0) {
        eprintln!("skipped: this system does not permit mounting a file system");
        return;
    }
    let args = ["perf", "send", "--lat", "-n", "10", "--local", "--link", "shm"];
    start(inside(&ferroce(&args))).end().failed(1, "name a directory on a larger file system with FERROCE_RUNTIME_DIR");
    // With another link at hand the warning is all.
    let ended = start(inside(&ferroce(&args[..args.len() - 2]))).end().ok();
    assert!(ended.err.contains("no shared memory to another context: no room for a ring"), "{ended:?}");
}

#[test]
fn queue_pairs_lists_and_moderation_in_all_shapes() {
    for (qps, depth, list, moderation, iters) in [
        ("1", "1", "1", "1", "7"),
        ("3", "8", "3", "5", "100"),
        ("7", "16", "16", "16", "1000"),
        ("2", "64", "1", "64", "129"),
    ] {
        for op in OPS {
            let shape = [
                "-q",
                qps,
                "--depth",
                depth,
                "--post-list",
                list,
                "--cq-mod",
                moderation,
                "-n",
                iters,
                "--warmup",
                "33",
            ];
            let json = measure(&[&[op, "--rate"], &shape[..]].concat());
            assert_eq!(json["iterations"].as_u64(), iters.parse().ok(), "{json}");
            assert_eq!(json["qps"].as_u64(), qps.parse().ok());
        }
    }
}

#[test]
fn events_and_durations() {
    for (op, mode) in [("send", "--lat"), ("read", "--lat"), ("send", "--bw"), ("write", "--bw"), ("atomic", "--rate")]
    {
        let json = measure(&[op, mode, "-e", "-D", "0.2"]);
        assert!(json["iterations"].as_u64().unwrap() > 0, "{json}");
        assert!(json["seconds"].as_f64().unwrap() >= 0.2, "{json}");
    }
    let json = measure(&["send", "--rate", "-D", "0.2", "-q", "3"]);
    assert!(json["iterations"].as_u64().unwrap() > 0, "{json}");
}

#[test]
fn two_ends_report_the_same() {
    let args = ["perf", "write", "--bw", "--json"];
    let (server, client) = both(&args, &[&args[..], &["-n", "100"]].concat(), "127.0.0.1");
    assert_eq!(server.ok().json(), client.ok().json());
    let args = ["perf", "send", "--lat"];
    let (server, client) = both(&args, &[&args[..], &["-n", "100"]].concat(), "::1");
    let (server, client) = (server.ok(), client.ok());
    assert!(client.out.contains("send latency in µs (half round trip)"), "{}", client.out);
    assert!(client.out.contains(" ::1 QPN 0x"), "{}", client.out);
    assert!(server.out.contains("send latency in µs"), "{}", server.out);
}

#[test]
fn a_client_that_wants_something_else_is_told_and_the_server_waits_on() {
    let port = free_port();
    let mut server = server(&["perf", "write", "--bw"], &port);
    let refusal = "the server was started for `perf write --bw`, the client for `perf send --lat`";
    run(&["perf", "send", "--lat", "127.0.0.1", "-p", &port]).failed(1, refusal);
    let gone = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    drop(gone);
    let mut rubbish = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    rubbish.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    drop(rubbish);
    let hello = br#"{"message":"hello","version":99,"plan":{}}"#;
    let mut newer = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    newer.write_all(&(hello.len() as u32).to_be_bytes()).unwrap();
    newer.write_all(hello).unwrap();
    run(&["perf", "write", "--bw", "-n", "10", "127.0.0.1", "-p", &port]).ok();
    let ended = server.end().ok();
    for part in [refusal, "closed the connection", "control message of", "1 here, 99 there"] {
        assert!(ended.err.contains(part), "no {part:?} in {}", ended.err);
    }
}

#[test]
fn links_and_mtus_that_do_not_match_are_named() {
    let port = free_port();
    let _server = server(&["perf", "send", "--lat", "--link", "udp"], &port);
    let client = run(&["perf", "send", "--lat", "--link", "shm", "127.0.0.1", "-p", &port]);
    client.failed(1, "the server was started with --link udp, the client asks for shm");
    let info = run(&["info", "--json"]).ok().json();
    let gids = info["devices"][0]["ports"][0]["gids"].as_array().unwrap();
    if let Some(small) =
        gids.iter().find(|gid| gid["mtu"].as_u64() < Some(4096) && gid["ip"].as_str().unwrap().contains('.'))
    {
        let ip = small["ip"].as_str().unwrap();
        run(&["perf", "send", "--lat", "--local", "-m", "4096", "-g", ip])
            .failed(1, &format!("4096 was asked for, this end carries {}", small["mtu"]));
    }
}

/// Starts both ends of an endless measurement and waits until it is on: the server then takes no other client.
fn endless(link: &str) -> (crate::support::Running, crate::support::Running) {
    let port = free_port();
    let server = server(&["perf", "send", "--lat"], &port);
    let mut command = ferroce(&["perf", "send", "--lat", "-D", "3600", "--link", link, "127.0.0.1", "-p", &port]);
    command.env("FERROCE_LOG", "ferroce=debug");
    let mut client = start(command);
    client.says("measuring");
    (server, client)
}

#[test]
fn a_peer_that_is_killed_is_noticed_by_either_end() {
    for link in ["shm", "udp"] {
        let (mut server, mut client) = endless(link);
        server.kill();
        client.end().failed(1, "the peer");
        let (mut server, mut client) = endless(link);
        client.kill();
        server.end().failed(1, "closed the connection");
    }
}

#[test]
fn the_child_ends_with_its_parent() {
    let mut command = ferroce(&["perf", "send", "--lat", "-D", "3600", "--local"]);
    command.env("FERROCE_LOG", "ferroce=debug");
    let mut parent = start(command);
    parent.says("measuring");
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.pid())).unwrap();
    let child: u32 = children.split_whitespace().next().unwrap().parse().unwrap();
    parent.kill();
    // An orphan that nobody waits for stays a zombie.
    let alive = || {
        std::fs::read_to_string(format!("/proc/{child}/stat"))
            .is_ok_and(|stat| !matches!(stat.rsplit(") ").next().and_then(|rest| rest.chars().next()), Some('Z' | 'X')))
    };
    let give_up = Instant::now() + Duration::from_secs(60);
    while alive() {
        assert!(Instant::now() < give_up, "the child lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_demo_shows_both_links() {
    let json = run(&["demo", "--json"]).ok().json();
    let links = json["links"].as_array().unwrap();
    assert_eq!(links.len(), 2);
    assert!(json["seconds"].as_f64().unwrap() > 0.0);
    for (shown, link) in links.iter().zip(["shm", "udp"]) {
        assert_eq!(shown["link"], link);
        for end in ["local", "remote"] {
            let end = &shown["connected"][end];
            assert_eq!(end["device"], "soft0", "{shown}");
            assert!(end["pid"].as_u64().unwrap() > 0 && end["qpn"][0].as_u64().unwrap() > 0, "{shown}");
        }
        assert_ne!(shown["connected"]["local"]["pid"], shown["connected"]["remote"]["pid"]);
        check_latency(&shown["latency"]);
        check_rate(&shown["bandwidth"]);
        check_rate(&shown["rate"]);
        assert_eq!((shown["latency"]["size"].as_u64(), shown["bandwidth"]["size"].as_u64()), (Some(8), Some(65536)));
    }
    let human = run(&["demo", "--link", "shm"]).ok();
    assert!(human.out.contains("ping-pong 8 B") && human.out.contains("link shm"), "{}", human.out);
}
