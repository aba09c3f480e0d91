use crate::cq::RdmaCq;
use crate::registry::Objects;
use crate::sys::{RawChannel, RawContext};
use ferroce_verbs::provider::CompChannelOps;
use ferroce_verbs::{Cq, Result};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

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
}
