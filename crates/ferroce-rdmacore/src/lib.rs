//! How a real device is driven: rdma-core's libibverbs behind the contract of [`ferroce_verbs::provider`].
//!
//! [`devices`] lists what the library shows; everything from there on is the vocabulary of `ferroce-verbs`. The library is loaded by
//! the first call that needs it; where it is missing, or the kernel has nothing for it, [`Unavailable`] says so and what to do.
//!
//! # Threads and processes
//!
//! libibverbs' verbs may be called from any thread, and so may these; an environment that switches off a provider's locks is refused
//! ([`LocksOff`]). A context has up to two threads: one from the first queue pair on that is dropped with work outstanding, one while
//! somebody watches addresses.
//!
//! After `fork` only the parent may use what it has opened: a child has none of its threads, and the kernel does not share a device between
//! processes. The parent's registered memory stays its own where the kernel copies pinned pages for the child at once (Linux 5.12 and
//! later). On older kernels a child that lives on while the parent writes to such memory parts the parent from what the device sees, unless
//! `RDMAV_FORK_SAFE` or `IBV_FORK_SAFE` is set before the library is loaded; then the child lacks those pages altogether. `Buffer` has pages
//! of its own, so nothing else goes with them; borrowed memory that shares a page with something that the child needs must not be registered.
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
mod locks;
mod mr;
mod note;
mod pd;
mod port;
mod post;
mod posted;
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
pub use locks::LocksOff;

use ferroce_verbs::{Error, Result};
use std::any::Any;
use std::sync::Arc;

/// An object of this crate that the user gave us as a handle.
fn own<T: Any + Send + Sync>(object: Arc<dyn Any + Send + Sync>, what: &'static str) -> Result<Arc<T>> {
    object.downcast().map_err(|_| Error::invalid(what, "it belongs to another device"))
}
