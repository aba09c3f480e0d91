//! What the UDP link does with packets that are wrong, and with a network that is.

mod udp_common;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use ferroce_soft::link::capture::Capture;
use ferroce_soft::link::fault::FaultPlan;
use ferroce_soft::link::udp::{Received, RxBuffers, UdpConfig, UdpPort};
use ferroce_wire::{Flow, IpPair, icrc};
use udp_common::{config, drain, ephemeral, pattern, receive, to};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// A plain socket of another program, its datagrams' IPv4 identification 0, and what it must know for a right ICRC.
fn stranger(ip: IpAddr, port: &UdpPort) -> (UdpSocket, Flow) {
    let socket = socket2::Socket::new(socket2::Domain::for_address(SocketAddr::new(ip, 0)), socket2::Type::DGRAM, None)
        .expect("socket");
    socket.bind(&SocketAddr::new(ip, 0).into()).expect("bind");
    let socket: UdpSocket = socket.into();
    let flow = Flow {
        ip: IpPair::new(ip, ip).expect("one family"),
        src_port: socket.local_addr().expect("address").port(),
        dst_port: port.local_port(),
    };
    (socket, flow)
}

fn sealed(flow: &Flow, id: u16, packet: &[u8]) -> Vec<u8> {
    let mut bytes = packet.to_vec();
    bytes.extend_from_slice(&icrc(flow, id, packet).to_le_bytes());
    bytes
}

#[test]
fn any_flipped_bit_is_noticed() {
    for ip in [V4, V6] {
        let port = ephemeral();
        let (socket, flow) = stranger(ip, &port);
        let good = sealed(&flow, 0, &pattern(1, 40));
        let mut flips = 0;
        for byte in (0..good.len()).filter(|&byte| byte != 4) {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[byte] ^= 1 << bit;
                socket.send_to(&bad, (ip, port.local_port())).expect("send");
                flips += 1;
            }
            assert_eq!(drain(&port), [], "byte {byte} of {ip}");
        }
        socket.send_to(&good, (ip, port.local_port())).expect("send");
        assert_eq!(receive(&port, 1)[0].bytes, pattern(1, 40));
        let statistics = port.counters().read();
        assert_eq!(statistics.rx_icrc_encapsulated, flips);
        assert_eq!(statistics.rcvd_pkts, 1);
        // The congestion marks, which switches change.
        let mut marked = good;
        marked[4] = 0xc0;
        socket.send_to(&marked, (ip, port.local_port())).expect("send");
        assert_eq!(receive(&port, 1)[0].bytes[4], 0xc0);
    }
}

#[test]
fn another_stacks_identification_is_allowed_for_and_counted() {
    let port = ephemeral();
    let (socket, flow) = stranger(V4, &port);
    for id in [0, 1, 63, 64, 4711, 0xffff] {
        // What the peer's kernel did not put there the ICRC cannot know: the effect is the same.
        let bytes = sealed(&flow, id, &pattern(usize::from(id), 40));
        socket.send_to(&bytes, (V4, port.local_port())).expect("send");
    }
    assert_eq!(receive(&port, 6).len(), 6);
    assert_eq!(port.counters().read().rcvd_foreign_ip_id, 3);
}

#[test]
fn garbage_is_counted_and_dropped() {
    for ip in [V4, V6] {
        let port = ephemeral();
        let (socket, _) = stranger(ip, &port);
        let mut sent = 0;
        for len in (0..64).chain([1000, 60_000]) {
            socket.send_to(&pattern(len, len.max(12))[..len], (ip, port.local_port())).expect("send");
            sent += 1;
        }
        assert_eq!(drain(&port), []);
        let statistics = port.counters().read();
        assert_eq!(statistics.rx_malformed, 16);
        assert_eq!(statistics.rx_malformed + statistics.rx_icrc_encapsulated, sent);
    }
}

#[test]
fn only_this_host_can_probe() {
    let port = ephemeral();
    let probe = |bytes: &[u8], socket: &UdpSocket| {
        socket.send_to(bytes, (V4, port.local_port())).expect("send");
    };
    // Right in form, but from a port that is not of the group.
    let (socket, _) = stranger(V4, &port);
    probe(&[0xff, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2], &socket);
    probe(&[0xff; 10], &socket);
    probe(&[0xff; 12], &socket);
    let mut probes = Vec::new();
    let mut bufs = RxBuffers::default();
    port.send_probe(3, 0x0123_4567_89ab_cdef).expect("send");
    while port
        .recv(&mut bufs, 16, &mut |received| match received {
            Received::Probe { index, nonce } => probes.push((index, nonce)),
            Received::Packet { .. } => panic!("a packet"),
        })
        .expect("recv")
        != 0
    {}
    assert_eq!(probes, [(3, 0x0123_4567_89ab_cdef)]);
    let statistics = port.counters().read();
    assert_eq!((statistics.rx_malformed, statistics.rcvd_probes), (3, 1));
}

/// Sends `count` packets in bursts of `burst` with faults and returns how often each arrived, in order of arrival.
fn faulty(plan: FaultPlan, count: usize, burst: usize) -> (Vec<usize>, UdpPort, UdpPort) {
    let a = UdpPort::open(&UdpConfig { faults: Some(plan), ..config() }).expect("open");
    let b = ephemeral();
    let dst = to(V4, &b);
    let mut batch = a.sender().batch();
    let mut arrived = Vec::new();
    let mut collect = |b: &UdpPort| {
        for packet in drain(b) {
            let seed = u32::from_be_bytes(packet.bytes[8..12].try_into().expect("4 bytes")) as usize;
            assert_eq!(packet.bytes, pattern(seed, 60));
            arrived.push(seed);
        }
    };
    for i in 0..count {
        batch.reserve(&dst, 60).copy_from_slice(&pattern(i, 60));
        batch.commit();
        if i % burst == burst - 1 {
            batch.flush();
            collect(&b);
        }
    }
    while let Some(next) = batch.release_held() {
        std::thread::sleep(next.saturating_duration_since(std::time::Instant::now()));
    }
    batch.flush();
    collect(&b);
    (arrived, a, b)
}

#[test]
fn loss_and_duplication_follow_the_seed() {
    let plan = FaultPlan { seed: 42, loss: 0.2, duplicate: 0.1, ..FaultPlan::default() };
    let (first, a, b) = faulty(plan.clone(), 1000, 10);
    let mut times = HashMap::new();
    for &seed in &first {
        *times.entry(seed).or_insert(0) += 1;
    }
    let lost = 1000 - times.len();
    assert!((100..300).contains(&lost), "{lost}");
    assert_eq!(a.counters().read().injected_losses, lost as u64);
    assert!(times.values().any(|&n| n == 2) && times.values().all(|&n| n <= 2));
    assert_eq!(b.counters().read().rx_icrc_encapsulated, 0);
    // The same whatever the batches.
    assert_eq!(faulty(plan, 1000, 25).0, first);
}

#[test]
fn corruption_is_rejected_and_counted() {
    let plan = FaultPlan { seed: 7, corrupt: 0.3, ..FaultPlan::default() };
    let (arrived, _, b) = faulty(plan, 1000, 10);
    let bad = b.counters().read().rx_icrc_encapsulated;
    assert!((200..400).contains(&bad), "{bad}");
    assert_eq!(arrived.len() as u64 + bad, 1000);
}

#[test]
fn reordering_and_delay_lose_nothing() {
    let plan = FaultPlan { seed: 3, reorder: 0.2, reorder_by: Duration::from_millis(2), ..FaultPlan::default() };
    let (arrived, ..) = faulty(plan, 500, 10);
    assert!(!arrived.is_sorted());
    let mut sorted = arrived;
    sorted.sort_unstable();
    assert_eq!(sorted, (0..500).collect::<Vec<_>>());

    let plan = FaultPlan { delay: Duration::from_millis(5), ..FaultPlan::default() };
    let (arrived, ..) = faulty(plan, 500, 10);
    assert_eq!(arrived, (0..500).collect::<Vec<_>>());
}

#[test]
fn a_capture_holds_what_was_on_the_wire() {
    let dir = tempfile::tempdir().expect("directory");
    let path = dir.path().join("wire.pcap");
    let capture = Capture::create(&path, 1 << 20).expect("capture");
    let plan = FaultPlan { seed: 1, corrupt: 0.5, ..FaultPlan::default() };
    let open = |faults| UdpPort::open(&UdpConfig { capture: Some(capture.clone()), faults, ..config() }).expect("open");
    let (a, b) = (open(Some(plan)), open(None));
    let mut batch = a.sender().batch();
    for (i, ip) in [V4, V4, V4, V4, V6, V6, V6, V6].into_iter().enumerate() {
        batch.reserve(&to(ip, &b), 60).copy_from_slice(&pattern(i, 60));
        batch.commit();
    }
    batch.flush();
    let good = drain(&b).len();
    let bad = b.counters().read().rx_icrc_encapsulated as usize;
    assert_eq!((good + bad, good > 0, bad > 0), (8, true, true));
    capture.flush().expect("flush");
    assert_eq!((capture.recorded(), capture.missed()), (16, 0));
    let file = std::fs::read(&path).expect("read");
    // Sent in order, then received in order; MAC addresses aside both halves are the same.
    let v4_record = 16 + 14 + 20 + 8 + 64;
    let v6_record = v4_record + 20;
    assert_eq!(file.len(), 24 + 8 * (v4_record + v6_record));
    let (sent, received) = file[24..].split_at(4 * (v4_record + v6_record));
    let frames = |mut half: &[u8]| {
        let mut frames = Vec::new();
        for len in [v4_record; 4].into_iter().chain([v6_record; 4]) {
            frames.push(half[16 + 14..len].to_vec());
            half = &half[len..];
        }
        frames
    };
    assert_eq!(frames(sent), frames(received));
}
