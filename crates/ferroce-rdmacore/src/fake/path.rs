//! Work requests and completions.

use super::{Posted, State, with};
use ferroce_abi::types::*;
use libc::c_int;

pub(super) unsafe extern "C" fn req_notify_cq(_cq: *mut ibv_cq, _solicited: c_int) -> c_int {
    result()
}

/// What a call to the kernel returns.
pub(super) fn result() -> c_int {
    with(|state| if state.gone { libc::EIO } else { 0 })
}

/// What a verb returns that calls the kernel.
pub(super) fn call(verb: &'static str) -> c_int {
    with(|state| {
        state.calls += 1;
        if state.gone { libc::EIO } else { state.failing.get(verb).copied().unwrap_or(0) }
    })
}

/// Puts a queue pair into the error state: all that is outstanding is flushed.
pub(super) fn flush(state: &mut State, qp: usize) {
    state.states.insert(qp, value::IBV_QPS_ERR);
    complete_all(state, qp, value::IBV_WC_WR_FLUSH_ERR);
}

/// All that a queue pair has outstanding completes with this status.
pub(super) fn complete_all(state: &mut State, qp: usize, status: u32) {
    // SAFETY: it lives.
    let (qp_num, send_cq, recv_cq) = unsafe {
        let qp = qp as *mut ibv_qp;
        ((*qp).qp_num, (*qp).send_cq as usize, (*qp).recv_cq as usize)
    };
    let sends = state.sends.remove(&qp).unwrap_or_default();
    let receives = state.receives.remove(&qp).unwrap_or_default();
    for (cq, wr_id) in
        sends.into_iter().map(|wr_id| (send_cq, wr_id)).chain(receives.into_iter().map(|wr_id| (recv_cq, wr_id)))
    {
        let wc = ibv_wc { wr_id, qp_num, status, ..ibv_wc::default() };
        state.completions.entry(cq).or_default().push_back(wc);
    }
}

pub(super) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
    with(|state| {
        let completions = state.completions.entry(cq as usize).or_default();
        let mut count = completions.len().min(most as usize);
        let broken = state.readable.is_some_and(|readable| readable < count);
        if broken {
            count = state.readable.take().unwrap_or(0);
        } else if let Some(readable) = &mut state.readable {
            *readable -= count;
        }
        for (index, completion) in completions.drain(..count).enumerate() {
            // SAFETY: there is room for `most`.
            unsafe { *wc.add(index) = completion };
        }
        // As mlx5 does: what it has taken before is taken.
        if broken { -2 } else { count as c_int }
    })
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let mut list = Vec::new();
    let mut result = 0;
    while !wr.is_null() {
        // SAFETY: the caller gives a list, and what it points to.
        let (request, ud, remote_addr) = unsafe { (&*wr, (*wr).wr.ud.ah, (*wr).wr.rdma.remote_addr) };
        let posted = with(|state| {
            let outstanding = state.sends.entry(qp as usize).or_default();
            let fits = outstanding.len() < state.room;
            if fits {
                outstanding.push(request.wr_id);
            }
            fits
        });
        if !posted {
            // SAFETY: the caller gives a place for it.
            unsafe { *bad = wr };
            result = libc::ENOMEM;
            break;
        }
        let is_send =
            matches!(request.opcode, value::IBV_WR_SEND | value::IBV_WR_SEND_WITH_IMM | value::IBV_WR_SEND_WITH_INV);
        let inline = (request.send_flags & value::IBV_SEND_INLINE != 0).then(|| {
            // SAFETY: inline data is one element that can be read.
            unsafe {
                let sge = &*request.sg_list;
                std::slice::from_raw_parts(sge.addr as *const u8, sge.length as usize).to_vec()
            }
        });
        list.push(Posted {
            wr_id: request.wr_id,
            opcode: request.opcode,
            flags: request.send_flags,
            imm_data: request.imm_data,
            remote_addr: if is_send { 0 } else { remote_addr },
            sges: request.num_sge as usize,
            inline,
            to_ah: is_send && !ud.is_null(),
        });
        wr = request.next;
    }
    with(|state| {
        state.posts.push(list);
        if state.states.get(&(qp as usize)) == Some(&value::IBV_QPS_ERR) {
            flush(state, qp as usize);
        }
    });
    result
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    while !wr.is_null() {
        // SAFETY: the caller gives a list.
        let request = unsafe { &*wr };
        let posted = with(|state| {
            let outstanding = state.receives.entry(qp as usize).or_default();
            let fits = outstanding.len() < state.room;
            if fits {
                outstanding.push(request.wr_id);
            }
            fits
        });
        if !posted {
            // SAFETY: the caller gives a place for it.
            unsafe { *bad = wr };
            return libc::ENOMEM;
        }
        wr = request.next;
    }
    0
}

pub(super) unsafe extern "C" fn post_srq_recv(
    _srq: *mut ibv_srq,
    _wr: *mut ibv_recv_wr,
    _bad: *mut *mut ibv_recv_wr,
) -> c_int {
    0
}
