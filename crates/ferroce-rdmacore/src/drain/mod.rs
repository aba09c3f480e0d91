//! Queue pairs that nobody holds any more and whose work is not all reported yet.
//!
//! By the contract a queue pair that is dropped flushes what is outstanding to its completion queues. The library's `ibv_destroy_qp` takes
//! what was not polled away instead. So a queue pair with work goes to the error state, has a last request posted to each of its queues,
//! and is destroyed when these *markers* are polled: all that was posted before came out before. A receive queue that is shared takes no
//! marker of one queue pair; there the event "last WQE reached" says that nothing more will come, and then a *round* of polls that what is in
//! the completion queue is out (IBTA 11.6.3). A device that does not raise the event is given some time instead, and so is a marker that
//! does not come: after that a round decides.
//!
//! The completion queues' owners keep the queue pair until then, by polling or not; when one of the completion queues goes, nobody can
//! miss the rest. Those who poll only leave word, without a lock; a thread of the context, which begins with the first queue pair that
//! drains, posts what had no room before, and destroys.

mod drained;
mod round;
mod side;

pub(crate) use drained::Drained;
pub(crate) use round::Rounds;

use crate::flags::{Flags, RECV_FULL, RECV_MARKER, SEND_FULL, SEND_MARKER};
use crossbeam_queue::SegQueue;
use ferroce_verbs::Ah;
use parking_lot::Mutex;
use side::{State, Step};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Places that a completion queue has for markers, beyond those that its owner asked for. When more queue pairs drain at once, they take
/// turns.
pub(crate) const ROOM: u32 = 64;

/// How long a marker may take to come out, once the queue pair is in the error state. After that a round of polls decides.
const MARKER_TIME: Duration = Duration::from_secs(10);

/// How long a device may take to say that the last WQE is reached, once the queue pair is in the error state. Those that say it do so as
/// soon as they have looked; some never do.
const LAST_WQE_TIME: Duration = Duration::from_secs(1);

/// How often the thread looks at the time.
const TICK: Duration = Duration::from_millis(50);
const SLOW_TICK: Duration = Duration::from_secs(1);

/// A queue of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Send,
    Recv,
}

impl Which {
    const BOTH: [Self; 2] = [Self::Send, Self::Recv];

    fn flag(self) -> u8 {
        match self {
            Self::Send => SEND_MARKER,
            Self::Recv => RECV_MARKER,
        }
    }

    fn full_flag(self) -> u8 {
        match self {
            Self::Send => SEND_FULL,
            Self::Recv => RECV_FULL,
        }
    }

    fn of_marker(wr_id: u64) -> Option<Self> {
        match wr_id {
            drained::SEND_MARKER => Some(Self::Send),
            drained::RECV_MARKER => Some(Self::Recv),
            _ => None,
        }
    }
}

/// What is to be seen of one queue before the queue pair can be destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing was posted.
    Nothing,
    /// Its marker.
    Marker,
    /// That nothing more comes from the shared receive queue; then what is in the completion queue.
    LastWqe,
    /// What is in the completion queue.
    Round,
}

/// What those who poll have seen.
enum Seen {
    Marker(u32, Which),
    /// A queue pair whose marker found no room has some now.
    Room(u32),
    Round(usize, u32),
}

/// Whoever can read the context's events and say of which queue pairs the last WQE is reached.
pub(crate) trait Events: Send + Sync {
    /// Reads those that wait.
    fn gather(&self);
}

/// The queue pairs of a context that drain.
pub(crate) struct Drains(Arc<Shared>);

pub(crate) struct Shared {
    flags: Arc<Flags>,
    seen: SegQueue<Seen>,
    /// The last handles to addresses.
    ahs: SegQueue<Ah>,
    state: Mutex<State>,
    events: OnceLock<Weak<dyn Events>>,
    started: AtomicBool,
    thread: OnceLock<Thread>,
    stop: AtomicBool,
    /// The thread looks at the time by itself, or is about to. Changed and read while `state` is locked.
    ticks: AtomicBool,
    /// Markers wait for places in completion queues. Changed while `state` is locked.
    queued: AtomicBool,
    /// How often the thread was woken, or would have been.
    #[cfg(test)]
    wakes: std::sync::atomic::AtomicUsize,
}

impl Drains {
    pub(crate) fn new(flags: Arc<Flags>) -> Self {
        let shared = Shared {
            flags,
            seen: SegQueue::new(),
            ahs: SegQueue::new(),
            state: Mutex::default(),
            events: OnceLock::new(),
            started: AtomicBool::new(false),
            thread: OnceLock::new(),
            stop: AtomicBool::new(false),
            ticks: AtomicBool::new(false),
            queued: AtomicBool::new(false),
            #[cfg(test)]
            wakes: std::sync::atomic::AtomicUsize::new(0),
        };
        Self(Arc::new(shared))
    }

    /// Whom to ask for events; once.
    pub(crate) fn events_from(&self, events: Weak<dyn Events>) {
        let _ = self.0.events.set(events);
    }

    /// Has the thread ready for [`Self::let_go`].
    pub(crate) fn start(&self) {
        self.0.start();
    }

    /// Lets go of addresses to which datagrams went. Whoever has the last handle to one destroys it, which is a call to the kernel: not
    /// here, where somebody posts.
    pub(crate) fn let_go(&self, ahs: impl IntoIterator<Item = Ah>) {
        let mut any = false;
        for ah in ahs {
            if Arc::strong_count(ah.ops()) == 1 && self.0.started.load(Ordering::Acquire) {
                self.0.ahs.push(ah);
                any = true;
            }
        }
        if any {
            self.0.wake();
        }
    }

    /// A completion queue that has `room` places for markers.
    pub(crate) fn add_cq(&self, id: usize, room: u32, rounds: Arc<Rounds>) {
        self.0.state.lock().add_cq(id, room, rounds);
    }

    /// A completion queue goes: nobody will poll it.
    pub(crate) fn remove_cq(&self, id: usize) {
        self.0.state.lock().remove_cq(id);
        self.0.wake();
    }

    /// A completion queue has failed: nothing more comes out of it.
    pub(crate) fn cq_failed(&self, id: usize) {
        self.0.state.lock().cq_failed(id);
        self.0.wake();
    }

    /// The device is gone: nothing more comes out of any queue.
    pub(crate) fn abandon(&self) {
        self.0.state.lock().abandon();
        self.0.wake();
    }

    /// The event "last WQE reached" of the queue pair that events call `id`.
    pub(crate) fn last_wqe(&self, id: usize) {
        self.0.state.lock().last_wqe(id);
        self.0.wake();
    }

    /// Says what a poll has seen.
    fn say(&self, seen: Seen) {
        self.0.seen.push(seen);
        self.0.wake();
    }

    /// A poll has ended a round of a completion queue.
    #[cold]
    pub(crate) fn round_over(&self, cq: usize, round: u32) {
        self.say(Seen::Round(cq, round));
    }

    /// Whether a completion may be a marker: what the data path looks at.
    #[inline]
    pub(crate) fn may_be_marker(wr_id: u64) -> bool {
        wr_id | 3 == drained::SEND_MARKER | 3
    }

    /// Looks at a completion that failed, or may be a marker; says whether it is one.
    #[cold]
    pub(crate) fn is_marker(&self, qp_num: u32, wr_id: u64) -> bool {
        if self.0.flags.take(qp_num, SEND_FULL | RECV_FULL) {
            self.say(Seen::Room(qp_num));
        }
        let Some(which) = Which::of_marker(wr_id) else { return false };
        let Some(others) = self.0.flags.take_from(qp_num, which.flag()) else { return false };
        self.0.seen.push(Seen::Marker(qp_num, which));
        // There is something to be done when both are out, or if others wait for this one's place. Who sees the other one out may have said so
        // before this was said.
        let both = SEND_MARKER | RECV_MARKER;
        let is_last = others & both == 0 || self.0.flags.after_others(qp_num) & both == 0;
        if is_last || self.0.queued.load(Ordering::Acquire) {
            self.0.wake();
        }
        true
    }

    /// Stops a queue pair, whose queues complete on the completion queues `cqs`, and keeps it until what it has outstanding is polled.
    pub(crate) fn drain(&self, qp: Drained, cqs: [usize; 2], waits: [Wait; 2]) {
        if !self.0.start() {
            return;
        }
        let qp_num = qp.qp_num();
        let qp = Arc::new(qp);
        let turns = {
            let mut state = self.0.state.lock();
            let turns = state.add(&qp, cqs, waits);
            self.0.queued.store(state.has_queued(), Ordering::Release);
            turns
        };
        // The last receive is posted before the queue pair goes to the error state, as not all devices look at receives that come after;
        // whatever then completes it, all receives before it are complete. The last send is posted after, so that it goes nowhere.
        let recv = turns[1] && self.0.post(&qp, Which::Recv);
        let stopped = qp.to_error();
        let send = turns[0] && stopped.is_ok() && self.0.post(&qp, Which::Send);
        match stopped {
            Ok(()) => {
                let mut state = self.0.state.lock();
                state.stopped(qp_num, [send, recv], Instant::now());
                // In most cases there is nothing for the thread to do until the markers come.
                let waits = state.has_steps() || state.has_queued() || state.looks_often();
                if !waits && self.0.ticks.load(Ordering::Relaxed) {
                    return;
                }
            }
            Err(number) => {
                if crate::errno::may_be_gone(number) && qp.context().ask_whether_gone() {
                    self.abandon();
                    return;
                }
                tracing::debug!(
                    qp_num,
                    number,
                    "a queue pair cannot be stopped: what it has outstanding is not flushed"
                );
                self.0.state.lock().decide_by_rounds(qp_num);
            }
        }
        self.0.wake();
    }
}

impl Drop for Drains {
    fn drop(&mut self) {
        self.0.state.lock().abandon();
        self.0.stop.store(true, Ordering::Release);
        // As in `run`: either the thread sees this, or it is seen here.
        fence(Ordering::SeqCst);
        if self.0.thread.get().is_some() {
            self.0.wake();
        } else {
            self.0.work(Instant::now());
        }
    }
}

impl Shared {
    fn wake(&self) {
        #[cfg(test)]
        self.wakes.fetch_add(1, Ordering::Relaxed);
        // Whoever starts finds what was said before, or is found here.
        fence(Ordering::SeqCst);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Starts the thread, if there is none; without it nothing would ever be destroyed.
    fn start(self: &Arc<Self>) -> bool {
        #[cfg(test)]
        if crate::fake::register(self) {
            // There the test does what the thread would.
            self.started.store(true, Ordering::Release);
            return true;
        }
        if self.started.swap(true, Ordering::AcqRel) {
            return true;
        }
        let shared = self.clone();
        match std::thread::Builder::new().name("ferroce-drain".into()).spawn(move || shared.run()) {
            Ok(_) => true,
            Err(error) => {
                self.started.store(false, Ordering::Release);
                tracing::error!(%error, "no thread for queue pairs that drain: what this one has outstanding is not reported");
                false
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Relaxed)
    }

    fn run(&self) {
        // What comes before that is seen by the first look.
        let _ = self.thread.set(std::thread::current());
        fence(Ordering::SeqCst);
        loop {
            let next = self.work(Instant::now());
            if self.stop.load(Ordering::Acquire) {
                // Nothing is added any more: the context is gone.
                self.work(Instant::now());
                return;
            }
            match next {
                None => std::thread::park(),
                Some(time) => std::thread::park_timeout(time),
            }
        }
    }

    /// Does what is to be done; says when to look again if nobody says so before.
    pub(crate) fn work(&self, now: Instant) -> Option<Duration> {
        while let Some(ah) = self.ahs.pop() {
            drop(ah);
        }
        if self.state.lock().awaits_events()
            && let Some(events) = self.events.get().and_then(Weak::upgrade)
        {
            events.gather();
        }
        loop {
            let steps = {
                let mut state = self.state.lock();
                while let Some(seen) = self.seen.pop() {
                    match seen {
                        Seen::Marker(qp_num, which) => state.marker(qp_num, which),
                        Seen::Room(qp_num) => state.room(qp_num),
                        Seen::Round(cq, round) => state.round_over(cq, round),
                    }
                }
                state.tick(now);
                let steps = state.steps();
                self.queued.store(state.has_queued(), Ordering::Release);
                steps
            };
            if steps.is_empty() {
                break;
            }
            for step in steps {
                match step {
                    // Its last reference, or `drain` has that.
                    Step::Destroy(qp) => drop(qp),
                    Step::Post(qp, which) => {
                        let posted = self.post(&qp, which);
                        if posted && which == Which::Recv {
                            // For the devices that look at receives only then. If it fails, time decides.
                            let _ = qp.to_error();
                        }
                        self.state.lock().tried(qp.qp_num(), which, posted, now);
                    }
                }
            }
        }
        let state = self.state.lock();
        let next = if state.looks_often() { Some(TICK) } else { state.is_waiting().then_some(SLOW_TICK) };
        // While the state is locked: whoever adds a queue pair later sees it.
        self.ticks.store(next.is_some(), Ordering::Relaxed);
        next
    }

    /// Posts a marker, if there is room in the queue. If not, whoever polls something of the queue pair says so.
    fn post(&self, qp: &Drained, which: Which) -> bool {
        let qp_num = qp.qp_num();
        // First, as it may be polled before the call returns.
        self.flags.set(qp_num, which.flag() | which.full_flag());
        let posted = match which {
            Which::Send => qp.post_send(),
            Which::Recv => qp.post_receive(),
        };
        self.flags.take(qp_num, if posted.is_ok() { which.full_flag() } else { which.flag() });
        posted.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is told, and does not have to look at the time.
    #[test]
    fn the_thread_ends_with_its_context() {
        let drains = Drains::new(Arc::default());
        let shared = drains.0.clone();
        let thread = std::thread::spawn(move || shared.run());
        while drains.0.thread.get().is_none() {
            std::thread::yield_now();
        }
        drop(drains);
        thread.join().unwrap();
    }
}
