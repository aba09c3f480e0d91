//! The addresses of this host: what they are, that they changed, and the GID table they make.
//!
//! [`local_addrs`] takes a snapshot, [`AddrWatch`] says when to take the next one, and [`GidTable`] turns snapshots into a table with
//! stable indices. [`link_layer`] tells how packets to an address leave this machine, and [`NeighbourWatch`] that this changed. All
//! of it is what the kernel's tables say over netlink; nothing is sent, and nothing is waited for.

#![forbid(unsafe_code)]

mod gid;
mod neighbour;
mod netlink;
mod route;
mod watch;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};

pub use gid::{GidChange, GidEntry, GidTable, MAX_GIDS, local_eui64};
pub use neighbour::{NeighbourWatch, link_layer};
pub use watch::AddrWatch;

/// An IP address of this host, with what is known of its interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddr {
    /// The address.
    pub ip: IpAddr,
    /// Bits of the network part.
    pub prefix_len: u8,
    /// Index of the interface.
    pub ifindex: u32,
    /// Name of the interface.
    pub ifname: String,
    /// Longest IP packet that the interface carries, in bytes.
    pub mtu: u32,
    /// The interface is administratively up and has a carrier.
    pub up: bool,
    /// The interface is a loopback interface.
    pub loopback: bool,
    /// The address is valid on its link only.
    pub link_local: bool,
    /// Link-layer address; zero if the interface has none of Ethernet's form.
    pub mac: [u8; 6],
}

/// The addresses of this network namespace, in the kernel's order. IPv6 addresses that are still being checked for
/// duplicates, or failed that check, are left out: they cannot be used.
///
/// # Errors
///
/// If the kernel refuses netlink, as some sandboxes do.
pub fn local_addrs() -> io::Result<Vec<LocalAddr>> {
    netlink::local_addrs()
}

/// The source address that the routing table chooses for `remote`. Nothing is sent.
///
/// # Errors
///
/// `ENETUNREACH` and the like if there is no route.
pub fn source_for(remote: SocketAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match remote {
        SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}
