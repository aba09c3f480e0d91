//! Multicast groups.
//!
//! A datagram to a group reaches every socket on the host that joined it, the sender's too. So each process that shares the port
//! gets its own copy and has nothing to pass on. Membership belongs to the socket and ends with it.

use std::io;
use std::net::IpAddr;

use socket2::InterfaceIndexOrAddress;

use super::open::UdpPort;

impl UdpPort {
    /// Joins a multicast group on the interface with that index (0: where the routing table leads).
    ///
    /// # Errors
    ///
    /// `EINVAL` if `group` is no group, `EADDRINUSE` if it was joined already, `ENODEV` if there is no such interface,
    /// `ENOBUFS` beyond `net.ipv4.igmp_max_memberships`, and others of `setsockopt`.
    pub fn join_multicast(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let socket = &self.shared.socket;
        match group {
            IpAddr::V4(v4) => socket.join_multicast_v4_n(&v4, &InterfaceIndexOrAddress::Index(ifindex)),
            IpAddr::V6(v6) => socket.join_multicast_v6(&v6, ifindex),
        }
    }

    /// Leaves a group that was joined with the same arguments.
    ///
    /// # Errors
    ///
    /// `EADDRNOTAVAIL` if it was not joined, and others of `setsockopt`.
    pub fn leave_multicast(&self, group: IpAddr, ifindex: u32) -> io::Result<()> {
        let socket = &self.shared.socket;
        match group {
            IpAddr::V4(v4) => socket.leave_multicast_v4_n(&v4, &InterfaceIndexOrAddress::Index(ifindex)),
            IpAddr::V6(v6) => socket.leave_multicast_v6(&v6, ifindex),
        }
    }
}
