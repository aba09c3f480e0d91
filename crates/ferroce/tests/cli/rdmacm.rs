//! `ferroce cmatose`, `ferroce udaddy` and `ferroce cmtime` between two processes.

use crate::support::{Ended, ferroce, free_port, run, start};

/// Runs a server and a client of `args` at an address.
fn pair(args: &[&str], address: &str) -> (Ended, Ended) {
    let port = free_port();
    let args = [args, &["--timeout", "60", "-p", &port]].concat();
    let mut server = start(ferroce(&[&args, &["-b", address][..]].concat()));
    server.says("waiting at");
    let client = run(&[&args, &["-s", address][..]].concat());
    (server.end(), client)
}

#[test]
fn many_at_once_over_both_links_with_both_families() {
    for link in ["auto", "udp"] {
        for address in ["127.0.0.1", "::1"] {
            for (op, count) in [("cmatose", "100"), ("udaddy", "10")] {
                let args = [op, "--link", link, "-c", count, "-C", "5", "-S", "1000", "--json"];
                let (server, client) = pair(&args, address);
                for end in [server, client] {
                    let json = end.ok().json();
                    assert_eq!((json["op"].as_str(), json["connections"].as_u64()), (Some(op), count.parse().ok()));
                    assert_eq!((json["messages"].as_u64(), json["size"].as_u64()), (Some(5), Some(1000)), "{json}");
                    for name in ["setup_seconds", "exchange_seconds"] {
                        assert!(json[name].as_f64().unwrap() > 0.0, "{json}");
                    }
                }
            }
        }
    }
}

#[test]
fn connections_without_messages() {
    for op in ["cmatose", "udaddy"] {
        let (server, client) = pair(&[op, "-C", "0", "-c", "3"], "127.0.0.1");
        for end in [server, client] {
            let end = end.ok();
            assert!(end.out.contains("3 connections in") && end.out.contains("0 messages"), "{end:?}");
        }
    }
}

#[test]
fn ends_that_do_not_agree_are_told() {
    let port = free_port();
    for op in ["cmatose", "udaddy"] {
        run(&[op, "-s", "127.0.0.1", "-p", &port]).failed(1, "nobody listens");
        let mut server = start(ferroce(&[op, "-b", "127.0.0.1", "-p", &port, "-S", "200", "--timeout", "60"]));
        server.says("waiting at");
        // Messages that are too short are wrong, too.
        let (shape, message) = (["-S", "100", "--timeout", "2"], "100 bytes, this end's have 200");
        let client = run(&[&[op, "-s", "127.0.0.1", "-p", &port][..], &shape].concat());
        if op == "udaddy" {
            // The server finds out, and its client hears nothing.
            server.end().failed(1, message);
            client.failed(1, "0 of 10 messages came");
        } else {
            // The server sends first, more than fits.
            server.end().failed(1, "the message size");
            client.failed(1, "a work request");
        }
    }
    run(&["udaddy", "-s", "127.0.0.1", "-S", "70000"]).failed(2, "at most 4096");
}

#[test]
fn the_steps_of_a_connection_are_measured() {
    let port = free_port();
    let mut server = start(ferroce(&["cmtime", "--once", "-c", "60", "-p", &port, "--json"]));
    server.says("waiting at");
    let client = ["cmtime", "-s", "127.0.0.1", "-p", &port, "-c", "30", "--timeout", "60"];
    let json = run(&[&client[..], &["--json"]].concat()).ok().json();
    let steps = json["steps"].as_array().unwrap();
    let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(names, ["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"]);
    for step in steps {
        let us = |name: &str| step[name].as_f64().unwrap();
        assert!(us("min_us") <= us("max_us") && us("max_us") <= us("total_us") * 1.001, "{step}");
        assert!((us("us_per_connection") * 30.0 - us("total_us")).abs() < 0.1, "{step}");
    }
    let human = run(&[&client[..], &["-b", "127.0.0.1"]].concat()).ok();
    for part in ["30 connections", "µs / conn", "bind addr", "disconnect"] {
        assert!(human.out.contains(part), "no {part} in {}", human.out);
    }
    let served = server.end().ok();
    assert!(served.err.contains("60 connections served"));
    assert_eq!(served.json()["connections"], 60);
    run(&client).failed(1, "connect was refused: invalid service id: nobody listens");
}

#[test]
fn a_group_gets_what_its_sender_sends() {
    let args = ["mckey", "-m", "239.1.2.3", "-b", "127.0.0.1", "-c", "2", "-C", "3", "--timeout", "60", "--json"];
    let mut receivers = [(); 2].map(|()| start(ferroce(&args)));
    for receiver in &mut receivers {
        receiver.says("joined");
    }
    let sender = run(&[&args[..], &["-s", "--pause", "0.01"]].concat());
    for end in receivers.into_iter().map(|mut receiver| receiver.end()).chain([sender]) {
        let json = end.ok().json();
        assert_eq!((json["op"].as_str(), json["group"].as_str()), (Some("mckey"), Some("239.1.2.3")));
        assert_eq!((json["connections"].as_u64(), json["messages"].as_u64()), (Some(2), Some(3)));
    }
    run(&["mckey", "-m", "10.0.0.1"]).failed(2, "no multicast group");
    run(&["mckey", "-m", "239.1.2.3", "-b", "127.0.0.1", "--timeout", "0.2"]).failed(1, "0 of 10 messages came");
}
