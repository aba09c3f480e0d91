//! The verbs that `infiniband/verbs.h` implements itself. They are not exported by the library, or what it exports under their name
//! is an old form that the header replaces.

use crate::Library;
use crate::types::{
    ibv_context, ibv_cq, ibv_port_attr, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_wc, verbs_context,
};
use libc::{ENOSYS, c_int, c_void};
use std::mem::{offset_of, size_of};

/// What `abi_compat` holds in a context that is part of a [`verbs_context`].
const EXTENDED: *mut c_void = usize::MAX as *mut c_void;

/// The [`verbs_context`] around a context, if the library is new enough to have one. Fields that an older library lacks must not be
/// touched: see [`has_field`].
///
/// # Safety
///
/// `context` is one that libibverbs opened and that is not closed.
pub unsafe fn extended(context: *mut ibv_context) -> Option<*mut verbs_context> {
    // SAFETY: the caller gives a valid context.
    if unsafe { (*context).abi_compat } != EXTENDED {
        return None;
    }
    // SAFETY: the mark says that the context is the last field of a `verbs_context`, whose end has been the same in all versions.
    Some(unsafe { context.byte_sub(offset_of!(verbs_context, context)) }.cast())
}

/// Whether a [`verbs_context`] of `sz` bytes has the field at `offset`, counted in the structure that this crate knows: fields are
/// added at the beginning.
#[must_use]
pub fn has_field(sz: usize, offset: usize) -> bool {
    sz >= size_of::<verbs_context>() - offset
}

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

/// What a port is at the moment. Returns an error number.
///
/// The exported `ibv_query_port` is the form of 2006, which knows less; it is called only where a library has nothing better.
///
/// # Safety
///
/// `context` is open.
pub unsafe fn query_port(library: &Library, context: *mut ibv_context, port: u8, attr: &mut ibv_port_attr) -> c_int {
    *attr = ibv_port_attr::default();
    // SAFETY: the caller gives a valid context.
    if let Some(extended) = unsafe { extended(context) } {
        // SAFETY: `sz` is in every version, and the other field is read only where `sz` covers it.
        let query = unsafe {
            if has_field((*extended).sz, offset_of!(verbs_context, query_port)) { (*extended).query_port } else { None }
        };
        if let Some(query) = query {
            // SAFETY: `attr` has the size that is passed.
            return unsafe { query(context, port, attr, size_of::<ibv_port_attr>()) };
        }
    }
    // SAFETY: it writes a structure that is no longer than `attr`.
    unsafe { (library.query_port)(context, port, attr) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_from_the_end() {
        let full = size_of::<verbs_context>();
        let first = offset_of!(verbs_context, query_port);
        let second = offset_of!(verbs_context, advise_mr);
        assert!(has_field(full, first));
        assert!(has_field(full + 8, first), "a newer library");
        assert!(!has_field(full - size_of::<usize>(), first), "an older library");
        assert!(has_field(full - size_of::<usize>(), second));
    }
}
