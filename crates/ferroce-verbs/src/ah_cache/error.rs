use crate::{AhAttr, Error};
use std::fmt;
use std::io::ErrorKind;
use std::sync::Arc;

/// Why an address handle could not be had. Cheap to clone: everybody who waited for one resolution gets the same.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AhError {
    /// The address could not be resolved. Nothing of it is kept: the next get tries again.
    #[error("no address handle for {to}: {source}")]
    Resolve {
        /// What kind of failure it was.
        cause: ResolveCause,
        /// The address.
        to: Destination,
        /// What the device said.
        #[source]
        source: Arc<Error>,
    },
    /// Another get's resolution has not ended within [`super::AhCacheConfig::wait_limit`]. It goes on.
    #[error("no address handle for {to}: another thread has been resolving the address for more than {seconds} s")]
    Wait {
        /// The address.
        to: Destination,
        /// How long it was waited for.
        seconds: u64,
    },
    /// There are as many entries as there may be, and all are held.
    #[error(
        "the address-handle cache is full, and all its {capacity} entries are in use: let go of some, or raise \
         FERROCE_AH_CACHE_CAPACITY"
    )]
    Full {
        /// How many there may be.
        capacity: usize,
    },
    /// The cache was closed, or its context was.
    #[error("the address-handle cache is closed, as its context is")]
    Closed,
}

impl AhError {
    pub(super) fn resolve(attr: &AhAttr, error: Error) -> Self {
        let to = Destination(*attr);
        Self::Resolve { cause: ResolveCause::of(&error), to, source: Arc::new(error) }
    }

    /// What kind of failure it was.
    #[must_use]
    pub fn cause(&self) -> ResolveCause {
        match self {
            Self::Resolve { cause, .. } => *cause,
            Self::Wait { .. } => ResolveCause::Timeout,
            Self::Full { .. } => ResolveCause::NoResources,
            Self::Closed => ResolveCause::Invalid,
        }
    }
}

impl From<AhError> for Error {
    fn from(error: AhError) -> Self {
        Self::Device(Box::new(error))
    }
}

/// What kinds of failures there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ResolveCause {
    /// Nobody answered in time (`ETIMEDOUT`).
    Timeout,
    /// There is no way to the address (`EHOSTUNREACH`, `ENETUNREACH`).
    Unreachable,
    /// The device or the machine has no more of something (`ENOMEM`).
    NoResources,
    /// The attributes are wrong, or name what is not there (`EINVAL`).
    Invalid,
    /// Something else.
    Other,
}

impl fmt::Display for ResolveCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout => "nobody answered in time",
            Self::Unreachable => "there is no way to it",
            Self::NoResources => "no more address handles can be had",
            Self::Invalid => "it is wrong",
            Self::Other => "the device failed",
        })
    }
}

impl ResolveCause {
    fn of(error: &Error) -> Self {
        match error {
            Error::Invalid { .. } | Error::NotFound { .. } | Error::Unsupported { .. } => Self::Invalid,
            Error::Exhausted { .. } | Error::QueueFull { .. } => Self::NoResources,
            Error::Os { source, .. } => match source.kind() {
                ErrorKind::TimedOut => Self::Timeout,
                ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown => {
                    Self::Unreachable
                }
                ErrorKind::OutOfMemory | ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Self::NoResources,
                ErrorKind::InvalidInput => Self::Invalid,
                _ => Self::Other,
            },
            _ => Self::Other,
        }
    }
}

/// An address in a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Destination(pub AhAttr);

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.grh {
            Some(grh) => write!(f, "{} (from GID index {} of port {})", grh.dgid.ip(), grh.sgid_index, self.0.port_num),
            None => write!(f, "LID {:#06x} (from port {})", self.0.dlid, self.0.port_num),
        }
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
