//! `ferroce rping`, both ends.

use crate::support::{Running, ferroce, free_port, run, start};
use rustix::process::{Pid, Signal, kill_process};

fn server(port: &str, args: &[&str]) -> Running {
    let mut server = start(ferroce(&[&["rping", "-s", "-p", port], args].concat()));
    server.says("waiting at");
    server
}

#[test]
fn pings_are_counted_at_both_ends() {
    for link in ["shm", "udp"] {
        let port = free_port();
        let mut server = server(&port, &["--json", "-V", "--link", link]);
        let client = ["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-C", "50", "-V", "--json", "--link", link];
        let json = run(&client).ok().json();
        assert_eq!((json["op"].as_str(), json["pings"].as_u64()), (Some("rping"), Some(50)), "{json}");
        let json = server.end().ok().json();
        assert_eq!((json["role"].as_str(), json["pings"].as_u64()), (Some("server"), Some(50)), "{json}");
        run(&client).failed(1, "nobody listens");
    }
}

#[test]
fn a_server_that_stays_has_a_line_for_each_client() {
    let port = free_port();
    let mut server = server(&port, &["-P", "--json"]);
    let clients: Vec<_> = ["3", "4", "5"]
        .map(|count| start(ferroce(&["rping", "-c", "-a", "127.0.0.1", "-p", &port, "-C", count])))
        .into_iter()
        .map(|mut client| client.end().ok())
        .collect();
    assert!(clients.iter().all(|client| client.out.contains("pings of 64 bytes")), "{clients:?}");
    server.prints_lines(3);
    server.kill();
    let mut pings: Vec<u64> = server
        .output()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["pings"].as_u64().unwrap())
        .collect();
    pings.sort_unstable();
    assert_eq!(pings, [3, 4, 5]);
}

/// Nobody says that it is gone, and it may be its turn to send.
#[test]
fn a_peer_that_is_stopped_is_noticed_by_either_end() {
    for (link, stop_client) in [("shm", false), ("shm", true), ("udp", false), ("udp", true)] {
        let port = free_port();
        let with_keepalive = |args: &[&str]| {
            let mut command = ferroce(&[args, &["-p", &port, "--link", link, "--json", "-v"]].concat());
            command.env("FERROCE_KEEPALIVE", "200ms");
            start(command)
        };
        let mut server = with_keepalive(&["rping", "-s"]);
        server.says("waiting at");
        let mut client = with_keepalive(&["rping", "-c", "-a", "127.0.0.1"]);
        client.says("rdma-ping-100");
        let (stopped, mut left) = if stop_client { (client, server) } else { (server, client) };
        kill_process(Pid::from_raw(stopped.pid() as i32).unwrap(), Signal::STOP).unwrap();
        let ended = left.end();
        assert_eq!(ended.code, Some(1), "{link}, client stopped: {stop_client}");
        let why = &ended.json()["error"]["message"];
        assert!(["does not answer any more", "retry"].iter().any(|part| why.as_str().unwrap().contains(part)), "{why}");
        drop(stopped);
    }
}
