//! What the bytes mean: RoCEv2 packets, their invariant CRC, the global route header of a datagram
//! receive, the Ethernet frames of a capture, and the datagrams of communication management.
//!
//! Nothing here does I/O, keeps state or reads a clock: every function turns bytes into values or
//! values into bytes. Input from the network is hostile, so parsing never panics, whatever the
//! bytes are; emitting panics only where the caller's buffer is shorter than documented.
//!
//! A RoCEv2 packet, as it lies in the payload of a UDP datagram to port [`ROCE_UDP_PORT`]:
//!
//! ```text
//! | BTH (12) | extension headers | payload | pad 0..=3 | ICRC (4) |
//!   ^-------------- Packet::parse -------------------^
//!   ^-------------- icrc / check_icrc (with the IP and UDP headers in front) ---^
//! ```
//!
//! ```
//! use ferroce_wire::{Bth, Ext, Headers, Opcode, Packet};
//!
//! let headers = Headers {
//!     bth: Bth { opcode: Opcode::RcSendOnly, dest_qpn: 17, psn: 5, pad: 3, ..Bth::default() },
//!     ext: Ext::None,
//! };
//! let mut packet = [0; 16];
//! let at = headers.emit(&mut packet);
//! packet[at] = b'x';
//! let parsed = Packet::parse(&packet).unwrap();
//! assert_eq!((parsed.headers, parsed.payload), (headers, &b"x"[..]));
//! ```
#![forbid(unsafe_code)]

pub mod capture;
pub mod cm;
pub mod error;
pub mod ext;
pub mod flow;
pub mod grh;
pub mod headers;
pub mod icrc;
pub mod mad;
pub mod opcode;
pub mod psn;

mod checksum;
mod gf2;

pub use capture::{FrameMeta, ethernet_frame};
pub use error::ParseError;
pub use ext::{Aeth, AtomicEth, Deth, NakCode, Reth, Syndrome};
pub use flow::{Flow, IpPair, ROCE_UDP_PORT};
pub use grh::{GRH_LEN, Grh};
pub use headers::{BTH_LEN, Bth, Ext, Headers, MAX_HEADERS_LEN, Packet, pad_len};
pub use icrc::{FlowIcrc, ICRC_LEN, IcrcCheck, check_icrc, check_icrc_exact, icrc};
pub use mad::{GSI_QKEY, GSI_QPN, MAD_HEADER_LEN, MAD_LEN, MadError, MadHeader};
pub use opcode::{Opcode, Operation, Position, Transport};
pub use psn::{PSN_MASK, psn_add, psn_diff, psn_ge, psn_gt, psn_le, psn_lt, psn_sub};
