use super::RawPd;
use super::live::Kind;
use ferroce_abi::types::{ibv_srq, ibv_srq_attr, ibv_srq_init_attr, value};
use ferroce_verbs::Result;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A shared receive queue.
pub(crate) struct RawSrq {
    pd: Arc<RawPd>,
    srq: NonNull<ibv_srq>,
}

// SAFETY: the library's verbs may be called from any thread with any object.
unsafe impl Send for RawSrq {}
// SAFETY: as above.
unsafe impl Sync for RawSrq {}

impl RawSrq {
    pub(crate) fn new(pd: Arc<RawPd>, max_wr: u32, max_sge: u32) -> Result<Self> {
        let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the domain is alive, and `init` is read and written by the call only.
        let make = || unsafe { (pd.library().create_srq)(pd.as_ptr(), &mut init) };
        let srq = super::made(pd.context(), Kind::Srq, make)?;
        Ok(Self { pd, srq })
    }

    pub(super) fn as_ptr(&self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }

    /// What events name it by.
    pub(crate) fn id(&self) -> usize {
        self.as_ptr() as usize
    }

    pub(crate) fn pd(&self) -> &Arc<RawPd> {
        &self.pd
    }

    pub(crate) fn set_limit(&self, limit: u32) -> Result<()> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        // SAFETY: the queue is alive, and `attr` is only read.
        let number = unsafe { (self.pd.library().modify_srq)(self.as_ptr(), &mut attr, value::IBV_SRQ_LIMIT as i32) };
        self.pd.context().check("setting the limit of a shared receive queue", number)
    }

    pub(crate) fn query(&self) -> Result<ibv_srq_attr> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
        // SAFETY: the queue is alive, and `attr` is what it writes to.
        let number = unsafe { (self.pd.library().query_srq)(self.as_ptr(), &mut attr) };
        self.pd.context().check("querying a shared receive queue", number)?;
        Ok(attr)
    }
}

impl Drop for RawSrq {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their shared receive queue, so none uses it any more. It waits until events that were read are
        // acknowledged, which whoever reads one does at once.
        let number = unsafe { (self.pd.library().destroy_srq)(self.as_ptr()) };
        super::destroyed(self.pd.context(), Kind::Srq, number);
    }
}
