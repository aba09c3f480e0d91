//! Completions that are read by calls (`ibv_create_cq_ex(3)`): [`start_poll`], [`next_poll`] as long as there are more, [`end_poll`]. The
//! number and the status of the one that is being read are fields of [`ibv_cq_ex`].

use crate::types::{ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_tm_info};
use libc::{ENOSYS, c_int, c_uint};

/// Begins to read (`ibv_start_poll`): the first completion, or `ENOENT` if there is none, or another error number; then there is nothing to end.
/// Until the end the queue may be locked.
///
/// # Safety
///
/// `cq` is alive, `attr` can be read, and no other thread reads completions of it.
#[inline]
pub unsafe fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the queue is alive.
    match unsafe { (*cq).start_poll } {
        // SAFETY: as the caller promises.
        Some(start) => unsafe { start(cq, attr) },
        None => ENOSYS,
    }
}

/// Goes on to the next completion (`ibv_next_poll`), or returns `ENOENT` if there is none, or another error number.
///
/// # Safety
///
/// [`start_poll`] has returned 0, and this thread reads since then.
#[inline]
pub unsafe fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the queue is alive.
    match unsafe { (*cq).next_poll } {
        // SAFETY: as the caller promises.
        Some(next) => unsafe { next(cq) },
        None => ENOSYS,
    }
}

/// Ends what [`start_poll`] has begun (`ibv_end_poll`).
///
/// # Safety
///
/// [`start_poll`] has returned 0, and this thread reads since then.
#[inline]
pub unsafe fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: the queue is alive.
    if let Some(end) = unsafe { (*cq).end_poll } {
        // SAFETY: as the caller promises.
        unsafe { end(cq) };
    }
}

macro_rules! readers {
    ($($(#[doc = $doc:literal])* fn $name:ident($field:ident) -> $type:ty;)*) => {
        $(
            $(#[doc = $doc])*
            ///
            /// `None` if the queue was made without it (`wc_flags`).
            ///
            /// # Safety
            ///
            /// This thread reads a completion: [`start_poll`] and [`next_poll`] have returned 0.
            #[inline]
            pub unsafe fn $name(cq: *mut ibv_cq_ex) -> Option<$type> {
                // SAFETY: the queue is alive.
                let read = unsafe { (*cq).$field }?;
                // SAFETY: as the caller promises.
                Some(unsafe { read(cq) })
            }
        )*
    };
}

readers! {
    /// What has completed (`ibv_wc_read_opcode`).
    fn wc_read_opcode(read_opcode) -> c_uint;
    /// What the vendor says of an error (`ibv_wc_read_vendor_err`).
    fn wc_read_vendor_err(read_vendor_err) -> u32;
    /// Bytes that came (`ibv_wc_read_byte_len`).
    fn wc_read_byte_len(read_byte_len) -> u32;
    /// Immediate data in network byte order; if the flags say so, the key that was invalidated, in the host's
    /// (`ibv_wc_read_imm_data`, `ibv_wc_read_invalidated_rkey`).
    fn wc_read_imm_data(read_imm_data) -> u32;
    /// The queue pair (`ibv_wc_read_qp_num`).
    fn wc_read_qp_num(read_qp_num) -> u32;
    /// The queue pair that a datagram came from (`ibv_wc_read_src_qp`).
    fn wc_read_src_qp(read_src_qp) -> u32;
    /// Flags (`ibv_wc_read_wc_flags`).
    fn wc_read_wc_flags(read_wc_flags) -> c_uint;
    /// The LID that it came from (`ibv_wc_read_slid`).
    fn wc_read_slid(read_slid) -> u32;
    /// The service level (`ibv_wc_read_sl`).
    fn wc_read_sl(read_sl) -> u8;
    /// The path bits of the LID that it came to (`ibv_wc_read_dlid_path_bits`).
    fn wc_read_dlid_path_bits(read_dlid_path_bits) -> u8;
    /// The device's time (`ibv_wc_read_completion_ts`).
    fn wc_read_completion_ts(read_completion_ts) -> u64;
    /// The time in nanoseconds (`ibv_wc_read_completion_wallclock_ns`).
    fn wc_read_completion_wallclock_ns(read_completion_wallclock_ns) -> u64;
    /// The VLAN's tag (`ibv_wc_read_cvlan`).
    fn wc_read_cvlan(read_cvlan) -> u16;
    /// The tag of a flow rule (`ibv_wc_read_flow_tag`).
    fn wc_read_flow_tag(read_flow_tag) -> u32;
}

/// What tag matching says (`ibv_wc_read_tm_info`). `None` if the queue was made without it.
///
/// # Safety
///
/// As [`wc_read_opcode`].
#[inline]
pub unsafe fn wc_read_tm_info(cq: *mut ibv_cq_ex) -> Option<ibv_wc_tm_info> {
    // SAFETY: the queue is alive.
    let read = unsafe { (*cq).read_tm_info }?;
    let mut info = ibv_wc_tm_info { tag: 0, r#priv: 0 };
    // SAFETY: as the caller promises, and `info` is what it writes to.
    unsafe { read(cq, &mut info) };
    Some(info)
}
