//! The kernel's connection manager as user space sees it: the device file `/dev/infiniband/rdma_cm` (`rdma/rdma_user_cm.h`).
//!
//! A program opens the file, and writes commands; each has a header, a body of its own, and perhaps the address of memory that the
//! kernel writes the answer to before `write` returns. Events are answers, too: to the command that asks for the next one. [`RdmaCm`] is
//! what the file can do, in Rust's terms, and [`CmFile`] does it.
//!
//! Left out are commands that others have replaced since Linux 3.12 (`BIND_IP`, `RESOLVE_IP`, `QUERY_ROUTE`, `JOIN_IP_MCAST`), the one that
//! no kernel has (`GET_OPTION`), and those that need a file for each event channel (`MIGRATE_ID`, `WRITE_CM_EVENT`). So is what only other
//! devices than RoCE need (`QUERY` of paths and GIDs, the option with an InfiniBand path, `RESOLVE_IB_SERVICE`), and enhanced connection
//! establishment (ECE), which negotiates what a vendor's devices have beyond the standard: who connects or accepts offers none.

mod file;
mod reply;
mod sockaddr;
pub mod wire;

pub use file::CmFile;
pub use reply::{Addresses, CmEvent, CmEventParam, ConnParam, Private, QpAttr, UdParam};

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// What the kernel's connection manager can do for a program. An id is the kernel's number of one; it is used again once the id is
/// destroyed.
///
/// All calls may be made from any thread; the kernel lets those for one id wait for each other. Errors are the kernel's.
#[expect(clippy::missing_errors_doc, reason = "they are the kernel's")]
pub trait RdmaCm: Send + Sync {
    /// Makes an id of a port space (`RDMA_PS_*`) for queue pairs of a type (`IBV_QPT_*`). Its events carry `uid`, which is not 0.
    fn create_id(&self, uid: u64, port_space: u16, qp_type: u8) -> io::Result<u32>;
    /// Destroys an id with its unread events; says how many of its events were read. Waits for those who use the id in the kernel.
    fn destroy_id(&self, id: u32) -> io::Result<u32>;
    /// Gives an id a local address.
    fn bind(&self, id: u32, addr: SocketAddr) -> io::Result<()>;
    /// Finds out how a peer is reached. An event follows.
    fn resolve_addr(&self, id: u32, local: Option<SocketAddr>, peer: SocketAddr, timeout_ms: u32) -> io::Result<()>;
    /// Finds out which way to the peer to use. An event follows.
    fn resolve_route(&self, id: u32, timeout_ms: u32) -> io::Result<()>;
    /// The addresses and the device of an id.
    fn query_addr(&self, id: u32) -> io::Result<Addresses>;
    /// Asks the peer for a connection. An event follows.
    fn connect(&self, id: u32, param: &ConnParam) -> io::Result<()>;
    /// Begins to listen; 0 stands for as many unread requests as the kernel allows.
    fn listen(&self, id: u32, backlog: u32) -> io::Result<()>;
    /// Grants what a peer has asked for; from then on there are events, with `uid`.
    fn accept(&self, id: u32, uid: u64, param: &ConnParam) -> io::Result<()>;
    /// Confirms what a peer has granted.
    fn establish(&self, id: u32) -> io::Result<()>;
    /// Refuses what a peer has asked for, or granted.
    fn reject(&self, id: u32, private_data: &[u8]) -> io::Result<()>;
    /// Ends a connection, or answers a peer that does.
    fn disconnect(&self, id: u32) -> io::Result<()>;
    /// What moves a queue pair to the state `IBV_QPS_*`.
    fn init_qp_attr(&self, id: u32, state: u32) -> io::Result<QpAttr>;
    /// Sets an option (`RDMA_OPTION_*`).
    fn set_option(&self, id: u32, level: u32, name: u32, value: &[u8]) -> io::Result<()>;
    /// Tells of an event of the queue pair (`IBV_EVENT_*`).
    fn notify(&self, id: u32, event: u32) -> io::Result<()>;
    /// Joins a multicast group; an event with `uid` follows. Returns the number of the membership.
    fn join_multicast(&self, id: u32, uid: u64, group: IpAddr, send_only: bool) -> io::Result<u32>;
    /// Leaves it; says how many of its events were read.
    fn leave_multicast(&self, membership: u32) -> io::Result<u32>;
    /// The next event, if there is one. Never blocks.
    fn next_event(&self) -> io::Result<Option<CmEvent>>;
    /// Waits until there may be an event, until `other` is readable, or for `timeout`, whichever comes first; it may also return for nothing.
    /// Says whether `other` is readable.
    fn wait(&self, other: BorrowedFd<'_>, timeout: Option<Duration>) -> bool;
}
