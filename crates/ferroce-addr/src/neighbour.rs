//! Neighbours: which one leads to an address, what its MAC is, and that one of both changed.

use super::netlink::{self, Attributes, Messages, address, attribute, family, octets, word};
use super::route::{self, Route};
use ferroce_verbs::{AddressChange, LinkLayer};
use rustix::net::SocketFlags;
use std::io;
use std::net::IpAddr;
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

impl Neighbour {
    /// It has this MAC from now on.
    fn has(&self, mac: Option<[u8; 6]>) -> AddressChange {
        AddressChange::Neighbour { ifindex: self.ifindex, ip: self.ip, mac }
    }
}

/// Says when neighbours change, and the routes by which they lead to others.
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
        Ok(Self { fd: netlink::open(GROUP | route::GROUPS, SocketFlags::NONBLOCK)? })
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
                let change = match message.kind {
                    libc::RTM_NEWNEIGH => Neighbour::parse(message.payload).map(|it| it.has(it.mac)),
                    // The kernel would have to ask again, and so does whoever relied on the answer.
                    libc::RTM_DELNEIGH => Neighbour::parse(message.payload).map(|it| it.has(None)),
                    kind => route::change(kind, message.payload),
                };
                change.iter().for_each(&mut *f);
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

    proptest! {
        #[test]
        fn any_bytes_are_legal_input(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Neighbour::parse(&bytes);
        }
    }
}
