use crate::Phase;
use crate::proto::CmError;
use std::net::SocketAddr;

/// Why a call of this crate failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The id was destroyed, by this thread or another: ordinary where several threads close.
    #[error("the id is destroyed")]
    Destroyed,
    /// The id is not where the call makes sense.
    #[error("{call} is not possible: the id is {phase}")]
    Phase {
        /// The call.
        call: &'static str,
        /// Where the id is.
        phase: Phase,
    },
    /// The event channel is closed.
    #[error("the event channel is closed")]
    ChannelClosed,
    /// The deadline passed.
    #[error("nothing came of {what} in time")]
    TimedOut {
        /// What was waited for.
        what: &'static str,
    },
    /// An address cannot be used.
    #[error("{addr} cannot be used: {why}")]
    Address {
        /// The address.
        addr: SocketAddr,
        /// What is wrong with it.
        why: String,
    },
    /// All ports of the port space are taken.
    #[error("no free port: the host has as many listeners as there can be")]
    NoPort,
    /// The device does not let programs manage connections themselves, and so not choose settings of the protocol.
    #[error("{device} keeps queue pair 1 to itself: its connections are managed by the kernel")]
    NoGsi {
        /// The device.
        device: String,
    },
    /// The kernel is to manage the connections of the device, and its connection manager cannot be used.
    #[error(transparent)]
    Unavailable(#[from] ferroce_abi::Unavailable),
    /// The kernel's connection manager cannot do it.
    #[error("the kernel's connection manager cannot do that: {what}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// The peer, or the network, refused.
    #[error("the connection was not established: {0}")]
    Refused(#[source] Refusal),
    /// The protocol refused the call.
    #[error(transparent)]
    Protocol(#[from] CmError),
    /// The device refused something.
    #[error("{what}: {source}")]
    Device {
        /// What was attempted.
        what: &'static str,
        /// What the device said.
        #[source]
        source: ferroce_verbs::Error,
    },
}

/// How an attempt to connect ended without a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The peer said no.
    #[error("the peer rejected it: {reason}")]
    Rejected {
        /// Why.
        reason: ferroce_wire::cm::RejectReason,
        /// What the peer's user said with it.
        private_data: Vec<u8>,
    },
    /// Nobody answered, or one side did not finish in time.
    #[error("no answer within the deadline, the last message was sent {sent} times")]
    Unreachable {
        /// How often the last message was sent.
        sent: u32,
    },
    /// The peer ended it at once.
    #[error("the peer ended it at once")]
    Disconnected,
    /// The queue pair did not take what was negotiated.
    #[error("the queue pair could not be set up: {0}")]
    Setup(String),
}

/// For what a program does with a queue pair in the closures that it gives to this crate.
impl From<ferroce_verbs::Error> for Error {
    fn from(source: ferroce_verbs::Error) -> Self {
        Self::Device { what: "using the queue pair", source }
    }
}

/// As above; what was posted before the request that failed stays posted.
impl From<ferroce_verbs::PostError> for Error {
    fn from(failed: ferroce_verbs::PostError) -> Self {
        Self::Device { what: "posting to the queue pair", source: failed.error }
    }
}

impl Error {
    pub(crate) fn device(what: &'static str) -> impl FnOnce(ferroce_verbs::Error) -> Self {
        move |source| Self::Device { what, source }
    }
}

/// What calls of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
