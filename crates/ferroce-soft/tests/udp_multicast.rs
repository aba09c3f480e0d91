//! Multicast groups.

#[path = "udp_common/namespace.rs"]
mod namespace;
mod udp_common;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use ferroce_soft::link::udp::{UdpConfig, UdpDst, UdpPort};
use namespace::{HERE, address, ifindex, in_namespace, is_inside, wire};
use udp_common::{config, drain, pattern, receive};

/// Index of `lo`, in every network namespace.
const LO: u32 = 1;

/// Members and strangers of a group, all on one port.
fn check(group: IpAddr, local: IpAddr, ifindex: u32, bind: Option<IpAddr>) {
    let open = |port| UdpPort::open(&UdpConfig { port, bind, ..config() }).expect("open");
    let a = open(0);
    let (b, stranger) = (open(a.local_port()), open(a.local_port()));
    a.join_multicast(group, ifindex).expect("join");
    b.join_multicast(group, ifindex).expect("join");
    let remote = match group {
        IpAddr::V4(_) => SocketAddr::new(group, a.local_port()),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, a.local_port(), 0, ifindex).into(),
    };
    let dst = UdpDst { remote, local, tos: 0, ttl: 0 };
    let sent = [24, 24, 24, 20].map(|len| pattern(len, len));
    let mut batch = stranger.sender().batch();
    let mut send = || {
        for packet in &sent {
            batch.reserve(&dst, packet.len()).copy_from_slice(packet);
            batch.commit();
        }
        let report = batch.flush();
        assert_eq!((report.sent, report.lost()), (4, 0), "{report:?}");
    };
    send();
    for member in [&a, &b] {
        let got = receive(member, 4);
        assert!(got.iter().all(|p| p.dst == group && p.src.ip() == local && p.ttl == 64));
        assert_eq!(got.into_iter().map(|p| p.bytes).collect::<Vec<_>>(), sent);
        assert_eq!(member.counters().read().rcvd_foreign_ip_id, 0);
    }
    assert_eq!(drain(&stranger), []);

    b.leave_multicast(group, ifindex).expect("leave");
    assert!(b.leave_multicast(group, ifindex).is_err());
    send();
    assert_eq!(receive(&a, 4).len(), 4);
    assert_eq!(drain(&b), []);
}

#[test]
fn ipv4_groups_reach_their_members() {
    check(Ipv4Addr::new(239, 1, 2, 3).into(), Ipv4Addr::LOCALHOST.into(), LO, None);
}

#[test]
fn ipv4_groups_reach_their_members_without_ipv6() {
    check(Ipv4Addr::new(239, 1, 2, 4).into(), Ipv4Addr::LOCALHOST.into(), LO, Some(Ipv4Addr::UNSPECIFIED.into()));
}

/// The loopback interface has no IPv6 groups.
#[test]
fn groups_on_a_wire_reach_their_members() {
    in_namespace("inside_groups");
}

#[test]
fn inside_groups() {
    if !is_inside("inside_groups") {
        return;
    }
    wire();
    for (group, local) in [("ff0e::4791", 1), ("ff02::4791", 1), ("239.9.8.7", 0)] {
        check(address(group), address(HERE[local]), ifindex("here"), None);
    }
}

#[test]
fn what_is_no_group_cannot_be_joined() {
    let port = udp_common::ephemeral();
    assert!(port.join_multicast(Ipv4Addr::LOCALHOST.into(), LO).is_err());
    assert!(port.join_multicast(Ipv6Addr::LOCALHOST.into(), LO).is_err());
}
