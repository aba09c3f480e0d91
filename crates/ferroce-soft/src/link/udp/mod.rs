//! RoCEv2 over UDP port 4791: the wire that Soft-RoCE and NICs speak.
//!
//! # The socket
//!
//! One dual-stack socket serves IPv4 and IPv6 (IPv4 alone where IPv6 is off). It is never connected and has
//! "don't fragment" set, for one reason: the ICRC covers the IPv4 identification, which a sender must therefore
//! know beforehand. Linux gives such a socket's datagrams the identification 0, and the *n*-th datagram that it
//! cuts out of a segmentation-offload (GSO) batch the identification *n* (`ip_select_ident_segs` and
//! `inet_gso_segment` in `net/ipv4`). A connected socket would draw it from a counter that nobody can see.
//!
//! Packets leave from port 4791 as well. The standard lets a sender choose any source port, and NICs use that to
//! spread flows over paths. With 4791 at both ends firewalls, connection tracking and address
//! translation see *one* flow in two directions, so that the answers to what a host sends are let in; and no second
//! socket is needed. A caller that shares a host with other contexts gives nothing away: packets
//! are steered by destination QPN, not by port.
//!
//! # Several processes on one port
//!
//! Contexts of one user join one `SO_REUSEPORT` group. See [`steering_program`] for how the
//! kernel is told which socket gets which packet.
//!
//! # What is lost
//!
//! UDP loses packets, and so does this link: a full device, an unreachable peer, a packet beyond the
//! path MTU. Nothing of that is an error of a call; it is counted and reported in [`SendReport`] and
//! [`UdpCounters`], and the protocol above retransmits. What the socket's own buffer has no room for waits, in order, and whoever
//! has more to send is told ([`UdpTx::is_blocked`]). No call blocks.

#![deny(unsafe_code)]

mod backlog;
mod cmsg;
mod counters;
mod error;
mod held;
mod multicast;
mod name;
mod open;
mod owner;
mod report;
mod rx;
mod steering;
mod sys;
mod tx;

pub use counters::{UdpCounters, UdpStatistics};
pub use error::UdpOpenError;
pub use open::{UdpConfig, UdpPort};
pub use owner::PortOwner;
pub(crate) use owner::{holder_of, sockets_of};
pub use report::SendReport;
pub use rx::{Received, RxBuffers};
pub use steering::{MAX_STEERED_SLOTS, steering_program};
pub use tx::{MAX_PACKET, TxBatch, UdpDst, UdpTx};
