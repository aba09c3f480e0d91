use super::EndpointId;
use ferroce_verbs::ah_cache::ResolveCause;
use ferroce_verbs::{Error, WcStatus};
use std::time::Duration;

/// Why an endpoint failed, and what was seen (report UCX 8971: a failure without evidence cannot be explained).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}; {evidence}")]
pub struct Failure {
    /// The reason.
    pub cause: Cause,
    /// What speaks for it.
    pub evidence: Evidence,
}

/// Why an endpoint failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The peer did not answer in time when it was connected to.
    #[error("the peer did not answer in time when it was connected to")]
    ConnectTimeout,
    /// The peer acknowledged nothing for too long.
    #[error("the peer did not acknowledge anything in time")]
    PeerTimeout,
    /// There is no way to the peer.
    #[error("there is no way to the peer")]
    Unreachable,
    /// The peer closed its end, or does not know this one.
    #[error("the peer has closed its end")]
    Closed,
    /// The peer took no message for too long.
    #[error("the peer does not receive: it makes no progress")]
    NotReceiving,
    /// The peer does not allow the access to its memory: key, range, or rights.
    #[error("the peer does not allow the access to its memory: key, range or rights are wrong")]
    RemoteAccess,
    /// The peer could not do what it was asked for.
    #[error("the peer could not do what it was asked for")]
    RemoteOperation,
    /// Memory of this side is not registered as the operation needs it.
    #[error("memory of this side is not registered, or not any more, for what the operation does with it")]
    LocalMemory,
    /// The peer broke the protocol.
    #[error("the peer sent what the protocol does not allow")]
    Protocol,
    /// The device failed, or something moved the queue pair.
    #[error("the device ended the connection")]
    Device,
}

/// What was seen before an endpoint failed. Times are how long before the failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evidence {
    /// When something last came from the peer.
    pub last_receive: Option<Duration>,
    /// When the peer last acknowledged something.
    pub last_ack: Option<Duration>,
    /// Packets that were sent again, where this side counts them.
    pub retransmissions: u64,
    /// Signs of life that were asked for.
    pub probes: u32,
    /// How late the timer was that ended it: a process that did not run cannot blame its peer.
    pub timer_late_by: Duration,
    /// What the device said.
    pub status: Option<WcStatus>,
    /// Why the peer's address could not be resolved the last time, if it never could.
    pub resolution: Option<ResolveCause>,
}

impl std::fmt::Display for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ago = |time: Option<Duration>| match time {
            Some(time) => format!("{} ms before", time.as_millis()),
            None => "never".into(),
        };
        write!(
            f,
            "last heard of {}, last acknowledgement {}, {} packets sent again, {} probes, timer {} ms late",
            ago(self.last_receive),
            ago(self.last_ack),
            self.retransmissions,
            self.probes,
            self.timer_late_by.as_millis()
        )?;
        if let Some(status) = self.status {
            write!(f, ", the device said: {status}")?;
        }
        match self.resolution {
            Some(cause) => write!(f, ", the address could not be resolved: {cause}"),
            None => Ok(()),
        }
    }
}

/// How an operation ended that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpFailure {
    /// Its endpoint was canceled, closed or dropped before it was done. It may have happened or not.
    #[error("canceled: the endpoint was closed before it was done")]
    Canceled,
    /// Its endpoint failed. It may have happened or not.
    #[error("the endpoint failed: {0}")]
    Failed(#[source] Failure),
}

/// An operation could not be begun.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// What it needs is in use: make progress and try again, or add it to the pending queue.
    #[error("no resources now: make progress and try again, or add it to the pending queue")]
    NoResource,
    /// The endpoint is not connected yet.
    #[error("endpoint {0} is not connected: connect it first")]
    NotConnected(EndpointId),
    /// The endpoint failed: drop it.
    #[error("endpoint {0} has failed: drop it ({1})")]
    Failed(EndpointId, #[source] Failure),
    /// The endpoint was canceled: drop it.
    #[error("endpoint {0} was canceled: drop it")]
    Canceled(EndpointId),
    /// It is longer than the transport can do.
    #[error("{len} bytes are more than the {most} that {what} can have: send less at a time")]
    TooLong {
        /// Which operation.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The most that is possible.
        most: usize,
    },
    /// There are more pieces of memory than the transport takes.
    #[error("{len} pieces of memory are more than the {most} that one operation takes")]
    TooManyPieces {
        /// How many.
        len: usize,
        /// The most that is possible.
        most: usize,
    },
    /// Active message ids are below 32.
    #[error("active message id {0} is not below 32")]
    AmId(u8),
    /// The transport does not have it; see [`super::InterfaceAttr`].
    #[error("{0} is not an operation of {1}")]
    Unsupported(&'static str, &'static str),
    /// The device refused.
    #[error("the device refused: {0}")]
    Device(#[from] Error),
}
