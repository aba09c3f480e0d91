use super::ah::SoftAh;
use super::context::{MAX_INLINE, MAX_SGE, MAX_WR, SoftContext};
use super::qp::{Queues, SoftQp};
use super::srq::SoftSrq;
use crate::engine::{MAX_MR, MemoryRegion, QpParts, RecvQueue, SharedRecvQueue};
use ferroce_verbs::provider::{AhOps, ContextOps, MrOps, PdOps, QpOps, SrqOps, check_range};
use ferroce_verbs::{Access, AhAttr, Error, QpCap, QpInitAttr, Region, Result, SrqInitAttr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A protection domain.
pub(super) struct SoftPd {
    pub(super) id: u32,
    pub(super) context: Arc<SoftContext>,
}

impl Drop for SoftPd {
    fn drop(&mut self) {
        self.context.pds.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A registered memory region.
struct SoftMr {
    mr: Arc<MemoryRegion>,
    pd: Arc<SoftPd>,
}

impl Drop for SoftMr {
    fn drop(&mut self) {
        self.pd.context.engine.mrs.remove(self.mr.key);
    }
}

impl MrOps for SoftMr {
    fn region(&self) -> &Region {
        &self.mr.region
    }

    fn lkey(&self) -> u32 {
        self.mr.key
    }

    fn rkey(&self) -> u32 {
        self.mr.key
    }

    fn access(&self) -> Access {
        self.mr.access
    }
}

impl PdOps for SoftPd {
    fn reg_mr(self: Arc<Self>, region: Region, access: Access) -> Result<Arc<dyn MrOps>> {
        let mr = self
            .context
            .engine
            .mrs
            .insert(self.id, region, access, self.context.port.key_tag())
            .ok_or(Error::Exhausted { what: "memory regions", limit: u64::from(MAX_MR - 1) })?;
        Ok(Arc::new(SoftMr { mr, pd: self }))
    }

    fn create_ah(self: Arc<Self>, attr: &AhAttr) -> Result<Arc<dyn AhOps>> {
        let av = self.context.resolve(attr)?;
        let link = self.context.port.link_layer(&av)?;
        self.context.ahs.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(SoftAh { attr: *attr, av, link, pd: self.id, context: self.context.clone() }))
    }

    /// The kernel finds the neighbours, packet by packet.
    fn create_ah_blocks(&self) -> bool {
        false
    }

    fn create_srq(self: Arc<Self>, attr: &SrqInitAttr) -> Result<Arc<dyn SrqOps>> {
        check_range("max_wr", attr.max_wr, 1, MAX_WR)?;
        check_range("max_sge", attr.max_sge, 0, MAX_SGE)?;
        let queue = Arc::new(RecvQueue::new(attr.max_wr, attr.max_sge, "shared receive queue", true));
        let pd = self.id;
        let mut made = None;
        let context = self.context.clone();
        let inserted = context.srqs.insert(|id| {
            let srq = Arc::new(SoftSrq { srq: Arc::new(SharedRecvQueue { id, pd, queue }), pd: self });
            let weak = Arc::downgrade(&srq);
            made = Some(srq);
            Arc::new(weak)
        });
        match (inserted, made) {
            (Some(_), Some(srq)) => Ok(srq),
            _ => Err(Error::Exhausted { what: "shared receive queues", limit: u64::from(super::context::MAX_SRQ) }),
        }
    }

    fn create_qp(self: Arc<Self>, attr: &QpInitAttr) -> Result<Arc<dyn QpOps>> {
        let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = attr.cap;
        check_range("max_send_wr", max_send_wr, 0, MAX_WR)?;
        check_range("max_recv_wr", max_recv_wr, 0, MAX_WR)?;
        check_range("max_send_sge", max_send_sge, 0, MAX_SGE)?;
        check_range("max_recv_sge", max_recv_sge, 0, MAX_SGE)?;
        check_range("max_inline_data", max_inline_data, 0, MAX_INLINE)?;
        let queues = Queues::of(attr)?;
        let parts = QpParts {
            qp_type: attr.qp_type,
            pd: self.id,
            cap: QpCap { max_send_wr: max_send_wr.max(1), max_recv_wr: max_recv_wr.max(1), ..attr.cap },
            sq_sig_all: attr.sq_sig_all,
            send_cq: queues.send_cq.queue.clone(),
            recv_cq: queues.recv_cq.queue.clone(),
            srq: queues.srq.as_ref().map(|srq| srq.srq.clone()),
        };
        if queues.srq.as_ref().is_some_and(|srq| srq.srq.pd != self.id) {
            return Err(Error::invalid("srq", "it belongs to another protection domain"));
        }
        let qp = self.context.engine.create_qp(parts)?;
        let Queues { send_cq, recv_cq, srq } = queues;
        let qp = Arc::new(SoftQp { qp, pd: self, _send_cq: send_cq, _recv_cq: recv_cq, _srq: srq });
        qp.pd.context.qps.lock().insert(qp.qp.qpn, Arc::downgrade(&qp));
        Ok(qp)
    }

    fn context(&self) -> Arc<dyn ContextOps> {
        self.context.clone()
    }
}
