//! The messages of communication management (IBTA volume 1, chapter 12): how connections begin and
//! end, and how datagram services are found.
//!
//! ```text
//! active   REQ ->            RTU ->             DREQ ->
//! passive        <- MRA, REP        ...                 <- DREP
//! ```
//!
//! Each message is a MAD ([`CmMad`]) on QP 1. Fields that are narrower than their Rust type say so;
//! what does not fit is cut when emitted. Every pattern of bits parses to something: reserved bits
//! are dropped, reserved codes are kept.

pub mod attr;
mod code;
mod destination;
mod dreq;
mod fields;
mod lap;
mod path;
mod private;
mod rej;
mod rep;
mod req;
mod service;
mod sidr;

use core::time::Duration;

use crate::mad::{MAD_LEN, MadError, MadHeader};
use fields::{Reader, Writer};

pub use destination::Destination;
pub use dreq::{Drep, Dreq};
pub use lap::{Apr, AprStatus, Lap};
pub use path::{PERMISSIVE_LID, Path};
pub use private::{AdditionalInfo, PrivateData, TooMuchPrivateData};
pub use rej::{Answered, Mra, Rej, RejectReason};
pub use rep::{Rep, Rtu};
pub use req::{Req, TransportService};
pub use service::{IpCmError, IpCmHeader, PortSpace, ServiceId};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

/// The management class of communication management.
pub const CM_CLASS: u8 = 0x07;

const CM_CLASS_VERSION: u8 = 2;
const METHOD_SEND: u8 = 0x03;

/// The time that a 5-bit exponent stands for, in timeouts and delays: 4.096 µs times 2 to its
/// power. The upper bits of `exponent` are ignored; 31 is 2.4 hours.
#[must_use]
pub const fn time(exponent: u8) -> Duration {
    Duration::from_nanos(4096 << (exponent & 31))
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $attribute:path;)*) => {
        /// A message of communication management.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum CmMessage {
            $($(#[$doc])* $name($name),)*
        }

        impl CmMessage {
            /// The MAD attribute that says which message it is.
            #[must_use]
            pub const fn attr_id(&self) -> u16 {
                match self {
                    $(Self::$name(_) => $attribute,)*
                }
            }

            fn parse(attr_id: u16, data: Reader<'_>) -> Result<Self, MadError> {
                match attr_id {
                    $($attribute => Ok(Self::$name($name::parse(data))),)*
                    other => Err(MadError::Attribute(other)),
                }
            }

            fn emit(&self, data: &mut Writer<'_>) {
                match self {
                    $(Self::$name(message) => message.emit(data),)*
                }
            }
        }

        $(
            impl From<$name> for CmMessage {
                fn from(message: $name) -> Self {
                    Self::$name(message)
                }
            }
        )*
    };
}

messages! {
    /// A request for a connection.
    Req = attr::REQ;
    /// The answer will take longer.
    Mra = attr::MRA;
    /// A refusal.
    Rej = attr::REJ;
    /// A connection is granted.
    Rep = attr::REP;
    /// A connection is established.
    Rtu = attr::RTU;
    /// A request to end a connection.
    Dreq = attr::DREQ;
    /// A connection has ended.
    Drep = attr::DREP;
    /// A request for the QP of a service.
    SidrReq = attr::SIDR_REQ;
    /// The QP of a service.
    SidrRep = attr::SIDR_REP;
    /// An alternate path.
    Lap = attr::LAP;
    /// The answer to an alternate path.
    Apr = attr::APR;
}

/// A MAD of communication management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CmMad {
    /// Transaction id: unique for each request, repeated by every message that follows from it.
    pub tid: u64,
    /// The options of the vendor that the message names (enhanced connection establishment): the
    /// MAD's attribute modifier. 0 if there are none.
    pub ece_options: u32,
    /// The message.
    pub message: CmMessage,
}

impl CmMad {
    /// Reads the payload of a datagram to QP 1.
    ///
    /// # Errors
    ///
    /// If it is of another length, version, class or method, or no known message. A peer whose
    /// class version is another may be answered with [`RejectReason::InvalidClassVersion`].
    pub fn parse(mad: &[u8]) -> Result<Self, MadError> {
        let (header, data) = MadHeader::parse(mad)?;
        if header.class != CM_CLASS {
            return Err(MadError::Class(header.class));
        }
        if header.class_version != CM_CLASS_VERSION {
            return Err(MadError::ClassVersion(header.class_version));
        }
        if header.method != METHOD_SEND {
            return Err(MadError::Method(header.method));
        }
        Ok(Self {
            tid: header.tid,
            ece_options: header.attr_mod,
            message: CmMessage::parse(header.attr_id, Reader(data))?,
        })
    }

    /// Writes all 256 bytes.
    pub fn emit(&self, mad: &mut [u8; MAD_LEN]) {
        let header = MadHeader {
            class: CM_CLASS,
            class_version: CM_CLASS_VERSION,
            method: METHOD_SEND,
            status: 0,
            class_specific: 0,
            tid: self.tid,
            attr_id: self.message.attr_id(),
            attr_mod: self.ece_options,
        };
        let data = header.emit(mad);
        data.fill(0);
        self.message.emit(&mut Writer(data));
    }
}
