//! An end's address as the ping-pong programs of rdma-core write it: hexadecimal text in a fixed number of bytes, with a
//! zero byte at the end.

use crate::failure::{Failure, Result};
use ferroce::Gid;
use serde::{Serialize, Serializer};
use std::fmt;

/// Length of an address on the wire, the final zero included.
pub(crate) const LEN: usize = "0000:000000:000000:".len() + 32 + 1;

/// How many addresses `ibv_srq_pingpong` exchanges, however many queue pairs it has; it has fewer than this.
pub(crate) const MAX_QP: usize = 256;

/// Where a queue pair is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Address {
    pub(crate) lid: u16,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    #[serde(serialize_with = "as_text")]
    pub(crate) gid: Gid,
}

fn as_text<S: Serializer>(gid: &Gid, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(gid)
}

impl Address {
    /// The bytes that go over TCP.
    pub(crate) fn to_wire(self) -> [u8; LEN] {
        let mut text = format!("{:04x}:{:06x}:{:06x}:", self.lid, self.qpn, self.psn);
        for byte in self.gid.to_bytes() {
            text.push_str(&format!("{byte:02x}"));
        }
        let mut wire = [0; LEN];
        wire[..text.len()].copy_from_slice(text.as_bytes());
        wire
    }

    /// Understands what came over TCP.
    pub(crate) fn from_wire(wire: &[u8; LEN]) -> Result<Self> {
        Self::parse(wire).ok_or_else(|| {
            Failure::run(format!("the peer sent no ping-pong address but {:?}", String::from_utf8_lossy(wire)))
                .hint("is the program at the other end `ferroce pingpong` or ibv_*_pingpong of the same kind?")
        })
    }

    fn parse(wire: &[u8; LEN]) -> Option<Self> {
        let (end, text) = wire.split_last()?;
        let text = std::str::from_utf8(text).ok()?;
        let mut fields = text.split(':');
        let mut number = |digits: usize| {
            let field = fields.next()?;
            let hexadecimal = field.len() == digits && field.bytes().all(|byte| byte.is_ascii_hexdigit());
            hexadecimal.then_some(field).and_then(|field| u128::from_str_radix(field, 16).ok())
        };
        let (lid, qpn, psn, gid) = (number(4)?, number(6)?, number(6)?, number(32)?);
        (*end == 0 && fields.next().is_none()).then_some(Self {
            lid: lid as u16,
            qpn: qpn as u32,
            psn: psn as u32,
            gid: Gid::from_bytes(gid.to_be_bytes()),
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {:#06x}, QPN {:#08x}, PSN {:#08x}, GID {}", self.lid, self.qpn, self.psn, self.gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn example() -> Address {
        let gid = Gid::from("10.77.0.1".parse::<IpAddr>().unwrap());
        Address { lid: 0, qpn: 0x11, psn: 0xabc_def, gid }
    }

    #[test]
    fn the_wire_form_is_that_of_the_c_programs() {
        let wire = example().to_wire();
        assert_eq!(wire.len(), 52);
        assert_eq!(&wire, b"0000:000011:abcdef:00000000000000000000ffff0a4d0001\0");
        assert_eq!(Address::from_wire(&wire).unwrap(), example());
    }

    #[test]
    fn the_line_is_that_of_the_c_programs() {
        assert_eq!(example().to_string(), "LID 0x0000, QPN 0x000011, PSN 0xabcdef, GID ::ffff:10.77.0.1");
    }

    #[test]
    fn anything_else_is_refused() {
        let good = example().to_wire();
        for at in 0..LEN {
            for bad in [b'g', b' ', 0xff, b'+'] {
                let mut wire = good;
                wire[at] = bad;
                assert!(Address::from_wire(&wire).is_err(), "byte {at} = {bad}");
            }
        }
        assert!(Address::from_wire(&[0; LEN]).is_err());
        let failure = Address::from_wire(b"GET / HTTP/1.1\r\nHost: localhost:18515\r\nAccept: */*\r\n").unwrap_err();
        assert!(failure.hint.unwrap().contains("pingpong"));
    }
}
