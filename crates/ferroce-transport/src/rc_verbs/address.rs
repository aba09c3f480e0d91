use ferroce_verbs::{Error, Gid, Mtu};
use std::fmt;

/// Where an endpoint is reached, and what it takes, as bytes to be given to the endpoint that is to be connected with it.
///
/// | bytes | |
/// |---|---|
/// | 0 | version, 1 |
/// | 1 | path MTU code |
/// | 2–17 | GID |
/// | 18–20 | queue pair number |
/// | 21–23 | first PSN |
/// | 24–27 | messages that it takes before a grant |
/// | 28–31 | bytes of a message that it takes |
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EndpointAddress {
    pub(super) gid: Gid,
    pub(super) qpn: u32,
    pub(super) psn: u32,
    pub(super) mtu: Mtu,
    pub(super) terms: Terms,
}

const VERSION: u8 = 1;

/// What an endpoint takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Terms {
    /// Messages before a grant.
    pub(super) window: u32,
    /// Bytes of a message, header included.
    pub(super) message: u32,
}

impl Terms {
    pub(super) const LEN: usize = 8;

    pub(super) fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.window.to_be_bytes());
        bytes[4..].copy_from_slice(&self.message.to_be_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_be_bytes);
        match (word(0), word(4)) {
            (Some(window @ 1..=0x10_0000), Some(message @ 64..=0x20_0000)) => Ok(Self { window, message }),
            _ => Err(Error::invalid("endpoint address", "it has no terms that make sense: is the peer rc_verbs?")),
        }
    }
}

impl EndpointAddress {
    /// Length of the bytes.
    pub const LEN: usize = 24 + Terms::LEN;

    /// As bytes.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = VERSION;
        bytes[1] = self.mtu as u8;
        bytes[2..18].copy_from_slice(&self.gid.to_bytes());
        bytes[18..21].copy_from_slice(&self.qpn.to_be_bytes()[1..]);
        bytes[21..24].copy_from_slice(&self.psn.to_be_bytes()[1..]);
        bytes[24..].copy_from_slice(&self.terms.to_bytes());
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if they are not the address of an endpoint.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let invalid = |why: String| Error::invalid("endpoint address", why);
        let bytes: &[u8; Self::LEN] =
            bytes.try_into().map_err(|_| invalid(format!("it has {} bytes, not {}", bytes.len(), Self::LEN)))?;
        if bytes[0] != VERSION {
            return Err(invalid(format!("its version is {}, this is version {VERSION}", bytes[0])));
        }
        let mtu = Mtu::ALL
            .into_iter()
            .find(|mtu| *mtu as u8 == bytes[1])
            .ok_or_else(|| invalid(format!("{} is the code of no path MTU", bytes[1])))?;
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[2..18]);
        let gid = Gid::from_bytes(gid);
        let word = |at: usize| u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]]);
        let (qpn, psn) = (word(18), word(21));
        if gid.is_zero() || gid.is_multicast() || !(2..0xff_ffff).contains(&qpn) {
            return Err(invalid(format!("GID {gid}, queue pair {qpn} is nobody's")));
        }
        Ok(Self { gid, qpn, psn, mtu, terms: Terms::from_bytes(&bytes[24..])? })
    }

    /// The GID.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// The queue pair number.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }
}

impl fmt::Debug for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EndpointAddress({self}, MTU {}, {:?})", self.mtu, self.terms)
    }
}

impl fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} QPN {:#08x}", self.gid, self.qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_bytes_and_back() {
        let address = EndpointAddress {
            gid: Gid::from(std::net::IpAddr::from([10, 0, 0, 1])),
            qpn: 0x12345,
            psn: 0xfedcba,
            mtu: Mtu::Mtu1024,
            terms: Terms { window: 512, message: 8197 },
        };
        let bytes = address.to_bytes();
        assert_eq!(EndpointAddress::from_bytes(&bytes).unwrap(), address);
        assert!(EndpointAddress::from_bytes(&bytes[..31]).is_err());
        for (at, value) in [(0, 2), (1, 0), (1, 6), (27, 0), (24, 0xff), (28, 0xff)] {
            let mut wrong = bytes;
            wrong[at] = value;
            if at == 27 {
                wrong[26] = 0;
            }
            assert!(EndpointAddress::from_bytes(&wrong).is_err(), "{at}: {value}");
        }
        let mut nobody = bytes;
        nobody[18..21].fill(0);
        assert!(EndpointAddress::from_bytes(&nobody).is_err());
    }
}
