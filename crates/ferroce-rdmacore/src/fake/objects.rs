//! Objects as they are made, asked, changed and destroyed.

use super::path::{call, flush, poll_cq, post_recv, post_send, post_srq_recv, req_notify_cq};
use super::{destroy, make, with};
use ferroce_abi::types::*;
use libc::{c_int, c_uint, c_void, size_t, ssize_t};
use std::os::fd::IntoRawFd;
use std::ptr::null_mut;

const GIDS_OF_PORT_2: u32 = 6;

pub(super) unsafe extern "C" fn get_device_list(len: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: zeroes are a device without names.
    let mut device: Box<ibv_device> = Box::new(unsafe { std::mem::zeroed() });
    super::copy_name(&mut device.name, b"fake0");
    super::copy_name(&mut device.dev_name, b"uverbs9");
    // SAFETY: the caller gives a place for the number.
    unsafe { *len = 1 };
    Box::into_raw(Box::new([Box::into_raw(device), null_mut()])).cast()
}

pub(super) unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: `get_device_list` made it; contexts do not look at their device.
    drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
}

pub(super) unsafe extern "C" fn get_device_guid(_device: *mut ibv_device) -> u64 {
    0x0102_0304_0506_0708_u64.to_be()
}

pub(super) unsafe extern "C" fn open_device(_device: *mut ibv_device) -> *mut ibv_context {
    let context = make::<ibv_context>("context", &[]);
    // SAFETY: it was just made.
    unsafe {
        (*context).async_fd = libc::eventfd(0, libc::EFD_CLOEXEC);
        (*context).num_comp_vectors = 2;
        (*context).ops.poll_cq = Some(poll_cq);
        (*context).ops.req_notify_cq = Some(req_notify_cq);
        (*context).ops.post_send = Some(post_send);
        (*context).ops.post_recv = Some(post_recv);
        (*context).ops.post_srq_recv = Some(post_srq_recv);
    }
    context
}

pub(super) unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: it is open.
    unsafe { libc::close((*context).async_fd) };
    destroy(context)
}

pub(super) unsafe extern "C" fn get_async_event(_context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    let Some((kind, object)) = with(|state| state.async_events.pop_front()) else {
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = libc::EAGAIN };
        return -1;
    };
    with(|state| state.unacknowledged += 1);
    // SAFETY: the caller gives a place for the event.
    unsafe {
        *event = ibv_async_event { element: ibv_async_event_element { qp: object as *mut ibv_qp }, event_type: kind }
    };
    0
}

pub(super) unsafe extern "C" fn ack_async_event(_event: *mut ibv_async_event) {
    with(|state| state.unacknowledged -= 1);
}

pub(super) unsafe extern "C" fn query_device(_context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller gives a place for the attributes.
    let attr = unsafe { &mut *attr };
    super::copy_name(&mut attr.fw_ver, b"1.2.3");
    attr.node_guid = 0x0102_0304_0506_0708_u64.to_be();
    (attr.max_qp, attr.max_qp_wr, attr.max_sge, attr.max_cq, attr.max_cqe) = (100, 1000, 16, 100, 1000);
    (attr.max_srq, attr.max_srq_wr, attr.max_srq_sge) = (10, 1000, 16);
    (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom, attr.phys_port_cnt) = (16, 16, 2);
    0
}

pub(super) unsafe extern "C" fn query_port(_context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    let number = call("query_port");
    if number != 0 {
        return number;
    }
    // SAFETY: the caller gives a place for the attributes.
    let attr = unsafe { &mut *attr };
    (attr.state, attr.max_mtu, attr.active_mtu) = (value::IBV_PORT_ACTIVE, value::IBV_MTU_4096, value::IBV_MTU_1024);
    let gids = if port == 1 { 2 } else { GIDS_OF_PORT_2 as i32 };
    (attr.gid_tbl_len, attr.pkey_tbl_len, attr.link_layer) = (gids, 1, value::IBV_LINK_LAYER_ETHERNET as u8);
    0
}

pub(super) unsafe extern "C" fn query_gid_table(
    _context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    most: size_t,
    _flags: u32,
    size: size_t,
) -> ssize_t {
    assert_eq!(size, size_of::<ibv_gid_entry>());
    let mut raw = [0; 16];
    raw[15] = 1;
    let entry = |index, port, kind| ibv_gid_entry {
        gid: ibv_gid { raw },
        gid_index: index,
        port_num: port,
        gid_type: kind,
        ndev_ifindex: 0,
    };
    let mut all = vec![entry(0, 1, value::IBV_GID_TYPE_ROCE_V1), entry(1, 1, value::IBV_GID_TYPE_ROCE_V2)];
    all.extend((0..GIDS_OF_PORT_2).map(|index| entry(index, 2, value::IBV_GID_TYPE_ROCE_V2)));
    // As the kernel does.
    if most < all.len() {
        return -(libc::EINVAL as ssize_t);
    }
    for (index, entry) in all.iter().enumerate() {
        // SAFETY: there is room for `most`.
        unsafe { *entries.add(index) = *entry };
    }
    all.len() as ssize_t
}

pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let pd = make::<ibv_pd>("pd", &[context as usize]);
    // SAFETY: it was just made.
    unsafe { (*pd).context = context };
    pd
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    destroy(pd)
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: size_t,
    _access: c_int,
) -> *mut ibv_mr {
    let mr = make::<ibv_mr>("mr", &[pd as usize]);
    // SAFETY: it was just made.
    unsafe { ((*mr).addr, (*mr).length, (*mr).lkey, (*mr).rkey) = (addr, length, 7, 8) };
    mr
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    destroy(mr)
}

pub(super) unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let channel = make::<ibv_comp_channel>("channel", &[context as usize]);
    // SAFETY: it was just made.
    let (ours, other) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    // SAFETY: as above.
    unsafe { (*channel).fd = ours.into_raw_fd() };
    with(|state| state.channels.push(other));
    channel
}

pub(super) unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // As the library does, which asks nobody else.
    if with(|state| state.live.values().any(|(_, parents)| parents.contains(&(channel as usize)))) {
        return libc::EBUSY;
    }
    // SAFETY: it lives.
    unsafe { libc::close((*channel).fd) };
    let result = with(|state| std::mem::take(&mut state.destroy_result));
    destroy(channel);
    with(|state| state.destroy_result = result);
    0
}

pub(super) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    _user: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    let cq = make::<ibv_cq>("cq", &[context as usize, channel as usize]);
    // SAFETY: it was just made.
    unsafe { ((*cq).context, (*cq).cqe) = (context, cqe) };
    cq
}

pub(super) unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    destroy(cq)
}

pub(super) unsafe extern "C" fn get_cq_event(
    _channel: *mut ibv_comp_channel,
    _cq: *mut *mut ibv_cq,
    _user: *mut *mut c_void,
) -> c_int {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = libc::EAGAIN };
    -1
}

pub(super) unsafe extern "C" fn ack_cq_events(_cq: *mut ibv_cq, _count: c_uint) {}

pub(super) unsafe extern "C" fn create_srq(pd: *mut ibv_pd, _init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    make("srq", &[pd as usize])
}

pub(super) unsafe extern "C" fn modify_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr, _mask: c_int) -> c_int {
    0
}

pub(super) unsafe extern "C" fn query_srq(_srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller gives a place for the attributes.
    unsafe { *attr = ibv_srq_attr { max_wr: 16, max_sge: 1, srq_limit: 0 } };
    0
}

pub(super) unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    destroy(srq)
}

pub(super) unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    let number = call("create_qp");
    if number != 0 {
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = number };
        return null_mut();
    }
    // SAFETY: the caller gives the attributes.
    let init = unsafe { &mut *init };
    let qp = make::<ibv_qp>("qp", &[pd as usize, init.send_cq as usize, init.recv_cq as usize, init.srq as usize]);
    // SAFETY: it was just made, and the domain lives.
    unsafe {
        ((*qp).context, (*qp).send_cq, (*qp).recv_cq) = ((*pd).context, init.send_cq, init.recv_cq);
        (*qp).qp_num = with(|state| {
            state.next_qpn += 1;
            state.next_qpn
        });
    }
    qp
}

pub(super) unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller gives the attributes.
    let attr = unsafe { &*attr };
    if let Some(what) = with(|state| state.during_modify.take()) {
        what();
    }
    let number = call("modify_qp");
    if number != 0 {
        return number;
    }
    with(|state| {
        if mask as u32 & value::IBV_QP_STATE == 0 {
            return 0;
        }
        match attr.qp_state {
            value::IBV_QPS_ERR => flush(state, qp as usize),
            new => {
                state.states.insert(qp as usize, new);
            }
        }
        0
    })
}

pub(super) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    _init: *mut ibv_qp_init_attr,
) -> c_int {
    let state = with(|state| state.states.get(&(qp as usize)).copied().unwrap_or(0));
    // SAFETY: the caller gives a place for the attributes.
    unsafe { (*attr).qp_state = state };
    call("query_qp")
}

pub(super) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: it lives.
    let qp_num = unsafe { (*qp).qp_num };
    let result = destroy(qp);
    with(|state| {
        // What was not polled is taken away.
        state.completions.values_mut().for_each(|queue| queue.retain(|wc| wc.qp_num != qp_num || result != 0));
        state.sends.remove(&(qp as usize));
        state.receives.remove(&(qp as usize));
        state.states.remove(&(qp as usize));
    });
    result
}

pub(super) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, _attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    let number = call("create_ah");
    if number != 0 {
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = number };
        return null_mut();
    }
    make("ah", &[pd as usize])
}

pub(super) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    destroy(ah)
}

pub(super) unsafe extern "C" fn attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    0
}

pub(super) unsafe extern "C" fn detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    0
}

pub(super) unsafe extern "C" fn qp_to_qp_ex(_qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    null_mut()
}
