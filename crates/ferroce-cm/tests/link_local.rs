//! Link-local IPv6 addresses, which mean something else on each interface.

mod support;

use ferroce_cm::{ConnParam, Error, EventKind, PortSpace};
use ferroce_soft::LinkMode;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::process::Command;
use support::{Host, message};

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().expect("iproute2 is installed");
    assert!(status.success(), "ip {args}");
}

/// Two interfaces in the test's own namespace, of which only one has the address.
fn interfaces() -> [u32; 2] {
    ip("link add one type veth peer name two");
    for (name, address) in [("one", "fe80::1:1/64"), ("two", "fe80::2:2/64")] {
        ip(&format!("link set {name} up"));
        ip(&format!("addr add {address} dev {name} nodad"));
    }
    ["one", "two"].map(|name| {
        let out = Command::new("ip").args(["-o", "link", "show", name]).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        text.split(':').next().unwrap().trim().parse().unwrap()
    })
}

fn addr(ip: &str, port: u16, scope_id: u32) -> SocketAddr {
    SocketAddrV6::new(ip.parse::<Ipv6Addr>().unwrap(), port, 0, scope_id).into()
}

fn scope_id(addr: Option<SocketAddr>) -> u32 {
    match addr {
        Some(SocketAddr::V6(addr)) => addr.scope_id(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_connection_over_a_link_local_address() {
    for link in [LinkMode::Auto, LinkMode::Udp] {
        let host = Host::new(link);
        let [one, two] = interfaces();
        let (a, b) = (host.open(), host.open());
        for any in [false, true] {
            let listener = b.id();
            let at = if any { "[::]:0".parse().unwrap() } else { addr("fe80::1:1", 0, one) };
            listener.bind_addr(at).unwrap();
            listener.listen(0).unwrap();
            let port = listener.local_addr().unwrap().port();
            let active = a.connect(addr("fe80::1:1", port, one), b"");
            let (passive, _) = b.request();
            passive.accept(&ConnParam::default()).unwrap();
            assert!(matches!(a.event().kind(), EventKind::Established));
            assert!(matches!(b.event().kind(), EventKind::Established));
            // What either side is told of the other leads there.
            for id in [&active, &passive] {
                assert_eq!([id.local_addr(), id.peer_addr()].map(scope_id), [one, one]);
            }
            message((&a, &active), (&b, &passive), b"on this link");
            // On the other one there is nobody.
            let elsewhere = a.id();
            elsewhere.resolve_addr(None, addr("fe80::1:1", port, two)).unwrap();
            let event = a.event();
            assert!(matches!(event.kind(), EventKind::AddrResolved), "{event:?}");
            assert_eq!(scope_id(elsewhere.local_addr()), two);
            drop((listener, active, passive));
            while a.channel.try_next().unwrap().is_some() || b.channel.try_next().unwrap().is_some() {}
        }
    }
}

#[test]
fn without_its_interface_it_means_nothing() {
    let host = Host::new(LinkMode::Auto);
    let [one, two] = interfaces();
    let a = host.open();
    let id = a.id_in(PortSpace::Tcp);
    id.resolve_addr(None, addr("fe80::9", 7471, 0)).unwrap();
    let event = a.event();
    let EventKind::AddrError(error) = event.kind() else { panic!("{event:?}") };
    assert!(error.to_string().contains("needs its interface"), "{error}");
    // This host has it, and not there.
    let id = a.id();
    assert!(matches!(id.bind_addr(addr("fe80::1:1", 7471, two)), Err(Error::Address { .. })));
    id.bind_addr(addr("fe80::1:1", 7471, one)).unwrap();
}
