use crate::{Ah, Error, QpType, Result};
use bitflags::bitflags;

/// A piece of registered memory (`ibv_sge`).
///
/// These are plain numbers: the device checks them against the memory region that `lkey` names, so a wrong one ends in a
/// completion error, never in an access outside the region. The layout is that of C, so that a list can be handed on as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Virtual address.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// The local key of the memory region that holds it.
    pub lkey: u32,
}

bitflags! {
    /// How a send is executed (`ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Do not start before all earlier reads and atomics are complete.
        const FENCE = 1;
        /// Report success with a completion.
        const SIGNALED = 1 << 1;
        /// Raise a solicited event at the peer.
        const SOLICITED = 1 << 2;
    }
}

/// What a send work request does (`ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Send.
    Send,
    /// Send with immediate data.
    SendImm(u32),
    /// Send and invalidate the peer's rkey.
    SendInv(u32),
    /// RDMA write.
    Write {
        /// Where to, in the peer's memory.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// RDMA write that consumes a receive at the peer and delivers immediate data.
    WriteImm {
        /// Where to, in the peer's memory.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The immediate data.
        imm: u32,
    },
    /// RDMA read into the local buffers.
    Read {
        /// Where from, in the peer's memory.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// 64-bit compare-and-swap; the old value goes to the local buffer.
    CompareSwap {
        /// Where, in the peer's memory; a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// What is compared with.
        compare: u64,
        /// What is stored if equal.
        swap: u64,
    },
    /// 64-bit fetch-and-add; the old value goes to the local buffer.
    FetchAdd {
        /// Where, in the peer's memory; a multiple of 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// What is added.
        add: u64,
    },
}

impl SendOp {
    /// Whether the peer answers with data: reads and atomics.
    #[inline]
    pub const fn has_response(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }
}

/// The local data of a send.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Registered memory: read (or, for reads and atomics, written) until the completion.
    Sges(&'a [Sge]),
    /// Bytes that are copied into the work request when it is posted; at most `max_inline_data`.
    Inline(&'a [u8]),
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub struct UdDest<'a> {
    /// The address handle; the work request holds a reference to it until it is complete.
    pub ah: &'a Ah,
    /// The peer's queue pair number.
    pub qpn: u32,
    /// The peer's Q_Key. With the top bit set, the queue pair's own is sent (IBTA 10.2.5).
    pub qkey: u32,
}

/// A send work request (`ibv_send_wr`).
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// The local data.
    pub data: Data<'a>,
    /// How.
    pub flags: SendFlags,
    /// Where to; UD only.
    pub ud: Option<UdDest<'a>>,
}

impl<'a> SendWr<'a> {
    /// A signaled request of operation `op` over registered memory.
    pub const fn new(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> Self {
        Self { wr_id, op, data: Data::Sges(sges), flags: SendFlags::SIGNALED, ud: None }
    }

    /// A signaled send of registered memory.
    pub const fn send(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self::new(wr_id, SendOp::Send, sges)
    }

    /// A signaled request of operation `op` that carries a copy of `bytes`.
    pub const fn inline(wr_id: u64, op: SendOp, bytes: &'a [u8]) -> Self {
        Self { wr_id, op, data: Data::Inline(bytes), flags: SendFlags::SIGNALED, ud: None }
    }

    /// The same with other flags.
    pub const fn flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags;
        self
    }

    /// The same as a datagram to `dest`.
    pub const fn to(mut self, dest: UdDest<'a>) -> Self {
        self.ud = Some(dest);
        self
    }

    /// Whether a queue pair of this type can do it (IBTA 10.8.3.1, table 77). Devices ask this of all that is posted.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] names the operation; [`Error::Invalid`] if it is a datagram without a destination, is none and has one,
    /// or has inline data in place of memory for its result.
    #[inline]
    pub fn check(&self, qp_type: QpType) -> Result<()> {
        let what = match (qp_type, self.op) {
            (QpType::Rc, _) | (_, SendOp::Send | SendOp::SendImm(_)) => None,
            (QpType::Uc, SendOp::Write { .. } | SendOp::WriteImm { .. }) => None,
            (_, SendOp::SendInv(_)) => Some("send with invalidate"),
            (_, SendOp::Write { .. } | SendOp::WriteImm { .. }) => Some("RDMA write"),
            (_, SendOp::Read { .. }) => Some("RDMA read"),
            (_, SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }) => Some("atomics"),
        };
        if let Some(what) = what {
            let by = match qp_type {
                QpType::Rc => "an RC queue pair",
                QpType::Uc => "a UC queue pair",
                QpType::Ud => "a UD queue pair",
            };
            return Err(Error::Unsupported { what, by });
        }
        if self.op.has_response() && matches!(self.data, Data::Inline(_)) {
            return Err(Error::invalid("inline data", "reads and atomics need memory for their result"));
        }
        match (qp_type, self.ud) {
            (QpType::Ud, None) => Err(Error::invalid("ud", "a datagram needs a destination")),
            (QpType::Rc | QpType::Uc, Some(_)) => Err(Error::invalid("ud", "the queue pair is connected")),
            _ => Ok(()),
        }
    }
}

/// A receive work request (`ibv_recv_wr`).
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// A receive into `sges`.
    pub const fn new(wr_id: u64, sges: &'a [Sge]) -> Self {
        Self { wr_id, sges }
    }
}
