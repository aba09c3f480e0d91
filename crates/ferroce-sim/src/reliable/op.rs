use std::ops::Range;
use std::time::Duration;

/// A send that is posted and not known to be complete.
#[derive(Clone, Debug)]
pub(super) struct Op {
    /// Its number at its end, which is its `wr_id`.
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) len: usize,
    /// The slot of local memory that it uses, and where in it its data lies.
    pub(super) slot: usize,
    pub(super) pieces: Vec<Range<usize>>,
    pub(super) signaled: bool,
    pub(super) inline: bool,
    /// A write with immediate data that the peer has seen, and whose memory it took back.
    pub(super) consumed: bool,
    /// When it was posted.
    pub(super) at: Duration,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    SendImm(u32),
    SendInv(u32),
    /// To the peer's target slot of the same number, from this offset on.
    Write(usize),
    WriteImm(usize, u32),
    /// From the peer's source, from this offset on.
    Read(usize),
    /// To this word of the peer's context.
    Add {
        word: usize,
        add: u64,
    },
    Swap {
        word: usize,
        compare: u64,
        swap: u64,
    },
}

impl Kind {
    pub(super) fn is_atomic(self) -> bool {
        matches!(self, Self::Add { .. } | Self::Swap { .. })
    }

    /// Whether the local memory receives the result.
    pub(super) fn returns_data(self) -> bool {
        matches!(self, Self::Read(_) | Self::Add { .. } | Self::Swap { .. })
    }

    /// Whether it consumes a receive of the peer.
    pub(super) fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInv(_) | Self::WriteImm(..))
    }
}

/// A message that an end will receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    /// The sender's number for it.
    pub(super) id: u64,
    pub(super) kind: Kind,
    pub(super) len: usize,
    /// The target slot of a write.
    pub(super) slot: usize,
    /// The sender has seen its completion, checked the target slot and taken it back.
    pub(super) checked: bool,
}
