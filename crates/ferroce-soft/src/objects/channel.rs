use super::context::SoftContext;
use super::cq::SoftCq;
use super::events::FdQueue;
use ferroce_verbs::provider::CompChannelOps;
use ferroce_verbs::{Cq, Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A completion channel.
pub(super) struct SoftChannel {
    /// Completion queues that have something. A queue that is gone is left out when its turn comes.
    ready: FdQueue<Weak<SoftCq>>,
    _context: Arc<SoftContext>,
}

impl SoftChannel {
    pub(super) fn new(context: Arc<SoftContext>) -> Result<Self> {
        let ready = FdQueue::new().map_err(|error| Error::os("creating a completion channel", error))?;
        Ok(Self { ready, _context: context })
    }

    pub(super) fn notify(&self, cq: Weak<SoftCq>) {
        self.ready.push(cq);
    }
}

impl CompChannelOps for SoftChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.ready.fd()
    }

    fn try_event(&self) -> Result<Option<Cq>> {
        while let Some(cq) = self.ready.pop() {
            if let Some(cq) = cq.upgrade() {
                return Ok(Some(Cq::from_ops(cq)));
            }
        }
        Ok(None)
    }

    fn wait_event(&self, timeout: Option<Duration>) -> Result<Option<Cq>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(cq) = self.try_event()? {
                return Ok(Some(cq));
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(None);
            }
            let left =
                left.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) });
            match poll(&mut [PollFd::new(&self.fd(), PollFlags::IN)], left.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Error::os("waiting for a completion event", error)),
            }
        }
    }
}
