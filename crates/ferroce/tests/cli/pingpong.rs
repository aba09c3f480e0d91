//! `ferroce pingpong` between two processes.

use crate::support::{both, ferroce, free_port, run, server, start};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Options of both ends: data is checked, results are JSON, and a loaded machine is no failure.
const COMMON: [&str; 4] = ["-c", "--json", "--timeout", "60"];

/// Runs both ends of a checked exchange and looks at what they report.
fn exchange(kind: &str, link: &str, options: &[&str], host: &str) {
    let args = [&["pingpong", kind, "--link", link], &COMMON[..], options].concat();
    ferroce_testing::isolate();
    let (server, client) = both(&args, &args, host);
    let (server, client) = (server.ok().json(), client.ok().json());
    for (json, role) in [(&server, "server"), (&client, "client")] {
        assert_eq!(json["transport"], kind, "{json}");
        assert_eq!(json["role"], role, "{json}");
        assert_eq!(json["link"], link, "{json}");
        let iterations = json["iterations"].as_u64().unwrap();
        assert!(json["messages_checked"].as_u64().unwrap() >= iterations, "{json}");
        assert_eq!(json["bytes"].as_u64(), Some(json["size"].as_u64().unwrap() * iterations * 2), "{json}");
        assert!(json["mbit_per_s"].as_f64().unwrap() > 0.0 && json["usec_per_iter"].as_f64().unwrap() > 0.0, "{json}");
    }
    assert_eq!(server["local"], client["remote"]);
    assert_eq!(server["remote"], client["local"]);
}

#[test]
fn every_kind_over_shared_memory() {
    for kind in ["rc", "uc", "ud", "srq"] {
        exchange(kind, "shm", &["-n", "300"], "127.0.0.1");
    }
}

#[test]
fn every_kind_over_udp() {
    for kind in ["rc", "uc", "ud", "srq"] {
        exchange(kind, "udp", &["-n", "300"], "127.0.0.1");
    }
}

#[test]
fn sizes_around_packet_boundaries() {
    for size in ["1", "2", "3", "1023", "1025", "65537", "1M"] {
        exchange("rc", "udp", &["-n", "20", "-s", size], "127.0.0.1");
    }
    exchange("uc", "shm", &["-n", "20", "-s", "4099", "-m", "256"], "127.0.0.1");
    exchange("ud", "udp", &["-n", "20", "-s", "1021"], "127.0.0.1");
    exchange("srq", "shm", &["-n", "100", "-s", "100001", "-m", "4096", "-q", "5", "-r", "8"], "127.0.0.1");
}

#[test]
fn over_ipv6_and_with_events() {
    exchange("rc", "udp", &["-n", "200", "-e"], "::1");
    exchange("ud", "shm", &["-n", "200", "-e"], "::1");
    exchange("srq", "udp", &["-n", "200", "-e", "-g", "::1"], "127.0.0.1");
}

#[test]
fn losses_are_repaired() {
    let port = free_port();
    let args = ["pingpong", "rc", "--link", "udp", "-n", "300", "-s", "5000", "-p", &port];
    let lossy = |extra: &[&str], seed: &str| {
        let mut command = ferroce(&[&args, &COMMON[..], extra].concat());
        command.env("FERROCE_FAULT", format!("loss=0.02,dup=0.01,reorder=0.01,corrupt=0.01,seed={seed}"));
        start(command)
    };
    let mut server = lossy(&[], "1");
    server.says("waiting for a client");
    let client = lossy(&["127.0.0.1"], "2").end().ok().json();
    assert_eq!(client["messages_checked"], 300);
    assert_eq!(server.end().ok().json()["messages_checked"], 300);
}

#[test]
fn captures_are_pcap_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rc.pcap");
    let port = free_port();
    let mut server = server(&["pingpong", "rc", "--link", "udp", "-n", "10"], &port);
    let mut command = ferroce(&["pingpong", "rc", "--link", "udp", "-n", "10", "-p", &port, "127.0.0.1"]);
    command.env("FERROCE_CAPTURE", &file);
    start(command).end().ok();
    server.end().ok();
    let bytes = std::fs::read(file).unwrap();
    let magic = u32::from_ne_bytes(bytes[..4].try_into().unwrap());
    assert!([0xa1b2_c3d4, 0xa1b2_3c4d].contains(&magic), "{magic:#x}");
    assert!(bytes.len() > 20 * 4096, "twenty messages of 4096 bytes are in it: {}", bytes.len());
}

#[test]
fn the_words_are_those_of_the_c_programs() {
    let args = ["pingpong", "rc", "-n", "10", "--ts"];
    let (server, client) = both(&args, &args, "127.0.0.1");
    for ended in [server.ok(), client.ok()] {
        let lines: Vec<&str> = ended.out.lines().collect();
        assert!(lines[0].starts_with("  local address:  LID 0x0000, QPN 0x"), "{lines:?}");
        assert!(lines[1].starts_with("  remote address: LID 0x0000, QPN 0x"), "{lines:?}");
        assert!(lines[1].ends_with(", GID ::ffff:127.0.0.1"), "{lines:?}");
        assert!(lines[2].starts_with("81920 bytes in ") && lines[2].ends_with(" Mbit/sec"), "{lines:?}");
        assert!(lines[3].starts_with("10 iters in ") && lines[3].ends_with(" usec/iter"), "{lines:?}");
        assert!(lines[4].starts_with("receive completions "), "{lines:?}");
    }
}

#[test]
fn the_bytes_of_the_handshake_are_those_of_the_c_programs() {
    let port = free_port();
    let mut server = server(&["pingpong", "rc", "--timeout", "1"], &port);
    let mut client = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    client.write_all(b"0000:fffff0:000001:00000000000000000000ffff7f000001\0").unwrap();
    // One read, as the C program does.
    let mut answer = [0; 52];
    assert_eq!(client.read(&mut answer).unwrap(), 52);
    let text = std::str::from_utf8(&answer[..51]).unwrap();
    assert!(text.starts_with("0000:") && text.ends_with(":00000000000000000000ffff7f000001"), "{text}");
    assert_eq!(answer[51], 0);
    client.write_all(b"done\0").unwrap();
    // Then nothing comes.
    server.end().failed(1, "nothing came for 1s while waiting for the peer's next message");
}

#[test]
fn a_peer_that_is_no_pingpong_is_refused() {
    for (wire, part) in [
        (&b"GET / HTTP/1.1\r\nHost: example\r\nAccept: */*\r\nX: 1234\r\n\r\n"[..], "no ping-pong address"),
        (b"0000:000011:000001:00000000000000000000000000000000\0", "the peer sent no GID"),
        (b"0000:000011:000001:fd000000000000000000000000000001\0", "different families"),
        (b"0000:0000", "closed the connection"),
    ] {
        let port = free_port();
        let mut server = server(&["pingpong", "rc", "-g", "127.0.0.1"], &port);
        let mut client = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
        client.write_all(wire).unwrap();
        drop(client);
        server.end().failed(1, part);
    }
}

#[test]
fn ends_that_differ_are_told_what_differs() {
    // The larger packets meet the smaller MTU.
    let (server, client) = both(&["pingpong", "rc", "-m", "1024"], &["pingpong", "rc", "-m", "2048"], "127.0.0.1");
    client.failed(1, "remote invalid request error").failed(1, "path MTU (--mtu)");
    assert_eq!(server.code, Some(1), "{server:?}");
    // The message meets a smaller receive.
    let (server, client) = both(&["pingpong", "rc", "-s", "100"], &["pingpong", "rc", "-s", "4096"], "127.0.0.1");
    client.failed(1, "remote invalid request error");
    server.failed(1, "use the same --size at both ends");
    // Only the server checks.
    let (server, client) = both(&["pingpong", "rc", "-c"], &["pingpong", "rc", "--timeout", "3"], "127.0.0.1");
    server.failed(1, "message 1 is wrong from byte 0 on: 0x7b in place of 0x00").failed(1, "-c given to the client");
    assert_eq!(client.code, Some(1), "{client:?}");
    // Fewer queue pairs.
    let (server, client) = both(&["pingpong", "srq", "-q", "4"], &["pingpong", "srq", "-q", "2"], "127.0.0.1");
    server.failed(1, "the peer has only 2 queue pairs, this end has 4");
    client.failed(1, "closed the connection");
}

#[test]
fn a_peer_that_is_killed_is_noticed() {
    for link in ["shm", "udp"] {
        let port = free_port();
        let args = ["pingpong", "rc", "--link", link, "-n", "1000000000"];
        let mut server = server(&args, &port);
        let mut command = ferroce(&[&args[..], &["-p", &port, "127.0.0.1"]].concat());
        command.env("FERROCE_LOG", "ferroce=debug");
        let mut client = start(command);
        client.says("exchanging");
        server.kill();
        assert_eq!(client.end().code, Some(1));
    }
}

#[test]
fn a_large_mtu_needs_a_path_that_carries_it() {
    let gids = run(&["info", "--json"]).ok().json();
    let gids = gids["devices"][0]["ports"][0]["gids"].as_array().unwrap().clone();
    // Where every address carries the largest MTU there is nothing to refuse.
    for gid in gids.iter().filter(|gid| gid["mtu"].as_u64() < Some(4096)) {
        let index = gid["index"].to_string();
        run(&["pingpong", "rc", "-m", "4096", "-g", &index]).failed(2, "a path MTU of 4096 is more than");
        run(&["pingpong", "ud", "-s", "4096", "-g", &index]).failed(2, "does not fit the MTU");
    }
    run(&["pingpong", "ud", "-s", "4097", "-g", "127.0.0.1"]).failed(2, "does not fit the MTU");
}
