use super::ah::SoftAh;
use super::cq::SoftCq;
use super::own;
use super::pd::SoftPd;
use super::srq::SoftSrq;
use crate::engine::{Datagram, QueuePair};
use ferroce_verbs::provider::QpOps;
use ferroce_verbs::{Error, Gid, PostError, QpAttr, QpCap, QpState, QpType, RecvWr, Result, SendWr};
use std::sync::Arc;

/// A queue pair. The engine's own outlives it for as long as packets for it are being handled.
pub(super) struct SoftQp {
    pub(super) qp: Arc<QueuePair>,
    pub(super) pd: Arc<SoftPd>,
    pub(super) _send_cq: Arc<SoftCq>,
    pub(super) _recv_cq: Arc<SoftCq>,
    pub(super) _srq: Option<Arc<SoftSrq>>,
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        let context = &self.pd.context;
        context.qps.lock().remove(&self.qp.qpn);
        let _membership = (self.qp.qp_type == QpType::Ud).then(|| context.membership.lock());
        for gid in context.engine.destroy_qp(&self.qp) {
            context.leave_group(gid);
        }
    }
}

impl SoftQp {
    /// The address behind a datagram's handle.
    fn destination(&self, wr: &SendWr<'_>) -> Result<Option<Datagram>> {
        let Some(dest) = wr.ud else { return Ok(None) };
        let ops = dest.ah.ops();
        let ah: &SoftAh = match (**ops).as_any().downcast_ref() {
            Some(ah) => ah,
            None => return Err(Error::invalid("ah", "it belongs to another device")),
        };
        if ah.pd != self.qp.pd {
            return Err(Error::invalid("ah", "it belongs to another protection domain"));
        }
        Ok(Some(Datagram { av: ah.av.clone(), qpn: dest.qpn & 0xff_ffff, qkey: dest.qkey }))
    }
}

impl QpOps for SoftQp {
    fn qp_num(&self) -> u32 {
        self.qp.qpn
    }

    fn qp_type(&self) -> QpType {
        self.qp.qp_type
    }

    fn cap(&self) -> QpCap {
        self.qp.cap
    }

    fn state(&self) -> QpState {
        self.qp.state()
    }

    fn modify(&self, attr: &QpAttr) -> Result<()> {
        let context = &self.pd.context;
        if let Some(port) = attr.port_num {
            context.check_port(port)?;
        }
        if attr.pkey_index.is_some_and(|index| index != 0) {
            return Err(Error::invalid("pkey_index", "the P_Key table has one entry, at index 0"));
        }
        let limit = super::context::MAX_RD_ATOMIC;
        for (what, value) in [("max_rd_atomic", attr.max_rd_atomic), ("max_dest_rd_atomic", attr.max_dest_rd_atomic)] {
            if value.is_some_and(|value| value > limit) {
                return Err(Error::invalid(what, format!("the device takes at most {limit}")));
            }
        }
        // Resolved before anything is locked: it may take its time.
        let av = attr.ah_attr.as_ref().map(|ah_attr| context.resolve(ah_attr)).transpose()?;
        let now = context.port.refresh_now();
        context.port.send(|tx| self.qp.modify(&context.engine, attr, av, tx, now))
    }

    fn query(&self) -> Result<QpAttr> {
        Ok(self.qp.query())
    }

    #[inline]
    fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), PostError> {
        let context = &self.pd.context;
        let now = context.port.now();
        context.port.send(|tx| self.qp.post_send(&context.engine, wrs, |wr| self.destination(wr), tx, now))
    }

    #[inline]
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), PostError> {
        self.qp.post_recv(wrs)
    }

    fn attach_mcast(&self, gid: Gid) -> Result<()> {
        if self.qp.qp_type != QpType::Ud {
            return Err(Error::invalid("queue pair", "only UD queue pairs can join a multicast group"));
        }
        if !gid.is_multicast() {
            return Err(Error::invalid("gid", format!("{gid} is not a multicast group")));
        }
        let context = &self.pd.context;
        let _membership = context.membership.lock();
        if context.engine.attach(gid, self.qp.qpn)
            && let Err(error) = context.join_group(gid)
        {
            context.engine.detach(gid, self.qp.qpn);
            return Err(error);
        }
        Ok(())
    }

    fn detach_mcast(&self, gid: Gid) -> Result<()> {
        let context = &self.pd.context;
        let _membership = context.membership.lock();
        match context.engine.detach(gid, self.qp.qpn) {
            None => Err(Error::invalid("gid", format!("the queue pair is not in group {gid}"))),
            Some(last) => {
                if last {
                    context.leave_group(gid);
                }
                Ok(())
            }
        }
    }
}

/// What the engine needs from the objects that a queue pair is created with.
pub(super) struct Queues {
    pub(super) send_cq: Arc<SoftCq>,
    pub(super) recv_cq: Arc<SoftCq>,
    pub(super) srq: Option<Arc<SoftSrq>>,
}

impl Queues {
    pub(super) fn of(attr: &ferroce_verbs::QpInitAttr) -> Result<Self> {
        let srq = match &attr.srq {
            Some(srq) => Some(own(srq.ops().clone().into_any(), "srq")?),
            None => None,
        };
        Ok(Self {
            send_cq: own(attr.send_cq.ops().clone().into_any(), "send_cq")?,
            recv_cq: own(attr.recv_cq.ops().clone().into_any(), "recv_cq")?,
            srq,
        })
    }
}
