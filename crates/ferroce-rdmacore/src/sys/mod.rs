//! The library's objects, owned: one type for each. Each holds its parents, is created only by them, and is destroyed when it is dropped.
//!
//! That is the invariant from which all calls here are sound: a pointer inside one of these types is to an object that is alive, as are
//! all that it was made from, and nothing outside this module can destroy it. The library itself may be called from any thread with any
//! object (rdma-core, `Documentation/libibverbs.md`: all verbs are thread safe), which is why all types are `Send` and `Sync`.
//!
//! An object that the library fails to destroy is left alone and logged: the device may still use it.

mod channel;
mod context;
mod cq;
mod list;
mod live;
mod mr;
mod pd;
mod post;
mod qp;
mod srq;

pub(crate) use channel::RawChannel;
pub(crate) use context::{RawContext, RawEvent};
pub(crate) use cq::{BATCH as CQ_BATCH, PollFailed, RawCq};
pub(crate) use list::{DeviceList, Listed};
pub(crate) use mr::RawMr;
pub(crate) use pd::{RawAh, RawPd};
pub(crate) use post::{BATCH as POST_BATCH, RecvList, SendList, Stopped};
pub(crate) use qp::{QpParts, RawQp};
pub(crate) use srq::RawSrq;

use crate::errno;
use ferroce_verbs::Error;
use live::Kind;
use std::ptr::NonNull;

/// What a verb returns that makes something.
fn made<T>(context: &RawContext, kind: Kind, verb: impl FnOnce() -> *mut T) -> Result<NonNull<T>, Error> {
    try_made(context, kind, verb).map_err(|number| context.error(format!("making {}", kind.what()), number))
}

/// The same as the verb says it: an object, which counts from then on, or null and `errno`.
fn try_made<T>(context: &RawContext, kind: Kind, verb: impl FnOnce() -> *mut T) -> Result<NonNull<T>, i32> {
    // SAFETY: `errno` is the thread's own.
    unsafe { *libc::__errno_location() = 0 };
    let object = NonNull::new(verb()).ok_or_else(errno::last)?;
    context.live.made(kind);
    Ok(object)
}

/// The result of destroying something: nobody is there to hear of it.
fn destroyed(context: &RawContext, kind: Kind, number: i32) -> bool {
    match let_go(context, kind, number) {
        Ok(()) => return true,
        // With the device the kernel's object goes, and all that is left is a little memory of the library's.
        Err(Error::Device(_)) => tracing::debug!(what = kind.what(), "not destroyed: the device is gone"),
        Err(error) => tracing::error!(%error, "the device may still use it"),
    }
    false
}

/// The same, for who wants to know. What could not be destroyed counts for as long as its device is there.
fn let_go(context: &RawContext, kind: Kind, number: i32) -> Result<(), Error> {
    let outcome = match number {
        0 => Ok(()),
        number => Err(context.error(format!("destroying {}", kind.what()), errno::number(number))),
    };
    if matches!(outcome, Ok(()) | Err(Error::Device(_))) {
        context.live.gone(kind);
    }
    outcome
}

/// Makes a descriptor non-blocking.
fn set_nonblocking(fd: std::os::fd::BorrowedFd<'_>) -> Result<(), Error> {
    let failed = |error| Error::os("making a descriptor of the device non-blocking", error);
    let flags = rustix::fs::fcntl_getfl(fd).map_err(failed)?;
    rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK).map_err(failed)
}
