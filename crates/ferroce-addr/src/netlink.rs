//! Asking the kernel over route netlink (`rtnetlink(7)`), and understanding the answers.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use super::LocalAddr;

const HEADER: usize = 16;
/// What dumps and notifications come in; the kernel uses at most 32 KiB.
pub(super) const BUFFER: usize = 64 * 1024;
/// A dump that changes under the reader is repeated so often.
const ATTEMPTS: usize = 16;

/// Opens a netlink socket that is subscribed to `groups`, a mask of `RTMGRP_*`.
pub(super) fn open(groups: u32, flags: SocketFlags) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags | SocketFlags::CLOEXEC,
        // NETLINK_ROUTE is protocol 0.
        None,
    )?;
    rustix::net::bind(&fd, &SocketAddrNetlink::new(0, groups))?;
    Ok(fd)
}

/// Receives messages of the kernel. Those of others are dropped, as `netlink(7)` advises.
pub(super) fn receive<'b>(fd: &OwnedFd, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    loop {
        let (len, _, from) =
            rustix::io::retry_on_intr(|| rustix::net::recvfrom(fd, &mut buffer[..], RecvFlags::empty()))?;
        let from_kernel =
            from.and_then(|from| SocketAddrNetlink::try_from(from).ok()).is_some_and(|from| from.pid() == 0);
        if from_kernel {
            return Ok(&buffer[..len.min(BUFFER)]);
        }
    }
}

/// The addresses with their links.
pub(super) fn local_addrs() -> io::Result<Vec<LocalAddr>> {
    let fd = open(0, SocketFlags::empty())?;
    for _ in 0..ATTEMPTS {
        let mut links = HashMap::new();
        let mut addrs = Vec::new();
        let whole = dump(&fd, libc::RTM_GETLINK, &mut |payload| {
            links.extend(Link::parse(payload).map(|link| (link.index, link)));
        })? && dump(&fd, libc::RTM_GETADDR, &mut |payload| {
            addrs.extend(Addr::parse(payload));
        })?;
        if whole {
            // An address whose link has gone between the dumps goes with it; a notification follows.
            return Ok(addrs.into_iter().filter_map(|addr| join(&addr, links.get(&addr.index)?)).collect());
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "the network interfaces change faster than they can be listed"))
}

/// Asks for one object, and reads the answer with `parse`.
pub(super) fn ask<T>(
    fd: &OwnedFd,
    kind: u16,
    body: &[u8],
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> io::Result<Option<T>> {
    let mut request = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    request.extend(kind.to_ne_bytes());
    request.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request.extend(u32::from(kind).to_ne_bytes());
    request.extend([0; 4]);
    request.extend(body);
    rustix::net::sendto(fd, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
    let mut buffer = vec![0; BUFFER];
    loop {
        for message in Messages(receive(fd, &mut buffer)?) {
            if message.sequence != u32::from(kind) {
                continue;
            }
            if i32::from(message.kind) == libc::NLMSG_ERROR {
                let errno = message.payload.first_chunk().map_or(0, |errno| i32::from_ne_bytes(*errno));
                return Err(io::Error::from_raw_os_error(-errno));
            }
            // The answer to a GET is the NEW, two less (rtnetlink.h).
            if message.kind + 2 == kind {
                return Ok(parse(message.payload));
            }
        }
    }
}

/// Asks for all objects of a kind and calls `f` with the payload of each message. False if they changed
/// meanwhile.
fn dump(fd: &OwnedFd, kind: u16, f: &mut dyn FnMut(&[u8])) -> io::Result<bool> {
    // A netlink header and a struct rtgenmsg, all families, padded.
    const LEN: usize = HEADER + 4;
    let mut request = [0; LEN];
    request[..4].copy_from_slice(&(LEN as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    request[8..12].copy_from_slice(&u32::from(kind).to_ne_bytes());
    let kernel = SocketAddrNetlink::new(0, 0);
    rustix::net::sendto(fd, &request, SendFlags::empty(), &kernel)?;
    let mut buffer = vec![0; BUFFER];
    let mut whole = true;
    loop {
        for message in Messages(receive(fd, &mut buffer)?) {
            if message.sequence != u32::from(kind) {
                continue;
            }
            whole &= i32::from(message.flags) & libc::NLM_F_DUMP_INTR == 0;
            match i32::from(message.kind) {
                libc::NLMSG_DONE => return Ok(whole),
                libc::NLMSG_ERROR => {
                    let errno = message.payload.first_chunk().map_or(0, |e| i32::from_ne_bytes(*e));
                    return Err(io::Error::from_raw_os_error(-errno));
                }
                // The answer to a GET is the NEW, one less (rtnetlink.h).
                reply if reply + 2 == i32::from(kind) => f(message.payload),
                _ => {}
            }
        }
    }
}

pub(super) struct Message<'a> {
    pub(super) kind: u16,
    flags: u16,
    sequence: u32,
    pub(super) payload: &'a [u8],
}

/// The messages in what was received. Ends at the first that is broken.
pub(super) struct Messages<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let bytes = self.0;
        let len = word(bytes, 0)? as usize;
        let payload = bytes.get(HEADER..len)?;
        self.0 = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind: half(bytes, 4)?, flags: half(bytes, 6)?, sequence: word(bytes, 8)?, payload })
    }
}

/// The attributes of a message, type and value each. Ends at the first that is broken.
pub(super) struct Attributes<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let bytes = self.0;
        let len = usize::from(half(bytes, 0)?);
        let value = bytes.get(4..len)?;
        self.0 = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((half(bytes, 2)?, value))
    }
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(super) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// As messages say it.
pub(super) fn family(ip: IpAddr) -> u8 {
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    family as u8
}

pub(super) fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

/// An address of either family.
pub(super) fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into()),
        16 => Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into()),
        _ => None,
    }
}

/// Adds an attribute to the body of a request.
pub(super) fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(((value.len() + 4) as u16).to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Link {
    index: u32,
    flags: u32,
    name: String,
    mtu: u32,
    mac: [u8; 6],
}

impl Link {
    /// A `struct ifinfomsg` and its attributes.
    fn parse(payload: &[u8]) -> Option<Self> {
        let mut link = Self { index: word(payload, 4)?, flags: word(payload, 8)?, ..Self::default() };
        for (kind, value) in Attributes(payload.get(16..)?) {
            match kind {
                libc::IFLA_IFNAME => {
                    let name = value.split(|&b| b == 0).next().unwrap_or_default();
                    link.name = String::from_utf8_lossy(name).into_owned();
                }
                libc::IFLA_MTU => link.mtu = word(value, 0)?,
                libc::IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
                _ => {}
            }
        }
        Some(link)
    }

    fn has(&self, flags: libc::c_int) -> bool {
        self.flags & flags as u32 == flags as u32
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Addr {
    ip: IpAddr,
    prefix_len: u8,
    index: u32,
}

impl Addr {
    /// A `struct ifaddrmsg` and its attributes. `None` if there is no address that can be used.
    fn parse(payload: &[u8]) -> Option<Self> {
        let &[family, prefix_len, flags, _scope] = payload.first_chunk()?;
        let mut flags = u32::from(flags);
        let (mut address, mut local) = (None, None);
        for (kind, value) in Attributes(payload.get(8..)?) {
            match kind {
                libc::IFA_ADDRESS => address = Some(value),
                libc::IFA_LOCAL => local = Some(value),
                libc::IFA_FLAGS => flags = word(value, 0)?,
                _ => {}
            }
        }
        if flags & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) != 0 && flags & libc::IFA_F_OPTIMISTIC == 0 {
            return None;
        }
        // On a point-to-point link the one called "address" is the peer's.
        let bytes = local.or(address)?;
        let ip = match i32::from(family) {
            libc::AF_INET => Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into(),
            libc::AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).into(),
            _ => return None,
        };
        Some(Self { ip, prefix_len, index: word(payload, 4)? })
    }
}

fn join(addr: &Addr, link: &Link) -> Option<LocalAddr> {
    Some(LocalAddr {
        ip: addr.ip,
        prefix_len: addr.prefix_len,
        ifindex: addr.index,
        ifname: link.name.clone(),
        mtu: link.mtu,
        up: link.has(libc::IFF_UP | libc::IFF_RUNNING),
        loopback: link.has(libc::IFF_LOOPBACK),
        link_local: match addr.ip {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        },
        mac: link.mac,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = ((value.len() + 4) as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = ((payload.len() + HEADER) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 10]);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn link() -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(((libc::IFF_UP | libc::IFF_RUNNING) as u32).to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(attribute(libc::IFLA_IFNAME, b"eth7\0"));
        bytes.extend(attribute(libc::IFLA_MTU, &1500u32.to_ne_bytes()));
        bytes.extend(attribute(libc::IFLA_ADDRESS, &[2, 0, 0, 0, 0, 7]));
        bytes
    }

    fn addr(family: i32, flags: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![family as u8, 24, 0, 0];
        bytes.extend(7u32.to_ne_bytes());
        bytes.extend(attribute(libc::IFA_FLAGS, &flags.to_ne_bytes()));
        for (kind, value) in attributes {
            bytes.extend(attribute(*kind, value));
        }
        bytes
    }

    #[test]
    fn links_and_addresses_are_understood() {
        let link = Link::parse(&link()).unwrap();
        assert_eq!((link.index, link.mtu, link.name.as_str()), (7, 1500, "eth7"));
        let v4 = addr(libc::AF_INET, 0, &[(libc::IFA_ADDRESS, &[10, 0, 0, 2]), (libc::IFA_LOCAL, &[10, 0, 0, 1])]);
        let local = join(&Addr::parse(&v4).unwrap(), &link).unwrap();
        assert_eq!(local.ip, "10.0.0.1".parse::<IpAddr>().unwrap());
        assert_eq!((local.mac, local.up, local.loopback), ([2, 0, 0, 0, 0, 7], true, false));
        let ll: Ipv6Addr = "fe80::7".parse().unwrap();
        let v6 = |flags| Addr::parse(&addr(libc::AF_INET6, flags, &[(libc::IFA_ADDRESS, &ll.octets())]));
        assert!(join(&v6(0).unwrap(), &link).unwrap().link_local);
        assert_eq!(v6(libc::IFA_F_TENTATIVE), None);
        assert_eq!(v6(libc::IFA_F_DADFAILED), None);
        assert!(v6(libc::IFA_F_TENTATIVE | libc::IFA_F_OPTIMISTIC).is_some());
    }

    #[test]
    fn every_cut_is_legal_input() {
        let mut bytes = message(libc::RTM_NEWLINK, &link());
        bytes.extend(message(libc::RTM_NEWADDR, &addr(libc::AF_INET, 0, &[(libc::IFA_LOCAL, &[1; 4])])));
        assert_eq!(Messages(&bytes).count(), 2);
        for len in 0..bytes.len() {
            for message in Messages(&bytes[..len]) {
                let _ = Link::parse(message.payload);
                let _ = Addr::parse(message.payload);
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_legal_input(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(Messages(&bytes).count() <= 200);
            prop_assert!(Attributes(&bytes).count() <= 200);
            let _ = Link::parse(&bytes);
            let _ = Addr::parse(&bytes);
        }
    }
}
