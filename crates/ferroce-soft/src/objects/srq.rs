use super::pd::SoftPd;
use crate::engine::SharedRecvQueue;
use ferroce_verbs::provider::SrqOps;
use ferroce_verbs::{Error, PostError, RecvWr, Result, SrqAttr};
use std::sync::Arc;

/// A shared receive queue.
pub(super) struct SoftSrq {
    pub(super) srq: Arc<SharedRecvQueue>,
    pub(super) pd: Arc<SoftPd>,
}

impl Drop for SoftSrq {
    fn drop(&mut self) {
        self.pd.context.srqs.remove(self.srq.id);
    }
}

impl SrqOps for SoftSrq {
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.srq.queue.post(wrs).map_err(|(index, error)| PostError { index, error })
    }

    fn set_limit(&self, limit: u32) -> Result<()> {
        if limit > self.srq.queue.capacity() {
            let why = format!("{limit} is more than the {} receives it has room for", self.srq.queue.capacity());
            return Err(Error::invalid("limit", why));
        }
        if self.srq.queue.set_limit(limit) == crate::engine::Taken::BelowLimit {
            self.pd.context.report_srq_limit(&self.srq);
        }
        Ok(())
    }

    fn query(&self) -> Result<SrqAttr> {
        let queue = &self.srq.queue;
        Ok(SrqAttr { max_wr: queue.capacity(), max_sge: queue.max_sge(), limit: queue.limit() })
    }
}
