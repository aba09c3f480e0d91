//! Who reads the kernel's events: the manager's thread, or a reader of the channel that all ids are on.
//!
//! A reader that would sleep until the thread gives it an event had better read the kernel's file itself: then an event wakes one thread, and
//! not two one after the other. While it is away with an event nobody reads. The thread looks in from time to time, and goes on reading when the
//! reader does not come back. Readers of several channels would wait for each other's coming back, and tasks and descriptors for what only
//! a thread does: with those the thread reads always.

use super::KernelManager;
use crate::sync::{Condvar, Mutex, MutexGuard};
use ferroce_abi::rdma_cm::RdmaCm;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// How long nobody reads, at least, until the thread does; twice as long at most.
#[cfg(not(test))]
const LOOK: std::time::Duration = std::time::Duration::from_millis(10);
/// Looks at a reader that stays, after which the thread sleeps until that goes.
const LOOKS: u32 = if cfg!(test) { 1 } else { 3 };

/// A descriptor that wakes whoever polls it.
struct Alarm(OwnedFd);

impl Alarm {
    fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    fn ring(&self) {
        // Cannot fail but for a counter that is full, and then who polls is about to wake anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Waits for the kernel's events or the alarm.
    fn wait(&self, device: &dyn RdmaCm, deadline: Option<Instant>) {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if device.wait(self.0.as_fd(), left) {
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }
    }
}

/// See the module.
pub(crate) struct Watch {
    state: Mutex<State>,
    changed: Condvar,
    thread: Alarm,
    reader: Alarm,
}

struct State {
    keeper: Keeper,
    /// How often a reader has taken over.
    times: u64,
    /// Readers may.
    lends: bool,
    /// The thread sleeps until the reader goes.
    dozes: bool,
    /// The manager is gone.
    over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeper {
    /// The thread, which waits for events.
    Thread,
    /// The thread, which is reading some.
    ThreadReads,
    Reader,
    Nobody,
}

/// What the thread saw when it looked last.
#[derive(Default)]
pub(super) struct Seen {
    times: u64,
    nobody: bool,
    looks: u32,
}

impl Watch {
    pub(crate) fn new() -> io::Result<Self> {
        let state = State { keeper: Keeper::Thread, times: 0, lends: true, dozes: false, over: false };
        Ok(Self { state: Mutex::new(state), changed: Condvar::new(), thread: Alarm::new()?, reader: Alarm::new()? })
    }

    // ---- the thread ----

    /// Waits until it is the thread's turn to read; false once the manager is gone.
    pub(super) fn await_turn(&self, seen: &mut Seen) -> bool {
        let mut state = self.state.lock();
        loop {
            let stays = seen.times == state.times;
            match state.keeper {
                _ if state.over => return false,
                Keeper::Nobody if !(seen.nobody && stays) => {
                    *seen = Seen { times: state.times, nobody: true, looks: 0 }
                }
                Keeper::Reader if !stays => *seen = Seen { times: state.times, ..Seen::default() },
                Keeper::Reader => seen.looks += 1,
                _ => {
                    *seen = Seen::default();
                    state.keeper = Keeper::ThreadReads;
                    return true;
                }
            }
            if seen.looks < LOOKS {
                state = self.pause(state);
            } else {
                state.dozes = true;
                self.changed.wait(&mut state);
                state.dozes = false;
                *seen = Seen::default();
            }
        }
    }

    /// For as long as a look takes to come again, or until something changes.
    #[cfg(not(test))]
    fn pause<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let _ = self.changed.wait_until(&mut state, Instant::now() + LOOK);
        state
    }

    /// The same where there is no time: while others do something.
    #[cfg(test)]
    fn pause<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        drop(state);
        shuttle::thread::yield_now();
        self.state.lock()
    }

    /// The thread has read what there was, and waits for more, or for a change of what it waits for.
    pub(super) fn wait_for_more(&self, device: &dyn RdmaCm, deadline: Option<Instant>) {
        if self.has_read() {
            self.thread.wait(device, deadline);
        }
    }

    /// The thread reads no more for the moment; false if it is not to go on.
    pub(super) fn has_read(&self) -> bool {
        let mut state = self.state.lock();
        state.keeper = Keeper::Thread;
        !state.over
    }

    // ---- others ----

    /// What is waited for has changed.
    pub(super) fn ring(&self) {
        match self.state.lock().keeper {
            Keeper::Thread | Keeper::ThreadReads => self.thread.ring(),
            Keeper::Reader => self.reader.ring(),
            // Whoever will read looks before it waits.
            Keeper::Nobody => {}
        }
    }

    /// Wakes the reader that reads the events, or is about to.
    pub(crate) fn ring_reader(&self) {
        self.reader.ring();
    }

    /// The thread reads, once no reader does.
    pub(crate) fn forbid(&self) {
        self.state.lock().lends = false;
    }

    /// The manager is gone.
    pub(super) fn end(&self) {
        self.state.lock().over = true;
        self.thread.ring();
        self.reader.ring();
    }

    /// A reader takes over, unless somebody reads.
    fn take_over(&self) -> bool {
        let mut state = self.state.lock();
        if !state.lends || state.over || matches!(state.keeper, Keeper::ThreadReads | Keeper::Reader) {
            return false;
        }
        let was = std::mem::replace(&mut state.keeper, Keeper::Reader);
        state.times += 1;
        drop(state);
        if was == Keeper::Thread {
            // Or it would be woken by the next event, and find that it is the reader's.
            self.thread.ring();
        }
        true
    }

    /// The reader goes.
    fn give_back(&self) {
        let mut state = self.state.lock();
        state.keeper = if state.lends { Keeper::Nobody } else { Keeper::Thread };
        if state.dozes || !state.lends {
            self.changed.notify_all();
        }
    }

    #[cfg(test)]
    pub(super) fn lends(&self) -> bool {
        self.state.lock().lends
    }

    fn is_kept(&self) -> bool {
        self.state.lock().keeper != Keeper::Nobody
    }
}

/// What readers of a channel need to read a manager's events.
pub(crate) struct Lender {
    pub(super) watch: Arc<Watch>,
    pub(super) manager: Weak<KernelManager>,
}

impl Lender {
    pub(crate) fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Has the caller read the events, unless somebody does.
    pub(crate) fn take_over(&self) -> Option<Reading<'_>> {
        self.watch.take_over().then(|| Reading(self))
    }

    /// The same, if nobody is there who waits for events.
    pub(crate) fn fill_in(&self) -> Option<Reading<'_>> {
        if self.watch.is_kept() { None } else { self.take_over() }
    }
}

/// The caller reads the events, until this goes.
pub(crate) struct Reading<'a>(&'a Lender);

impl Reading<'_> {
    /// Waits for events, for a ring, or until `deadline`.
    pub(crate) fn wait(&self, deadline: Option<Instant>) {
        let Some(manager) = self.manager() else { return };
        let deadline = [deadline, manager.wakes_at()].into_iter().flatten().min();
        let device = manager.device.clone();
        // It is not kept by who waits for its events.
        drop(manager);
        self.0.watch.reader.wait(&*device, deadline);
    }

    fn manager(&self) -> Option<Arc<KernelManager>> {
        let manager = self.0.manager.upgrade();
        if manager.is_none() {
            // It is on its way out, and the reader is not to come again and again until it is gone.
            self.0.watch.forbid();
        }
        manager
    }

    /// Gives events that there are to their ids.
    pub(crate) fn read(&self) {
        let Some(manager) = self.manager() else { return };
        if manager.read().is_err() {
            // The kernel refuses a thread that has not the credentials with which the file was opened (`ib_safe_file_access`). The manager's
            // thread has; if it fails, too, it says so. It is also the one that pauses before it tries again.
            self.0.watch.forbid();
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.watch.give_back();
    }
}
