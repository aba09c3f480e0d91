//! Why the port could not be opened.

use std::io;
use std::net::SocketAddr;

use super::owner::{self, PortOwner};

/// Why a [`UdpPort`](super::UdpPort) could not be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpOpenError {
    /// Somebody has the port and does not share it with this process.
    #[error("UDP port {port} is taken: {owner}")]
    InUse {
        /// The port.
        port: u16,
        /// Who has it.
        owner: PortOwner,
        /// What `bind` reported.
        source: io::Error,
    },
    /// The address is not one of this host.
    #[error("{addr} is not an address of this host: choose one that `ip address` shows, or none for all")]
    NotLocal {
        /// The address and port.
        addr: SocketAddr,
        /// What `bind` reported.
        source: io::Error,
    },
    /// The process may not do that: a security policy forbids sockets, or the port is below
    /// `net.ipv4.ip_unprivileged_port_start`.
    #[error(
        "no permission for UDP port {port}: a security policy or seccomp filter forbids it, or the port is privileged"
    )]
    Permission {
        /// The port.
        port: u16,
        /// What the system call reported.
        source: io::Error,
    },
    /// The kernel lacks the address family.
    #[error("the kernel has no {family}: choose an address of another family, or none for all there are")]
    NoFamily {
        /// "IPv4" or "IPv6".
        family: &'static str,
        /// What `socket` reported.
        source: io::Error,
    },
    /// The process or the system is out of descriptors or memory.
    #[error("cannot create a UDP socket: raise the limit on open files (ulimit -n) or free memory")]
    Resources(#[source] io::Error),
    /// The kernel refuses a socket option that the link cannot do without.
    #[error(
        "the kernel refuses {option} on a UDP socket: ferroce needs Linux 4.5 or newer, and a sandbox may emulate less"
    )]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What `setsockopt` reported.
        source: io::Error,
    },
    /// Anything else.
    #[error("cannot bind {addr}")]
    Bind {
        /// The address and port.
        addr: SocketAddr,
        /// What the system call reported.
        source: io::Error,
    },
}

impl UdpOpenError {
    pub(super) fn option(option: &'static str, source: io::Error) -> Self {
        Self::Option { option, source }
    }

    /// The meaning of what `socket` or `bind` reported for `addr`.
    pub(super) fn new(addr: SocketAddr, source: io::Error) -> Self {
        let port = addr.port();
        match source.raw_os_error() {
            Some(libc::EADDRINUSE) => Self::InUse { port, owner: owner::find(port), source },
            Some(libc::EADDRNOTAVAIL) => Self::NotLocal { addr, source },
            Some(libc::EACCES | libc::EPERM) => Self::Permission { port, source },
            Some(libc::EAFNOSUPPORT | libc::EPFNOSUPPORT | libc::EPROTONOSUPPORT) => {
                let family = if addr.is_ipv4() { "IPv4" } else { "IPv6" };
                Self::NoFamily { family, source }
            }
            Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) => Self::Resources(source),
            _ => Self::Bind { addr, source },
        }
    }

    /// Whether the trouble is IPv6 being off, so that IPv4 alone may still work.
    pub(super) fn lacks_family(&self) -> bool {
        matches!(self, Self::NoFamily { .. } | Self::NotLocal { .. })
    }
}
