//! Shared memory between the contexts of one host.
//!
//! Each context owns a segment (see [`crate::host`]) with one ring for every other slot. A sender writes frames into
//! *its* ring in the *receiver's* segment, so a ring has one writer and one reader, and no context can disturb another's
//! rings. While both sides are busy there is no system call on the path; a receiver that wants to sleep says so, and the
//! sender that finds it asleep writes one byte into its FIFO.
//!
//! ```text
//!  slot 3                                    slot 7
//!  ShmSender --lane(7)--> frames --> ring 3 of segment 7 --> ShmReceiver::poll
//! ```
//!
//! # What the parts are
//!
//! - `ring`: the protocol of one ring, over any memory: shared, or a model checker's.
//! - `doorbell`: the protocol of falling asleep and being woken, likewise.
//! - `memory`: a ring in a mapped file. With `cma`, all of the link's `unsafe`.
//! - `cma`: copies from the memory of another process.
//! - [`ShmSender`], [`Lane`], [`LaneGuard`] send.
//! - [`ShmReceiver`] receives.
//!
//! # Trust
//!
//! All contexts of a registry belong to one user, who could as well debug or kill each of them; still a context that
//! died half way or went mad must not take others with it. Whatever a ring holds, its reader checks lengths and
//! positions against the bounds of the ring before it uses them, and shuts a ring that makes no sense. The *content* of
//! a frame is as trustworthy as a packet from the network, with one addition: a mad sender may change it while it is
//! being read. Copy what is checked before it is used.

mod cma;
mod doorbell;
mod error;
mod lane;
mod memory;
mod receiver;
mod ring;
mod sender;

#[cfg(test)]
mod tests;

pub use error::{AttachError, InUse};

pub(crate) use cma::copy;
pub use lane::{Lane, LaneGuard};
pub use receiver::{Frame, ReceiverCounters, ShmReceiver};
pub use sender::ShmSender;

/// Longest frame, in bytes: a forwarded datagram of 64 KiB with room for what a forwarder adds.
pub const MAX_FRAME: usize = 70 << 10;

/// Greatest tag: 24 bits.
pub const MAX_TAG: u32 = (1 << 24) - 1;
