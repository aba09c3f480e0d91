use crate::{QpState, QpType};
use std::borrow::Cow;
use std::io;

/// The result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a verb failed. Each variant says whose fault it was; the text says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument is out of range or contradicts another: the caller's fault (`EINVAL`).
    #[error("{what}: {why}")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// What is wrong with it.
        why: Cow<'static, str>,
    },
    /// A queue pair cannot go from one state to the other (`EINVAL`, IBTA 10.3.1).
    #[error("{qp_type} queue pair cannot go from {from} to {to}: {why}")]
    Transition {
        /// The kind of queue pair.
        qp_type: QpType,
        /// Where it is.
        from: QpState,
        /// Where it was asked to go.
        to: QpState,
        /// What stands against it.
        why: Cow<'static, str>,
    },
    /// The call is not allowed in the queue pair's present state.
    #[error("{what} is not allowed while the queue pair is in {state}")]
    State {
        /// The call.
        what: &'static str,
        /// The state.
        state: QpState,
    },
    /// A queue holds as many entries as it was made for (`ENOMEM` in libibverbs).
    #[error("the {queue} is full ({capacity} entries): poll completions before posting more, or create it larger")]
    QueueFull {
        /// Which queue.
        queue: &'static str,
        /// Its size.
        capacity: u32,
    },
    /// The device has no more of something.
    #[error("no more {what} (the limit is {limit})")]
    Exhausted {
        /// What ran out.
        what: &'static str,
        /// How many there can be.
        limit: u64,
    },
    /// The device cannot do it.
    #[error("{what} is not supported by {by}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// By which device.
        by: &'static str,
    },
    /// There is no such device, port or table entry.
    #[error("no {what} {name}: {hint}")]
    NotFound {
        /// What was looked for.
        what: &'static str,
        /// Its name or number.
        name: String,
        /// What there is instead, or what to do.
        hint: String,
    },
    /// Somebody else has it (`EADDRINUSE`).
    #[error("{what} {name} is in use by another program of this host: choose another, or end that program")]
    InUse {
        /// What was asked for.
        what: &'static str,
        /// Its name or number.
        name: String,
    },
    /// The device could not be opened, or went away.
    #[error("{0}")]
    Device(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Os {
        /// What was attempted.
        what: Cow<'static, str>,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// An [`Error::Invalid`].
    pub fn invalid(what: &'static str, why: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid { what, why: why.into() }
    }

    /// An [`Error::Os`].
    pub fn os(what: impl Into<Cow<'static, str>>, source: impl Into<io::Error>) -> Self {
        Self::Os { what: what.into(), source: source.into() }
    }
}

/// A list of work requests was posted in part: those before `index` are outstanding, the one at `index` and all after it
/// are not (`bad_wr`).
#[derive(Debug, thiserror::Error)]
#[error("work request {index}: {error}")]
pub struct PostError {
    /// Which one failed, from 0.
    pub index: usize,
    /// Why.
    #[source]
    pub error: Error,
}
