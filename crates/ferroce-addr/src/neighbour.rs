//! Neighbours: which one leads to an address, what its MAC is, and that it changed.

use super::netlink::{self, Attributes, Messages, word};
use ferroce_verbs::{AddressChange, LinkLayer};
use rustix::net::SocketFlags;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// States in which a neighbour's MAC is of no use (`linux/neighbour.h`): incomplete, failed, none.
const NUD_UNUSABLE: u16 = 0x01 | 0x20;
/// `RTMGRP_NEIGH` of `linux/rtnetlink.h`.
const GROUP: u32 = 0x4;

/// How packets to `remote` leave, as the kernel's tables have it at this moment: nothing is sent, and nothing is waited for. `scope`
/// is the interface of a link-local address. `None` if they do not leave this machine, or leave by something that is no Ethernet.
///
/// # Errors
///
/// `ENETUNREACH` or `EHOSTUNREACH` if there is no way there; otherwise if the kernel refuses netlink.
pub fn link_layer(remote: IpAddr, scope: u32) -> io::Result<Option<LinkLayer>> {
    let fd = netlink::open(0, SocketFlags::empty())?;
    let Some(route) = Route::ask(&fd, remote, scope)? else { return Ok(None) };
    let next_hop = route.gateway.unwrap_or(remote);
    let mac = match ask_neighbour(&fd, route.ifindex, next_hop) {
        Ok(neighbour) => neighbour.and_then(|neighbour| neighbour.mac),
        // Nobody has asked for it so far.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => None,
        Err(error) => return Err(error),
    };
    Ok(Some(LinkLayer { ifindex: route.ifindex, next_hop, mac }))
}

fn family(ip: IpAddr) -> u8 {
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    family as u8
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((value.len() + 4) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

#[derive(Debug, PartialEq, Eq)]
struct Route {
    ifindex: u32,
    gateway: Option<IpAddr>,
}

impl Route {
    /// `None` for an address of this machine, of everybody, or of a group.
    fn ask(fd: &OwnedFd, remote: IpAddr, scope: u32) -> io::Result<Option<Self>> {
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

fn ask_neighbour(fd: &OwnedFd, ifindex: u32, ip: IpAddr) -> io::Result<Option<Neighbour>> {
    // A struct ndmsg.
    let mut body = vec![0; 12];
    body[0] = family(ip);
    body[4..8].copy_from_slice(&ifindex.to_ne_bytes());
    attribute(&mut body, libc::NDA_DST, &octets(ip));
    netlink::ask(fd, libc::RTM_GETNEIGH, &body, Neighbour::parse)
}

#[derive(Debug, PartialEq, Eq)]
struct Neighbour {
    ifindex: u32,
    ip: IpAddr,
    mac: Option<[u8; 6]>,
}

impl Neighbour {
    /// A `struct ndmsg` and its attributes.
    fn parse(payload: &[u8]) -> Option<Self> {
        let ifindex = word(payload, 4)?;
        let state = netlink::half(payload, 8)?;
        let (mut ip, mut mac) = (None, None);
        for (kind, value) in Attributes(payload.get(12..)?) {
            match kind {
                libc::NDA_DST => ip = address(value),
                libc::NDA_LLADDR => mac = value.try_into().ok(),
                _ => {}
            }
        }
        let is_usable = state != 0 && state & NUD_UNUSABLE == 0;
        Some(Self { ifindex, ip: ip?, mac: mac.filter(|_| is_usable) })
    }
}

/// Says when neighbours change.
#[derive(Debug)]
pub struct NeighbourWatch {
    fd: OwnedFd,
}

impl NeighbourWatch {
    /// Begins to watch this network namespace.
    ///
    /// # Errors
    ///
    /// If the kernel refuses netlink, as some sandboxes do.
    pub fn open() -> io::Result<Self> {
        Ok(Self { fd: netlink::open(GROUP, SocketFlags::NONBLOCK)? })
    }

    /// Calls `f` for each change since the last call, in order. Does not block.
    pub fn changes(&self, f: &mut dyn FnMut(&AddressChange)) {
        let mut buffer = vec![0; netlink::BUFFER];
        loop {
            let bytes = match netlink::receive(&self.fd, &mut buffer) {
                Ok(bytes) => bytes,
                // More changes than the socket could hold.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    f(&AddressChange::Unknown);
                    continue;
                }
                Err(_) => return,
            };
            for message in Messages(bytes) {
                let Some(neighbour) = Neighbour::parse(message.payload) else { continue };
                let Neighbour { ifindex, ip, mac } = neighbour;
                match message.kind {
                    libc::RTM_NEWNEIGH => f(&AddressChange::Neighbour { ifindex, ip, mac }),
                    // The kernel would have to ask again, and so does whoever relied on the answer.
                    libc::RTM_DELNEIGH => f(&AddressChange::Neighbour { ifindex, ip, mac: None }),
                    _ => {}
                }
            }
        }
    }
}

/// The descriptor to poll: readable means that [`changes`](NeighbourWatch::changes) has something to say.
impl AsFd for NeighbourWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn neighbour(state: u16, mac: &[u8]) -> Vec<u8> {
        let mut bytes = vec![libc::AF_INET as u8, 0, 0, 0];
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(state.to_ne_bytes());
        bytes.extend([0; 2]);
        attribute(&mut bytes, libc::NDA_DST, &[10, 0, 0, 2]);
        attribute(&mut bytes, libc::NDA_LLADDR, mac);
        bytes
    }

    #[test]
    fn neighbours_are_understood() {
        let mac = |state| Neighbour::parse(&neighbour(state, &[2, 0, 0, 0, 0, 9])).unwrap().mac;
        // Reachable, stale, permanent.
        for state in [0x02, 0x04, 0x80] {
            assert_eq!(mac(state), Some([2, 0, 0, 0, 0, 9]), "{state:#x}");
        }
        for state in [0, 0x01, 0x20] {
            assert_eq!(mac(state), None, "{state:#x}");
        }
        let parsed = Neighbour::parse(&neighbour(2, &[1; 4])).unwrap();
        let ip = IpAddr::from([10, 0, 0, 2]);
        assert_eq!(parsed, Neighbour { ifindex: 7, ip, mac: None }, "that is no MAC");
    }

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

    proptest! {
        #[test]
        fn any_bytes_are_legal_input(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Neighbour::parse(&bytes);
            let _ = Route::parse(&bytes);
        }
    }
}
