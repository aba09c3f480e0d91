use crate::ah::RdmaAh;
use crate::context::{RdmaContext, limit};
use crate::mr::RdmaMr;
use crate::qp::RdmaQp;
use crate::srq::RdmaSrq;
use crate::sys::{QpParts, RawAh, RawContext, RawCq, RawMr, RawPd, RawQp, RawSrq};
use crate::{address, own};
use ferroce_abi::types::{ibv_qp_cap, value};
use ferroce_verbs::provider::{AhOps, ContextOps, MrOps, PdOps, QpOps, SrqOps, check_range};
use ferroce_verbs::{Access, AhAttr, Error, LinkLayer, QpInitAttr, Region, Result, SrqInitAttr};
use std::sync::Arc;

/// A protection domain.
pub(crate) struct RdmaPd {
    pub(crate) raw: Arc<RawPd>,
    pub(crate) context: Arc<RdmaContext>,
}

impl RdmaPd {
    pub(crate) fn new(context: Arc<RdmaContext>) -> Result<Self> {
        Ok(Self { raw: Arc::new(RawPd::new(context.raw.clone())?), context })
    }
}

impl PdOps for RdmaPd {
    fn reg_mr(self: Arc<Self>, region: Region, access: Access) -> Result<Arc<dyn MrOps>> {
        Ok(Arc::new(RdmaMr { raw: RawMr::new(self.raw.clone(), region, access.bits())?, access }))
    }

    fn create_ah(self: Arc<Self>, attr: &AhAttr) -> Result<Arc<dyn AhOps>> {
        let before = self.context.link_layer(attr);
        let raw = RawAh::new(self.raw.clone(), address::to_abi(attr)?)?;
        let link = settled(before, || self.context.link_layer(attr));
        Ok(Arc::new(RdmaAh { raw, attr: *attr, link, pd: self }))
    }

    fn create_srq(self: Arc<Self>, attr: &SrqInitAttr) -> Result<Arc<dyn SrqOps>> {
        let device = &self.context.attr;
        check_range("max_wr", attr.max_wr, 1, limit(device.max_srq_wr))?;
        check_range("max_sge", attr.max_sge, 0, limit(device.max_srq_sge))?;
        let raw = Arc::new(RawSrq::new(self.raw.clone(), attr.max_wr, attr.max_sge)?);
        // It may have more room than was asked for.
        let real = raw.query()?;
        let srq = Arc::new(RdmaSrq { raw, max_wr: real.max_wr, max_sge: real.max_sge, context: self.context.clone() });
        srq.context.registry.srqs.insert(srq.raw.id(), &srq);
        Ok(srq)
    }

    fn create_qp(self: Arc<Self>, attr: &QpInitAttr) -> Result<Arc<dyn QpOps>> {
        let (device, cap) = (&self.context.attr, &attr.cap);
        check_range("max_send_wr", cap.max_send_wr, 0, limit(device.max_qp_wr))?;
        check_range("max_recv_wr", cap.max_recv_wr, 0, limit(device.max_qp_wr))?;
        check_range("max_send_sge", cap.max_send_sge, 0, limit(device.max_sge))?;
        check_range("max_recv_sge", cap.max_recv_sge, 0, limit(device.max_sge))?;
        let srq = match &attr.srq {
            Some(srq) => Some(own::<RdmaSrq>(srq.ops().clone().into_any(), "srq")?),
            None => None,
        };
        if srq.as_ref().is_some_and(|srq| !Arc::ptr_eq(srq.raw.pd(), &self.raw)) {
            return Err(Error::invalid("srq", "it belongs to another protection domain"));
        }
        let send_cq = own(attr.send_cq.ops().clone().into_any(), "send_cq")?;
        let recv_cq = own(attr.recv_cq.ops().clone().into_any(), "recv_cq")?;
        Ok(RdmaQp::new(self, attr, send_cq, recv_cq, srq)?)
    }

    fn context(&self) -> Arc<dyn ContextOps> {
        self.context.clone()
    }
}

/// What an address handle has on the link layer that was made after `before` was so. A change since then is one to whoever watches,
/// as it is to another than what is said here. That the neighbour answers for the first time is none: what the kernel has then is what
/// it found out for the handle.
fn settled(before: Option<LinkLayer>, now: impl FnOnce() -> Option<LinkLayer>) -> Option<LinkLayer> {
    let before = before?;
    if before.mac.is_some() {
        return Some(before);
    }
    let is_same_way = |now: &LinkLayer| (now.ifindex, now.next_hop) == (before.ifindex, before.next_hop);
    Some(now().filter(is_same_way).unwrap_or(before))
}

/// The most bytes of inline data. The library has no question for it, so queue pairs are made until one can be. Fails if that says nothing.
pub(crate) fn most_inline(context: &Arc<RawContext>) -> Result<u32> {
    const SIZES: [u32; 11] = [1024, 512, 476, 400, 256, 220, 128, 96, 64, 32, 0];
    let pd = Arc::new(RawPd::new(context.clone())?);
    let cq = Arc::new(RawCq::new(context.clone(), 2, None, 0)?);
    let mut refused = Error::Unsupported { what: "a queue pair of RC", by: "the device" };
    for max_inline_data in SIZES {
        let cap = ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data };
        let parts = QpParts {
            pd: pd.clone(),
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap,
            qp_type: value::IBV_QPT_RC,
            sq_sig_all: false,
        };
        match RawQp::new(parts) {
            // What it really has may be more, but only for queue pairs of this shape.
            Ok(_) => return Ok(max_inline_data),
            // Too much, or of something else: memory, queue pairs, the device.
            Err(error) if is_refusal(&error) => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Os { source, .. } if source.raw_os_error() == Some(libc::EINVAL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn link(last: u8, mac: Option<u8>) -> Option<LinkLayer> {
        let next_hop = Ipv4Addr::new(10, 0, 0, last).into();
        Some(LinkLayer { ifindex: 2, next_hop, mac: mac.map(|mac| [mac; 6]) })
    }

    #[test]
    fn what_changed_while_a_handle_was_made_counts_as_it_was_before() {
        let unknown = Some(LinkLayer::UNKNOWN);
        for (before, now, settled) in [
            (link(1, Some(7)), link(1, Some(8)), link(1, Some(7))),
            (link(1, None), link(1, Some(8)), link(1, Some(8))),
            (link(1, None), link(2, Some(8)), link(1, None)),
            (link(1, None), unknown, link(1, None)),
            (link(1, None), None, link(1, None)),
            (unknown, link(1, Some(8)), unknown),
            (None, link(1, Some(8)), None),
        ] {
            assert_eq!(super::settled(before, || now), settled);
        }
    }
}
