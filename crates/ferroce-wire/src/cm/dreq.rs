//! DREQ and DREP: a connection ends (IBTA 12.6.10 and 12.6.11).

use super::fields::{Reader, Writer};
use super::private::PrivateData;

/// A request to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dreq {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// The receiver's QP, 24 bits: a request that names another one is not for this connection.
    pub remote_qpn: u32,
    /// The user's.
    pub private_data: PrivateData<220>,
}

impl Dreq {
    pub(super) fn parse(b: Reader<'_>) -> Self {
        Self {
            local_comm_id: b.u32(0),
            remote_comm_id: b.u32(4),
            remote_qpn: b.u24(8),
            private_data: PrivateData(b.bytes(12)),
        }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>) {
        b.u32(0, self.local_comm_id);
        b.u32(4, self.remote_comm_id);
        b.u24(8, self.remote_qpn);
        b.bytes(12, self.private_data.0);
    }
}

/// The answer to a [`Dreq`]: the connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Drep {
    /// The sender's name for the connection.
    pub local_comm_id: u32,
    /// The receiver's name for the connection.
    pub remote_comm_id: u32,
    /// The user's.
    pub private_data: PrivateData<224>,
}

impl Drep {
    pub(super) fn parse(b: Reader<'_>) -> Self {
        Self { local_comm_id: b.u32(0), remote_comm_id: b.u32(4), private_data: PrivateData(b.bytes(8)) }
    }

    pub(super) fn emit(&self, b: &mut Writer<'_>) {
        b.u32(0, self.local_comm_id);
        b.u32(4, self.remote_comm_id);
        b.bytes(8, self.private_data.0);
    }
}
