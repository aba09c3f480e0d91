//! Management datagrams (IBTA 13.4): the header that all classes share.
//!
//! A MAD is the payload of a UD packet, always 256 bytes: a header of 24 and 232 for the class. The
//! general services of a port are QP [`GSI_QPN`], whose queue key is [`GSI_QKEY`].

use crate::ext::{be32, be64};

/// Bytes of every MAD.
pub const MAD_LEN: usize = 256;

/// Bytes of the header.
pub const MAD_HEADER_LEN: usize = 24;

/// Bytes after the header.
pub const MAD_DATA_LEN: usize = MAD_LEN - MAD_HEADER_LEN;

/// The QP that general services (among them communication management) listen on.
pub const GSI_QPN: u32 = 1;

/// The well-known queue key of [`GSI_QPN`].
pub const GSI_QKEY: u32 = 0x8001_0000;

const BASE_VERSION: u8 = 1;

/// Why bytes from the network are not a MAD, or not one of communication management.
///
/// The receiver drops such a MAD; where it answers at all is for the class to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum MadError {
    /// A MAD is neither shorter nor longer than 256 bytes.
    #[error("MAD of {0} bytes is not of {MAD_LEN}")]
    Length(usize),
    /// Unknown version of the header.
    #[error("MAD base version {0} is not {BASE_VERSION}")]
    BaseVersion(u8),
    /// Another management class.
    #[error("management class {0:#04x} is not communication management")]
    Class(u8),
    /// Another version of the class.
    #[error("communication management version {0} is not 2")]
    ClassVersion(u8),
    /// Communication management only sends.
    #[error("method {0:#04x} is not Send")]
    Method(u8),
    /// No message of communication management.
    #[error("attribute {0:#06x} is no message of communication management")]
    Attribute(u16),
}

/// The header of a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MadHeader {
    /// Management class.
    pub class: u8,
    /// Version of the class.
    pub class_version: u8,
    /// Method; bit 7 marks a response.
    pub method: u8,
    /// Status of a response.
    pub status: u16,
    /// What the class makes of it.
    pub class_specific: u16,
    /// Transaction id: a response repeats its request's.
    pub tid: u64,
    /// What the MAD is about.
    pub attr_id: u16,
    /// Which instance of that; communication management keeps connection options there.
    pub attr_mod: u32,
}

impl MadHeader {
    /// Splits a MAD into header and data.
    ///
    /// # Errors
    ///
    /// [`MadError::Length`] or [`MadError::BaseVersion`].
    pub fn parse(mad: &[u8]) -> Result<(Self, &[u8; MAD_DATA_LEN]), MadError> {
        let mad: &[u8; MAD_LEN] = mad.try_into().map_err(|_| MadError::Length(mad.len()))?;
        if mad[0] != BASE_VERSION {
            return Err(MadError::BaseVersion(mad[0]));
        }
        let header = Self {
            class: mad[1],
            class_version: mad[2],
            method: mad[3],
            status: (be32(mad, 4) >> 16) as u16,
            class_specific: be32(mad, 4) as u16,
            tid: be64(mad, 8),
            attr_id: (be32(mad, 16) >> 16) as u16,
            attr_mod: be32(mad, 20),
        };
        let data = mad.last_chunk().expect("256 bytes end in 232");
        Ok((header, data))
    }

    /// Writes the header to the front of a MAD and returns the data that follows.
    pub fn emit<'a>(&self, mad: &'a mut [u8; MAD_LEN]) -> &'a mut [u8; MAD_DATA_LEN] {
        mad[0..4].copy_from_slice(&[BASE_VERSION, self.class, self.class_version, self.method]);
        mad[4..6].copy_from_slice(&self.status.to_be_bytes());
        mad[6..8].copy_from_slice(&self.class_specific.to_be_bytes());
        mad[8..16].copy_from_slice(&self.tid.to_be_bytes());
        mad[16..18].copy_from_slice(&self.attr_id.to_be_bytes());
        mad[18..20].fill(0);
        mad[20..24].copy_from_slice(&self.attr_mod.to_be_bytes());
        mad.last_chunk_mut().expect("256 bytes end in 232")
    }
}
