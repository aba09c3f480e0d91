//! What can go wrong between a sender and a ring.

use std::io;

/// A sender cannot write to a slot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// There is no such slot number.
    #[error("{slot} is not a slot number; they are below {slots}", slots = crate::host::SLOTS)]
    NoSuchSlot {
        /// The number.
        slot: u8,
    },
    /// Nobody lives in the slot.
    #[error("no context lives in slot {slot}: its process ended or closed the device")]
    PeerGone {
        /// The slot.
        slot: u8,
    },
    /// There is no memory for the ring.
    #[error(
        "no room for a ring of {bytes} bytes to slot {slot}: {source}; free some shared memory, or name a directory on a larger file system with FERROCE_RUNTIME_DIR"
    )]
    NoSpace {
        /// The slot.
        slot: u8,
        /// The size of a ring with its head.
        bytes: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// The peer's segment is laid out otherwise, or its ring is in a state that cannot be.
    #[error("the segment of slot {slot} is damaged ({why}); its process must reopen the device")]
    Damaged {
        /// The slot.
        slot: u8,
        /// What is wrong.
        why: &'static str,
    },
    /// The kernel refused an operation: mostly a limit of this process (`ulimit -n`, `ulimit -v`).
    #[error("cannot {what} the segment of slot {slot}: {source}; ulimit -a shows the limits of a process")]
    Io {
        /// The slot.
        slot: u8,
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A membership has one sender and one receiver at a time; this one exists already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this membership already has a {what}; drop that first, or share it")]
pub struct InUse {
    pub(super) what: &'static str,
}
