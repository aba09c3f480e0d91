//! Why the port could not be opened.

use std::io;
use std::net::SocketAddr;

/// Why a [`UdpPort`](super::UdpPort) could not be opened, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpOpenError {
    /// Somebody else has the port.
    #[error("UDP port {port} is taken")]
    InUse {
        /// The port.
        port: u16,
        /// What `bind` reported.
        source: io::Error,
    },
    /// The kernel has no such address family.
    #[error("the kernel has no such address family")]
    NoFamily(#[source] io::Error),
    /// `bind` failed.
    #[error("cannot bind {addr}")]
    Bind {
        /// The address and port.
        addr: SocketAddr,
        /// What `bind` reported.
        source: io::Error,
    },
    /// The process may not create sockets or is out of descriptors or memory.
    #[error("cannot create a UDP socket")]
    Socket(#[source] io::Error),
    /// The kernel refuses a socket option that the link cannot do without.
    #[error("cannot set {option} on the UDP socket")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What `setsockopt` reported.
        source: io::Error,
    },
}

impl UdpOpenError {
    pub(super) fn socket(e: io::Error) -> Self {
        match e.raw_os_error() {
            Some(libc::EAFNOSUPPORT) => Self::NoFamily(e),
            _ => Self::Socket(e),
        }
    }

    pub(super) fn option(option: &'static str, source: io::Error) -> Self {
        Self::Option { option, source }
    }

    pub(super) fn bind(addr: SocketAddr, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EADDRINUSE) => Self::InUse { port: addr.port(), source },
            _ => Self::Bind { addr, source },
        }
    }

    /// Whether IPv4 alone may still work.
    pub(super) fn no_such_family(&self) -> bool {
        match self {
            Self::NoFamily(_) => true,
            Self::Bind { source, .. } => source.raw_os_error() == Some(libc::EADDRNOTAVAIL),
            _ => false,
        }
    }
}
