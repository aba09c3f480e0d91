//! The UDP link between two ports of one process.

mod udp_common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ferroce_soft::link::udp::{UdpConfig, UdpPort};
use udp_common::{config, ephemeral, pattern, receive, to};

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
