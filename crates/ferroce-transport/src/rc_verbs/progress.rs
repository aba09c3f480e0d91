//! Progress: completions come in, and lead to things that are done with no lock held.

use super::clock::{self, Nanos};
use super::core::{Core, State};
use super::counters::count;
use super::dispatch::Left;
use super::handlers::Snapshot;
use super::receives::{BATCH, RECEIVE};
use super::table::Table;
use super::wire::{Control, HARD, Header};
use super::{RcVerbs, Shared};
use crate::uct::{Cause, Completion, EndpointId, Failure, FailureHandler, Message, OpFailure};
use ferroce_verbs::{QpAttr, QpState, Result, WcOpcode, WcStatus, WorkCompletion};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// How often progress looks for what no completion tells of. An idle turn counts four times.
const LOOK_EVERY: u32 = 256;

/// What whoever makes progress has; kept, so that it costs no allocation.
pub(super) struct Progress {
    pub(super) handlers: Snapshot,
    /// Completions, and how many there are that nobody has looked at.
    wcs: [WorkCompletion; BATCH],
    stashed: usize,
    actions: VecDeque<Action>,
    /// What messages and fetched data consist of.
    bytes: Box<[u8]>,
    used: usize,
    /// Buffers whose message was copied out, and that are to be posted again.
    taken: Vec<u32>,
    /// Endpoints whose peer wants a grant at once.
    owed: Vec<EndpointId>,
    /// Endpoints that gave back everything.
    drained: Vec<EndpointId>,
    /// Endpoints that failed, whose queue pair is to be stopped.
    failed: Vec<EndpointId>,
    /// How many endpoints had been closed when messages were taken in.
    closes: u64,
    /// Endpoints that wait for resources, while they are looked at.
    pub(super) waiting: VecDeque<EndpointId>,
    /// Resources became free.
    pub(super) freed: bool,
    /// Times in a row that nothing had come, or that something had.
    turns: u32,
}

/// Something to be done with no lock held.
enum Action {
    Message(EndpointId, u8, Range<usize>),
    Complete(Completion, Result<Range<usize>, OpFailure>),
    /// Whoever is told is taken out of the endpoint when it is called: it may be dropped meanwhile.
    Failed(EndpointId, Failure),
}

impl Progress {
    pub(super) fn new(slot_len: usize) -> Self {
        Self {
            handlers: Snapshot::new(),
            wcs: [WorkCompletion::default(); BATCH],
            stashed: 0,
            actions: VecDeque::with_capacity(2 * BATCH),
            bytes: vec![0; BATCH * slot_len].into(),
            used: 0,
            taken: Vec::with_capacity(BATCH),
            owed: Vec::new(),
            drained: Vec::new(),
            failed: Vec::new(),
            closes: 0,
            waiting: VecDeque::new(),
            freed: false,
            turns: 0,
        }
    }

    /// Whether to look for what no completion tells of: now and then, as that takes a clock and locks.
    #[inline]
    fn is_time(&mut self, woken: bool, count: usize) -> bool {
        self.turns += if count == 0 { 4 } else { 1 };
        let due = woken || self.turns >= LOOK_EVERY;
        if due {
            self.turns = 0;
        }
        due
    }

    /// Whether something is left to be done: of what was taken in before a handler panicked, or receives that the device did not take.
    fn is_left(&self) -> bool {
        let Self { actions, owed, drained, failed, taken, .. } = self;
        !(actions.is_empty() && owed.is_empty() && drained.is_empty() && failed.is_empty() && taken.is_empty())
    }

    /// Room for `len` bytes. Each completion brings at most as much as a buffer has, so there is some.
    #[inline]
    fn room(&mut self, len: usize) -> Range<usize> {
        let range = self.used..self.used + len;
        self.used = range.end;
        range
    }
}

impl RcVerbs {
    #[inline]
    pub(super) fn make_progress(&self) -> Result<usize> {
        let shared = &*self.0;
        // Only ever tried, so nobody waits for whoever holds it while handlers run.
        let Some(mut guard) = shared.progress.try_lock() else { return Ok(0) };
        let progress = &mut *guard;
        let woken = shared.wakeup.has_slept();
        if progress.stashed == 0 {
            progress.stashed = shared.cq.poll(&mut progress.wcs)?;
        }
        let count = progress.stashed;
        let look_around = progress.is_time(woken, count);
        // Whoever polls finds nothing most of the time, and finds that out the sooner the less it costs.
        if count == 0 && !look_around && !shared.look.load(Ordering::Relaxed) {
            return Ok(0);
        }
        self.work(progress, look_around)
    }

    #[inline(never)]
    fn work(&self, progress: &mut Progress, look_around: bool) -> Result<usize> {
        let shared = &*self.0;
        let _left = Left(shared);
        let mut outcome = Ok(());
        if progress.is_left() {
            outcome = self.finish(progress);
        }
        let count = std::mem::take(&mut progress.stashed);
        if count != 0 {
            outcome = outcome.and(self.take_in(progress, count));
        }
        if look_around {
            self.look_around(progress);
        }
        if progress.freed || shared.look.load(Ordering::Relaxed) {
            self.dispatch(progress);
        }
        drop(progress.handlers.refresh(&shared.handlers));
        outcome.map(|()| count)
    }

    /// Whether there is something that [`Self::make_progress`] would do now; takes completions, but does nothing with them.
    pub(super) fn has_work(&self) -> Result<bool> {
        let shared = &*self.0;
        let Some(mut progress) = shared.progress.try_lock() else { return Ok(true) };
        if progress.stashed == 0 {
            progress.stashed = shared.cq.poll(&mut progress.wcs)?;
        }
        Ok(progress.stashed != 0 || progress.is_left() || shared.look.load(Ordering::Relaxed))
    }

    fn take_in(&self, progress: &mut Progress, count: usize) -> Result<()> {
        let shared = &*self.0;
        let now = clock::now();
        let mut outcome = Ok(());
        progress.used = 0;
        progress.closes = shared.closes.load(Ordering::SeqCst);
        {
            let table = shared.table.read();
            for at in 0..count {
                let wc = &{ progress.wcs[at] };
                if wc.wr_id & RECEIVE != 0 {
                    outcome = outcome.and(shared.on_receive(&table, progress, wc, now));
                } else {
                    outcome = outcome.and(shared.on_sent(&table, progress, wc, now));
                }
            }
        }
        outcome.and(self.finish(progress))
    }

    /// Does what follows from what was taken in.
    fn finish(&self, progress: &mut Progress) -> Result<()> {
        let outcome = self.0.post_receives(&mut progress.taken);
        self.act(progress);
        self.grant(progress);
        self.remove_drained(progress);
        outcome
    }

    /// Calls whom it concerns.
    pub(super) fn act(&self, progress: &mut Progress) {
        let shared = &*self.0;
        self.stop_failed(progress);
        let closes = progress.closes;
        let Progress { actions, bytes, handlers, .. } = progress;
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Message(endpoint, am, range) => {
                    drop(handlers.refresh(&shared.handlers));
                    match handlers.get(am) {
                        // Only if some were closed since is it worth a look whether this one was.
                        Some(handler) if shared.closes.load(Ordering::SeqCst) == closes || shared.is_open(endpoint) => {
                            handler(Message { endpoint, payload: &bytes[range] });
                        }
                        Some(_) => {}
                        None => count(&shared.counters.no_handler),
                    }
                }
                Action::Complete(completion, outcome) => completion.complete(outcome.map(|range| &bytes[range])),
                Action::Failed(endpoint, failure) => {
                    if let Some(told) = shared.take_told(endpoint) {
                        told(failure);
                    }
                }
            }
        }
    }

    /// Has the queue pairs of endpoints that failed give back what was posted.
    fn stop_failed(&self, progress: &mut Progress) {
        let shared = &*self.0;
        for id in progress.failed.drain(..) {
            let Some(core) = shared.table.read().get(id).cloned() else { continue };
            // Whoever closed it meanwhile has done the same. With a device that refuses it stays until the interface goes.
            if core.qp.modify(&QpAttr::to(QpState::Err)).is_ok() {
                let mut state = core.lock();
                if !state.closed && !state.is_full(&core) {
                    let _ = state.mark(&core, &mut None);
                }
            }
        }
    }

    /// Grants what peers asked for at once and no answer has granted meanwhile.
    fn grant(&self, progress: &mut Progress) {
        let shared = &*self.0;
        for id in progress.owed.drain(..) {
            let Some(core) = shared.table.read().get(id).cloned() else { continue };
            let mut state = core.lock();
            if state.grant_owed && !shared.send_grant(&core, &mut state) {
                shared.list(&core, &mut state);
            }
        }
    }

    fn remove_drained(&self, progress: &mut Progress) {
        for id in progress.drained.drain(..) {
            let gone = self.0.table.write().remove(id);
            // Without the lock: its destructor is the device's.
            drop(gone);
        }
    }

    /// Signs of life, and what the connection manager has to say.
    fn look_around(&self, progress: &mut Progress) {
        self.connection_events(progress);
        self.keepalive(progress);
        self.act(progress);
    }

    /// An endpoint failed for a reason that no completion says.
    pub(super) fn fail_endpoint(&self, progress: &mut Progress, id: EndpointId, cause: Cause) {
        let shared = &*self.0;
        let Some(core) = shared.table.read().get(id).cloned() else { return };
        let mut state = core.lock();
        shared.fail(&core, &mut state, progress, cause, clock::now(), None);
    }
}

impl Shared {
    /// Posts receives again. What the device does not take is kept, and tried again at the next look.
    fn post_receives(&self, slots: &mut Vec<u32>) -> Result<()> {
        while !slots.is_empty() {
            let some = slots.len().min(BATCH);
            let (posted, outcome) = self.receives.post(&slots[..some]);
            slots.drain(..posted);
            outcome?;
        }
        Ok(())
    }

    /// Whom to tell that an endpoint failed, unless its owner has let go of it.
    fn take_told(&self, id: EndpointId) -> Option<FailureHandler> {
        let core = self.table.read().get(id).cloned()?;
        let mut state = core.lock();
        if state.closed { None } else { state.told.take() }
    }

    /// Whether handlers may still be called for an endpoint.
    fn is_open(&self, id: EndpointId) -> bool {
        self.table.read().get(id).is_some_and(|core| !core.lock().closed)
    }

    pub(super) fn fail(
        &self,
        core: &Core,
        state: &mut State,
        progress: &mut Progress,
        cause: Cause,
        now: Nanos,
        status: Option<WcStatus>,
    ) {
        let Some(failure) = state.fail(cause, now, status) else { return };
        count(&self.counters.failures);
        progress.failed.push(core.id());
        progress.actions.push_back(Action::Failed(core.id(), failure));
        tracing::debug!(endpoint = %core.id(), %failure, "an endpoint failed");
    }

    #[inline]
    fn on_receive(&self, table: &Table, progress: &mut Progress, wc: &WorkCompletion, now: Nanos) -> Result<()> {
        let slot = wc.wr_id as u32;
        progress.taken.push(slot);
        let Some(core) = table.by_qpn(wc.qp_num) else {
            count(&self.counters.no_endpoint);
            return Ok(());
        };
        let mut state = core.lock();
        let state = &mut *state;
        if state.closed {
            return Ok(());
        }
        if !wc.is_ok() {
            // The queue pair is in ERR. Of what it had posted its own completions tell.
            let cause = if wc.status == WcStatus::WrFlushErr { Cause::Device } else { Cause::Protocol };
            self.fail(core, state, progress, cause, now, Some(wc.status));
            return Ok(());
        }
        state.life.last_receive = now;
        // A write with immediate takes a receive, too, and writes elsewhere: what the buffer holds is old.
        if wc.opcode != WcOpcode::Recv {
            count(&self.counters.malformed);
            self.fail(core, state, progress, Cause::Protocol, now, None);
            return Ok(());
        }
        let len = (wc.byte_len as usize).min(self.receives.slot_len());
        let range = progress.room(len);
        self.receives.read(slot, &mut progress.bytes[range.clone()])?;
        let Some((header, header_len)) = Header::parse(&progress.bytes[range.clone()]) else {
            count(&self.counters.malformed);
            self.fail(core, state, progress, Cause::Protocol, now, None);
            return Ok(());
        };
        let (am, asks, grant) = match header {
            Header::Message { am, asks, grant } => (Some(am), asks, grant),
            Header::Control { what: Control::Grant, grant } => (None, 0, Some(grant)),
            Header::Control { what: Control::Closed, .. } => {
                self.fail(core, state, progress, Cause::Closed, now, None);
                return Ok(());
            }
        };
        // Control words take receives and no credits: as many as were asked for.
        let mut honest = am.is_some() || state.credits.on_grant_alone().is_ok();
        if let Some(total) = grant {
            match state.credits.on_grant(total) {
                Ok(more) => progress.freed |= more,
                Err(_) => honest = false,
            }
        }
        honest &= am.is_none() || state.credits.on_message(asks).is_ok();
        if !honest {
            count(&self.counters.malformed);
            self.fail(core, state, progress, Cause::Protocol, now, None);
            return Ok(());
        }
        if let Some(am) = am {
            if asks & HARD != 0 && !state.grant_owed {
                state.grant_owed = true;
                progress.owed.push(core.id());
            }
            progress.actions.push_back(Action::Message(core.id(), am, range.start + header_len..range.end));
        }
        Ok(())
    }

    #[inline]
    fn on_sent(&self, table: &Table, progress: &mut Progress, wc: &WorkCompletion, now: Nanos) -> Result<()> {
        let known = table.at((wc.wr_id >> 32) as u32).filter(|core| core.qpn() == wc.qp_num);
        let Some(core) = known else {
            count(&self.counters.no_endpoint);
            return Ok(());
        };
        let mut state = core.lock();
        let state = &mut *state;
        let Some(last) = state.ring.position(wc.wr_id as u32) else {
            count(&self.counters.no_endpoint);
            return Ok(());
        };
        if wc.is_ok() {
            state.life.last_ack = now;
        } else {
            self.fail(core, state, progress, cause_of(wc.status), now, Some(wc.status));
        }
        let mut outcome = Ok(());
        while let Some((position, mut op)) = state.ring.pop_through(last) {
            // What comes before a completion of its own succeeded: it went out first and nothing was said of it.
            let succeeded = wc.is_ok() || position != last;
            let mut fetched = 0..0;
            if let Some(slot) = op.bounce.take() {
                if succeeded && op.fetched != 0 && op.completion.is_some() {
                    fetched = progress.room(op.fetched as usize);
                    outcome = outcome.and(self.pool.read(slot, &mut progress.bytes[fetched.clone()]));
                }
                self.pool.put_back(slot);
                state.held -= 1;
            }
            if let Some(completion) = op.completion.take() {
                let outcome = if succeeded || op.marker { Ok(fetched) } else { Err(RcVerbs::outcome(state.phase)) };
                progress.actions.push_back(Action::Complete(completion, outcome));
            }
            if op.marker && state.closed && state.ring.outstanding() == 0 {
                progress.drained.push(core.id());
            }
        }
        while let Some((position, _)) = state.flushes.front()
            && *position <= last
        {
            let Some((_, completion)) = state.flushes.pop_front() else { break };
            let outcome = if wc.is_ok() { Ok(0..0) } else { Err(RcVerbs::outcome(state.phase)) };
            progress.actions.push_back(Action::Complete(completion, outcome));
        }
        progress.freed = true;
        outcome
    }
}

/// What the device says, as what it means.
fn cause_of(status: WcStatus) -> Cause {
    match status {
        WcStatus::RetryExcErr | WcStatus::RespTimeoutErr => Cause::PeerTimeout,
        WcStatus::RnrRetryExcErr => Cause::NotReceiving,
        WcStatus::RemAccessErr => Cause::RemoteAccess,
        WcStatus::RemInvReqErr | WcStatus::RemOpErr | WcStatus::RemAbortErr => Cause::RemoteOperation,
        WcStatus::LocProtErr | WcStatus::LocLenErr | WcStatus::LocAccessErr => Cause::LocalMemory,
        _ => Cause::Device,
    }
}
