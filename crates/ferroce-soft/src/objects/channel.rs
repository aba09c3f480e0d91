use super::context::SoftContext;
use super::cq::SoftCq;
use super::events::FdQueue;
use ferroce_verbs::provider::CompChannelOps;
use ferroce_verbs::{Cq, Error, Result};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

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
}
