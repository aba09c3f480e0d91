//! A library without a device, for tests: it checks that objects are destroyed in an order that the real one allows, and shows what it is
//! given. Everything belongs to the thread that made it.

mod objects;
mod path;

use objects::*;
use path::{complete_all, flush};

use crate::context::RdmaContext;
use crate::drain::Shared;
use crate::sys::DeviceList;
use ferroce_abi::types::*;
use ferroce_abi::{Host, Library};
use ferroce_verbs::{Context, DeviceInfo};
use libc::c_int;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

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
    /// What verbs return instead of doing anything.
    failing: BTreeMap<&'static str, c_int>,
    /// So many completions are polled before one that cannot be read.
    readable: Option<usize>,
    /// The other ends of the channels' descriptors.
    channels: Vec<OwnedFd>,
    /// What would be done by the threads of contexts.
    drains: Vec<Weak<Shared>>,
    during_modify: Option<Box<dyn FnOnce()>>,
    /// How many calls to the kernel there were.
    calls: usize,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::new(State { room: usize::MAX, ..State::default() });
}

fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    STATE.with_borrow_mut(f)
}

/// A context has queue pairs that drain: the test does what its thread would.
pub(crate) fn register(drains: &Arc<Shared>) -> bool {
    let drains = Arc::downgrade(drains);
    with(|state| {
        if !state.drains.iter().any(|known| known.ptr_eq(&drains)) {
            state.drains.push(drains);
        }
    });
    true
}

/// How often the threads of contexts would have been woken.
pub(crate) fn wakes() -> usize {
    with(|state| state.drains.clone()).iter().filter_map(Weak::upgrade).map(|drains| drains.wakes()).sum()
}

/// Does what the threads of contexts would do by now.
pub(crate) fn settle() {
    settle_in(Duration::ZERO);
}

/// Does what they would have done after this time.
pub(crate) fn settle_in(time: Duration) {
    for drains in with(|state| state.drains.clone()) {
        if let Some(drains) = drains.upgrade() {
            drains.work(Instant::now() + time);
        }
    }
}

/// A verb fails with this number from now on; 0: it does not.
pub(crate) fn fail(verb: &'static str, number: c_int) {
    with(|state| state.failing.insert(verb, number));
}

/// The next poll that would take more completions than that fails after them.
pub(crate) fn break_after(count: usize) {
    with(|state| state.readable = Some(count));
}

/// How many channels have an open descriptor.
pub(crate) fn open_channels() -> usize {
    let is_open = |other: &OwnedFd| {
        let mut fd = [PollFd::new(other, PollFlags::empty())];
        poll(&mut fd, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("a poll");
        !fd[0].revents().contains(PollFlags::ERR)
    };
    with(|state| state.channels.iter().filter(|other| is_open(other)).count())
}

/// Calls to the kernel since the last call.
pub(crate) fn calls() -> usize {
    with(|state| std::mem::take(&mut state.calls))
}

/// What was destroyed since the last call, in order.
pub(crate) fn destroyed() -> Vec<&'static str> {
    settle();
    with(|state| std::mem::take(&mut state.destroyed))
}

/// What lives.
pub(crate) fn live() -> Vec<&'static str> {
    settle();
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
    with(|state| flush(state, qp(state, qp_num)));
}

/// All that a queue pair has outstanding is done, and reported though nobody may have asked for that.
pub(crate) fn succeed(qp_num: u32) {
    with(|state| complete_all(state, qp(state, qp_num), value::IBV_WC_SUCCESS));
}

/// The queue pair of this number.
fn qp(state: &State, qp_num: u32) -> usize {
    // SAFETY: those that are looked at live.
    let is_it = |qp: usize| unsafe { (*(qp as *mut ibv_qp)).qp_num } == qp_num;
    state.live.iter().find(|&(&qp, (what, _))| *what == "qp" && is_it(qp)).map_or(0, |(&qp, _)| qp)
}

/// Another device takes the place of the one that is gone.
pub(crate) fn replug() {
    with(|state| {
        state.gone = false;
        state.destroy_result = 0;
    });
}

/// What happens while the next queue pair is modified.
pub(crate) fn during_modify(what: impl FnOnce() + 'static) {
    with(|state| state.during_modify = Some(Box::new(what)));
}

/// A request completes with this status.
pub(crate) fn complete(qp_num: u32, status: u32) {
    with(|state| {
        let wc = ibv_wc { qp_num, status, ..ibv_wc::default() };
        let cq = state.live.iter().find(|(_, (what, _))| *what == "cq").map_or(0, |(&cq, _)| cq);
        state.completions.entry(cq).or_default().push_back(wc);
    });
}

/// How many completions wait.
pub(crate) fn queued() -> usize {
    with(|state| state.completions.values().map(VecDeque::len).sum())
}

/// The device loses the markers that wait to be polled.
pub(crate) fn lose_markers() {
    with(|state| {
        state
            .completions
            .values_mut()
            .for_each(|queue| queue.retain(|wc| !crate::drain::Drains::may_be_marker(wc.wr_id)));
    });
}

/// An event of this queue pair that waits.
pub(crate) fn raise_of(kind: u32, qp_num: u32) {
    with(|state| {
        let qp = qp(state, qp_num);
        state.async_events.push_back((kind, qp));
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
        qp_to_qp_ex,
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
        state.calls += 1;
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
