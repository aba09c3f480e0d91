//! What a device is: the verbs vocabulary, the handles that users hold, and the contract that a device implements.
//!
//! A person who knows libibverbs finds every name where they expect it:
//!
//! - [`Context`], [`Pd`], [`Mr`], [`Cq`], [`CompChannel`], [`Srq`], [`Qp`], [`Ah`] are the handles. Each is a counted
//!   reference: `Clone` shares the object, and the object lives until its last holder lets go. Children hold their
//!   parents, so no order of drops frees anything that is still used.
//! - [`provider`] is what a device implements; the handles are thin wrappers over its trait objects.
//! - [`AhCache`] keeps address handles for all who use a context, and gives [`AhLease`]s of them.
//! - [`SendWr`], [`RecvWr`], [`WorkCompletion`], [`QpAttr`], [`AhAttr`] are the plain values that go in and come out.
//!
//! Every handle is `Send + Sync`; every call may be made from any thread. No call waits for another part of the
//! program unless its name says so (`wait`).
#![deny(unsafe_code)]

mod access;
mod ah;
pub mod ah_cache;
mod base;
mod completion;
mod device;
mod error;
mod event;
mod gid;
mod gsi;
mod handle;
mod memory;
mod mtu;
mod qp;
mod sync;
mod transition;
mod watch;
mod work;

pub mod provider;

pub use access::Access;
pub use ah::{AhAttr, GlobalRoute};
pub use ah_cache::{AhCache, AhCacheConfig, AhCacheOptions, AhError, AhLease, AhLookup, AhPending, CloseReport, Ttl};
pub use completion::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
pub use device::{AtomicCap, DeviceAttr, DeviceInfo, GidEntry, PortAttr, PortState};
pub use error::{Error, PostError, Result};
pub use event::{AsyncEvent, EventType};
pub use gid::Gid;
pub use gsi::{Gsi, MAD_LEN, MadHandler, MadOrigin, ServiceBinding};
pub use handle::{Ah, CompChannel, Context, Cq, Mr, Pd, Qp, Srq};
pub use memory::{Buffer, Region};
pub use mtu::Mtu;
pub use qp::{QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, SrqAttr, SrqInitAttr, rnr_timer};
pub use transition::check_transition;
pub use watch::{AddressChange, AddressWatcher, LinkLayer};
pub use work::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge, UdDest};
