//! The extended transport headers (IBTA 9.3): RETH, AtomicETH, AETH, DETH.

use crate::psn::PSN_MASK;

/// RDMA extended transport header, 16 bytes: the remote memory of a write or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reth {
    /// Virtual address in the responder.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: u32,
    /// Length of the whole message in bytes, at most 2^31 (IBTA 9.3.3).
    pub len: u32,
}

/// Atomic extended transport header, 28 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AtomicEth {
    /// Virtual address in the responder; a multiple of 8.
    pub va: u64,
    /// Key of the responder's memory region.
    pub rkey: u32,
    /// The value to store (compare and swap) or to add (fetch and add).
    pub swap_or_add: u64,
    /// The value to compare with; ignored by fetch and add.
    pub compare: u64,
}

/// ACK extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aeth {
    /// What is acknowledged or refused.
    pub syndrome: Syndrome,
    /// Message sequence number of the responder, 24 bits: messages completed so far.
    pub msn: u32,
}

/// The syndrome byte of an AETH (IBTA 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// Acknowledgement.
    Ack {
        /// End-to-end credits, a 5-bit code; 31 means that the responder sets no limit.
        credits: u8,
    },
    /// Receiver not ready: no receive was posted.
    RnrNak {
        /// How long to wait, a 5-bit code (IBTA 9.7.5.2.8; 0 is 655.36 ms, the longest).
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
    /// Any syndrome that IBTA reserves, as the byte that it was.
    Reserved(u8),
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A PSN was skipped: packets were lost.
    PsnSequence = 0,
    /// The request was malformed, out of place, or too long for the posted receive.
    InvalidRequest = 1,
    /// The rkey, address, length or access rights do not fit.
    RemoteAccess = 2,
    /// The responder failed on its own account.
    RemoteOperational = 3,
    /// Invalid RD request (reliable datagram service only).
    InvalidRdRequest = 4,
}

impl NakCode {
    /// The NAK code with this 5-bit number; `None` if it is reserved.
    #[inline]
    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRdRequest,
            _ => return None,
        })
    }
}

impl Syndrome {
    /// An acknowledgement that sets no limit on the requester, as a responder with a shared receive
    /// queue must send it.
    pub const ACK_UNLIMITED: Self = Self::Ack { credits: 31 };

    /// Decodes the byte: bits 7 to 5 are the kind, bits 4 to 0 its value.
    #[inline]
    #[must_use]
    pub const fn from_u8(byte: u8) -> Self {
        let value = byte & 0x1f;
        match byte >> 5 {
            0b000 => Self::Ack { credits: value },
            0b001 => Self::RnrNak { timer: value },
            0b011 => match NakCode::from_u8(value) {
                Some(code) => Self::Nak(code),
                None => Self::Reserved(byte),
            },
            _ => Self::Reserved(byte),
        }
    }

    /// Encodes the byte; only the low 5 bits of credits and timer are used.
    #[inline]
    #[must_use]
    pub const fn to_u8(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::RnrNak { timer } => 0x20 | timer & 0x1f,
            Self::Nak(code) => 0x60 | code as u8,
            Self::Reserved(byte) => byte,
        }
    }
}

/// Datagram extended transport header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Deth {
    /// Queue key that the receiving QP must hold.
    pub qkey: u32,
    /// Number of the sending QP, 24 bits.
    pub src_qpn: u32,
}

/// Big-endian 32-bit word at a fixed offset of an array; the bounds are known to the compiler.
#[inline]
pub(crate) const fn be32<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline]
pub(crate) const fn be64<const N: usize>(b: &[u8; N], at: usize) -> u64 {
    (be32(b, at) as u64) << 32 | be32(b, at + 4) as u64
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    #[inline]
    pub(crate) const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { va: be64(b, 0), rkey: be32(b, 8), len: be32(b, 12) }
    }

    #[inline]
    pub(crate) fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..16].copy_from_slice(&self.len.to_be_bytes());
    }
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    #[inline]
    pub(crate) const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { va: be64(b, 0), rkey: be32(b, 8), swap_or_add: be64(b, 12), compare: be64(b, 20) }
    }

    #[inline]
    pub(crate) fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        b[20..28].copy_from_slice(&self.compare.to_be_bytes());
    }
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    #[inline]
    pub(crate) const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { syndrome: Syndrome::from_u8(b[0]), msn: be32(b, 0) & PSN_MASK }
    }

    #[inline]
    pub(crate) fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = (u32::from(self.syndrome.to_u8()) << 24 | self.msn & PSN_MASK).to_be_bytes();
    }
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    #[inline]
    pub(crate) const fn parse(b: &[u8; Self::LEN]) -> Self {
        Self { qkey: be32(b, 0), src_qpn: be32(b, 4) & PSN_MASK }
    }

    #[inline]
    pub(crate) fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..4].copy_from_slice(&self.qkey.to_be_bytes());
        b[4..8].copy_from_slice(&(self.src_qpn & PSN_MASK).to_be_bytes());
    }
}
