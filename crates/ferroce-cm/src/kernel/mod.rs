//! The kernel's connection manager behind ids: the user-space half of rdma_cm.
//!
//! One manager has one open file. Its thread, or a reader that would sleep otherwise ([`watch`]), does nothing but read events and give them to
//! their ids, which process them in whatever thread reads their channel, as they do with the native protocol's. So channels, migration and
//! destruction are the same code for both, the kernel's queue is never long, and nobody waits for anybody: an event counts as read once it is,
//! and not when a user is done with it.
//!
//! [`KernelId`] is the kernel's id. Whoever is about to name it in a command holds it, and the last one destroys it, because the kernel
//! uses numbers again at once.

mod backlog;
mod error;
mod handle;
mod pump;
mod table;
mod watch;

pub(crate) use backlog::{Backlog, Place};
pub(crate) use error::{GONE, address, of_status, refused};
pub(crate) use handle::{KernelGroup, KernelId};
#[cfg(test)]
pub(crate) use pump::run as run_thread;
pub(crate) use watch::{Lender, Reading, Watch};

use crate::alarm::Alarms;
use crate::channel::ChannelCore;
use crate::id::{IdCore, Queued};
use crate::later::Later;
use crate::proto::Usage;
use crate::sync::Mutex;
use crate::{Error, PortSpace, Result};
use ferroce_abi::Host;
use ferroce_abi::rdma_cm::{CmEvent, CmEventParam, CmFile, ConnParam, RdmaCm, wire};
use ferroce_verbs::Context;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;
use table::{Owner, Table};

/// Events that are read before deadlines are looked at.
const BATCH: usize = 64;

/// `IBV_QPT_RC`, `IBV_QPT_UD`.
const QPT_RC: u8 = 2;
const QPT_UD: u8 = 4;

/// The connections of one open device of the kernel.
pub(crate) struct KernelManager {
    context: Context,
    device: Arc<dyn RdmaCm>,
    /// The kernel chooses an id's device by its address: this is how one knows which it was.
    node_guid: u64,
    limits: Limits,
    table: Mutex<Table>,
    /// Deadlines of futures.
    alarms: Mutex<Alarms<Instant>>,
    /// The file cannot be read, and all ids were told.
    unreadable: AtomicBool,
    /// It was said that a request was rejected which the program does not see. Peers decide how often that happens.
    was_warned: AtomicBool,
    #[cfg(test)]
    turning: AtomicBool,
    /// Who reads events; some tests do that themselves.
    watch: Option<Arc<Watch>>,
    /// The channel of the first id. Readers of it read events themselves as long as it is the only one.
    channel: OnceLock<Weak<ChannelCore>>,
}

/// RDMA reads and atomics that the device can have outstanding.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// As the one that answers.
    pub(crate) responder_resources: u8,
    /// As the one that asks.
    pub(crate) initiator_depth: u8,
}

impl KernelManager {
    /// Opens the kernel's connection manager and starts the thread that reads its events.
    pub(crate) fn open(context: &Context) -> Result<Arc<Self>> {
        let file = Arc::new(CmFile::open(&Host::default())?);
        let watch = Arc::new(Watch::new().map_err(refused("making the alarms of the connection manager"))?);
        let attr = context.query_device().map_err(Error::device("asking what the device can do"))?;
        let limits = Limits { responder_resources: attr.max_qp_rd_atom, initiator_depth: attr.max_qp_init_rd_atom };
        let manager = Self::new(context, attr.node_guid, limits, file.clone(), Some(watch.clone()));
        pump::start(file, watch, Arc::downgrade(&manager))
            .map_err(refused("starting the thread of the connection manager"))?;
        Ok(manager)
    }

    pub(crate) fn new(
        context: &Context,
        node_guid: u64,
        limits: Limits,
        device: Arc<dyn RdmaCm>,
        watch: Option<Arc<Watch>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            context: context.clone(),
            device,
            node_guid,
            limits,
            table: Mutex::default(),
            alarms: Mutex::default(),
            unreadable: AtomicBool::new(false),
            was_warned: AtomicBool::new(false),
            #[cfg(test)]
            turning: AtomicBool::new(false),
            watch,
            channel: OnceLock::new(),
        })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    pub(crate) fn device(&self) -> &dyn RdmaCm {
        &*self.device
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn usage(&self) -> Usage {
        self.table.lock().usage()
    }

    pub(crate) fn id_count(&self) -> usize {
        self.table.lock().ids()
    }

    /// Whether an id's device is this manager's.
    pub(crate) fn is_own(&self, node_guid: u64) -> bool {
        node_guid == self.node_guid
    }

    /// Has the kernel make an id, whose events are `owner`'s.
    pub(crate) fn create(self: &Arc<Self>, owner: Weak<IdCore>, port_space: PortSpace) -> io::Result<Arc<KernelId>> {
        let uid = {
            let mut table = self.table.lock();
            self.readable()?;
            table.enter(Owner::Id(owner))
        };
        let qp_type = if port_space == PortSpace::Udp { QPT_UD } else { QPT_RC };
        match self.device.create_id(uid, port_space as u16, qp_type) {
            Ok(number) => Ok(Arc::new(KernelId::new(self.clone(), uid, number))),
            Err(error) => {
                self.table.lock().leave(uid, None);
                Err(error)
            }
        }
    }

    /// Joins a multicast group; the event will be the id's.
    pub(crate) fn join(
        self: &Arc<Self>,
        (owner, id): (Weak<IdCore>, &Arc<KernelId>),
        group: IpAddr,
        send_only: bool,
        entered: impl FnOnce(u64),
    ) -> io::Result<KernelGroup> {
        let uid = self.table.lock().enter(Owner::Group { id: owner, uid: id.uid() });
        entered(uid);
        match self.device.join_multicast(id.number(), uid, group, send_only) {
            Ok(number) => Ok(KernelGroup::new(id.clone(), uid, number)),
            Err(error) => {
                // There never was a membership, nor an event of it.
                self.table.lock().leave(uid, Some(0));
                Err(error)
            }
        }
    }

    /// The id is told at `deadline`, unless something happens to it before.
    pub(crate) fn set_deadline(&self, uid: u64, deadline: Instant) {
        let rings = self.table.lock().set_deadline(uid, deadline);
        if let Some(watch) = self.watch.as_ref().filter(|_| rings) {
            watch.ring();
        }
    }

    /// There is nothing to wait for any more.
    pub(crate) fn clear_deadline(&self, uid: u64) {
        self.table.lock().clear_deadline(uid);
    }

    /// Changes which tasks are woken when.
    pub(crate) fn alarms<T>(&self, change: impl FnOnce(&mut Alarms<Instant>) -> T) -> T {
        let (result, is_sooner) = {
            let mut alarms = self.alarms.lock();
            let before = alarms.first();
            let result = change(&mut alarms);
            let is_sooner = alarms.first().is_some_and(|at| before.is_none_or(|before| at < before));
            (result, is_sooner)
        };
        if let Some(watch) = self.watch.as_ref().filter(|_| is_sooner) {
            watch.ring();
        }
        result
    }

    /// An id of the manager is on `channel`.
    pub(crate) fn serves(self: &Arc<Self>, channel: &Arc<ChannelCore>) {
        let Some(watch) = &self.watch else { return };
        let mut is_first = false;
        let first = self.channel.get_or_init(|| {
            is_first = true;
            Arc::downgrade(channel)
        });
        let lender = || Lender { watch: watch.clone(), manager: Arc::downgrade(self) };
        if !std::ptr::eq(first.as_ptr(), Arc::as_ptr(channel)) || is_first && !channel.borrow_from(lender()) {
            watch.forbid();
        }
    }

    /// When whoever waits for events has to wake at the latest.
    fn wakes_at(&self) -> Option<Instant> {
        let (first, alarm) = (self.table.lock().wakes_at(), self.alarms.lock().first());
        [first, alarm].into_iter().flatten().min()
    }

    /// What the manager's thread does again and again: [`Self::read`], and if that cannot be done for good, all who wait are told.
    pub(crate) fn turn(self: &Arc<Self>) -> io::Result<Turn> {
        let turn = self.read();
        if let Err(error) = &turn
            && !is_for_now(error)
        {
            self.tell_all(error);
        }
        turn
    }

    /// Reads what there is, and tells who has waited too long. Whoever waits for more need not wake before what is returned.
    fn read(self: &Arc<Self>) -> io::Result<Turn> {
        #[cfg(test)]
        let _one = self.one_at_a_time();
        let mut read = 0;
        let mut outcome = Ok(());
        while read < BATCH {
            match self.device.next_event() {
                Ok(Some(event)) => self.dispatch(event),
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
            read += 1;
        }
        // Deadlines pass, too, if nothing can be read.
        let (late, wake_at) = self.table.lock().expire(Instant::now());
        for id in late {
            drop(id.push(Queued::Expired));
        }
        let (due, alarm_at) = {
            let mut alarms = self.alarms.lock();
            (alarms.due(Instant::now()), alarms.first())
        };
        drop(Later::wake(due));
        let wake_at = [wake_at, alarm_at].into_iter().flatten().min();
        outcome?;
        self.unreadable.store(false, Ordering::Relaxed);
        Ok(Turn { more: read == BATCH, wake_at })
    }

    /// Whether readers read events themselves.
    #[cfg(test)]
    pub(crate) fn lends(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.lends())
    }

    #[cfg(test)]
    fn one_at_a_time(&self) -> impl Drop + '_ {
        struct Out<'a>(&'a AtomicBool);
        impl Drop for Out<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Relaxed);
            }
        }
        assert!(!self.turning.swap(true, Ordering::Relaxed), "two read events: they get into disorder");
        Out(&self.turning)
    }

    /// A listener cannot take a request, and rejects it.
    pub(crate) fn cannot_take(&self, error: &Error) {
        let is_elsewhere = matches!(error, Error::Address { .. });
        if !is_elsewhere || self.was_warned.swap(true, Ordering::Relaxed) {
            tracing::debug!(%error, "a request is rejected");
        } else {
            tracing::warn!(
                %error,
                "a request is rejected: a listener at all addresses takes those of one RDMA device (others like it are only logged for debugging)"
            );
        }
    }

    /// Whether events can be read, as far as one knows.
    pub(crate) fn readable(&self) -> io::Result<()> {
        if self.unreadable.load(Ordering::Relaxed) {
            let why = "the events of its device file cannot be read: see the log";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(())
    }

    /// Nothing is heard of any id any more, and nobody is to wait for that: to those who do, the device is gone. Connections that are established do
    /// without.
    fn tell_all(&self, error: &io::Error) {
        let owners = {
            let table = self.table.lock();
            if self.unreadable.swap(true, Ordering::Relaxed) {
                return;
            }
            table.owners()
        };
        tracing::error!(
            %error,
            "the events of the kernel's connection manager cannot be read: nothing can be connected, and that a peer ends a connection is seen \
             by its queue pair alone (has the process changed its user since it opened the device?)"
        );
        for (uid, id) in owners.into_iter().filter(|(_, id)| id.waits()) {
            let param = CmEventParam::of_conn(&ConnParam::default());
            let event = CmEvent { uid, id: 0, event: wire::event::DEVICE_REMOVAL, status: 0, param };
            drop(id.push(Queued::Kernel(Box::new(event))));
        }
    }

    /// Gives an event to its id.
    fn dispatch(self: &Arc<Self>, event: CmEvent) {
        tracing::trace!(?event, "the kernel says");
        // Upgraded with the lock, used without: what goes with the last reference takes it.
        let owner = self.table.lock().seen(event.uid, event.answers());
        let Some(owner) = owner else {
            if event.brings_id() {
                // Its listener is destroyed: so is the request, which the kernel then rejects.
                drop(KernelId::new(self.clone(), 0, event.id));
            }
            return;
        };
        let later =
            if event.brings_id() { self.request(&owner, event) } else { owner.push(Queued::Kernel(Box::new(event))) };
        drop(later);
    }

    /// Puts a request into its listener's queue, or rejects it at once if that is full.
    fn request(self: &Arc<Self>, listener: &Arc<IdCore>, event: CmEvent) -> Later {
        let Some(place) = listener.backlog().and_then(|backlog| backlog.place()) else {
            tracing::debug!("a request is rejected: the backlog is full");
            if let Err(error) = self.device.reject(event.id, &[]) {
                tracing::debug!(%error, "it was taken back");
            }
            drop(KernelId::new(self.clone(), 0, event.id));
            return Later::default();
        };
        let child = IdCore::of_kernel_request(self, listener, |owner| {
            let uid = self.table.lock().enter(Owner::Id(owner));
            Arc::new(KernelId::new(self.clone(), uid, event.id))
        });
        listener.push(Queued::KernelRequest { child, event: Box::new(event), place })
    }
}

/// Whether reading may work the next time.
fn is_for_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory)
}

impl Drop for KernelManager {
    fn drop(&mut self) {
        // Who reads its events sees that nobody needs that.
        if let Some(watch) = &self.watch {
            watch.end();
        }
    }
}

/// What there is to do after a turn.
pub(crate) struct Turn {
    /// There may be more events.
    pub(crate) more: bool,
    pub(crate) wake_at: Option<Instant>,
}
