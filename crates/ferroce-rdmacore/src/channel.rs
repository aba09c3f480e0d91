use crate::cq::RdmaCq;
use crate::registry::Objects;
use crate::sys::{RawChannel, RawContext};
use ferroce_verbs::provider::CompChannelOps;
use ferroce_verbs::{Cq, Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A completion channel.
pub(crate) struct RdmaChannel {
    pub(crate) raw: Arc<RawChannel>,
    /// The completion queues that report here.
    pub(crate) cqs: Objects<usize, RdmaCq>,
}

impl RdmaChannel {
    pub(crate) fn new(context: &Arc<RawContext>) -> Result<Self> {
        Ok(Self { raw: Arc::new(RawChannel::new(context.clone())?), cqs: Objects::default() })
    }
}

impl CompChannelOps for RdmaChannel {
    fn fd(&self) -> BorrowedFd<'_> {
        self.raw.fd()
    }

    fn try_event(&self) -> Result<Option<Cq>> {
        loop {
            match self.raw.try_event(|id| self.cqs.get(&id))? {
                None => return Ok(None),
                Some(Some(cq)) => return Ok(Some(Cq::from_ops(cq))),
                // A queue that is gone is left out.
                Some(None) => {}
            }
        }
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
