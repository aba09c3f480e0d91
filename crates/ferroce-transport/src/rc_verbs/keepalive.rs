//! Signs of life: each endpoint has its own deadline, and whatever is heard of the peer puts it off (reports UCX 7093, 7301, 7315, 8219). The same
//! look finds peers that are there and take nothing. An endpoint has one deadline at most, and none while nobody has to look.

use super::clock::{self, Nanos, nanos};
use super::core::{Core, Phase, State};
use super::counters::count;
use super::progress::Progress;
use super::{RcVerbs, Shared};
use crate::uct::{Cause, EndpointId};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Deadlines of endpoints that are gone, which are kept, for they cost less than looking for them.
const FORGOTTEN: usize = 64;

/// The least time between two looks: what the clock can tell.
const LEAST: Nanos = 4_000_000;

/// Deadlines, by ids: an endpoint that is gone is not found (reports UCX 10926, 11217).
#[derive(Debug)]
pub(super) struct Deadlines {
    heap: Mutex<BinaryHeap<Reverse<(Nanos, EndpointId)>>>,
    /// The first, for those who only want to know whether it is time.
    next: AtomicU64,
}

impl Deadlines {
    pub(super) const fn new() -> Self {
        Self { heap: Mutex::new(BinaryHeap::new()), next: AtomicU64::new(Nanos::MAX) }
    }

    pub(super) fn next(&self) -> Option<Nanos> {
        let next = self.next.load(Relaxed);
        (next != Nanos::MAX).then_some(next)
    }

    fn add(&self, at: Nanos, id: EndpointId) {
        let mut heap = self.heap.lock();
        heap.push(Reverse((at, id)));
        self.note(&heap);
    }

    fn take(&self, now: Nanos) -> Option<(Nanos, EndpointId)> {
        let mut heap = self.heap.lock();
        let due = heap.peek().is_some_and(|Reverse((at, _))| *at <= now);
        let taken = if due { heap.pop() } else { None };
        self.note(&heap);
        taken.map(|Reverse(entry)| entry)
    }

    fn len(&self) -> usize {
        self.heap.lock().len()
    }

    fn retain(&self, keep: impl Fn(EndpointId) -> bool) {
        let mut heap = self.heap.lock();
        heap.retain(|Reverse((_, id))| keep(*id));
        self.note(&heap);
    }

    fn note(&self, heap: &BinaryHeap<Reverse<(Nanos, EndpointId)>>) {
        self.next.store(heap.peek().map_or(Nanos::MAX, |Reverse((at, _))| *at), Relaxed);
    }
}

impl Shared {
    /// Looks after an endpoint that was connected, or that has something outstanding. Does nothing if that is so already.
    #[cold]
    pub(super) fn watch(&self, core: &Core, state: &mut State) {
        if std::mem::replace(&mut state.watched, true) {
            return;
        }
        let now = clock::now();
        state.oldest = Some((state.ring.head(), now));
        let periods = [self.options.keepalive, self.options.peer_timeout];
        if let Some(first) = periods.into_iter().flatten().min() {
            self.deadlines.add(now.saturating_add(nanos(first).max(LEAST)), core.id());
            // Whoever sleeps may sleep for longer than that. That the timer cannot be set is said by whoever arms it next.
            let _ = self.wakeup.wake();
        }
    }

    /// Asks for a sign of life if nothing was heard for so long; when to look again.
    fn keep_alive(&self, core: &Core, state: &mut State, period: Nanos, now: Nanos) -> Nanos {
        let next = state.life.last_receive.max(state.life.last_ack).saturating_add(period);
        if next > now {
            return next;
        }
        // What is on its way will be answered, or not: its retries decide.
        if state.ring.signaled() == 0
            && let Ok(mut ready) = state.ready(core, self)
            && ready.probe(false, &mut None).is_ok()
        {
            ready.state.life.probes += 1;
            count(&self.counters.probes);
        }
        now + period
    }

    /// Whether the oldest operation has been that for too long; else when to look again, if something is outstanding. A peer that takes no messages is
    /// tried again for ever (RNR, IBTA 9.7.5.2.8), so nothing else ends that.
    fn patience(&self, core: &Core, state: &mut State, timeout: Nanos, now: Nanos) -> Result<Option<Nanos>, Stuck> {
        if state.ring.outstanding() == 0 {
            return Ok(None);
        }
        let head = state.ring.head();
        let mut since = match state.oldest {
            Some((oldest, since)) if oldest == head => since,
            _ => now,
        };
        // All may be complete, and nothing have said so: that is found out first.
        if state.ring.signaled() == 0
            && let Ok(mut ready) = state.ready(core, self)
        {
            let _ = ready.probe(false, &mut None);
            since = now;
        }
        state.oldest = Some((head, since));
        let limit = since.saturating_add(timeout).saturating_add(state.ring.bytes().saturating_mul(NANOS_PER_BYTE));
        if limit <= now { Err(Stuck) } else { Ok(Some(limit)) }
    }
}

/// What gets more time, as it moves much: 8 MiB in a second.
const NANOS_PER_BYTE: u64 = 120;

/// Nothing happens any more.
struct Stuck;

impl RcVerbs {
    /// Asks peers for signs of life from which nothing was heard; one that does not answer is found out by the queue pair's retries. Fails the
    /// endpoints of those who take nothing.
    pub(super) fn keepalive(&self, progress: &mut Progress) {
        let shared = &*self.0;
        let now = clock::now();
        // Whom nobody looks at a second time in one round: bounded work.
        while let Some((at, id)) = shared.deadlines.take(now) {
            let Some(core) = shared.table.read().get(id).cloned() else { continue };
            let mut state = core.lock();
            state.life.late = now - at;
            state.watched = false;
            if state.phase != Phase::Ready {
                continue;
            }
            // What is asked for here is watched already.
            state.watched = true;
            let alive = shared.options.keepalive.map(|period| {
                let period = nanos(period).max(LEAST);
                shared.keep_alive(&core, &mut state, period, now)
            });
            let patience = shared.options.peer_timeout.map(|timeout| {
                let timeout = nanos(timeout).max(LEAST);
                shared.patience(&core, &mut state, timeout, now)
            });
            let next = match patience {
                Some(Err(Stuck)) => {
                    shared.fail(&core, &mut state, progress, Cause::NotReceiving, now, None);
                    continue;
                }
                Some(Ok(next)) => [alive, next].into_iter().flatten().min(),
                None => alive,
            };
            match next {
                Some(next) => shared.deadlines.add(next, id),
                // Until something is outstanding again.
                None => state.watched = false,
            }
        }
        let table = shared.table.read();
        if shared.deadlines.len() > 2 * table.len() + FORGOTTEN {
            shared.deadlines.retain(|id| table.get(id).is_some());
        }
    }
}
