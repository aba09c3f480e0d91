//! Opening the port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ferroce_wire::ROCE_UDP_PORT;
use libc::{IPPROTO_IP, IPPROTO_IPV6, c_int};
use socket2::{Domain, Protocol, Socket, Type};

use super::cmsg::UDP_GRO;
use super::counters::UdpCounters;
use super::error::UdpOpenError;
use super::name::{Family, is_wildcard};
use super::sys;
use super::tx::{DEFAULT_TTL, TxShared, UdpTx};
use crate::link::capture::Capture;
use crate::link::fault::FaultPlan;

/// `include/uapi/linux/udp.h`; libc does not have it.
const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// How to open a [`UdpPort`].
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// UDP port. RoCEv2 is 4791; 0 lets the kernel choose one, for tests.
    pub port: u16,
    /// The one local address to use. `None`: all of them, IPv6 and IPv4.
    pub bind: Option<IpAddr>,
    /// Share the port with other processes of the same user that do the same.
    pub reuse_port: bool,
    /// Let the kernel cut batches into packets on the way out.
    pub gso: bool,
    /// Let the kernel hand over joined packets.
    pub gro: bool,
    /// Bytes of socket buffer to ask for in each direction. The kernel grants no more than
    /// `net.core.rmem_max` and `wmem_max`.
    pub socket_buffer: usize,
    /// Faults to inject on the sending side.
    pub faults: Option<FaultPlan>,
    /// Where to record all packets, sent and received, good and bad.
    pub capture: Option<Capture>,
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            port: ROCE_UDP_PORT,
            bind: None,
            reuse_port: true,
            gso: true,
            gro: true,
            socket_buffer: 16 << 20,
            faults: None,
            capture: None,
        }
    }
}

/// The UDP end of the wire.
///
/// All methods take `&self` and may be called from any thread at once. The file descriptor is readable when
/// [`recv`](Self::recv) has something to do. Closing is dropping the last of the port and the senders made from it.
#[derive(Debug)]
pub struct UdpPort {
    pub(super) shared: Arc<Shared>,
}

/// What a port and its senders have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) socket: Socket,
    pub(super) family: Family,
    pub(super) port: u16,
    pub(super) counters: UdpCounters,
    pub(super) tx: TxShared,
    pub(super) capture: Option<Capture>,
}

impl Shared {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl UdpPort {
    /// Opens the port.
    ///
    /// # Errors
    ///
    /// [`UdpOpenError`] says who owns the port where that can be found, and what to do.
    pub fn open(config: &UdpConfig) -> Result<Self, UdpOpenError> {
        let (socket, family) = match config.bind {
            Some(IpAddr::V4(_)) => (bind(config, Family::V4)?, Family::V4),
            Some(IpAddr::V6(_)) => (bind(config, Family::V6)?, Family::V6),
            None => match bind(config, Family::V6) {
                Ok(socket) => (socket, Family::V6),
                Err(e) if e.lacks_family() => (bind(config, Family::V4)?, Family::V4),
                Err(e) => return Err(e),
            },
        };
        let local = socket.local_addr().map_err(|e| UdpOpenError::option("local address", e))?;
        let port = local.as_socket().map_or(config.port, |a| a.port());
        Ok(Self {
            shared: Arc::new(Shared {
                socket,
                family,
                port,
                counters: UdpCounters::default(),
                tx: TxShared::new(config),
                capture: config.capture.clone(),
            }),
        })
    }

    /// The port that packets come to and leave from.
    #[must_use]
    pub fn local_port(&self) -> u16 {
        self.shared.port
    }

    /// Whether the socket carries IPv6 as well as IPv4.
    #[must_use]
    pub fn has_ipv6(&self) -> bool {
        self.shared.family == Family::V6
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> &UdpCounters {
        &self.shared.counters
    }

    /// Bytes of receive buffer that the kernel granted. It accounts for its own overhead in them, so that about half
    /// of them hold packets.
    ///
    /// # Errors
    ///
    /// What `getsockopt` reports.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        self.shared.socket.recv_buffer_size()
    }

    /// Datagrams that the kernel dropped because the receive buffer was full.
    ///
    /// # Errors
    ///
    /// What `getsockopt` reports.
    pub fn receive_drops(&self) -> io::Result<u32> {
        // SO_MEMINFO, include/uapi/linux/sock_diag.h; the drops are its last word.
        const WORDS: usize = libc::SK_MEMINFO_DROPS as usize + 1;
        let words: [u32; WORDS] = sys::get_words(self.shared.fd(), libc::SOL_SOCKET, libc::SO_MEMINFO)?;
        Ok(words[WORDS - 1])
    }

    /// The socket's inode, which names it in `/proc/net/udp`.
    ///
    /// # Errors
    ///
    /// What `fstat` reports.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(rustix::fs::fstat(self.shared.fd())?.st_ino)
    }

    /// Gives up the port at once, though senders may still exist: what they send from now on goes nowhere. Calling it again
    /// does nothing more.
    ///
    /// # Errors
    ///
    /// What `socket` or `dup3` report; the port is still held.
    pub fn close(&self) -> io::Result<()> {
        // The descriptor stays one of a socket, so that late senders need no lock; but that one has no port.
        let unbound = Socket::new(Domain::UNIX, Type::DGRAM.nonblocking().cloexec(), None)?;
        sys::replace(self.shared.fd(), unbound.as_fd())
    }

    /// A sender. It is cheap to clone and keeps the socket open.
    #[must_use]
    pub fn sender(&self) -> UdpTx {
        UdpTx::new(self.shared.clone())
    }
}

/// The descriptor to poll for readability. Nobody but the port may read, write, connect or close it.
impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }
}

fn bind(config: &UdpConfig, family: Family) -> Result<Socket, UdpOpenError> {
    let wildcard = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let mut addr = SocketAddr::new(config.bind.unwrap_or(wildcard), config.port);
    // Asked for any port, the kernel is free to give one that another sharing socket has. So a socket that does not
    // share asks first, and holds the port until the one that does has it too.
    let mut placeholder = None;
    if config.port == 0 && config.reuse_port {
        let alone = bind(&UdpConfig { reuse_port: false, ..config.clone() }, family)?;
        let found = alone.local_addr().map_err(|e| UdpOpenError::new(addr, e))?;
        addr.set_port(found.as_socket().map_or(0, |found| found.port()));
        alone.set_reuse_port(true).map_err(|e| UdpOpenError::option("SO_REUSEPORT", e))?;
        placeholder = Some(alone);
    }
    let domain = Domain::for_address(addr);
    let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))
        .map_err(|e| UdpOpenError::new(addr, e))?;
    set_options(config, family, is_wildcard(addr.ip()), &socket)?;
    let bound = socket.bind(&addr.into());
    drop(placeholder);
    match bound {
        Ok(()) => Ok(socket),
        Err(e) => Err(UdpOpenError::new(addr, e)),
    }
}

fn set_options(config: &UdpConfig, family: Family, wildcard: bool, socket: &Socket) -> Result<(), UdpOpenError> {
    let fd = socket.as_fd();
    let set = |what, level, name, value: c_int| {
        sys::set_int(fd, level, name, value).map_err(|e| UdpOpenError::option(what, e))
    };
    if config.reuse_port {
        set("SO_REUSEPORT", libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    }
    let ipv6 = family == Family::V6;
    if ipv6 {
        set("IPV6_V6ONLY", IPPROTO_IPV6, libc::IPV6_V6ONLY, c_int::from(!wildcard))?;
        set("IPV6_MTU_DISCOVER", IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        // Covers mapped IPv4 addresses too.
        set("IPV6_RECVPKTINFO", IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
        set("IPV6_RECVTCLASS", IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
        set("IPV6_RECVHOPLIMIT", IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
    }
    if !ipv6 || wildcard {
        // On an AF_INET6 socket these govern the mapped IPv4 traffic.
        set("IP_MTU_DISCOVER", IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
        if !ipv6 {
            set("IP_PKTINFO", IPPROTO_IP, libc::IP_PKTINFO, 1)?;
        }
        set("IP_RECVTOS", IPPROTO_IP, libc::IP_RECVTOS, 1)?;
        set("IP_RECVTTL", IPPROTO_IP, libc::IP_RECVTTL, 1)?;
    }
    if family == Family::V6 {
        // The kernel's rxe and many NICs send IPv6 datagrams without a UDP checksum: the ICRC is the better one
        // (IBTA annex A17.4.5.3).
        set("UDP_NO_CHECK6_RX", libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
    }
    // What follows is only worth having. Without it the link is slower or hears groups that others joined, no more.
    if config.gro {
        let _ = set("UDP_GRO", libc::SOL_UDP, UDP_GRO, 1);
    }
    // Only the groups that this socket joined; and as many hops as any other packet, not the one that is usual.
    if ipv6 {
        let _ = socket.set_multicast_all_v6(false);
        let _ = socket.set_multicast_hops_v6(u32::from(DEFAULT_TTL));
    }
    if !ipv6 || wildcard {
        let _ = socket.set_multicast_all_v4(false);
        let _ = socket.set_multicast_ttl_v4(u32::from(DEFAULT_TTL));
    }
    let _ = socket.set_recv_buffer_size(config.socket_buffer);
    let _ = socket.set_send_buffer_size(config.socket_buffer);
    Ok(())
}
