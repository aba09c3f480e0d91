use bitflags::bitflags;
use std::fmt;

/// How a work request ended (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// It did what it says.
    Success = 0,
    /// The message does not fit the local buffers, or is larger than the port allows.
    LocLenErr = 1,
    /// An internal queue pair consistency error.
    LocQpOpErr = 2,
    /// A local buffer is not covered by a valid memory region with the rights needed.
    LocProtErr = 4,
    /// The queue pair went to the error state before the request was done.
    WrFlushErr = 5,
    /// A memory window could not be bound.
    MwBindErr = 6,
    /// The peer answered with something that is not allowed.
    BadRespErr = 7,
    /// A protection error on a local buffer while an RDMA write with immediate arrived.
    LocAccessErr = 8,
    /// The peer found the request invalid: too long for its receive, an operation it does not support.
    RemInvReqErr = 9,
    /// The peer refused access: rkey, bounds or rights.
    RemAccessErr = 10,
    /// The peer could not complete the request.
    RemOpErr = 11,
    /// The peer did not answer within the local ACK timeout, as often as the retry count allows.
    RetryExcErr = 12,
    /// The peer had no receive posted, as often as the RNR retry count allows.
    RnrRetryExcErr = 13,
    /// The peer aborted the request.
    RemAbortErr = 16,
    /// A fatal device error.
    FatalErr = 19,
    /// The response did not come in time.
    RespTimeoutErr = 20,
    /// Anything else.
    GeneralErr = 21,
}

impl WcStatus {
    /// The text that libibverbs gives (`ibv_wc_status_str`).
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::LocLenErr => "local length error",
            Self::LocQpOpErr => "local QP operation error",
            Self::LocProtErr => "local protection error",
            Self::WrFlushErr => "Work Request Flushed Error",
            Self::MwBindErr => "memory bind operation error",
            Self::BadRespErr => "bad response error",
            Self::LocAccessErr => "local access error",
            Self::RemInvReqErr => "remote invalid request error",
            Self::RemAccessErr => "remote access error",
            Self::RemOpErr => "remote operation error",
            Self::RetryExcErr => "transport retry counter exceeded",
            Self::RnrRetryExcErr => "RNR retry counter exceeded",
            Self::RemAbortErr => "remote aborted error",
            Self::FatalErr => "fatal error",
            Self::RespTimeoutErr => "response timeout error",
            Self::GeneralErr => "general error",
        }
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What completed (`ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcOpcode {
    /// A send.
    Send,
    /// An RDMA write.
    RdmaWrite,
    /// An RDMA read.
    RdmaRead,
    /// A compare-and-swap.
    CompSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A receive that a send consumed.
    Recv,
    /// A receive that an RDMA write with immediate consumed.
    RecvRdmaWithImm,
}

bitflags! {
    /// What else a completion says (`ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u8 {
        /// The first 40 bytes of the receive buffer are a GRH.
        const GRH = 1;
        /// [`WorkCompletion::imm`] holds immediate data.
        const WITH_IMM = 1 << 1;
        /// [`WorkCompletion::imm`] holds the rkey that the send invalidated.
        const WITH_INV = 1 << 3;
    }
}

/// One entry of a completion queue (`ibv_wc`).
///
/// When `status` is not [`WcStatus::Success`], only `wr_id`, `status`, `vendor_err` and `qp_num` mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkCompletion {
    /// The work request's own number.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Device specific detail of an error.
    pub vendor_err: u32,
    /// Bytes received or read. For UD the 40 bytes of GRH count.
    pub byte_len: u32,
    /// Immediate data in host order, or the invalidated rkey; see `flags`.
    pub imm: u32,
    /// The local queue pair.
    pub qp_num: u32,
    /// The peer's queue pair; UD receives only.
    pub src_qp: u32,
    /// What else is known.
    pub flags: WcFlags,
    /// Index of the P_Key that the packet carried; UD receives only.
    pub pkey_index: u16,
    /// Service level; UD receives only.
    pub sl: u8,
}

impl WorkCompletion {
    /// A successful completion of `wr_id`, all else zero.
    pub const fn new(wr_id: u64, opcode: WcOpcode, qp_num: u32) -> Self {
        Self {
            wr_id,
            status: WcStatus::Success,
            opcode,
            vendor_err: 0,
            byte_len: 0,
            imm: 0,
            qp_num,
            src_qp: 0,
            flags: WcFlags::empty(),
            pkey_index: 0,
            sl: 0,
        }
    }

    /// The immediate data, if there is any.
    pub fn imm_data(&self) -> Option<u32> {
        self.flags.contains(WcFlags::WITH_IMM).then_some(self.imm)
    }

    /// The rkey that the peer's send invalidated, if it did.
    pub fn invalidated_rkey(&self) -> Option<u32> {
        self.flags.contains(WcFlags::WITH_INV).then_some(self.imm)
    }

    /// Whether it succeeded.
    pub fn is_ok(&self) -> bool {
        self.status == WcStatus::Success
    }
}

impl Default for WorkCompletion {
    fn default() -> Self {
        Self::new(0, WcOpcode::Send, 0)
    }
}
