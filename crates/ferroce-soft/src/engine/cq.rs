use ferroce_verbs::{WcStatus, WorkCompletion};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

/// A completion queue: a bounded ring, and whether somebody waits for its next entry.
pub(crate) struct CompletionQueue {
    inner: Mutex<Inner>,
    capacity: usize,
    observer: Arc<dyn CqObserver>,
}

struct Inner {
    entries: VecDeque<WorkCompletion>,
    armed: Armed,
    overrun: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Next,
}

/// Who is told about a completion queue. Called with no lock of the queue held.
pub(crate) trait CqObserver: Send + Sync {
    /// An armed queue got what it was armed for.
    fn notify(&self);
    /// A completion was lost because the queue was full. Called once.
    fn overrun(&self);
}

impl CompletionQueue {
    pub(crate) fn new(capacity: usize, observer: Arc<dyn CqObserver>) -> Self {
        // The ring grows to its capacity as it is used: a queue made large for safety costs what it holds.
        let inner = Inner { entries: VecDeque::new(), armed: Armed::No, overrun: false };
        Self { inner: Mutex::new(inner), capacity, observer }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds a completion; `solicited` says whether the peer asked for an event.
    #[inline]
    pub(crate) fn push(&self, wc: WorkCompletion, solicited: bool) {
        let mut inner = self.inner.lock();
        if inner.entries.len() >= self.capacity {
            let first = !std::mem::replace(&mut inner.overrun, true);
            drop(inner);
            if first {
                self.observer.overrun();
            }
            return;
        }
        inner.entries.push_back(wc);
        let fire = match inner.armed {
            Armed::No => false,
            Armed::Next => true,
            Armed::Solicited => solicited || wc.status != WcStatus::Success,
        };
        if fire {
            inner.armed = Armed::No;
            drop(inner);
            self.observer.notify();
        }
    }

    /// Moves completions to `out`; returns how many.
    #[inline]
    pub(crate) fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        let mut inner = self.inner.lock();
        let count = out.len().min(inner.entries.len());
        for (slot, wc) in out.iter_mut().zip(inner.entries.drain(..count)) {
            *slot = wc;
        }
        count
    }

    /// Arms the queue. A wish for any completion is not weakened by a later one for solicited ones only.
    pub(crate) fn arm(&self, solicited_only: bool) {
        let mut inner = self.inner.lock();
        if !solicited_only {
            inner.armed = Armed::Next;
        } else if inner.armed == Armed::No {
            inner.armed = Armed::Solicited;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_verbs::WcOpcode;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    #[derive(Default)]
    struct Count(AtomicU32, AtomicU32);

    impl CqObserver for Count {
        fn notify(&self) {
            self.0.fetch_add(1, Relaxed);
        }
        fn overrun(&self) {
            self.1.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn one_event_for_one_arm_and_one_for_overrun() {
        let count = Arc::new(Count::default());
        let cq = CompletionQueue::new(4, count.clone());
        let wc = |id| WorkCompletion::new(id, WcOpcode::Recv, 7);
        cq.push(wc(0), false);
        assert_eq!(count.0.load(Relaxed), 0);
        cq.arm(true);
        cq.push(wc(1), false);
        assert_eq!(count.0.load(Relaxed), 0);
        cq.push(wc(2), true);
        cq.push(wc(3), true);
        assert_eq!(count.0.load(Relaxed), 1);
        cq.push(wc(4), false);
        cq.push(wc(5), false);
        assert_eq!(count.1.load(Relaxed), 1);
        let mut out = [WorkCompletion::default(); 8];
        assert_eq!(cq.poll(&mut out), 4);
        assert_eq!(out[3].wr_id, 3);
        cq.arm(false);
        cq.arm(true);
        cq.push(wc(6), false);
        assert_eq!(count.0.load(Relaxed), 2);
    }
}
