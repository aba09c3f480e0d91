//! Event channels.

use crate::id::IdCore;
use crate::kernel::{Lender, Reading};
use crate::later::Later;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::{Error, Event, EventKind, Id, Result};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Where the events of ids are read (`rdma_event_channel`). Clones are handles to one channel.
///
/// Any number of threads may read one channel, block in it, and close it or destroy its ids meanwhile. Nothing is locked per
/// channel while an event is processed; the events of one id are processed in order, whoever reads them. The channel is closed
/// when the last handle is dropped; ids that are still on it live on, but say nothing any more.
#[derive(Clone)]
pub struct EventChannel {
    core: Arc<ChannelCore>,
    _open: Arc<Open>,
}

/// Closes the channel when the last handle goes.
struct Open(Arc<ChannelCore>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What ids hold of their channel.
pub(crate) struct ChannelCore {
    ready: Mutex<Ready>,
    available: Condvar,
    /// Once somebody has asked for it: it costs a descriptor, and two system calls for each event.
    fd: OnceLock<OwnedFd>,
    /// Whose events readers read themselves, rather than sleep; `None` inside: nobody's.
    lender: OnceLock<Option<Lender>>,
}

#[derive(Default)]
struct Ready {
    /// Ids with events, each at most once but for those that have migrated away since.
    ids: VecDeque<Arc<IdCore>>,
    posted: VecDeque<(Id, u64)>,
    /// Readers that are to return with nothing.
    interrupts: u32,
    closed: bool,
    /// The descriptor is readable.
    signaled: bool,
    sleepers: u32,
    /// A reader waits for the lender's events, and is to be rung.
    polls: bool,
    /// Tasks that wait, by numbers that their futures know.
    wakers: BTreeMap<u64, Waker>,
    next_waker: u64,
}

impl EventChannel {
    /// A channel without ids. It takes no descriptor of its own before [`Self::fd`] is called.
    ///
    /// # Errors
    ///
    /// None at present.
    pub fn new() -> Result<Self> {
        let core = Arc::new(ChannelCore {
            ready: Mutex::default(),
            available: Condvar::new(),
            fd: OnceLock::new(),
            lender: OnceLock::new(),
        });
        Ok(Self { core: core.clone(), _open: Arc::new(Open(core)) })
    }

    pub(crate) fn core(&self) -> &Arc<ChannelCore> {
        &self.core
    }

    /// A descriptor that is readable while [`Self::try_next`] has something to do. To be polled only. It is opened by the first call.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] if the process has no descriptor left.
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        self.core.borrow_no_more();
        let mut ready = self.core.ready.lock();
        let fd = match self.core.fd.get() {
            Some(fd) => fd,
            None => {
                // Opened with the lock, by one thread: that does not block.
                let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|error| {
                    let error = ferroce_verbs::Error::os("eventfd", std::io::Error::from(error));
                    Error::device("opening the descriptor of an event channel")(error)
                })?;
                self.core.fd.get_or_init(|| fd)
            }
        };
        self.core.signal(&mut ready);
        Ok(fd.as_fd())
    }

    /// The next event, if there is one. `None` also for a [`Self::wake`] that nobody else has heard. Never blocks, but for the
    /// transitions of a queue pair that the event leads to (see [`crate::SetupIn`]).
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`].
    pub fn try_next(&self) -> Result<Option<Event>> {
        let mut taken = self.take()?;
        if matches!(taken, Taken::Nothing)
            && let Some(reading) = self.core.lender().and_then(Lender::fill_in)
        {
            reading.read();
            drop(reading);
            self.core.relieve();
            taken = self.take()?;
        }
        Ok(match taken {
            Taken::Event(event) => Some(event),
            Taken::Interrupt | Taken::Nothing => None,
        })
    }

    /// The next event, or one interrupt if there is none.
    fn take(&self) -> Result<Taken> {
        loop {
            let (posted, id) = {
                let mut ready = self.core.ready.lock();
                if ready.closed {
                    return Err(Error::ChannelClosed);
                }
                let posted = ready.posted.pop_front();
                let id = if posted.is_none() { ready.ids.pop_front() } else { None };
                let is_interrupt = posted.is_none() && id.is_none() && ready.interrupts != 0;
                ready.interrupts -= u32::from(is_interrupt);
                self.core.unsignal(&mut ready);
                if is_interrupt {
                    return Ok(Taken::Interrupt);
                }
                (posted, id)
            };
            let event = match (posted, id) {
                // As with other events: none comes once the id is destroyed.
                (Some((id, value)), _) => {
                    (!id.core().is_destroyed()).then(|| Event::new(id, EventKind::User(value), &[]))
                }
                (None, Some(id)) => id.next_event(&self.core),
                (None, None) => return Ok(Taken::Nothing),
            };
            if let Some(event) = event {
                return Ok(Taken::Event(event));
            }
        }
    }

    /// Waits for the next event. `None`: [`Self::wake`] was called.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`], also when the channel is closed meanwhile.
    pub fn next(&self) -> Result<Option<Event>> {
        self.next_until(None)
    }

    /// Waits for the next event, at most for `timeout`. `None`: it passed, or [`Self::wake`] was called.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`], also when the channel is closed meanwhile.
    pub fn next_timeout(&self, timeout: Duration) -> Result<Option<Event>> {
        self.next_until(Instant::now().checked_add(timeout))
    }

    fn next_until(&self, deadline: Option<Instant>) -> Result<Option<Event>> {
        loop {
            match self.take()? {
                Taken::Event(event) => return Ok(Some(event)),
                Taken::Interrupt => return Ok(None),
                Taken::Nothing => {}
            }
            if let Some(reading) = self.core.lender().and_then(Lender::take_over) {
                self.core.poll(&reading, deadline);
                drop(reading);
                let goes = self.core.ready.lock().has_something();
                if goes {
                    self.core.relieve();
                } else if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                    return Ok(None);
                }
                continue;
            }
            let mut ready = self.core.ready.lock();
            if ready.has_something() {
                continue;
            }
            ready.sleepers += 1;
            let timed_out = match deadline {
                Some(deadline) => self.core.available.wait_until(&mut ready, deadline).timed_out(),
                None => {
                    self.core.available.wait(&mut ready);
                    false
                }
            };
            ready.sleepers -= 1;
            if timed_out && !ready.has_something() {
                return Ok(None);
            }
        }
    }

    /// The next event, as a future; `None` if [`Self::wake`] was called. It may be dropped at any time; no event is lost, and
    /// its task is not woken any more.
    ///
    /// Its waker is called with no lock of this crate held, by whoever brings the event; mostly the thread that makes progress for the
    /// device or reads the kernel's events, which an executor that polls in the waker holds up.
    pub fn next_async(&self) -> NextEvent<'_> {
        NextEvent { channel: self, number: None }
    }

    /// Lets one reader return with nothing: one that blocks, or the next that finds no event.
    pub fn wake(&self) {
        let mut ready = self.core.ready.lock();
        ready.interrupts = ready.interrupts.saturating_add(1);
        drop(self.core.announce(ready));
    }

    /// Puts an event of the program's own at the end of the channel. Nobody gets it if the id is destroyed meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::ChannelClosed`], [`Error::Destroyed`].
    pub fn post(&self, id: &Id, value: u64) -> Result<()> {
        if id.core().is_destroyed() {
            return Err(Error::Destroyed);
        }
        let mut ready = self.core.ready.lock();
        if ready.closed {
            return Err(Error::ChannelClosed);
        }
        ready.posted.push_back((id.clone(), value));
        drop(self.core.announce(ready));
        Ok(())
    }

    /// Ends the channel for all its readers, those that block included. Unread events are dropped; a request for a connection
    /// among them is rejected. So are those that come later, unless their id has migrated.
    pub fn close(&self) {
        self.core.close();
    }
}

impl Ready {
    /// Whether a reader has no need to wait.
    fn has_something(&self) -> bool {
        !self.ids.is_empty() || !self.posted.is_empty() || self.interrupts != 0 || self.closed
    }
}

impl ChannelCore {
    /// Notes that `id` has events. `None`: the channel is closed, and nobody will read them.
    pub(crate) fn push(&self, id: &Arc<IdCore>) -> Option<Later> {
        let mut ready = self.ready.lock();
        if ready.closed {
            return None;
        }
        ready.ids.push_back(id.clone());
        Some(self.announce(ready))
    }

    // ---- reading the kernel's events instead of sleeping ----

    fn lender(&self) -> Option<&Lender> {
        self.lender.get()?.as_ref()
    }

    /// Has readers read a manager's events themselves; false if they are not to, or read another's.
    pub(crate) fn borrow_from(&self, lender: Lender) -> bool {
        self.lender.set(Some(lender)).is_ok()
    }

    /// Somebody waits for events who is no thread.
    fn borrow_no_more(&self) {
        if let Some(lender) = self.lender.get_or_init(|| None) {
            lender.watch().forbid();
        }
    }

    /// Waits for the lender's events, or the channel's, and gives those to their ids.
    fn poll(&self, reading: &Reading<'_>, deadline: Option<Instant>) {
        {
            let mut ready = self.ready.lock();
            if ready.has_something() {
                return;
            }
            ready.polls = true;
        }
        reading.wait(deadline);
        self.ready.lock().polls = false;
        reading.read();
    }

    /// A reader that has read the lender's events goes: one that sleeps does it in its place. If that goes to sleep only now, the manager's
    /// thread fills in.
    fn relieve(&self) {
        if self.ready.lock().sleepers != 0 {
            self.available.notify_one();
        }
    }

    fn ring_reader(&self) {
        if let Some(lender) = self.lender() {
            lender.watch().ring_reader();
        }
    }

    fn announce(&self, mut ready: MutexGuard<'_, Ready>) -> Later {
        self.signal(&mut ready);
        let wakers = std::mem::take(&mut ready.wakers);
        let polls = std::mem::take(&mut ready.polls);
        let sleepers = ready.sleepers != 0;
        drop(ready);
        if polls {
            self.ring_reader();
        } else if sleepers {
            self.available.notify_one();
        }
        Later::wake(wakers.into_values().collect())
    }

    fn signal(&self, ready: &mut Ready) {
        let Some(fd) = self.fd.get().filter(|_| ready.has_something() && !ready.signaled) else { return };
        ready.signaled = true;
        // Cannot fail: the counter is 0.
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }

    fn unsignal(&self, ready: &mut Ready) {
        let Some(fd) = self.fd.get().filter(|_| ready.signaled && !ready.has_something()) else { return };
        ready.signaled = false;
        let _ = rustix::io::read(fd, &mut [0; 8]);
    }

    fn close(&self) {
        let mut ready = self.ready.lock();
        ready.closed = true;
        let ids = std::mem::take(&mut ready.ids);
        let posted = std::mem::take(&mut ready.posted);
        self.signal(&mut ready);
        let wakers = std::mem::take(&mut ready.wakers);
        let polls = std::mem::take(&mut ready.polls);
        drop(ready);
        if polls {
            self.ring_reader();
        }
        self.available.notify_all();
        wakers.into_values().for_each(Waker::wake);
        // Without the lock: what goes with them may come back here.
        for id in &ids {
            id.discard_events(self);
        }
        drop((ids, posted));
    }
}

impl std::fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ready = self.core.ready.lock();
        f.debug_struct("EventChannel").field("ready", &ready.ids.len()).field("closed", &ready.closed).finish()
    }
}

/// What a reader has taken.
enum Taken {
    Event(Event),
    Interrupt,
    Nothing,
}

/// See [`EventChannel::next_async`].
#[derive(Debug)]
#[must_use = "futures do nothing unless they are awaited"]
pub struct NextEvent<'a> {
    channel: &'a EventChannel,
    /// Of its task among those that wait.
    number: Option<u64>,
}

impl Future for NextEvent<'_> {
    type Output = Result<Option<Event>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.channel.core.borrow_no_more();
        loop {
            match self.channel.take()? {
                Taken::Event(event) => return Poll::Ready(Ok(Some(event))),
                Taken::Interrupt => return Poll::Ready(Ok(None)),
                Taken::Nothing => {}
            }
            // It is somebody else's code, and is not called with a lock.
            let waker = context.waker().clone();
            let mut ready = self.channel.core.ready.lock();
            if ready.has_something() {
                continue;
            }
            let number = self.number.unwrap_or(ready.next_waker);
            ready.next_waker += u64::from(self.number.is_none());
            let before = ready.wakers.insert(number, waker);
            drop(ready);
            drop(before);
            self.number = Some(number);
            return Poll::Pending;
        }
    }
}

impl Drop for NextEvent<'_> {
    /// Nobody waits here any more.
    fn drop(&mut self) {
        let waker = self.number.and_then(|number| self.channel.core.ready.lock().wakers.remove(&number));
        drop(waker);
    }
}
