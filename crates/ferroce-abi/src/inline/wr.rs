//! Sends that are built by calls (`ibv_wr_post(3)`): [`wr_start`], then for each request its operation and what it needs, then
//! [`wr_complete`] or [`wr_abort`]. Its number and flags are fields of [`ibv_qp_ex`], to be set before the operation.

use crate::types::{ibv_ah, ibv_data_buf, ibv_mw, ibv_mw_bind_info, ibv_qp_ex, ibv_sge};
use libc::{ENOSYS, c_int, c_void, size_t};

macro_rules! builders {
    ($($(#[doc = $doc:literal])* fn $name:ident($($arg:ident: $type:ty),*);)*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// Returns 0, or `ENOSYS` if the queue pair was made without it (`send_ops_flags`). What is wrong with a request is told when all are
            /// complete.
            ///
            /// # Safety
            ///
            /// `qp` is alive, no other thread builds requests of it, and what is pointed to is valid until the requests are complete.
            #[inline]
            pub unsafe fn $name(qp: *mut ibv_qp_ex, $($arg: $type),*) -> c_int {
                // SAFETY: the queue pair is alive.
                match unsafe { (*qp).$name } {
                    Some(build) => {
                        // SAFETY: as the caller promises.
                        unsafe { build(qp, $($arg),*) };
                        0
                    }
                    None => ENOSYS,
                }
            }
        )*
    };
}

builders! {
    /// Begins a list of requests (`ibv_wr_start`). Until it is ended the queue may be locked.
    fn wr_start();
    /// Ends the list and forgets its requests (`ibv_wr_abort`).
    fn wr_abort();
    /// The next request compares and swaps 64 bits (`ibv_wr_atomic_cmp_swp`).
    fn wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    /// The next request adds to 64 bits (`ibv_wr_atomic_fetch_add`).
    fn wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    /// The next request writes eight bytes at once (`ibv_wr_atomic_write`).
    fn wr_atomic_write(rkey: u32, remote_addr: u64, bytes: *const c_void);
    /// The next request binds a memory window (`ibv_wr_bind_mw`).
    fn wr_bind_mw(mw: *mut ibv_mw, rkey: u32, bind_info: *const ibv_mw_bind_info);
    /// The next request invalidates a key of this side (`ibv_wr_local_inv`).
    fn wr_local_inv(invalidate_rkey: u32);
    /// The next request is an RDMA read (`ibv_wr_rdma_read`).
    fn wr_rdma_read(rkey: u32, remote_addr: u64);
    /// The next request is an RDMA write (`ibv_wr_rdma_write`).
    fn wr_rdma_write(rkey: u32, remote_addr: u64);
    /// The next request is an RDMA write with immediate data, in network byte order (`ibv_wr_rdma_write_imm`).
    fn wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: u32);
    /// The next request is a send (`ibv_wr_send`).
    fn wr_send();
    /// The next request is a send with immediate data, in network byte order (`ibv_wr_send_imm`).
    fn wr_send_imm(imm_data: u32);
    /// The next request is a send that invalidates a key of the peer (`ibv_wr_send_inv`).
    fn wr_send_inv(invalidate_rkey: u32);
    /// The next request is cut into segments by the device (`ibv_wr_send_tso`).
    fn wr_send_tso(hdr: *mut c_void, hdr_sz: u16, mss: u16);
    /// Where the request's datagram goes (`ibv_wr_set_ud_addr`).
    fn wr_set_ud_addr(ah: *mut ibv_ah, remote_qpn: u32, remote_qkey: u32);
    /// Which shared receive queue of the peer it comes to (`ibv_wr_set_xrc_srqn`).
    fn wr_set_xrc_srqn(remote_srqn: u32);
    /// Its data, which are copied (`ibv_wr_set_inline_data`).
    fn wr_set_inline_data(addr: *mut c_void, length: size_t);
    /// Its data in pieces, which are copied (`ibv_wr_set_inline_data_list`).
    fn wr_set_inline_data_list(num_buf: size_t, buf_list: *const ibv_data_buf);
    /// Its data (`ibv_wr_set_sge`).
    fn wr_set_sge(lkey: u32, addr: u64, length: u32);
    /// Its data in pieces (`ibv_wr_set_sge_list`).
    fn wr_set_sge_list(num_sge: size_t, sg_list: *const ibv_sge);
}

/// Posts the list (`ibv_wr_complete`). Returns an error number; then nothing was posted.
///
/// # Safety
///
/// As [`wr_start`], which was called before by this thread.
#[inline]
pub unsafe fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the queue pair is alive.
    match unsafe { (*qp).wr_complete } {
        // SAFETY: as the caller promises.
        Some(complete) => unsafe { complete(qp) },
        None => ENOSYS,
    }
}
