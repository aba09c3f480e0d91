use crate::context::RdmaContext;
use crate::post;
use crate::sys::RawSrq;
use ferroce_verbs::provider::SrqOps;
use ferroce_verbs::{Error, PostError, RecvWr, Result, SrqAttr};
use std::sync::Arc;

/// A shared receive queue.
pub(crate) struct RdmaSrq {
    pub(crate) raw: Arc<RawSrq>,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) context: Arc<RdmaContext>,
}

impl Drop for RdmaSrq {
    fn drop(&mut self) {
        self.context.registry.srqs.remove(&self.raw.id());
    }
}

impl SrqOps for RdmaSrq {
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        let queue = post::RecvQueue {
            context: &self.context.raw,
            name: "shared receive queue",
            max_wr: self.max_wr,
            max_sge: self.max_sge,
        };
        post::receives(wrs, queue, |list| list.post_shared(&self.raw))
    }

    fn set_limit(&self, limit: u32) -> Result<()> {
        if limit > self.max_wr {
            let why = format!("{limit} is more than the {} receives it has room for", self.max_wr);
            return Err(Error::invalid("limit", why));
        }
        self.raw.set_limit(limit)
    }

    fn query(&self) -> Result<SrqAttr> {
        let attr = self.raw.query()?;
        Ok(SrqAttr { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: attr.srq_limit })
    }
}
