use ferroce_verbs::{Error, RecvWr, Sge};
use parking_lot::Mutex;

/// A queue of posted receives: that of one queue pair, or a shared one.
pub(crate) struct RecvQueue {
    inner: Mutex<Inner>,
    capacity: u32,
    max_sge: u32,
    name: &'static str,
}

struct Inner {
    wr_ids: Box<[u64]>,
    /// `max_sge` elements for each entry, and how many of them are used.
    sges: Box<[Sge]>,
    counts: Box<[u8]>,
    head: u32,
    len: u32,
    limit: u32,
    /// Receives are refused (the queue pair is in RESET) or, when `flushed`, complete at once.
    open: bool,
}

/// A receive that was taken from the queue. It is reused for one message after the other, so that none allocates.
#[derive(Debug, Default)]
pub(crate) struct RecvWqe {
    pub(crate) wr_id: u64,
    pub(crate) sges: Vec<Sge>,
}

impl RecvWqe {
    /// How many bytes fit.
    pub(crate) fn capacity(&self) -> u64 {
        self.sges.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// What taking a receive led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// There was none.
    Empty,
    /// There was one.
    Yes,
    /// There was one, and now fewer than the limit are left: raise the event.
    BelowLimit,
}

impl RecvQueue {
    pub(crate) fn new(capacity: u32, max_sge: u32, name: &'static str, open: bool) -> Self {
        let inner = Inner {
            wr_ids: vec![0; capacity as usize].into(),
            sges: vec![Sge::default(); (capacity * max_sge) as usize].into(),
            counts: vec![0; capacity as usize].into(),
            head: 0,
            len: 0,
            limit: 0,
            open,
        };
        Self { inner: Mutex::new(inner), capacity, max_sge, name }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    pub(crate) fn max_sge(&self) -> u32 {
        self.max_sge
    }

    pub(crate) fn limit(&self) -> u32 {
        self.inner.lock().limit
    }

    pub(crate) fn set_limit(&self, limit: u32) -> Taken {
        let mut inner = self.inner.lock();
        inner.limit = limit;
        if limit > inner.len {
            inner.limit = 0;
            return Taken::BelowLimit;
        }
        Taken::Yes
    }

    /// Allows or refuses receives.
    pub(crate) fn set_open(&self, open: bool) {
        self.inner.lock().open = open;
    }

    /// Adds receives, up to the first that does not fit; returns its index and the error.
    #[inline]
    pub(crate) fn post(&self, wrs: &[RecvWr<'_>]) -> Result<(), (usize, Error)> {
        let mut inner = self.inner.lock();
        for (index, wr) in wrs.iter().enumerate() {
            if !inner.open {
                let state = ferroce_verbs::QpState::Reset;
                return Err((index, Error::State { what: "post_recv", state }));
            }
            if wr.sges.len() > self.max_sge as usize {
                let why = format!("{} elements, the queue was made for {}", wr.sges.len(), self.max_sge);
                return Err((index, Error::invalid("sges", why)));
            }
            if inner.len == self.capacity {
                return Err((index, Error::QueueFull { queue: self.name, capacity: self.capacity }));
            }
            let at = inner.head + inner.len;
            let at = (if at >= self.capacity { at - self.capacity } else { at }) as usize;
            inner.wr_ids[at] = wr.wr_id;
            inner.counts[at] = wr.sges.len() as u8;
            let first = at * self.max_sge as usize;
            inner.sges[first..first + wr.sges.len()].copy_from_slice(wr.sges);
            inner.len += 1;
        }
        Ok(())
    }

    /// Moves the oldest receive to `wqe`.
    #[inline]
    pub(crate) fn take(&self, wqe: &mut RecvWqe) -> Taken {
        let mut inner = self.inner.lock();
        if inner.len == 0 {
            return Taken::Empty;
        }
        let at = inner.head as usize;
        wqe.wr_id = inner.wr_ids[at];
        let first = at * self.max_sge as usize;
        wqe.sges.clear();
        wqe.sges.extend_from_slice(&inner.sges[first..first + inner.counts[at] as usize]);
        inner.head = if inner.head + 1 == self.capacity { 0 } else { inner.head + 1 };
        inner.len -= 1;
        if inner.limit > inner.len {
            inner.limit = 0;
            return Taken::BelowLimit;
        }
        Taken::Yes
    }

    /// Forgets all receives.
    pub(crate) fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.head = 0;
        inner.len = 0;
    }
}
