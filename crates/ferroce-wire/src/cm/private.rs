//! The parts of a message that belong to its user.

use core::fmt;

/// The user gave more private data than a message holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{len} bytes of private data exceed the {max} that this message holds: send the rest over the connection")]
pub struct TooMuchPrivateData {
    /// Bytes that were given.
    pub len: usize,
    /// Bytes that fit.
    pub max: usize,
}

/// The private data of a message: always all `N` bytes.
///
/// What the sender leaves free is zero, and its length does not travel: the receiver gets the whole
/// field, and a user whose data may end in zeros says its length in the data.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PrivateData<const N: usize>(pub [u8; N]);

impl<const N: usize> PrivateData<N> {
    /// Bytes of the field.
    pub const LEN: usize = N;

    /// Private data that begins with `data`.
    ///
    /// # Errors
    ///
    /// If `data` is longer than `N` bytes.
    pub fn new(data: &[u8]) -> Result<Self, TooMuchPrivateData> {
        let mut field = [0; N];
        let len = data.len();
        field.get_mut(..len).ok_or(TooMuchPrivateData { len, max: N })?.copy_from_slice(data);
        Ok(Self(field))
    }

    /// The whole field.
    #[must_use]
    pub const fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl<const N: usize> Default for PrivateData<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for PrivateData<N> {
    /// The bytes in hexadecimal, up to the last that is not zero.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self.0.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1);
        write!(f, "PrivateData<{N}>(")?;
        for byte in &self.0[..used] {
            write!(f, "{byte:02x}")?;
        }
        f.write_str(")")
    }
}

/// What a reject, a path response or a service id response adds to its status: up to 72 bytes, the
/// length of which does travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AdditionalInfo {
    len: u8,
    bytes: [u8; Self::MAX],
}

impl AdditionalInfo {
    /// Most bytes of it.
    pub const MAX: usize = 72;

    /// None.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; Self::MAX] };

    /// The first [`MAX`](Self::MAX) bytes of `info`.
    #[must_use]
    pub fn new(info: &[u8]) -> Self {
        let mut bytes = [0; Self::MAX];
        let len = info.len().min(Self::MAX);
        bytes[..len].copy_from_slice(&info[..len]);
        Self { len: len as u8, bytes }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// From the two fields of a message. A length beyond the field is cut to it.
    pub(super) fn from_fields(len: u8, bytes: [u8; Self::MAX]) -> Self {
        Self::new(&bytes[..usize::from(len).min(Self::MAX)])
    }

    pub(super) const fn fields(&self) -> (u8, [u8; Self::MAX]) {
        (self.len, self.bytes)
    }
}

impl Default for AdditionalInfo {
    fn default() -> Self {
        Self::EMPTY
    }
}
