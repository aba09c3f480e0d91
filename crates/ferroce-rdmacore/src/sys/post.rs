//! Lists of work requests in C's form, on the stack.

use super::{RawAh, RawQp, RawSrq};
use crate::errno;
use ferroce_abi::inline;
use ferroce_abi::types::{
    ibv_recv_wr, ibv_send_wr, ibv_sge, ibv_wr_atomic, ibv_wr_extra, ibv_wr_rdma, ibv_wr_tso, ibv_wr_ud, ibv_wr_wr,
    value,
};
use ferroce_verbs::{Data, RecvWr, SendFlags, SendOp, SendWr, Sge};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, align_of, offset_of, size_of};
use std::ptr::null_mut;

/// Work requests that are posted at a time.
pub(crate) const BATCH: usize = 8;

// A list of elements is handed on as it is.
const _: () = {
    assert!(size_of::<Sge>() == size_of::<ibv_sge>() && align_of::<Sge>() == align_of::<ibv_sge>());
    assert!(offset_of!(Sge, addr) == offset_of!(ibv_sge, addr));
    assert!(offset_of!(Sge, length) == offset_of!(ibv_sge, length));
    assert!(offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey));
};

/// How far a list came: so many were posted, and then this error number.
pub(crate) type Stopped = (usize, i32);

/// Up to [`BATCH`] sends. What they point to is borrowed.
pub(crate) struct SendList<'a> {
    len: usize,
    wrs: [MaybeUninit<ibv_send_wr>; BATCH],
    inline: [ibv_sge; BATCH],
    _borrowed: PhantomData<&'a [u8]>,
}

impl<'a> SendList<'a> {
    pub(crate) fn new() -> Self {
        Self {
            len: 0,
            wrs: [const { MaybeUninit::uninit() }; BATCH],
            inline: [ibv_sge { addr: 0, length: 0, lkey: 0 }; BATCH],
            _borrowed: PhantomData,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == BATCH
    }

    /// Adds a send; the list is not full. Elements of an atomic are taken as they are: the device checks them.
    #[inline]
    pub(crate) fn push(&mut self, wr: &SendWr<'a>, ah: Option<&'a RawAh>) {
        let (opcode, imm_data) = match wr.op {
            SendOp::Send => (value::IBV_WR_SEND, 0),
            SendOp::SendImm(imm) => (value::IBV_WR_SEND_WITH_IMM, imm.to_be()),
            SendOp::SendInv(rkey) => (value::IBV_WR_SEND_WITH_INV, rkey),
            SendOp::Write { .. } => (value::IBV_WR_RDMA_WRITE, 0),
            SendOp::WriteImm { imm, .. } => (value::IBV_WR_RDMA_WRITE_WITH_IMM, imm.to_be()),
            SendOp::Read { .. } => (value::IBV_WR_RDMA_READ, 0),
            SendOp::CompareSwap { .. } => (value::IBV_WR_ATOMIC_CMP_AND_SWP, 0),
            SendOp::FetchAdd { .. } => (value::IBV_WR_ATOMIC_FETCH_AND_ADD, 0),
        };
        let operand = match wr.op {
            SendOp::Write { remote_addr, rkey }
            | SendOp::WriteImm { remote_addr, rkey, .. }
            | SendOp::Read { remote_addr, rkey } => ibv_wr_wr { rdma: ibv_wr_rdma { remote_addr, rkey } },
            SendOp::CompareSwap { remote_addr, rkey, compare, swap } => {
                ibv_wr_wr { atomic: ibv_wr_atomic { remote_addr, compare_add: compare, swap, rkey } }
            }
            SendOp::FetchAdd { remote_addr, rkey, add } => {
                ibv_wr_wr { atomic: ibv_wr_atomic { remote_addr, compare_add: add, swap: 0, rkey } }
            }
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => {
                let (remote_qpn, remote_qkey) = wr.ud.map_or((0, 0), |dest| (dest.qpn, dest.qkey));
                let ah = ah.map_or(null_mut(), RawAh::as_ptr);
                ibv_wr_wr { ud: ibv_wr_ud { ah, remote_qpn, remote_qkey } }
            }
        };
        let mut send_flags = 0;
        for (flag, bit) in [
            (SendFlags::FENCE, value::IBV_SEND_FENCE),
            (SendFlags::SIGNALED, value::IBV_SEND_SIGNALED),
            (SendFlags::SOLICITED, value::IBV_SEND_SOLICITED),
        ] {
            if wr.flags.contains(flag) {
                send_flags |= bit;
            }
        }
        let (sg_list, num_sge) = match wr.data {
            Data::Sges(sges) => (sges.as_ptr().cast::<ibv_sge>().cast_mut(), sges.len() as i32),
            Data::Inline(bytes) => {
                self.inline[self.len] = ibv_sge { addr: bytes.as_ptr() as u64, length: bytes.len() as u32, lkey: 0 };
                send_flags |= value::IBV_SEND_INLINE;
                // Its address is known when nothing moves any more; the flag tells.
                (null_mut(), 1)
            }
        };
        self.wrs[self.len].write(ibv_send_wr {
            wr_id: wr.wr_id,
            next: null_mut(),
            sg_list,
            num_sge,
            opcode,
            send_flags,
            imm_data,
            wr: operand,
            xrc_remote_srqn: 0,
            extra: ibv_wr_extra { tso: ibv_wr_tso { hdr: null_mut(), hdr_sz: 0, mss: 0 } },
        });
        self.len += 1;
    }

    /// Posts them all, and empties the list.
    #[inline]
    pub(crate) fn post(&mut self, qp: &RawQp) -> Result<(), Stopped> {
        let len = std::mem::take(&mut self.len);
        if len == 0 {
            return Ok(());
        }
        let first: *mut ibv_send_wr = self.wrs.as_mut_ptr().cast();
        let inline: *mut ibv_sge = self.inline.as_mut_ptr();
        for index in 0..len {
            // SAFETY: `index` is one of the `len` that `push` has written.
            let wr = unsafe { &mut *first.add(index) };
            if wr.send_flags & value::IBV_SEND_INLINE != 0 {
                // SAFETY: there is one element for each place of the list.
                wr.sg_list = unsafe { inline.add(index) };
            }
            // SAFETY: the next one is in the list too.
            wr.next = if index + 1 < len { unsafe { first.add(index + 1) } } else { null_mut() };
        }
        let mut bad = first;
        // SAFETY: the queue pair is alive; the list is in memory that is borrowed until the call returns, as is all that `push` was
        // given: elements, inline bytes, address handles. Elements are only read, whatever C calls them.
        let number = unsafe { inline::post_send(qp.as_ptr(), first, &mut bad) };
        stopped(number, first as usize, bad as usize, size_of::<ibv_send_wr>(), len)
    }
}

/// Up to [`BATCH`] receives. What they point to is borrowed.
pub(crate) struct RecvList<'a> {
    len: usize,
    wrs: [MaybeUninit<ibv_recv_wr>; BATCH],
    _borrowed: PhantomData<&'a [Sge]>,
}

impl<'a> RecvList<'a> {
    pub(crate) fn new() -> Self {
        Self { len: 0, wrs: [const { MaybeUninit::uninit() }; BATCH], _borrowed: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == BATCH
    }

    /// Adds a receive; the list is not full.
    #[inline]
    pub(crate) fn push(&mut self, wr: &RecvWr<'a>) {
        self.wrs[self.len].write(ibv_recv_wr {
            wr_id: wr.wr_id,
            next: null_mut(),
            sg_list: wr.sges.as_ptr().cast::<ibv_sge>().cast_mut(),
            num_sge: wr.sges.len() as i32,
        });
        self.len += 1;
    }

    /// Posts them all to a queue pair, and empties the list.
    #[inline]
    pub(crate) fn post(&mut self, qp: &RawQp) -> Result<(), Stopped> {
        let Some((first, len)) = self.link() else { return Ok(()) };
        let mut bad = first;
        // SAFETY: as in `SendList::post`.
        let number = unsafe { inline::post_recv(qp.as_ptr(), first, &mut bad) };
        stopped(number, first as usize, bad as usize, size_of::<ibv_recv_wr>(), len)
    }

    /// Posts them all to a shared receive queue, and empties the list.
    #[inline]
    pub(crate) fn post_shared(&mut self, srq: &RawSrq) -> Result<(), Stopped> {
        let Some((first, len)) = self.link() else { return Ok(()) };
        let mut bad = first;
        // SAFETY: as in `SendList::post`.
        let number = unsafe { inline::post_srq_recv(srq.as_ptr(), first, &mut bad) };
        stopped(number, first as usize, bad as usize, size_of::<ibv_recv_wr>(), len)
    }

    fn link(&mut self) -> Option<(*mut ibv_recv_wr, usize)> {
        let len = std::mem::take(&mut self.len);
        let first: *mut ibv_recv_wr = self.wrs.as_mut_ptr().cast();
        for index in 1..len {
            // SAFETY: both are among the `len` that `push` has written.
            unsafe { (*first.add(index - 1)).next = first.add(index) };
        }
        (len > 0).then_some((first, len))
    }
}

/// What a post says. A provider that fails without naming the first that was not posted has posted none.
fn stopped(number: i32, first: usize, bad: usize, size: usize, len: usize) -> Result<(), Stopped> {
    if number == 0 {
        return Ok(());
    }
    let index = bad.checked_sub(first).map_or(0, |bytes| bytes / size);
    let number = errno::number(number);
    Err((if index < len { index } else { 0 }, number))
}
