//! The UDP link between two ports of one process.

mod udp_common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferroce_soft::link::udp::{MAX_PACKET, RxBuffers, UdpConfig, UdpDst, UdpPort};
use udp_common::{Packet, config, drain, ephemeral, pattern, receive, to};

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Sends one packet from `a` to `b` and checks all that `b` learns of it.
fn one_way(a: &UdpPort, b: &UdpPort, ip: IpAddr, tos: u8, ttl: u8) {
    let packet = pattern(7, 24);
    let mut dst = to(ip, b);
    (dst.tos, dst.ttl) = (tos, ttl);
    let tx = a.sender();
    let mut batch = tx.batch();
    batch.reserve(&dst, packet.len()).copy_from_slice(&packet);
    batch.commit();
    let report = batch.flush();
    assert_eq!((report.sent, report.lost()), (1, 0), "{report:?}");
    let got = receive(b, 1);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].src, SocketAddr::new(ip, a.local_port()));
    assert_eq!((got[0].dst, got[0].tos), (ip, tos));
    assert_eq!(got[0].ttl, if ttl == 0 { 64 } else { ttl });
    assert_eq!(got[0].bytes, packet);
}

#[test]
fn dual_stack_ports_talk_over_both_families() {
    let (a, b) = (ephemeral(), ephemeral());
    assert!(a.has_ipv6());
    for (ip, tos, ttl) in [(V4, 0, 0), (V6, 0, 0), (V4, 0x68, 3), (V6, 0x68, 255)] {
        one_way(&a, &b, ip, tos, ttl);
        one_way(&b, &a, ip, tos, ttl);
    }
    let statistics = b.counters().read();
    assert_eq!((statistics.sent_pkts, statistics.rcvd_pkts), (4, 4));
    assert_eq!((statistics.rcvd_bytes, statistics.sent_bytes), (96, 96));
    assert_eq!(statistics.rx_icrc_encapsulated, 0);
    assert_eq!(statistics.rcvd_foreign_ip_id, 0);
}

#[test]
fn ports_of_one_address_talk_to_dual_stack_ports() {
    let dual = ephemeral();
    for ip in [V4, V6, IpAddr::V4(Ipv4Addr::new(127, 0, 0, 5))] {
        let single = UdpPort::open(&UdpConfig { bind: Some(ip), ..config() }).expect("open");
        one_way(&single, &dual, ip, 0x20, 9);
        one_way(&dual, &single, ip, 0, 0);
    }
}

/// Sends packets of these lengths in one go and checks that they arrive, in order, in `calls` messages and
/// `datagrams` batches.
fn burst(ip: IpAddr, lens: &[usize], calls: u64, datagrams: u64) {
    let (a, b) = (ephemeral(), ephemeral());
    let dst = to(ip, &b);
    let sent: Vec<_> = lens.iter().enumerate().map(|(i, &len)| pattern(i, len)).collect();
    let mut batch = a.sender().batch();
    for packet in &sent {
        batch.reserve(&dst, packet.len()).copy_from_slice(packet);
        batch.commit();
    }
    let report = batch.flush();
    assert_eq!((report.sent, report.lost()), (lens.len(), 0), "{report:?}");
    let got: Vec<_> = receive(&b, lens.len()).into_iter().map(|p| p.bytes).collect();
    assert_eq!(got, sent);
    let (tx, rx) = (a.counters().read(), b.counters().read());
    assert_eq!(tx.sent_calls, calls, "{ip} {lens:?}");
    assert_eq!(rx.rcvd_datagrams, datagrams, "{ip} {lens:?}");
    assert_eq!(rx.rcvd_pkts, lens.len() as u64);
    assert_eq!((rx.rx_icrc_encapsulated, rx.rx_malformed, rx.rcvd_foreign_ip_id), (0, 0, 0));
    assert_eq!((tx.gso_fallbacks, drain(&b)), (0, vec![]));
}

#[test]
fn equal_packets_share_a_batch() {
    for ip in [V4, V6] {
        burst(ip, &[24; 2], 1, 1);
        burst(ip, &[24; 64], 1, 1);
        // 64 are a batch; the rest is another.
        burst(ip, &[24; 70], 2, 2);
        // 15 of 4116 bytes are all that an IP packet holds.
        burst(ip, &[4112; 30], 2, 2);
        burst(ip, &[1036; 62], 1, 1);
    }
}

#[test]
fn a_short_packet_ends_a_batch() {
    for ip in [V4, V6] {
        burst(ip, &[24, 20], 1, 1);
        burst(ip, &[1036, 1036, 13], 1, 1);
        // Two batches, one system call: the third is as short, but the batch is over.
        burst(ip, &[24, 20, 20], 1, 2);
        burst(ip, &[24, 20, 24, 24, 20], 1, 2);
    }
}

#[test]
fn longer_packets_begin_new_batches() {
    for ip in [V4, V6] {
        burst(ip, &[20, 24, 28, 32], 1, 4);
    }
}

#[test]
fn every_length_arrives_unharmed() {
    for ip in [V4, V6] {
        let (a, b) = (ephemeral(), ephemeral());
        let dst = to(ip, &b);
        let mut batch = a.sender().batch();
        // From a bare BTH to a full MTU with all headers; most are no multiple of 4, whatever RoCEv2 says.
        let lens: Vec<usize> = (12..400).chain((400..4300).step_by(61)).chain([4096 + 64, MAX_PACKET]).collect();
        for window in lens.chunks(20) {
            let sent: Vec<_> = window.iter().map(|&len| pattern(len, len)).collect();
            for packet in &sent {
                batch.reserve(&dst, packet.len()).copy_from_slice(packet);
                batch.commit();
            }
            assert_eq!(batch.flush().sent, window.len());
            let got: Vec<_> = receive(&b, window.len()).into_iter().map(|p| p.bytes).collect();
            assert_eq!(got, sent);
        }
        assert_eq!(b.counters().read().rx_icrc_encapsulated, 0);
    }
}

#[test]
fn destinations_do_not_mix() {
    let (a, b, c) = (ephemeral(), ephemeral(), ephemeral());
    let ways = [to(V4, &b), to(V6, &b), to(V4, &c), to(V6, &c), UdpDst { tos: 4, ..to(V4, &b) }];
    let mut batch = a.sender().batch();
    for i in 0..200 {
        let packet = pattern(i, 24);
        batch.reserve(&ways[i % 5], 24).copy_from_slice(&packet);
        batch.commit();
    }
    assert_eq!(batch.flush().sent, 200);
    let seeds = |port, ip, tos| -> Vec<_> {
        let mut port_packets: Vec<Packet> = port;
        port_packets.retain(|p| p.dst == ip && p.tos == tos);
        port_packets.into_iter().map(|p| p.bytes).collect()
    };
    let expected = |way: usize| (0..200).filter(|i| i % 5 == way).map(|i| pattern(i, 24)).collect::<Vec<_>>();
    let (at_b, at_c) = (receive(&b, 120), receive(&c, 80));
    assert_eq!(seeds(at_b.clone(), V4, 0), expected(0));
    assert_eq!(seeds(at_b.clone(), V6, 0), expected(1));
    assert_eq!(seeds(at_b, V4, 4), expected(4));
    assert_eq!(seeds(at_c.clone(), V4, 0), expected(2));
    assert_eq!(seeds(at_c, V6, 0), expected(3));
}

#[test]
fn packets_for_different_slots_do_not_share_a_batch() {
    let (a, b) = (ephemeral(), ephemeral());
    let dst = to(V4, &b);
    let mut batch = a.sender().batch();
    for slot in [1, 1, 2, 2, 2, 1] {
        let mut packet = pattern(0, 24);
        packet[5] = slot;
        batch.reserve(&dst, 24).copy_from_slice(&packet);
        batch.commit();
    }
    batch.flush();
    assert_eq!(receive(&b, 6).len(), 6);
    assert_eq!(b.counters().read().rcvd_datagrams, 3);
}

#[test]
fn a_reservation_without_commit_is_void() {
    let (a, b) = (ephemeral(), ephemeral());
    let dst = to(V4, &b);
    let mut batch = a.sender().batch();
    batch.commit();
    batch.reserve(&dst, 100).fill(9);
    batch.reserve(&dst, 24).copy_from_slice(&pattern(1, 24));
    batch.commit();
    batch.commit();
    batch.reserve(&dst, 50).fill(9);
    assert_eq!(batch.flush().sent, 1);
    assert_eq!(receive(&b, 1)[0].bytes, pattern(1, 24));
    assert_eq!(drain(&b), []);
}

#[test]
fn dropping_a_batch_sends_it() {
    let (a, b) = (ephemeral(), ephemeral());
    let mut batch = a.sender().batch();
    batch.reserve(&to(V4, &b), 24).copy_from_slice(&pattern(1, 24));
    batch.commit();
    drop(batch);
    assert_eq!(receive(&b, 1).len(), 1);
}

#[test]
fn losses_are_reported_by_cause() {
    let (a, b) = (ephemeral(), ephemeral());
    let mut batch = a.sender().batch();
    let mut send = |dst: UdpDst| {
        batch.reserve(&dst, 24).copy_from_slice(&pattern(1, 24));
        batch.commit();
        batch.flush()
    };
    let good = to(V4, &b);
    // Addresses of different families, a source that is not ours, and a port that nobody listens on.
    let mixed = send(UdpDst { local: V6, ..good });
    assert_eq!((mixed.sent, mixed.unreachable, mixed.errno), (0, 1, libc::EAFNOSUPPORT));
    let foreign = send(UdpDst { local: "192.0.2.77".parse().unwrap(), ..good });
    assert_eq!((foreign.sent, foreign.unreachable), (0, 1), "{foreign:?}");
    let deaf = {
        let gone = ephemeral();
        to(V4, &gone)
    };
    assert_eq!(send(deaf).lost(), 0);
    assert_eq!(send(good).lost(), 0);
    assert_eq!(a.counters().read().tx_unreachable, 2);
    assert_eq!(receive(&b, 1).len(), 1);

    let v4_only = UdpPort::open(&UdpConfig { bind: Some(V4), ..config() }).expect("open");
    let mut batch = v4_only.sender().batch();
    batch.reserve(&to(V6, &b), 24).fill(4);
    batch.commit();
    let report = batch.flush();
    assert_eq!((report.sent, report.lost()), (0, 1), "{report:?}");
}

#[test]
fn one_bad_destination_does_not_hurt_the_others() {
    let (a, b) = (ephemeral(), ephemeral());
    let good = to(V4, &b);
    let bad = UdpDst { local: "192.0.2.77".parse().unwrap(), ..good };
    let mut batch = a.sender().batch();
    for (i, dst) in [good, bad, good, bad, bad, good].iter().enumerate() {
        // A pair each, so that batches are refused too.
        for i in [2 * i, 2 * i + 1] {
            batch.reserve(dst, 24).copy_from_slice(&pattern(i, 24));
            batch.commit();
        }
    }
    let report = batch.flush();
    assert_eq!((report.sent, report.unreachable), (6, 6));
    let got: Vec<_> = receive(&b, 6).into_iter().map(|p| p.bytes).collect();
    let sent: Vec<_> = [0, 1, 4, 5, 10, 11].map(|i| pattern(i, 24)).into();
    assert_eq!(got, sent);
    assert_eq!(a.counters().read().gso_fallbacks, 0);
}

#[test]
fn threads_send_through_one_sender_at_once() {
    let (a, b) = (ephemeral(), ephemeral());
    let (tx, dst) = (a.sender(), to(V4, &b));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let tx = &tx;
            scope.spawn(move || {
                for i in 0..50 {
                    let mut batch = tx.batch();
                    batch.reserve(&dst, 40).copy_from_slice(&pattern(thread * 1000 + i, 40));
                    batch.commit();
                    assert_eq!(batch.flush().sent, 1);
                }
            });
        }
    });
    let mut got: Vec<_> = receive(&b, 200).into_iter().map(|p| p.bytes).collect();
    let mut sent: Vec<_> = (0..4).flat_map(|t| (0..50).map(move |i| pattern(t * 1000 + i, 40))).collect();
    got.sort();
    sent.sort();
    assert_eq!(got, sent);
}

#[test]
fn receiving_is_bounded() {
    let (a, b) = (ephemeral(), ephemeral());
    let mut batch = a.sender().batch();
    // Different lengths, so that nothing is joined.
    for i in 0..40 {
        batch.reserve(&to(V4, &b), 20 + i).fill(4);
        batch.commit();
    }
    assert_eq!(batch.flush().sent, 40);
    let mut bufs = RxBuffers::new(8);
    let mut total = 0;
    for limit in [1, 1, 3, 3, 3, 100, 100, 100, 100, 100, 100] {
        let seen = b.recv(&mut bufs, limit, &mut |_| {}).expect("recv");
        assert!(seen <= limit.min(8), "{seen} of {limit}");
        total += seen;
    }
    while total < 40 {
        let seen = b.recv(&mut bufs, 100, &mut |_| {}).expect("recv");
        assert_ne!(seen, 0);
        total += seen;
    }
    assert_eq!(b.recv(&mut bufs, 100, &mut |_| {}).expect("recv"), 0);
}
