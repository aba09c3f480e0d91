//! How a real device is driven: rdma-core's libibverbs behind the contract of [`ferroce_verbs::provider`].
//!
//! [`devices`] lists what the library shows; everything from there on is the vocabulary of `ferroce-verbs`. The library is loaded by
//! the first call that needs it; where it is missing, or the kernel has nothing for it, [`Unavailable`] says so and what to do.
//!
//! `sys` owns the library's objects: one type for each, which holds its parents and destroys itself. It has all the unsafe code of this
//! crate. The other modules are the contract's rules on top of it.
#![deny(unsafe_code)]

mod address;
mod ah;
mod attr;
mod channel;
mod context;
mod convert;
mod counters;
mod cq;
mod device;
mod drain;
mod errno;
mod events;
#[cfg(test)]
#[allow(unsafe_code)]
mod fake;
mod flags;
mod mr;
mod note;
mod pd;
mod port;
mod post;
mod qp;
mod registry;
mod sent_to;
mod srq;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
mod tests;
mod watch;

pub use cq::CqBroken;
pub use device::{RdmaDevice, devices};
pub use errno::DeviceGone;
pub use ferroce_abi::Unavailable;

use ferroce_verbs::{Error, Result};
use std::any::Any;
use std::sync::Arc;

/// An object of this crate that the user gave us as a handle.
fn own<T: Any + Send + Sync>(object: Arc<dyn Any + Send + Sync>, what: &'static str) -> Result<Arc<T>> {
    object.downcast().map_err(|_| Error::invalid(what, "it belongs to another device"))
}
