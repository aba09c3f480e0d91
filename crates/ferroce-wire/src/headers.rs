//! The base transport header and a packet's headers as a whole.

use crate::error::ParseError;
use crate::ext::{Aeth, AtomicEth, Deth, Reth, be32, be64};
use crate::opcode::{ExtKind, Opcode};
use crate::psn::PSN_MASK;

/// Bytes of the base transport header.
pub const BTH_LEN: usize = 12;

/// Bytes of the longest headers that any opcode calls for (BTH and AtomicETH).
pub const MAX_HEADERS_LEN: usize = BTH_LEN + AtomicEth::LEN;

/// The partition key of the default partition with full membership.
const DEFAULT_PKEY: u16 = 0xffff;

/// Base transport header, 12 bytes (IBTA 9.2).
///
/// The congestion bits of byte 4 (FECN, BECN) are emitted as 0 and ignored when parsed; the ICRC
/// does not cover them. The transport header version is always 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event: the receiver's completion raises an event.
    pub solicited: bool,
    /// Path migration state; 1 in every packet of a QP that is migrated, which is where a QP
    /// starts.
    pub migrated: bool,
    /// Pad bytes between payload and ICRC, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Number of the receiving QP, 24 bits.
    pub dest_qpn: u32,
    /// The requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

impl Default for Bth {
    /// An RC Send Only to QP 0 with PSN 0 in the default partition, path migrated, nothing else
    /// set: the state from which a sender changes what it means to.
    fn default() -> Self {
        Self {
            opcode: Opcode::RcSendOnly,
            solicited: false,
            migrated: true,
            pad: 0,
            pkey: DEFAULT_PKEY,
            dest_qpn: 0,
            ack_request: false,
            psn: 0,
        }
    }
}

impl Bth {
    /// Whether the packet is of the default partition, in which the receiver is a full member: the low 15 bits of the partition
    /// key say which partition it is, the top bit says only what kind of member sent it (IBTA 10.9.3).
    #[inline]
    #[must_use]
    pub fn is_of_default_partition(&self) -> bool {
        (self.pkey ^ DEFAULT_PKEY) & 0x7fff == 0
    }

    #[inline]
    fn parse(b: &[u8; BTH_LEN]) -> Result<Self, ParseError> {
        let Some(opcode) = Opcode::from_u8(b[0]) else {
            return Err(ParseError::UnknownOpcode(b[0]));
        };
        let flags = b[1];
        if flags & 0x0f != 0 {
            return Err(ParseError::Version(flags & 0x0f));
        }
        Ok(Self {
            opcode,
            solicited: flags & 0x80 != 0,
            migrated: flags & 0x40 != 0,
            pad: flags >> 4 & 3,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            dest_qpn: be32(b, 4) & PSN_MASK,
            ack_request: b[8] & 0x80 != 0,
            psn: be32(b, 8) & PSN_MASK,
        })
    }

    #[inline]
    fn emit(&self, b: &mut [u8; BTH_LEN]) {
        b[0] = self.opcode.to_u8();
        b[1] = u8::from(self.solicited) << 7 | u8::from(self.migrated) << 6 | (self.pad & 3) << 4;
        b[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        b[4..8].copy_from_slice(&(self.dest_qpn & PSN_MASK).to_be_bytes());
        let word = u32::from(self.ack_request) << 31 | self.psn & PSN_MASK;
        b[8..12].copy_from_slice(&word.to_be_bytes());
    }
}

/// The extension headers of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ext {
    /// None.
    None,
    /// RDMA write (first or only) or read request.
    Reth(Reth),
    /// RDMA write only with immediate data.
    RethImm(Reth, u32),
    /// Immediate data, as a number (it travels in network byte order).
    Imm(u32),
    /// An rkey to invalidate.
    Inv(u32),
    /// Acknowledgement or read response.
    Aeth(Aeth),
    /// Atomic acknowledgement with the original value of the memory.
    AtomicAck(Aeth, u64),
    /// Atomic request.
    Atomic(AtomicEth),
    /// Datagram.
    Deth(Deth),
    /// Datagram with immediate data.
    DethImm(Deth, u32),
}

impl Ext {
    #[inline]
    const fn kind(&self) -> ExtKind {
        match self {
            Self::None => ExtKind::None,
            Self::Reth(_) => ExtKind::Reth,
            Self::RethImm(..) => ExtKind::RethImm,
            Self::Imm(_) => ExtKind::Imm,
            Self::Inv(_) => ExtKind::Inv,
            Self::Aeth(_) => ExtKind::Aeth,
            Self::AtomicAck(..) => ExtKind::AtomicAck,
            Self::Atomic(_) => ExtKind::Atomic,
            Self::Deth(_) => ExtKind::Deth,
            Self::DethImm(..) => ExtKind::DethImm,
        }
    }

    /// The immediate data, if any.
    #[inline]
    #[must_use]
    pub const fn imm(&self) -> Option<u32> {
        match *self {
            Self::Imm(imm) | Self::RethImm(_, imm) | Self::DethImm(_, imm) => Some(imm),
            _ => None,
        }
    }

    /// The remote memory of a write or read, if any.
    #[inline]
    #[must_use]
    pub const fn reth(&self) -> Option<Reth> {
        match *self {
            Self::Reth(reth) | Self::RethImm(reth, _) => Some(reth),
            _ => None,
        }
    }

    /// The acknowledgement, if any.
    #[inline]
    #[must_use]
    pub const fn aeth(&self) -> Option<Aeth> {
        match *self {
            Self::Aeth(aeth) | Self::AtomicAck(aeth, _) => Some(aeth),
            _ => None,
        }
    }

    /// The datagram header, if any.
    #[inline]
    #[must_use]
    pub const fn deth(&self) -> Option<Deth> {
        match *self {
            Self::Deth(deth) | Self::DethImm(deth, _) => Some(deth),
            _ => None,
        }
    }
}

/// All headers of one packet: the BTH and whichever extension headers its opcode calls for.
///
/// Parsing yields consistent headers only. Emitting writes what it is given: it is for the sender
/// to pair `ext` with the opcode, and [`is_consistent`](Self::is_consistent) tells whether it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Headers {
    /// The base transport header.
    pub bth: Bth,
    /// What follows it.
    pub ext: Ext,
}

/// The `N` bytes of an extension header that begin at `at`.
#[inline]
fn array<const N: usize>(packet: &[u8], at: usize) -> Result<&[u8; N], ParseError> {
    packet.get(at..).and_then(<[u8]>::first_chunk).ok_or(ParseError::Truncated { needed: at + N, len: packet.len() })
}

/// The first `N` bytes of `b`, which is longer than that by construction, and the rest.
#[inline]
fn split<const N: usize>(b: &mut [u8]) -> (&mut [u8; N], &mut [u8]) {
    b.split_first_chunk_mut().expect("the output is as long as Headers::len")
}

impl Headers {
    /// Bytes on the wire: 12 to [`MAX_HEADERS_LEN`].
    #[expect(clippy::len_without_is_empty, reason = "headers are never empty")]
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        BTH_LEN + self.ext.kind().len()
    }

    /// Whether the extension headers are those that the opcode calls for.
    #[inline]
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.ext.kind() == self.bth.opcode.ext_kind()
    }

    /// Writes the headers to the front of `out` and returns their length. Fields wider than on the
    /// wire are cut to their low bits (24 of a QPN, PSN or MSN, 2 of the pad count).
    ///
    /// # Panics
    ///
    /// If `out` is shorter than [`len`](Self::len); [`MAX_HEADERS_LEN`] bytes always do.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.len();
        let (bth, ext) = split::<BTH_LEN>(&mut out[..len]);
        self.bth.emit(bth);
        match self.ext {
            Ext::None => {}
            Ext::Reth(reth) => reth.emit(split(ext).0),
            Ext::RethImm(reth, imm) => {
                let (b, rest) = split(ext);
                reth.emit(b);
                *split(rest).0 = imm.to_be_bytes();
            }
            Ext::Imm(word) | Ext::Inv(word) => *split(ext).0 = word.to_be_bytes(),
            Ext::Aeth(aeth) => aeth.emit(split(ext).0),
            Ext::AtomicAck(aeth, original) => {
                let (b, rest) = split(ext);
                aeth.emit(b);
                *split(rest).0 = original.to_be_bytes();
            }
            Ext::Atomic(atomic) => atomic.emit(split(ext).0),
            Ext::Deth(deth) => deth.emit(split(ext).0),
            Ext::DethImm(deth, imm) => {
                let (b, rest) = split(ext);
                deth.emit(b);
                *split(rest).0 = imm.to_be_bytes();
            }
        }
        len
    }

    /// Reads the headers at the front of `packet`; also returns their length.
    ///
    /// # Errors
    ///
    /// [`ParseError::Truncated`], [`ParseError::UnknownOpcode`] or [`ParseError::Version`].
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<(Self, usize), ParseError> {
        let bth = Bth::parse(array(packet, 0)?)?;
        let kind = bth.opcode.ext_kind();
        let at = BTH_LEN;
        let ext = match kind {
            ExtKind::None => Ext::None,
            ExtKind::Reth => Ext::Reth(Reth::parse(array(packet, at)?)),
            ExtKind::RethImm => {
                let b: &[u8; 20] = array(packet, at)?;
                Ext::RethImm(Reth { va: be64(b, 0), rkey: be32(b, 8), len: be32(b, 12) }, be32(b, 16))
            }
            ExtKind::Imm => Ext::Imm(be32::<4>(array(packet, at)?, 0)),
            ExtKind::Inv => Ext::Inv(be32::<4>(array(packet, at)?, 0)),
            ExtKind::Aeth => Ext::Aeth(Aeth::parse(array(packet, at)?)),
            ExtKind::AtomicAck => {
                let original = be64::<8>(array(packet, at + Aeth::LEN)?, 0);
                Ext::AtomicAck(Aeth::parse(array(packet, at)?), original)
            }
            ExtKind::Atomic => Ext::Atomic(AtomicEth::parse(array(packet, at)?)),
            ExtKind::Deth => Ext::Deth(Deth::parse(array(packet, at)?)),
            ExtKind::DethImm => {
                let imm = be32::<4>(array(packet, at + Deth::LEN)?, 0);
                Ext::DethImm(Deth::parse(array(packet, at)?), imm)
            }
        };
        Ok((Self { bth, ext }, BTH_LEN + kind.len()))
    }
}

/// Pad bytes that bring a payload of `payload_len` bytes to whole words: 0 to 3.
#[inline]
#[must_use]
pub const fn pad_len(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}

/// A packet without its ICRC: headers, and payload with the pad removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The headers, consistent with the opcode.
    pub headers: Headers,
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Splits `bytes` (BTH up to and including the pad) into headers and payload. Whether the
    /// payload's length suits its position in a message depends on the path MTU, which is the
    /// receiver's to know.
    ///
    /// # Errors
    ///
    /// As [`Headers::parse`]; also [`ParseError::Pad`], [`ParseError::Unaligned`] and
    /// [`ParseError::UnexpectedPayload`] where the lengths contradict the headers.
    #[inline]
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (headers, at) = Headers::parse(bytes)?;
        let body = &bytes[at..];
        let pad = headers.bth.pad;
        let Some(len) = body.len().checked_sub(usize::from(pad)) else {
            return Err(ParseError::Pad { pad, remaining: body.len() });
        };
        if !body.len().is_multiple_of(4) {
            return Err(ParseError::Unaligned(body.len()));
        }
        let opcode = headers.bth.opcode;
        if len != 0 && !opcode.has_payload() {
            return Err(ParseError::UnexpectedPayload { opcode, len });
        }
        Ok(Self { headers, payload: &body[..len] })
    }
}
