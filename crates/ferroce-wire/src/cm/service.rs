//! Service ids, and the header that RDMA IP connection management (IBTA annex A11) puts in front of
//! the private data of a request.

use crate::flow::IpPair;

/// The port spaces of RDMA IP connection management: bits 16 to 31 of its service ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u16)]
pub enum PortSpace {
    /// IP over InfiniBand.
    IpoIb = 0x0002,
    /// Connected service, ports as TCP has them.
    Tcp = 0x0106,
    /// Datagram service, ports as UDP has them.
    Udp = 0x0111,
    /// Any service, with InfiniBand addresses.
    Ib = 0x013f,
}

/// What a request asks for, or a listener offers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service id of a port.
    #[must_use]
    pub const fn from_port(space: PortSpace, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// The port that this is the service id of, if it is one.
    #[must_use]
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        let space = match self.0 >> 16 {
            0x0002 => PortSpace::IpoIb,
            0x0106 => PortSpace::Tcp,
            0x0111 => PortSpace::Udp,
            0x013f => PortSpace::Ib,
            _ => return None,
        };
        Some((space, self.0 as u16))
    }
}

/// Private data that does not begin with the header of RDMA IP connection management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum IpCmError {
    /// Shorter than the header.
    #[error("{0} bytes of private data are shorter than the IP CM header")]
    Truncated(usize),
    /// Unknown version of the header.
    #[error("IP CM header version {0:#04x} is not 0")]
    Version(u8),
    /// Neither IPv4 nor IPv6.
    #[error("IP version {0} is neither 4 nor 6")]
    IpVersion(u8),
}

/// The header in front of the private data of a REQ or SIDR_REQ for an IP port space, 36 bytes: who
/// asks, in terms of IP. What is left for the user is 56 bytes of a REQ and 180 of a SIDR_REQ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct IpCmHeader {
    /// The requester's address and the address that it asks for.
    pub ip: IpPair,
    /// The requester's port. The port that it asks for is in the service id.
    pub src_port: u16,
}

impl IpCmHeader {
    /// Bytes of the header.
    pub const LEN: usize = 36;

    /// Reads the header at the front of private data, and returns what the user put behind.
    ///
    /// # Errors
    ///
    /// If it is none: see [`IpCmError`].
    pub fn parse(private_data: &[u8]) -> Result<(Self, &[u8]), IpCmError> {
        let Some((header, user)) = private_data.split_first_chunk::<{ Self::LEN }>() else {
            return Err(IpCmError::Truncated(private_data.len()));
        };
        if header[0] != 0 {
            return Err(IpCmError::Version(header[0]));
        }
        let address = |at: usize| -> [u8; 16] { *header[at..].first_chunk().expect("two addresses end the header") };
        let v4 = |address: [u8; 16]| -> [u8; 4] { *address.last_chunk().expect("16 bytes end in 4") };
        let (src, dst) = (address(4), address(20));
        let ip = match header[1] >> 4 {
            4 => IpPair::V4 { src: v4(src).into(), dst: v4(dst).into() },
            6 => IpPair::V6 { src: src.into(), dst: dst.into() },
            version => return Err(IpCmError::IpVersion(version)),
        };
        let src_port = u16::from_be_bytes([header[2], header[3]]);
        Ok((Self { ip, src_port }, user))
    }

    /// The bytes of the header.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        match self.ip {
            IpPair::V4 { src, dst } => {
                out[1] = 4 << 4;
                out[16..20].copy_from_slice(&src.octets());
                out[32..36].copy_from_slice(&dst.octets());
            }
            IpPair::V6 { src, dst } => {
                out[1] = 6 << 4;
                out[4..20].copy_from_slice(&src.octets());
                out[20..36].copy_from_slice(&dst.octets());
            }
        }
        out
    }
}
