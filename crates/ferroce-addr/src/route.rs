//! Routes: by which neighbour packets to an address leave, and that it is another one.

use super::netlink::{self, Attributes, address, attribute, family, octets, word};
use ferroce_verbs::AddressChange;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

/// Routes and the rules that choose among their tables, of both families: `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV4_RULE`, `RTMGRP_IPV6_ROUTE`
/// and the group `RTNLGRP_IPV6_RULE` of `linux/rtnetlink.h`.
pub(super) const GROUPS: u32 = 0x40 | 0x80 | 0x400 | 1 << (19 - 1);

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) ifindex: u32,
    pub(super) gateway: Option<IpAddr>,
}

impl Route {
    /// `None` for an address of this machine, of everybody, or of a group.
    pub(super) fn ask(fd: &OwnedFd, remote: IpAddr, scope: u32) -> io::Result<Option<Self>> {
        // A struct rtmsg.
        let mut body = vec![0; 12];
        body[0] = family(remote);
        body[1] = octets(remote).len() as u8 * 8;
        attribute(&mut body, libc::RTA_DST, &octets(remote));
        if scope != 0 {
            attribute(&mut body, libc::RTA_OIF, &scope.to_ne_bytes());
        }
        netlink::ask(fd, libc::RTM_GETROUTE, &body, Self::parse)
    }

    /// A `struct rtmsg` and its attributes.
    fn parse(payload: &[u8]) -> Option<Self> {
        if *payload.get(7)? != libc::RTN_UNICAST {
            return None;
        }
        let (mut ifindex, mut gateway) = (None, None);
        for (kind, value) in Attributes(payload.get(12..)?) {
            match kind {
                libc::RTA_OIF => ifindex = word(value, 0),
                libc::RTA_GATEWAY => gateway = address(value),
                // A router of the other family: its own is in front (struct rtvia).
                libc::RTA_VIA => gateway = value.get(2..).and_then(address),
                _ => {}
            }
        }
        Some(Self { ifindex: ifindex?, gateway })
    }
}

/// What a message says that changed, if it is about routes. Which of several routes to a prefix is used now only the kernel knows: so all that
/// go there may go another way. Beyond a rule nothing is certain.
pub(super) fn change(kind: u16, payload: &[u8]) -> Option<AddressChange> {
    match kind {
        libc::RTM_NEWROUTE | libc::RTM_DELROUTE => {
            let (prefix, prefix_len) = prefix(payload)?;
            Some(AddressChange::Route { prefix, prefix_len })
        }
        libc::RTM_NEWRULE | libc::RTM_DELRULE => Some(AddressChange::Unknown),
        _ => None,
    }
}

/// Of a `struct rtmsg` and its attributes; `None` for routes to nobody in particular, and for link-local ones, of which each interface has one: whoever
/// sends to such an address says by which interface.
fn prefix(payload: &[u8]) -> Option<(IpAddr, u8)> {
    let &[family, len, _, _, _, _, _, kind] = payload.first_chunk()?;
    if matches!(kind, libc::RTN_BROADCAST | libc::RTN_ANYCAST | libc::RTN_MULTICAST) {
        return None;
    }
    let mut destinations = Attributes(payload.get(12..)?).filter(|(kind, _)| *kind == libc::RTA_DST);
    let prefix = match (destinations.next(), i32::from(family)) {
        (Some((_, value)), _) => address(value)?,
        // The default route.
        (None, libc::AF_INET) => Ipv4Addr::UNSPECIFIED.into(),
        (None, libc::AF_INET6) => Ipv6Addr::UNSPECIFIED.into(),
        (None, _) => return None,
    };
    let is_link_local = matches!(prefix, IpAddr::V6(ip) if len >= 10 && ip.is_unicast_link_local());
    (!is_link_local).then_some((prefix, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn routes_are_understood() {
        let route = |kind: u8, attributes: &[(u16, &[u8])]| {
            let mut bytes = vec![libc::AF_INET as u8, 32, 0, 0, 0, 0, 0, kind, 0, 0, 0, 0];
            attributes.iter().for_each(|(kind, value)| attribute(&mut bytes, *kind, value));
            Route::parse(&bytes)
        };
        let oif = (libc::RTA_OIF, &7u32.to_ne_bytes()[..]);
        assert_eq!(route(libc::RTN_UNICAST, &[oif]), Some(Route { ifindex: 7, gateway: None }));
        let gateway = Some(IpAddr::from([10, 0, 0, 1]));
        assert_eq!(
            route(libc::RTN_UNICAST, &[oif, (libc::RTA_GATEWAY, &[10, 0, 0, 1])]),
            Some(Route { ifindex: 7, gateway })
        );
        let mut via = (libc::AF_INET6 as u16).to_ne_bytes().to_vec();
        via.extend(Ipv6Addr::LOCALHOST.octets());
        let gateway = Some(IpAddr::from(Ipv6Addr::LOCALHOST));
        assert_eq!(route(libc::RTN_UNICAST, &[oif, (libc::RTA_VIA, &via)]), Some(Route { ifindex: 7, gateway }));
        assert_eq!(route(libc::RTN_LOCAL, &[oif]), None, "it is this machine");
        assert_eq!(route(libc::RTN_UNICAST, &[]), None);
    }

    #[test]
    fn changes_of_routes_are_understood() {
        let message = |family: i32, len: u8, kind: u8, attributes: &[(u16, &[u8])]| {
            let mut bytes = vec![family as u8, len, 0, 0, 0, 0, 0, kind, 0, 0, 0, 0];
            attributes.iter().for_each(|(kind, value)| attribute(&mut bytes, *kind, value));
            bytes
        };
        let gateway = (libc::RTA_GATEWAY, &[10, 0, 0, 1][..]);
        let near = message(libc::AF_INET, 24, libc::RTN_UNICAST, &[gateway, (libc::RTA_DST, &[10, 2, 0, 0])]);
        let expected = AddressChange::Route { prefix: [10, 2, 0, 0].into(), prefix_len: 24 };
        for kind in [libc::RTM_NEWROUTE, libc::RTM_DELROUTE] {
            assert_eq!(change(kind, &near), Some(expected));
        }
        let default = message(libc::AF_INET, 0, libc::RTN_UNICAST, &[gateway]);
        let all = AddressChange::Route { prefix: Ipv4Addr::UNSPECIFIED.into(), prefix_len: 0 };
        assert_eq!(change(libc::RTM_NEWROUTE, &default), Some(all));
        let six: Ipv6Addr = "fd00:1::".parse().unwrap();
        let far = message(libc::AF_INET6, 64, libc::RTN_UNREACHABLE, &[(libc::RTA_DST, &six.octets())]);
        let expected = AddressChange::Route { prefix: six.into(), prefix_len: 64 };
        assert_eq!(change(libc::RTM_NEWROUTE, &far), Some(expected));
        let everybody = message(libc::AF_INET, 32, libc::RTN_BROADCAST, &[(libc::RTA_DST, &[10, 2, 0, 255])]);
        assert_eq!(change(libc::RTM_NEWROUTE, &everybody), None);
        assert_eq!(change(libc::RTM_NEWRULE, &[]), Some(AddressChange::Unknown));
        assert_eq!(change(libc::RTM_NEWLINK, &near), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_legal_input(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Route::parse(&bytes);
            let _ = prefix(&bytes);
        }
    }
}
