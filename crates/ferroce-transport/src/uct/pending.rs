use super::{Endpoint, Failure};
use std::fmt;

/// Requests of one endpoint that are called before others have their turn.
pub(crate) const PENDING_TURN: usize = 32;

/// What a request says when it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingStatus {
    /// It did what it wanted: it is dropped.
    Done,
    /// It found no resources: it stays first in the queue.
    NoResource,
}

/// A request that waits for resources. It is given the endpoint, so that it need not hold it.
pub type PendingRequest = Box<dyn FnMut(&dyn Endpoint) -> PendingStatus + Send>;

/// A request was not queued, and is handed back.
pub enum PendingError {
    /// There are resources now: try again.
    Busy(PendingRequest),
    /// The endpoint failed, or was canceled (no failure): drop it.
    Over(PendingRequest, Option<Failure>),
}

impl PendingError {
    /// The request.
    pub fn into_request(self) -> PendingRequest {
        match self {
            Self::Busy(request) | Self::Over(request, _) => request,
        }
    }
}

impl fmt::Debug for PendingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(_) => f.write_str("Busy"),
            Self::Over(_, failure) => f.debug_tuple("Over").field(failure).finish(),
        }
    }
}

impl fmt::Display for PendingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy(_) => f.write_str("there are resources now: try again"),
            Self::Over(_, Some(failure)) => write!(f, "the endpoint has failed: {failure}"),
            Self::Over(_, None) => f.write_str("the endpoint was canceled"),
        }
    }
}

impl std::error::Error for PendingError {}
