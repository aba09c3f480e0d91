//! The contexts that share one machine's addresses.
//!
//! On a real NIC several processes share one port: one address, one QP number space. A software device has no NIC to
//! hand out numbers, so the processes agree among themselves in a small directory of shared files:
//!
//! | file | what it is |
//! |---|---|
//! | `registry` | 254 slots, one for each open device context; mapped by all, atomics only |
//! | `lock` | `flock`ed to join, to reap and for administration; holds the process id of its last holder |
//! | `slot-N-I` | the segment of incarnation `I` of slot `N`: rings into which the others write (see [`crate::link::shm`]) |
//! | `slot-N-I.wake` | a FIFO; one byte in it wakes the owner of the slot |
//!
//! A *slot* is one open context, usually one process; its QP numbers are `slot << 16 | index`. A slot number is reused,
//! as late as possible, under a new *incarnation*: whoever kept an old one notices.
//!
//! # Who is alive
//!
//! The owner of a slot holds an open-file-description lock on its segment for life. The kernel drops that lock when the
//! process ends, at whatever instant and however it ends, and anybody can ask whether it is held. Process ids decide
//! nothing: containers that share a network namespace need not share a process id namespace.
//!
//! A `fork` without `exec` copies the lock into the child, so the slot lives until both are gone. The mappings are not
//! copied: a child that touches a device of its parent is stopped by the kernel, as with any RDMA device.
//!
//! # Killed at any instant
//!
//! Joining publishes the slot's entry last. Files that no live entry names, and that nobody locks, belong to a process
//! that died while it joined or left; the next join removes them. An entry whose lock is free belongs to a process that
//! died; the next join, or [`Membership::reap`], removes it with its files.
//!
//! A registry outlives its contexts, as the GUID and the next slot are in it. Whoever joins one in which nobody has been for ten
//! minutes removes those of network namespaces that are gone, in which nobody has been for ten minutes either.

mod abandoned;
mod admin;
mod directory;
mod error;
mod join;
mod layout;
mod lock;
mod map;
mod membership;
mod ofd;
mod reserve;
mod segment;
mod services;
mod sockets;

pub use admin::{Admin, SlotInfo};
pub use error::{DirectoryError, JoinError, LockError};
pub use join::{JoinOptions, Registry};
pub use membership::Membership;

pub(crate) use map::{Mapping, Shared};
pub(crate) use membership::{Process, ring};
pub(crate) use segment::{Control, Geometry, SegmentError};
pub(crate) use services::{BindError, Binding, SERVICES};

/// Number of slots: the contexts that can be open at once on one address.
///
/// A QP number is 24 bits, 8 of which name the slot. Two of the 256 stay unused: QP numbers `0xFFxxxx` (the multicast
/// QPN `0xFFFFFF` is among them) and `0xFExxxx`.
pub const SLOTS: usize = 254;
