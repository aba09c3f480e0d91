//! The surface that all transports share: UCT's operations and contracts.
//!
//! An [`Interface`] sends and receives through one device; an [`Endpoint`] of it sends to one peer. What a transport can do it says in
//! [`InterfaceAttr`]; what it cannot do ends in [`OpError::Unsupported`].
//!
//! # Contracts
//!
//! - *An operation has one answer.* It returns [`Posted::Done`] or an error, and then its [`Completion`] is not called; or it returns
//!   [`Posted::InProgress`], and then the completion is called exactly once, with success, a failure, or [`OpFailure::Canceled`], whatever
//!   happens to the endpoint, the interface, or the token itself. It is called when the device no longer uses the operation's memory: so
//!   also after the endpoint is dropped, for memory belongs to the operation and not to the endpoint.
//! - *No resource.* After [`OpError::NoResource`] nothing was begun. [`Endpoint::pending_add`] takes a request that is called when
//!   trying again makes sense. It refuses with [`PendingError::Busy`] only if there are resources now, for whatever operation: the caller tries again itself, and
//!   does not wait for what will not come. Until its callback returns [`PendingStatus::Done`] the request is the transport's; purging hands it back.
//! - *Nothing after destroy.* Once the destructor of an endpoint has returned, no failure handler, pending request or message handler is
//!   begun for it: whoever is called is looked up under the endpoint's lock in that moment, and not before. One that another thread had begun before may
//!   still run, for a destructor waits for nobody; so an endpoint may be dropped from inside its own callbacks. All callbacks own what they use, so there is
//!   nothing that they could find gone.
//! - *No locks.* Callbacks are called with no lock held, by the thread that makes progress; what a call itself brings about, it may tell before
//!   it returns: completions that are canceled by a flush that cancels, or by dropping an endpoint or the interface, and a failure that was there
//!   before somebody asked to be told of it. They may send, connect, drop endpoints, and make progress, which then does nothing. One that panics takes nothing with it but its own call; what else had come is
//!   handed over by the next progress.
//! - *Events.* [`Interface::arm`] has the descriptor become readable at the next event, and refuses if there is one already. It stays readable until
//!   somebody arms again: progress that another thread makes takes no sleeper's event away. Of several threads that sleep on one descriptor an event wakes
//!   at least one; what its progress means to the others they are told by the handlers, which are the program's.
//! - *Errors are values.* An endpoint fails once, with a cause and what was seen ([`Failure`]). It can only be dropped then; nothing aborts.

mod attr;
mod completion;
mod endpoint;
mod event;
mod failure;
mod handshake;
mod id;
mod interface;
mod pack;
mod pending;
mod reach;

pub use attr::{AtomicOps, EventCaps, InterfaceAttr, InterfaceFlags, OpLimits};
pub use completion::{Completion, CompletionCounter, OnCompletion, Outcome};
pub use endpoint::{AtomicOp, Endpoint, FlushKind, Iov, Posted, Remote};
pub(crate) use event::Wakeup;
pub use failure::{Cause, Evidence, Failure, OpError, OpFailure};
pub use id::EndpointId;
pub use interface::{AmHandler, Arm, FailureHandler, Interface, Message};
pub use pack::{Full, Packer};
pub(crate) use pending::PENDING_TURN;
pub use pending::{PendingError, PendingRequest, PendingStatus};
pub use reach::Unreachable;
pub(crate) use reach::check_addresses;

/// Active message ids are below this.
pub const AM_IDS: u8 = 32;
