//! The addresses of a real host, as they come and go.

#[path = "udp_common/namespace.rs"]
mod namespace;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use ferroce_soft::addr::{AddrWatch, GidChange, GidTable, LocalAddr, local_addrs, source_for};
use ferroce_verbs::Mtu;
use namespace::{address, ifindex, in_namespace, ip, is_inside, wire};
use rustix::event::{PollFd, PollFlags, poll};

#[test]
fn loopback_is_there() {
    let addrs = local_addrs().expect("addresses");
    let lo = addrs.iter().find(|a| a.ip == address("127.0.0.1")).expect("127.0.0.1");
    assert_eq!((lo.ifindex, lo.ifname.as_str(), lo.prefix_len), (1, "lo", 8));
    assert!(lo.up && lo.loopback && !lo.link_local);
    assert_eq!(Mtu::fitting(lo.mtu), Some(Mtu::Mtu4096));
    assert_eq!(source_for("127.0.0.1:4791".parse().expect("address")).expect("route"), address("127.0.0.1"));
}

#[test]
fn addresses_come_and_go() {
    in_namespace("inside_addresses");
}

/// Waits for the watch and reads until `condition` holds. The kernel changes several things one after another.
fn after_change(watch: &AddrWatch, condition: impl Fn(&[LocalAddr]) -> bool) -> Vec<LocalAddr> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        assert!(Instant::now() < deadline, "no such change: {:?}", local_addrs());
        let timeout = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
        let mut fds = [PollFd::new(watch, PollFlags::IN)];
        poll(&mut fds, Some(&timeout)).expect("poll");
        assert!(watch.changed().expect("watch"), "woken for nothing");
        let addrs = local_addrs().expect("addresses");
        if condition(&addrs) {
            return addrs;
        }
    }
}

#[test]
fn inside_addresses() {
    if !is_inside("inside_addresses") {
        return;
    }
    wire();
    let watch = AddrWatch::open().expect("watch");
    let has = |addrs: &[LocalAddr], ip: IpAddr| addrs.iter().any(|a| a.ip == ip && a.up);
    let first = address("10.9.0.1");
    // Link-local addresses are being checked for duplicates at first, which takes a second or two.
    let addrs = after_change(&watch, |a| a.iter().any(|a| a.link_local));
    let here = addrs.iter().find(|a| a.ip == first).expect("address");
    assert_eq!((here.ifindex, here.ifname.as_str(), here.mtu), (ifindex("here"), "here", 9000));
    assert!(here.up && !here.loopback && here.mac[0] & 1 == 0 && here.mac != [0; 6]);
    let table = GidTable::new(&addrs);
    assert_eq!(table.get(0).expect("entry").addr.ip, first);
    assert_eq!(table.get(1).expect("entry").addr.ip, address("fd09::1"));

    let second = address("10.9.0.77");
    ip("address add 10.9.0.77/24 dev here");
    let addrs = after_change(&watch, |a| has(a, second));
    let (table, changes) = table.updated(&addrs);
    let Some((index, _)) = table.find(second) else { panic!("{table:?}") };
    assert!(changes.contains(&GidChange::Added(index)) && index + 1 == table.len());

    ip("address del 10.9.0.1/24 dev here");
    let addrs = after_change(&watch, |a| !has(a, first));
    let (table, changes) = table.updated(&addrs);
    assert!(changes.contains(&GidChange::Removed(0)), "{changes:?}");

    ip("address add 10.9.0.1/24 dev here");
    let addrs = after_change(&watch, |a| has(a, first));
    let (table, _) = table.updated(&addrs);
    assert_eq!(table.get(0), None);
    assert!(table.find(first).is_some());

    ip("link set here mtu 1500");
    let addrs = after_change(&watch, |a| a.iter().any(|a| a.ip == first && a.mtu == 1500));
    let (table, changes) = table.updated(&addrs);
    let (index, entry) = table.find(first).expect("entry");
    assert!(changes.contains(&GidChange::Modified(index)));
    assert_eq!(Mtu::fitting(entry.addr.mtu), Some(Mtu::Mtu1024));

    ip("link set there down");
    let addrs = after_change(&watch, |a| a.iter().any(|a| a.ip == first && !a.up));
    let (table, changes) = table.updated(&addrs);
    assert!(changes.contains(&GidChange::Modified(index)));
    assert_eq!(table.find(first).map(|(index, _)| index), Some(index));
    // It says so for a while, but not for ever.
    let deadline = Instant::now() + Duration::from_secs(10);
    while watch.changed().expect("watch") {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(50));
    }
}
