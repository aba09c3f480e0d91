//! A kernel that manages connections: ids with numbers that are used again at once, a queue of events, and a peer.
//!
//! It insists on what a program must do: a command names an id that exists and is where the command makes sense, unless the peer can have
//! brought it elsewhere.

use ferroce_abi::rdma_cm::{Addresses, CmEvent, CmEventParam, ConnParam, QpAttr, RdmaCm, wire::event};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use shuttle::rand::RngCore;
use shuttle::sync::atomic::AtomicUsize;
use shuttle::thread::ThreadId;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use zerocopy::FromZeros;

pub(super) const GUID: u64 = 1;

#[derive(Clone)]
pub(super) struct Kernel(Arc<Shared>);

struct Shared {
    /// Every command passes here: an order may change at it.
    gate: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ids: BTreeMap<u32, KernelId>,
    queue: VecDeque<Queued>,
    /// The peer says no.
    refuses: bool,
    /// The peer says nothing.
    is_silent: bool,
    /// Nobody can be asked.
    is_full: bool,
    /// Addresses are those of another device.
    is_elsewhere: bool,
    /// Events cannot be read.
    is_unreadable: bool,
    /// Nor by others.
    reader: Option<ThreadId>,
    /// What the peer was told, in order.
    told: Vec<Told>,
    /// Memberships of groups.
    memberships: BTreeMap<u32, Membership>,
    /// Groups cannot be joined, as turns out later.
    has_no_groups: bool,
}

struct Membership {
    id: u32,
    reported: u32,
}

struct Queued {
    /// The id that it is counted for.
    of: u32,
    /// And the membership.
    member: Option<u32>,
    event: CmEvent,
}

struct KernelId {
    uid: u64,
    stage: Stage,
    reported: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    Bound,
    Resolved,
    Routed,
    Listening,
    Asked,
    Requested,
    /// The peer has not confirmed yet: that it has is seen when the event is read.
    Granted,
    Connected,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Granted,
    Rejected,
    Confirmed,
    Ended,
}

impl Kernel {
    pub(super) fn new() -> Self {
        Self(Arc::new(Shared { gate: AtomicUsize::new(0), state: Mutex::default() }))
    }

    pub(super) fn refuse(&self) {
        self.state().refuses = true;
    }

    pub(super) fn take_no_requests(&self) {
        self.state().is_full = true;
    }

    pub(super) fn keep_silent(&self) {
        self.state().is_silent = true;
    }

    pub(super) fn be_elsewhere(&self, elsewhere: bool) {
        self.state().is_elsewhere = elsewhere;
    }

    pub(super) fn be_unreadable(&self, unreadable: bool) {
        self.state().is_unreadable = unreadable;
    }

    pub(super) fn have_no_groups(&self) {
        self.state().has_no_groups = true;
    }

    /// Memberships that there are.
    pub(super) fn memberships(&self) -> usize {
        self.state().memberships.len()
    }

    /// Ids that there are.
    pub(super) fn ids(&self) -> usize {
        self.state().ids.len()
    }

    /// Others than this thread may not read events.
    pub(super) fn serve_only(&self, thread: ThreadId) {
        self.pass().reader = Some(thread);
    }

    /// Whether anybody else has it.
    pub(super) fn is_open(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Whether there are some that were not read.
    pub(super) fn has_events(&self) -> bool {
        !self.pass().queue.is_empty()
    }

    pub(super) fn told(&self) -> Vec<Told> {
        self.state().told.clone()
    }

    /// The peer asks for a connection. Whether anybody listens.
    pub(super) fn ask(&self) -> bool {
        let mut state = self.state();
        let listener =
            state.ids.iter().find(|(_, id)| id.stage == Stage::Listening).map(|(number, id)| (*number, id.uid));
        let Some((listener, uid)) = listener else { return false };
        let number = state.enter(0, Stage::Requested);
        state.queue.push_back(Queued {
            of: listener,
            member: None,
            event: event_of(uid, number, event::CONNECT_REQUEST),
        });
        true
    }

    /// The peer ends all connections, and takes back what it has asked for.
    pub(super) fn end_all(&self) {
        let mut state = self.state();
        let connected = state
            .ids
            .iter_mut()
            .filter(|(_, id)| matches!(id.stage, Stage::Connected | Stage::Granted | Stage::Requested));
        let ended: Vec<_> = connected
            .map(|(number, id)| {
                id.stage = Stage::Over;
                (*number, id.uid)
            })
            .collect();
        for (number, uid) in ended {
            state.say(number, uid, event::DISCONNECTED);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    fn pass(&self) -> MutexGuard<'_, State> {
        self.0.gate.fetch_add(1, Ordering::SeqCst);
        self.state()
    }
}

fn event_of(uid: u64, id: u32, event: u32) -> CmEvent {
    let param = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
    CmEvent { uid, id, event, status: 0, param: CmEventParam::of_conn(&param) }
}

fn invalid<T>() -> io::Result<T> {
    Err(io::Error::from_raw_os_error(22))
}

impl State {
    fn enter(&mut self, uid: u64, stage: Stage) -> u32 {
        let number = (0..).find(|number| !self.ids.contains_key(number)).unwrap();
        self.ids.insert(number, KernelId { uid, stage, reported: 0 });
        number
    }

    fn say(&mut self, number: u32, uid: u64, event: u32) {
        // Of an id without uid the kernel says nothing.
        if uid != 0 {
            self.queue.push_back(Queued { of: number, member: None, event: event_of(uid, number, event) });
        }
    }

    /// The id, which must be in one of the stages.
    fn id(&mut self, number: u32, stages: &[Stage]) -> &mut KernelId {
        let id = self.ids.get_mut(&number).unwrap_or_else(|| panic!("there is no id {number}"));
        assert!(stages.contains(&id.stage), "id {number} is {:?}, not one of {stages:?}", id.stage);
        id
    }

    fn destroy(&mut self, number: u32) -> u32 {
        let id = self.ids.remove(&number).unwrap_or_else(|| panic!("there is no id {number}"));
        match id.stage {
            Stage::Requested => self.told.push(Told::Rejected),
            Stage::Connected | Stage::Granted => self.told.push(Told::Ended),
            _ => {}
        }
        let (purged, kept) =
            std::mem::take(&mut self.queue).into_iter().partition::<VecDeque<_>, _>(|queued| queued.of == number);
        self.queue = kept;
        for queued in purged.into_iter().filter(|queued| queued.event.brings_id()) {
            self.destroy(queued.event.id);
        }
        id.reported
    }
}

impl RdmaCm for Kernel {
    fn create_id(&self, uid: u64, _: u16, _: u8) -> io::Result<u32> {
        assert_ne!(uid, 0);
        Ok(self.pass().enter(uid, Stage::New))
    }
    fn destroy_id(&self, id: u32) -> io::Result<u32> {
        Ok(self.pass().destroy(id))
    }
    fn bind(&self, id: u32, _: SocketAddr) -> io::Result<()> {
        let mut state = self.pass();
        let found = state.id(id, &[Stage::New, Stage::Bound, Stage::Resolved]);
        if found.stage != Stage::New {
            return invalid();
        }
        found.stage = Stage::Bound;
        Ok(())
    }
    fn resolve_addr(&self, id: u32, _: Option<SocketAddr>, _: SocketAddr, _: u32) -> io::Result<()> {
        let mut state = self.pass();
        let found = state.id(id, &[Stage::New, Stage::Bound]);
        found.stage = Stage::Resolved;
        let uid = found.uid;
        state.say(id, uid, event::ADDR_RESOLVED);
        Ok(())
    }
    fn resolve_route(&self, id: u32, _: u32) -> io::Result<()> {
        let mut state = self.pass();
        let found = state.id(id, &[Stage::Resolved]);
        found.stage = Stage::Routed;
        let uid = found.uid;
        state.say(id, uid, event::ROUTE_RESOLVED);
        Ok(())
    }
    fn query_addr(&self, id: u32) -> io::Result<Addresses> {
        let state = self.pass();
        assert!(state.ids.contains_key(&id), "there is no id {id}");
        let node_guid = if state.is_elsewhere { GUID + 1 } else { GUID };
        Ok(Addresses { node_guid, port_num: 1, local: None, peer: None })
    }
    fn connect(&self, id: u32, _: &ConnParam) -> io::Result<()> {
        let mut state = self.pass();
        if state.is_full {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let (refuses, is_silent) = (state.refuses, state.is_silent);
        let found = state.id(id, &[Stage::Routed]);
        found.stage = if refuses { Stage::Over } else { Stage::Asked };
        let uid = found.uid;
        if is_silent {
            return Ok(());
        }
        state.say(id, uid, if refuses { event::REJECTED } else { event::CONNECT_RESPONSE });
        Ok(())
    }
    fn listen(&self, id: u32, _: u32) -> io::Result<()> {
        self.pass().id(id, &[Stage::Bound]).stage = Stage::Listening;
        Ok(())
    }
    fn accept(&self, id: u32, uid: u64, _: &ConnParam) -> io::Result<()> {
        let mut state = self.pass();
        let found = state.id(id, &[Stage::Requested, Stage::Over]);
        if found.stage == Stage::Over {
            return invalid();
        }
        (found.uid, found.stage) = (uid, Stage::Granted);
        state.told.push(Told::Granted);
        state.say(id, uid, event::ESTABLISHED);
        Ok(())
    }
    fn establish(&self, id: u32) -> io::Result<()> {
        let mut state = self.pass();
        let found = state.id(id, &[Stage::Asked, Stage::Over]);
        if found.stage == Stage::Over {
            return invalid();
        }
        found.stage = Stage::Connected;
        state.told.push(Told::Confirmed);
        Ok(())
    }
    fn reject(&self, id: u32, _: &[u8]) -> io::Result<()> {
        let mut state = self.pass();
        let found = state.id(id, &[Stage::Requested, Stage::Asked, Stage::Over]);
        if found.stage == Stage::Over {
            return invalid();
        }
        found.stage = Stage::Over;
        state.told.push(Told::Rejected);
        Ok(())
    }
    fn disconnect(&self, id: u32) -> io::Result<()> {
        let mut state = self.pass();
        let found = state.id(id, &[Stage::Connected, Stage::Granted, Stage::Over]);
        // Where it cannot be done, it is not, and nobody is told.
        if found.stage != Stage::Connected {
            return Ok(());
        }
        found.stage = Stage::Over;
        let uid = found.uid;
        state.told.push(Told::Ended);
        state.say(id, uid, event::DISCONNECTED);
        Ok(())
    }
    fn init_qp_attr(&self, id: u32, state: u32) -> io::Result<QpAttr> {
        assert!(self.pass().ids.contains_key(&id), "there is no id {id}");
        let mut attr = QpAttr::new_zeroed();
        (attr.qp_state, attr.path_mtu, attr.port_num, attr.dest_qp_num) = (state, 3, 1, 0x2000);
        (attr.ah_attr.is_global, attr.ah_attr.traffic_class) = (1, 4);
        Ok(attr)
    }
    fn set_option(&self, id: u32, _: u32, _: u32, _: &[u8]) -> io::Result<()> {
        assert!(self.pass().ids.contains_key(&id), "there is no id {id}");
        Ok(())
    }
    fn notify(&self, id: u32, _: u32) -> io::Result<()> {
        self.pass().id(id, &[Stage::Connected, Stage::Granted]);
        Err(io::Error::from_raw_os_error(106))
    }
    fn join_multicast(&self, id: u32, uid: u64, _: IpAddr, _: bool) -> io::Result<u32> {
        let number = {
            let mut state = self.pass();
            state.id(id, &[Stage::Bound]);
            let number = (0..).find(|number| !state.memberships.contains_key(number)).unwrap();
            state.memberships.insert(number, Membership { id, reported: 0 });
            let said = if state.has_no_groups { event::MULTICAST_ERROR } else { event::MULTICAST_JOIN };
            let event = event_of(uid, id, said);
            state.queue.push_back(Queued { of: id, member: Some(number), event });
            number
        };
        // The event may be read before the command returns.
        drop(self.pass());
        Ok(number)
    }
    fn leave_multicast(&self, number: u32) -> io::Result<u32> {
        let mut state = self.pass();
        let member = state.memberships.remove(&number).unwrap_or_else(|| panic!("there is no membership {number}"));
        assert!(state.ids.contains_key(&member.id), "it went with its id");
        state.queue.retain(|queued| queued.member != Some(number));
        Ok(member.reported)
    }
    fn wait(&self, other: BorrowedFd<'_>, timeout: Option<Duration>) -> bool {
        let rings = || {
            let mut fds = [PollFd::from_borrowed_fd(other, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() != 0
        };
        while self.pass().queue.is_empty() && !rings() {
            if timeout.is_some() && shuttle::rand::thread_rng().next_u64().is_multiple_of(2) {
                break;
            }
            shuttle::thread::yield_now();
        }
        rings()
    }

    fn next_event(&self) -> io::Result<Option<CmEvent>> {
        let mut state = self.pass();
        let may_read = state.reader.is_none_or(|reader| reader == shuttle::thread::current().id());
        if state.is_unreadable || !may_read {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let Some(queued) = state.queue.pop_front() else { return Ok(None) };
        let id = state.ids.get_mut(&queued.of).expect("its events went with it");
        id.reported += 1;
        if let Some(number) = queued.member {
            state.memberships.get_mut(&number).expect("its events went with it").reported += 1;
        }
        let id = state.ids.get_mut(&queued.of).expect("it is there");
        if queued.event.event == event::ESTABLISHED && id.stage == Stage::Granted {
            id.stage = Stage::Connected;
        }
        Ok(Some(queued.event))
    }
}
