use crate::ud;
use ferroce_verbs::{Error, Gid};
use std::fmt;
use std::net::IpAddr;

/// How an interface is made.
#[derive(Clone, Debug)]
pub struct UdOptions {
    /// The local address to use; `None`: the first of the port that is not a loopback address, else the first.
    pub address: Option<IpAddr>,
    /// The device's port, from 1.
    pub port: u8,
    /// Datagrams that can be on their way to the device at once. At least 16.
    pub send_depth: u32,
    /// Datagrams that can wait to be looked at. What comes while there are as many is lost, and sent again by its sender.
    pub receive_depth: u32,
    /// The protocol. Its MTU is lowered to that of the port.
    pub protocol: ud::Config,
}

impl Default for UdOptions {
    /// Port 1, 256 sends, 1024 receives.
    fn default() -> Self {
        Self { address: None, port: 1, send_depth: 256, receive_depth: 1024, protocol: ud::Config::default() }
    }
}

/// Where an interface is reached, as bytes to be given to peers: GID and queue pair number, in network order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InterfaceAddress(pub(super) ud::PeerAddress);

impl InterfaceAddress {
    /// Length of the bytes.
    pub const LEN: usize = 20;

    /// As bytes.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.0.gid.to_bytes());
        bytes[16..].copy_from_slice(&self.0.qpn.to_be_bytes());
        bytes
    }

    /// From bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if they are not the address of an interface.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().map_err(|_| {
            Error::invalid("interface address", format!("it has {} bytes, not {}", bytes.len(), Self::LEN))
        })?;
        let (gid, qpn) = bytes.split_at(16);
        let gid = Gid::from_bytes(gid.try_into().unwrap_or_default());
        let qpn = u32::from_be_bytes(qpn.try_into().unwrap_or_default());
        if gid.is_zero() || gid.is_multicast() || !(2..0xff_ffff).contains(&qpn) {
            return Err(Error::invalid("interface address", format!("GID {gid}, queue pair {qpn} is nobody's")));
        }
        Ok(Self(ud::PeerAddress { gid, qpn }))
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} QPN {:#08x}", self.0.gid, self.0.qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_bytes_and_back() {
        let address = InterfaceAddress(ud::PeerAddress { gid: Gid::from(IpAddr::from([10, 0, 0, 1])), qpn: 0x12345 });
        let bytes = address.to_bytes();
        assert_eq!(InterfaceAddress::from_bytes(&bytes).unwrap(), address);
        assert!(InterfaceAddress::from_bytes(&bytes[..19]).is_err());
        assert!(InterfaceAddress::from_bytes(&[0; 20]).is_err());
        let mut multicast = bytes;
        multicast[16..].copy_from_slice(&[0, 0xff, 0xff, 0xff]);
        assert!(InterfaceAddress::from_bytes(&multicast).is_err());
    }
}
