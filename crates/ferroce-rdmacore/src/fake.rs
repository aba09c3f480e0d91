//! A library without a device, for tests: it checks that objects are destroyed in an order that the real one allows, and shows what it is
//! given. Everything belongs to the thread that made it.

use crate::context::RdmaContext;
use crate::sys::DeviceList;
use ferroce_abi::types::*;
use ferroce_abi::{Host, Library};
use ferroce_verbs::{Context, DeviceInfo};
use libc::{c_int, c_uint, c_void, size_t, ssize_t};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ptr::null_mut;

/// A work request as it was posted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Posted {
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) imm_data: u32,
    pub(crate) remote_addr: u64,
    pub(crate) sges: usize,
    pub(crate) inline: Option<Vec<u8>>,
    pub(crate) to_ah: bool,
}

#[derive(Default)]
struct State {
    /// Live objects: what they are, and what they were made from.
    live: BTreeMap<usize, (&'static str, Vec<usize>)>,
    /// What was destroyed, in order.
    destroyed: Vec<&'static str>,
    /// What destroying anything returns.
    destroy_result: c_int,
    /// Posted and not complete: completion queue and request, by queue pair.
    sends: BTreeMap<usize, Vec<u64>>,
    receives: BTreeMap<usize, Vec<u64>>,
    completions: BTreeMap<usize, VecDeque<ibv_wc>>,
    states: BTreeMap<usize, u32>,
    posts: Vec<Vec<Posted>>,
    /// The device is gone: what posts and arms fails.
    gone: bool,
    /// Posts beyond so many outstanding requests of a queue pair fail.
    room: usize,
    next_qpn: u32,
    async_events: VecDeque<(u32, usize)>,
    unacknowledged: usize,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::new(State { room: usize::MAX, ..State::default() });
}

fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(f)
}

/// What was destroyed since the last call, in order.
pub(crate) fn destroyed() -> Vec<&'static str> {
    with(|state| std::mem::take(&mut state.destroyed))
}

/// What lives.
pub(crate) fn live() -> Vec<&'static str> {
    with(|state| state.live.values().map(|(what, _)| *what).collect())
}

/// What destroying anything returns from now on.
pub(crate) fn fail_to_destroy(number: c_int) {
    with(|state| state.destroy_result = number);
}

/// The lists that were posted since the last call.
pub(crate) fn posts() -> Vec<Vec<Posted>> {
    with(|state| std::mem::take(&mut state.posts))
}

/// The device goes: nothing works, and nothing can be destroyed.
pub(crate) fn unplug() {
    with(|state| {
        state.gone = true;
        state.destroy_result = libc::EIO;
        state.async_events.push_back((value::IBV_EVENT_DEVICE_FATAL, 0));
    });
}

/// Posts beyond so many outstanding requests of a queue fail from now on.
pub(crate) fn set_room(room: usize) {
    with(|state| state.room = room);
}

/// The device changes a queue pair by itself.
pub(crate) fn fail_qp(qp_num: u32) {
    with(|state| {
        let qps: Vec<usize> = state.live.iter().filter(|(_, (what, _))| *what == "qp").map(|(&qp, _)| qp).collect();
        for qp in qps {
            // SAFETY: it lives.
            if unsafe { (*(qp as *mut ibv_qp)).qp_num } == qp_num {
                flush(state, qp);
            }
        }
    });
}

/// A receive completes, with a GRH or what a device takes for one.
pub(crate) fn receive(qp_num: u32) {
    with(|state| {
        let wc = ibv_wc { qp_num, opcode: value::IBV_WC_RECV, wc_flags: value::IBV_WC_GRH, ..ibv_wc::default() };
        let cq = state.live.iter().find(|(_, (what, _))| *what == "cq").map_or(0, |(&cq, _)| cq);
        state.completions.entry(cq).or_default().push_back(wc);
    });
}

/// An event that waits.
pub(crate) fn raise(kind: u32, what: &'static str) {
    with(|state| {
        let object = state.live.iter().find(|(_, (kind, _))| *kind == what).map_or(0, |(&object, _)| object);
        state.async_events.push_back((kind, object));
    });
}

/// Opens the fake device.
pub(crate) fn open() -> Context {
    let list = DeviceList::get(library(), &Host::default()).expect("a list");
    let listed = list.names().remove(0);
    assert_eq!(
        (listed.name.as_str(), listed.file.as_str(), listed.node_guid),
        ("fake0", "uverbs9", 0x0102_0304_0506_0708)
    );
    let raw = list.open("fake0", &Host::default()).expect("a device").expect("a context");
    let info = DeviceInfo { name: listed.name, provider: "fake", node_guid: listed.node_guid };
    Context::from_ops(RdmaContext::new(info, raw).expect("a context"))
}

fn library() -> &'static Library {
    static LIBRARY: Library = Library {
        get_device_list,
        free_device_list,
        get_device_guid,
        open_device,
        close_device,
        get_async_event,
        ack_async_event,
        query_device,
        query_port,
        query_gid_table,
        alloc_pd,
        dealloc_pd,
        reg_mr,
        dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        get_cq_event,
        ack_cq_events,
        create_srq,
        modify_srq,
        query_srq,
        destroy_srq,
        create_qp,
        modify_qp,
        query_qp,
        destroy_qp,
        create_ah,
        destroy_ah,
        attach_mcast,
        detach_mcast,
    };
    &LIBRARY
}

/// Makes an object. All bits zero is a value of each of these types: numbers, null pointers, absent functions.
fn make<T>(what: &'static str, parents: &[usize]) -> *mut T {
    // SAFETY: as just said.
    let object = Box::into_raw(Box::new(unsafe { std::mem::zeroed::<T>() }));
    let parents: Vec<usize> = parents.iter().copied().filter(|&parent| parent != 0).collect();
    with(|state| {
        for parent in &parents {
            assert!(state.live.contains_key(parent), "a {what} is made from something that is destroyed");
        }
        state.live.insert(object as usize, (what, parents));
    });
    object
}

fn destroy<T>(object: *mut T) -> c_int {
    with(|state| {
        if state.destroy_result != 0 {
            return state.destroy_result;
        }
        let (what, _) = state.live.remove(&(object as usize)).expect("it is destroyed once");
        for (child, parents) in state.live.values() {
            assert!(!parents.contains(&(object as usize)), "a {what} is destroyed before a {child} that needs it");
        }
        state.destroyed.push(what);
        // SAFETY: `make` made it, and nothing lives that names it.
        drop(unsafe { Box::from_raw(object) });
        0
    })
}

fn copy_name(field: &mut [libc::c_char], name: &[u8]) {
    for (to, &from) in field.iter_mut().zip(name) {
        *to = from as libc::c_char;
    }
}

unsafe extern "C" fn get_device_list(len: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: zeroes are a device without names.
    let mut device: Box<ibv_device> = Box::new(unsafe { std::mem::zeroed() });
    copy_name(&mut device.name, b"fake0");
    copy_name(&mut device.dev_name, b"uverbs9");
    // SAFETY: the caller gives a place for the number.
    unsafe { *len = 1 };
    Box::into_raw(Box::new([Box::into_raw(device), null_mut()])).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: `get_device_list` made it; contexts do not look at their device.
    drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; 2]>()) });
}

unsafe extern "C" fn get_device_guid(_device: *mut ibv_device) -> u64 {
    0x0102_0304_0506_0708_u64.to_be()
}

unsafe extern "C" fn open_device(_device: *mut ibv_device) -> *mut ibv_context {
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

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: it is open.
    unsafe { libc::close((*context).async_fd) };
    destroy(context)
}

unsafe extern "C" fn get_async_event(_context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
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

unsafe extern "C" fn ack_async_event(_event: *mut ibv_async_event) {
    with(|state| state.unacknowledged -= 1);
}

unsafe extern "C" fn query_device(_context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller gives a place for the attributes.
    let attr = unsafe { &mut *attr };
    copy_name(&mut attr.fw_ver, b"1.2.3");
    attr.node_guid = 0x0102_0304_0506_0708_u64.to_be();
    (attr.max_qp, attr.max_qp_wr, attr.max_sge, attr.max_cq, attr.max_cqe) = (100, 1000, 16, 100, 1000);
    (attr.max_srq, attr.max_srq_wr, attr.max_srq_sge) = (10, 1000, 16);
    (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom, attr.phys_port_cnt) = (16, 16, 1);
    0
}

unsafe extern "C" fn query_port(_context: *mut ibv_context, _port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: the caller gives a place for the attributes.
    let attr = unsafe { &mut *attr };
    (attr.state, attr.max_mtu, attr.active_mtu) = (value::IBV_PORT_ACTIVE, value::IBV_MTU_4096, value::IBV_MTU_1024);
    (attr.gid_tbl_len, attr.pkey_tbl_len, attr.link_layer) = (4, 1, value::IBV_LINK_LAYER_ETHERNET as u8);
    0
}

unsafe extern "C" fn query_gid_table(
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
    let all = [
        entry(0, 1, value::IBV_GID_TYPE_ROCE_V1),
        entry(1, 1, value::IBV_GID_TYPE_ROCE_V2),
        entry(1, 2, value::IBV_GID_TYPE_ROCE_V2),
    ];
    for (index, entry) in all.iter().take(most).enumerate() {
        // SAFETY: there is room for `most`.
        unsafe { *entries.add(index) = *entry };
    }
    all.len().min(most) as ssize_t
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let pd = make::<ibv_pd>("pd", &[context as usize]);
    // SAFETY: it was just made.
    unsafe { (*pd).context = context };
    pd
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    destroy(pd)
}

unsafe extern "C" fn reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: size_t, _access: c_int) -> *mut ibv_mr {
    let mr = make::<ibv_mr>("mr", &[pd as usize]);
    // SAFETY: it was just made.
    unsafe { ((*mr).addr, (*mr).length, (*mr).lkey, (*mr).rkey) = (addr, length, 7, 8) };
    mr
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    destroy(mr)
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let channel = make::<ibv_comp_channel>("channel", &[context as usize]);
    // SAFETY: it was just made.
    unsafe { (*channel).fd = libc::eventfd(0, libc::EFD_CLOEXEC) };
    channel
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: it lives.
    unsafe { libc::close((*channel).fd) };
    destroy(channel)
}

unsafe extern "C" fn create_cq(
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

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    destroy(cq)
}

unsafe extern "C" fn get_cq_event(
    _channel: *mut ibv_comp_channel,
    _cq: *mut *mut ibv_cq,
    _user: *mut *mut c_void,
) -> c_int {
    // SAFETY: the thread's own.
    unsafe { *libc::__errno_location() = libc::EAGAIN };
    -1
}

unsafe extern "C" fn ack_cq_events(_cq: *mut ibv_cq, _count: c_uint) {}

unsafe extern "C" fn create_srq(pd: *mut ibv_pd, _init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    make("srq", &[pd as usize])
}

unsafe extern "C" fn modify_srq(_srq: *mut ibv_srq, _attr: *mut ibv_srq_attr, _mask: c_int) -> c_int {
    0
}

unsafe extern "C" fn query_srq(_srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the caller gives a place for the attributes.
    unsafe { *attr = ibv_srq_attr { max_wr: 16, max_sge: 1, srq_limit: 0 } };
    0
}

unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    destroy(srq)
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
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

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller gives the attributes.
    let attr = unsafe { &*attr };
    if result() != 0 {
        return result();
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

unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    _init: *mut ibv_qp_init_attr,
) -> c_int {
    let state = with(|state| state.states.get(&(qp as usize)).copied().unwrap_or(0));
    // SAFETY: the caller gives a place for the attributes.
    unsafe { (*attr).qp_state = state };
    result()
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    let result = destroy(qp);
    with(|state| {
        state.sends.remove(&(qp as usize));
        state.receives.remove(&(qp as usize));
        state.states.remove(&(qp as usize));
    });
    result
}

unsafe extern "C" fn create_ah(pd: *mut ibv_pd, _attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    make("ah", &[pd as usize])
}

unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    destroy(ah)
}

unsafe extern "C" fn attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    0
}

unsafe extern "C" fn detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    0
}

unsafe extern "C" fn req_notify_cq(_cq: *mut ibv_cq, _solicited: c_int) -> c_int {
    result()
}

/// What a call to the kernel returns.
fn result() -> c_int {
    with(|state| if state.gone { libc::EIO } else { 0 })
}

/// Puts a queue pair into the error state: all that is outstanding is flushed.
fn flush(state: &mut State, qp: usize) {
    state.states.insert(qp, value::IBV_QPS_ERR);
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
        let wc = ibv_wc { wr_id, qp_num, status: value::IBV_WC_WR_FLUSH_ERR, ..ibv_wc::default() };
        state.completions.entry(cq).or_default().push_back(wc);
    }
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, wc: *mut ibv_wc) -> c_int {
    with(|state| {
        let completions = state.completions.entry(cq as usize).or_default();
        let count = completions.len().min(most as usize);
        for (index, completion) in completions.drain(..count).enumerate() {
            // SAFETY: there is room for `most`.
            unsafe { *wc.add(index) = completion };
        }
        count as c_int
    })
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, mut wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
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

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, mut wr: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
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

unsafe extern "C" fn post_srq_recv(_srq: *mut ibv_srq, _wr: *mut ibv_recv_wr, _bad: *mut *mut ibv_recv_wr) -> c_int {
    0
}
