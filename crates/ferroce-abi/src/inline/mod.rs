//! The verbs that `infiniband/verbs.h` implements itself. They are not exported by the library, or what it exports under their name
//! is an old form that the header replaces.

mod extended;
mod wc;
mod wr;

pub use extended::{create_cq_ex, create_qp_ex, has_field, query_port};
pub use wc::*;
pub use wr::*;

use crate::types::{ibv_cq, ibv_mw, ibv_mw_bind, ibv_pd, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, value};
use libc::{EINVAL, ENOSYS, EOPNOTSUPP, EPERM, c_int, c_uint};
use std::io;
use std::ptr::NonNull;

/// Takes up to `entries` completions; a negative result is an error.
///
/// # Safety
///
/// `cq` is alive, and `wc` has room for `entries`.
#[inline]
pub unsafe fn poll_cq(cq: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: a live queue names its context, which outlives it.
    match unsafe { (*(*cq).context).ops.poll_cq } {
        // SAFETY: as the caller promises.
        Some(poll) => unsafe { poll(cq, entries, wc) },
        None => -ENOSYS,
    }
}

/// Arms a completion queue. Returns an error number.
///
/// # Safety
///
/// `cq` is alive.
#[inline]
pub unsafe fn req_notify_cq(cq: *mut ibv_cq, solicited_only: bool) -> c_int {
    // SAFETY: as in `poll_cq`.
    match unsafe { (*(*cq).context).ops.req_notify_cq } {
        // SAFETY: as the caller promises.
        Some(arm) => unsafe { arm(cq, c_int::from(solicited_only)) },
        None => ENOSYS,
    }
}

/// Posts a list of sends. Returns an error number; then `bad` is the first that was not posted.
///
/// # Safety
///
/// `qp` is alive, and the list and all that it points to is valid for the time of the call.
#[inline]
pub unsafe fn post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad: &mut *mut ibv_send_wr) -> c_int {
    // SAFETY: a live queue pair names its context, which outlives it.
    match unsafe { (*(*qp).context).ops.post_send } {
        // SAFETY: as the caller promises.
        Some(post) => unsafe { post(qp, wr, bad) },
        None => {
            *bad = wr;
            ENOSYS
        }
    }
}

/// Posts a list of receives. Returns an error number; then `bad` is the first that was not posted.
///
/// # Safety
///
/// As [`post_send`].
#[inline]
pub unsafe fn post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as in `post_send`.
    match unsafe { (*(*qp).context).ops.post_recv } {
        // SAFETY: as the caller promises.
        Some(post) => unsafe { post(qp, wr, bad) },
        None => {
            *bad = wr;
            ENOSYS
        }
    }
}

/// Posts a list of receives to a shared receive queue. Returns an error number; then `bad` is the first that was not posted.
///
/// # Safety
///
/// As [`post_send`], for a shared receive queue.
#[inline]
pub unsafe fn post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad: &mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: a live shared receive queue names its context, which outlives it.
    match unsafe { (*(*srq).context).ops.post_srq_recv } {
        // SAFETY: as the caller promises.
        Some(post) => unsafe { post(srq, wr, bad) },
        None => {
            *bad = wr;
            ENOSYS
        }
    }
}

/// Makes a memory window.
///
/// # Errors
///
/// `EOPNOTSUPP` if the device has none, and whatever the device says.
///
/// # Safety
///
/// `pd` is alive.
pub unsafe fn alloc_mw(pd: *mut ibv_pd, mw_type: c_uint) -> io::Result<NonNull<ibv_mw>> {
    // SAFETY: a live domain names its context, which outlives it.
    let alloc = unsafe { (*(*pd).context).ops.alloc_mw }.ok_or_else(unsupported)?;
    // SAFETY: as the caller promises.
    made(unsafe { alloc(pd, mw_type) })
}

/// The device, or the library, has no such verb.
fn unsupported() -> io::Error {
    io::Error::from_raw_os_error(EOPNOTSUPP)
}

/// What a verb returned that makes something: it is called just before.
fn made<T>(object: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(object).ok_or_else(io::Error::last_os_error)
}

/// Destroys a memory window. Returns an error number.
///
/// # Safety
///
/// `mw` is alive, and nobody uses it any more.
pub unsafe fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: a live window names its context, which outlives it.
    match unsafe { (*(*mw).context).ops.dealloc_mw } {
        // SAFETY: as the caller promises.
        Some(dealloc) => unsafe { dealloc(mw) },
        None => ENOSYS,
    }
}

/// Posts that a memory window of type 1 is bound. Returns an error number.
///
/// # Safety
///
/// `qp`, `mw` and what `bind` names are alive.
pub unsafe fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: &mut ibv_mw_bind) -> c_int {
    let info = &bind.bind_info;
    // SAFETY: the window is alive.
    if unsafe { (*mw).r#type } != value::IBV_MW_TYPE_1 || info.mr.is_null() && (info.addr != 0 || info.length != 0) {
        return EINVAL;
    }
    // SAFETY: both are alive.
    if !info.mr.is_null() && unsafe { (*mw).pd != (*info.mr).pd } {
        return EPERM;
    }
    // SAFETY: a live window names its context, which outlives it.
    match unsafe { (*(*mw).context).ops.bind_mw } {
        // SAFETY: as the caller promises.
        Some(post) => unsafe { post(qp, mw, bind) },
        None => ENOSYS,
    }
}

/// The key that a memory window of type 2 is bound with next: its lowest byte is the program's.
#[must_use]
pub fn inc_rkey(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lowest_byte_of_a_key_is_counted() {
        assert_eq!([inc_rkey(0x1234_56fe), inc_rkey(0x1234_56ff)], [0x1234_56ff, 0x1234_5600]);
    }
}
