//! Signs of life: each endpoint has its own deadline, and whatever is heard of the peer puts it off (reports UCX 7093, 7301, 7315, 8219).

use super::clock::{self, Nanos, nanos};
use super::core::Core;
use super::counters::count;
use super::progress::Progress;
use super::{RcVerbs, Shared};
use crate::uct::EndpointId;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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

    fn note(&self, heap: &BinaryHeap<Reverse<(Nanos, EndpointId)>>) {
        self.next.store(heap.peek().map_or(Nanos::MAX, |Reverse((at, _))| *at), Relaxed);
    }
}

impl Shared {
    /// Looks after an endpoint that was connected.
    pub(super) fn watch(&self, core: &Core, now: Nanos) {
        if let Some(period) = self.options.keepalive {
            self.deadlines.add(now + nanos(period), core.id());
            // Whoever sleeps may sleep for longer than that. That the timer cannot be set is said by whoever arms it next.
            let _ = self.wakeup.wake();
        }
    }
}

impl RcVerbs {
    /// Asks peers for signs of life from which nothing was heard. One that does not answer is found out by the queue pair's retries.
    pub(super) fn keepalive(&self, _progress: &mut Progress) {
        let shared = &*self.0;
        let Some(period) = shared.options.keepalive.map(|period| nanos(period).max(LEAST)) else { return };
        let now = clock::now();
        // Whom nobody looks at a second time in one round: bounded work.
        while let Some((at, id)) = shared.deadlines.take(now) {
            let Some(core) = shared.table.read().get(id).cloned() else { continue };
            let mut state = core.lock();
            let heard = state.life.last_receive.max(state.life.last_ack);
            state.life.late = now - at;
            let mut next = heard + period;
            if next <= now {
                next = now + period;
                match state.ready(&core, shared) {
                    // What is on its way will be answered, or not: its retries decide.
                    Ok(ready) if ready.state.ring.signaled() != 0 => {}
                    Ok(mut ready) => {
                        if ready.probe(false, &mut None).is_ok() {
                            ready.state.life.probes += 1;
                            count(&shared.counters.probes);
                        }
                    }
                    // It is over.
                    Err(_) => continue,
                }
            }
            drop(state);
            shared.deadlines.add(next, id);
        }
    }
}
