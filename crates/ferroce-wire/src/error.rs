//! Why a packet could not be parsed.

use crate::opcode::Opcode;

/// Why bytes from the network are not a packet.
///
/// Whatever the cause, the fault is the sender's or the wire's: the receiver counts the packet and
/// drops it without an answer, as IBTA 9.6 asks for packets that fail header validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The bytes end before the headers do.
    #[error("packet of {len} bytes is shorter than the {needed} bytes of its headers")]
    Truncated {
        /// Bytes that the headers take, as far as they could be told.
        needed: usize,
        /// Bytes that there were.
        len: usize,
    },
    /// The BTH carries an opcode that this crate does not know.
    #[error("opcode {0:#04x} is not an RC, UC or UD opcode")]
    UnknownOpcode(u8),
    /// The BTH's transport header version is not zero.
    #[error("transport header version {0} is not 0")]
    Version(u8),
    /// The BTH claims more pad bytes than follow the headers.
    #[error("pad count {pad} exceeds the {remaining} bytes after the headers")]
    Pad {
        /// The pad count of the BTH.
        pad: u8,
        /// Bytes between the headers and the ICRC.
        remaining: usize,
    },
    /// Payload and pad together are not whole 4-byte words (IBTA 9.2.3: the pad count makes them
    /// so).
    #[error("{0} bytes after the headers are not a multiple of 4")]
    Unaligned(usize),
    /// An opcode that carries no payload came with one.
    #[error("{} packet carries {len} bytes of payload", opcode.name())]
    UnexpectedPayload {
        /// The opcode.
        opcode: Opcode,
        /// Bytes of payload.
        len: usize,
    },
    /// The 40 bytes before a datagram hold neither an IPv4 nor an IPv6 header.
    #[error("the 40 bytes of the GRH hold neither an IPv4 nor an IPv6 header")]
    NoIpHeader,
}
