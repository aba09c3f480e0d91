//! What is really on the wire: the facts about Linux that the UDP link builds on, checked on a pair of virtual Ethernet devices.
//!
//! The tests run in network namespaces of their own, see `namespace`.

#[path = "udp_common/namespace.rs"]
mod namespace;
mod udp_common;

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use ferroce_soft::link::udp::{UdpConfig, UdpDst, UdpPort};
use ferroce_wire::{Flow, ICRC_LEN, IpPair, check_icrc_exact};
use namespace::{HERE, INSIDE, address, ifindex, in_namespace, ip, is_inside, wire};
use udp_common::{pattern, receive};

const PORT: u16 = 4791;
const THERE: [&str; 2] = ["10.9.0.2", "fd09::2"];

fn way(local: &str, remote: &str) -> UdpDst {
    UdpDst { remote: SocketAddr::new(address(remote), PORT), local: address(local), tos: 0, ttl: 0 }
}

/// A socket that sees all frames that come out at the end `there`.
struct Tap(socket2::Socket);

impl Tap {
    fn new() -> Self {
        let all = (libc::ETH_P_ALL as u16).to_be();
        let socket = socket2::Socket::new(socket2::Domain::PACKET, socket2::Type::RAW, Some(i32::from(all).into()))
            .expect("packet socket");
        let index = ifindex("there") as i32;
        // SAFETY: all zero is a valid sockaddr_ll, and bind reads no more than its size.
        let result = unsafe {
            let mut name: libc::sockaddr_ll = std::mem::zeroed();
            name.sll_family = libc::AF_PACKET as u16;
            name.sll_protocol = all;
            name.sll_ifindex = index;
            let len = size_of_val(&name) as libc::socklen_t;
            libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len)
        };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
        socket.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
        Self(socket)
    }

    /// The next UDP datagram to the RoCE port: IPv4 identification and "don't fragment" (0 and true for IPv6), flow, payload.
    fn next(&self) -> (u16, bool, Flow, Vec<u8>) {
        use std::io::Read;
        let mut frame = vec![0; 70_000];
        loop {
            let len = (&self.0).read(&mut frame).expect("a frame");
            let frame = &frame[..len];
            let half = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
            let (id, df, pair, udp) = match half(12) {
                0x0800 if frame[23] == 17 => {
                    let octets = |at: usize| <[u8; 4]>::try_from(&frame[at..at + 4]).expect("4");
                    let (src, dst) = (octets(26).into(), octets(30).into());
                    (half(18), half(20) == 0x4000, IpPair::V4 { src, dst }, 34)
                }
                0x86dd if frame[20] == 17 => {
                    let octets = |at: usize| <[u8; 16]>::try_from(&frame[at..at + 16]).expect("16");
                    let (src, dst) = (octets(22).into(), octets(38).into());
                    (0, true, IpPair::V6 { src, dst }, 54)
                }
                _ => continue,
            };
            let flow = Flow { ip: pair, src_port: half(udp), dst_port: half(udp + 2) };
            if flow.dst_port == PORT {
                let end = udp + usize::from(half(udp + 4));
                return (id, df, flow, frame[udp + 8..end].to_vec());
            }
        }
    }
}

#[test]
fn every_packet_on_the_wire_has_a_right_icrc() {
    in_namespace("inside_icrc");
}

#[test]
fn inside_icrc() {
    if !is_inside("inside_icrc") {
        return;
    }
    wire();
    // Nobody is there: the link address is given by hand, and only the tap looks.
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev here nud permanent");
    ip("neigh add fd09::2 lladdr 02:00:00:00:00:02 dev here nud permanent");
    // No batches on this device: the kernel cuts them before.
    ip("link set here gso_max_segs 1");
    let tap = Tap::new();
    let dual = UdpConfig::default();
    let v4_only = UdpConfig { bind: Some(address(HERE[0])), ..UdpConfig::default() };
    let v6_only = UdpConfig { bind: Some(address(HERE[1])), ..UdpConfig::default() };
    let no_gso = UdpConfig { gso: false, ..UdpConfig::default() };
    let both: &[usize] = &[0, 1];
    for (config, families) in [(dual, both), (v4_only, &[0]), (v6_only, &[1]), (no_gso, both)] {
        let port = UdpPort::open(&config).expect("open");
        for &family in families {
            check_icrcs(&port, &tap, family, config.gso);
        }
    }
}

/// Single packets, a batch, a batch with a short end, and all again.
fn check_icrcs(port: &UdpPort, tap: &Tap, family: usize, gso: bool) {
    let dst = way(HERE[family], THERE[family]);
    let mut batch = port.sender().batch();
    let bursts: [&[usize]; 6] = [&[24], &[24; 64], &[4112; 15], &[1036, 1036, 21], &[13], &[24, 20]];
    for lens in bursts {
        let sent: Vec<_> = lens.iter().enumerate().map(|(i, &len)| pattern(i, len)).collect();
        for packet in &sent {
            batch.reserve(&dst, packet.len()).copy_from_slice(packet);
            batch.commit();
        }
        let report = batch.flush();
        assert_eq!((report.sent, report.lost()), (lens.len(), 0), "{report:?}");
        for (i, packet) in sent.iter().enumerate() {
            let (id, df, flow, payload) = tap.next();
            let what = format!("{dst:?}, packet {i} of {lens:?}");
            assert_eq!(payload[..payload.len() - ICRC_LEN], packet[..], "{what}");
            assert_eq!(flow.ip, IpPair::new(dst.local, dst.remote.ip()).expect("pair"), "{what}");
            assert_eq!(flow.src_port, PORT, "{what}");
            assert!(df, "{what}");
            let expected = if gso && dst.local.is_ipv4() { i as u16 } else { 0 };
            assert_eq!(id, expected, "{what}");
            assert!(check_icrc_exact(&flow, id, &payload), "{what}");
        }
    }
    assert_eq!(port.counters().read().gso_fallbacks, 0);
}

fn dont_fragment(socket: &UdpSocket) {
    let value = libc::IP_PMTUDISC_DO;
    // SAFETY: the option value is a live c_int and its size is what is said.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_connected_socket_would_have_identifications_that_nobody_knows() {
    in_namespace("inside_connected");
}

#[test]
fn inside_connected() {
    if !is_inside("inside_connected") {
        return;
    }
    wire();
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev here nud permanent");
    let tap = Tap::new();
    let there = SocketAddr::new(address(THERE[0]), PORT);
    let ids = |connected: bool| -> Vec<u16> {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
        dont_fragment(&socket);
        if connected {
            socket.connect(there).expect("connect");
        }
        let send = || {
            if connected { socket.send(&[4; 30]) } else { socket.send_to(&[4; 30], there) }
        };
        (0..8)
            .map(|_| {
                send().expect("send");
                tap.next().0
            })
            .collect()
    };
    assert_eq!(ids(false), [0; 8]);
    assert_ne!(ids(true), [0; 8], "why never to connect the socket");
}

#[test]
fn packets_cross_a_wire_between_two_hosts() {
    in_namespace("inside_two_hosts");
}

#[test]
fn inside_two_hosts() {
    if !is_inside("inside_two_hosts") {
        return;
    }
    wire();
    ip("link set here gso_max_segs 1");
    let exe = std::env::current_exe().expect("path");
    let mut peer = Command::new("unshare")
        .args(["--net", "--"])
        .arg(exe)
        .args(["--exact", "inside_peer", "--nocapture", "--test-threads=1"])
        .env(INSIDE, "inside_peer")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("peer");
    let mut said = BufReader::new(peer.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let mut hear = |what: &str| assert!(said.any(|line| line == what), "the peer never said {what}");
    hear("@up");
    ip(&format!("link set there netns {}", peer.id()));
    writeln!(peer.stdin.as_mut().expect("piped"), "go").expect("peer");
    hear("@ready");
    let port = UdpPort::open(&UdpConfig::default()).expect("open");
    let mut batch = port.sender().batch();
    let bursts: [&[usize]; 4] = [&[24; 64], &[4112; 15], &[1036, 1036, 21], &[100]];
    for family in [0, 1] {
        let dst = way(HERE[family], THERE[family]);
        for lens in bursts {
            let sent: Vec<_> = lens.iter().enumerate().map(|(i, &len)| pattern(i, len)).collect();
            for packet in &sent {
                batch.reserve(&dst, packet.len()).copy_from_slice(packet);
                batch.commit();
            }
            assert_eq!(batch.flush().sent, lens.len());
            let back: Vec<_> = receive(&port, lens.len()).into_iter().map(|p| p.bytes).collect();
            assert_eq!(back, sent);
        }
        // Beyond the MTU of the wire.
        batch.reserve(&dst, 9000).copy_from_slice(&pattern(0, 9000));
        batch.commit();
        let report = batch.flush();
        assert_eq!((report.sent, report.too_big), (0, 1), "{report:?}");
        // In a batch, whose last packet alone fits.
        for len in [9000, 9000, 100] {
            batch.reserve(&dst, len).copy_from_slice(&pattern(len, len));
            batch.commit();
        }
        let report = batch.flush();
        assert_eq!((report.sent, report.too_big), (1, 2), "{report:?}");
        assert_eq!(receive(&port, 1)[0].bytes, pattern(100, 100));
    }
    let statistics = port.counters().read();
    assert_eq!(statistics.rx_icrc_encapsulated, 0);
    assert_eq!((statistics.rcvd_foreign_ip_id, statistics.gso_fallbacks), (0, 0));
    drop(peer.stdin.take());
    hear("@good");
    assert!(peer.wait().expect("peer").success());
}

/// Sends everything back.
#[test]
fn inside_peer() {
    if !is_inside("inside_peer") {
        return;
    }
    println!("\n@up");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("go");
    ip("link set lo up");
    ip("link set there mtu 9000 up");
    ip("address add 10.9.0.2/24 dev there");
    ip("address add fd09::2/64 dev there nodad");
    let port = UdpPort::open(&UdpConfig::default()).expect("open");
    println!("\n@ready");
    let mut batch = port.sender().batch();
    for count in [64, 15, 3, 1, 1, 64, 15, 3, 1, 1] {
        for packet in receive(&port, count) {
            let dst = UdpDst { remote: packet.src, local: packet.dst, tos: 0, ttl: 0 };
            batch.reserve(&dst, packet.bytes.len()).copy_from_slice(&packet.bytes);
            batch.commit();
        }
        assert_eq!(batch.flush().sent, count);
    }
    let statistics = port.counters().read();
    // The wire had no batches and nobody joined the packets: their identifications are those that the sender counted.
    assert_eq!(statistics.rcvd_datagrams, 2 * 84);
    assert_eq!(statistics.rcvd_foreign_ip_id, 0);
    // Until the other side has seen all.
    let _ = std::io::stdin().read_line(&mut line);
    println!("\n@good");
}

#[test]
fn a_full_socket_never_blocks_and_what_waits_is_bounded() {
    in_namespace("inside_full");
}

#[test]
fn inside_full() {
    if !is_inside("inside_full") {
        return;
    }
    wire();
    ip("neigh add 10.9.0.2 lladdr 02:00:00:00:00:02 dev here nud permanent");
    // A device so slow that nothing leaves it while the test runs.
    let status = Command::new("tc")
        .args("qdisc add dev here root tbf rate 8kbit burst 10000 limit 100000000".split(' '))
        .status()
        .expect("tc of iproute2");
    assert!(status.success());
    let port = UdpPort::open(&UdpConfig { socket_buffer: 200_000, ..UdpConfig::default() }).expect("open");
    let dst = way(HERE[0], THERE[0]);
    let mut batch = port.sender().batch();
    let (mut sent, mut lost) = (0, 0);
    for i in 0..8000 {
        batch.reserve(&dst, 1000).copy_from_slice(&pattern(i, 1000));
        batch.commit();
        if i % 8 == 7 {
            let report = batch.flush();
            assert_eq!(report.lost(), report.congested, "{report:?}");
            (sent, lost) = (sent + report.sent, lost + report.congested);
            assert_eq!(port.sender().is_blocked(), sent != i + 1);
        }
    }
    let waiting = 8000 - sent - lost;
    assert!(sent > 0 && lost > 0 && waiting > 0, "{sent} sent, {lost} lost");
    assert!((4_000_000..=4 << 20).contains(&(waiting * 1004)), "{waiting} wait");
    let statistics = port.counters().read();
    assert_eq!((statistics.sent_pkts, statistics.tx_would_block), (sent as u64, lost as u64));
}

#[test]
fn a_host_without_ipv6_addresses_talks_ipv4() {
    in_namespace("inside_without_ipv6");
}

#[test]
fn inside_without_ipv6() {
    if !is_inside("inside_without_ipv6") {
        return;
    }
    for scope in ["all", "default", "lo"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1").expect("sysctl");
    }
    ip("link set lo up");
    let (a, b) = (udp_common::ephemeral(), udp_common::ephemeral());
    let dst = udp_common::to(address("127.0.0.1"), &b);
    let mut batch = a.sender().batch();
    for _ in 0..2 {
        batch.reserve(&dst, 24).copy_from_slice(&pattern(1, 24));
        batch.commit();
    }
    assert_eq!(batch.flush().sent, 2);
    assert_eq!(receive(&b, 2).len(), 2);
    let bind = Some(address("::1"));
    let e = UdpPort::open(&UdpConfig { bind, ..UdpConfig::default() }).expect_err("no such address");
    assert!(e.to_string().contains("::1"), "{e}");
}
