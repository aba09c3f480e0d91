//! Why a call was refused.

use super::Nanos;
use super::State;
use ferroce_wire::cm::TooMuchPrivateData;

/// Why a call did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The name is that of something that was destroyed. Ordinary where several threads close.
    #[error("stale name: what it named was destroyed")]
    Stale,
    /// The connection is in a state where the call makes no sense.
    #[error("{call} is not possible in state {state}")]
    InvalidState {
        /// The call.
        call: &'static str,
        /// The state that the connection is in.
        state: State,
    },
    /// See [`TooMuchPrivateData`].
    #[error(transparent)]
    PrivateData(#[from] TooMuchPrivateData),
    /// A parameter does not fit its field of the message.
    #[error("{field} {value} does not fit: it is at most {max}")]
    Parameter {
        /// Which.
        field: &'static str,
        /// What was given.
        value: u32,
        /// The most that fits.
        max: u32,
    },
    /// The deadline has passed already.
    #[error("the deadline {deadline} ns is not after now, {now} ns")]
    DeadlinePassed {
        /// The deadline that was given.
        deadline: Nanos,
        /// The time of the call.
        now: Nanos,
    },
    /// Another listener has this service id at this address.
    #[error("another listener has this service id at this address: close it first, or use another port")]
    AddressInUse,
    /// A limit of the endpoint is reached.
    #[error("limit of {limit} {what} reached: destroy some, or raise the limit")]
    Limit {
        /// What there are too many of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
}
