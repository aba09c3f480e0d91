use crate::channel::RdmaChannel;
use crate::context::{RdmaContext, limit};
use crate::convert;
use crate::drain::{Drains, ROOM};
use crate::sys::RawCq;
use ferroce_abi::types::ibv_wc;
use ferroce_verbs::provider::CqOps;
use ferroce_verbs::{Error, QpType, Result, WcFlags, WorkCompletion};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A completion queue.
pub(crate) struct RdmaCq {
    pub(crate) raw: Arc<RawCq>,
    pub(crate) context: Arc<RdmaContext>,
    channel: Option<Arc<RdmaChannel>>,
    /// Dropped before the queue, like all that uses it.
    pub(crate) drains: Drains,
    /// Entries beyond those for markers.
    cqe: u32,
    /// Which kinds of queue pairs it has been made the queue of.
    datagrams: AtomicBool,
    connected: AtomicBool,
}

impl RdmaCq {
    pub(crate) fn new(context: Arc<RdmaContext>, cqe: u32, channel: Option<Arc<RdmaChannel>>) -> Result<Arc<Self>> {
        let most = limit(context.attr.max_cqe);
        if !(1..=most).contains(&cqe) {
            return Err(Error::invalid("cqe", format!("{cqe} is not in 1..={most}")));
        }
        let on = channel.as_ref().map(|channel| channel.raw.clone());
        // At the device's limit there are none for markers, and a marker may then be one too many: so none is posted.
        let room = ROOM.min(most - cqe);
        let raw = Arc::new(RawCq::new(context.raw.clone(), cqe + room, on, context.next_vector())?);
        let cqe = raw.entries().saturating_sub(room);
        let cq = Arc::new(Self {
            raw,
            context,
            channel,
            drains: Drains::new(room),
            cqe,
            datagrams: AtomicBool::new(false),
            connected: AtomicBool::new(false),
        });
        cq.context.registry.cqs.insert(cq.raw.id(), &cq);
        if let Some(channel) = &cq.channel {
            channel.cqs.insert(cq.raw.id(), &cq);
        }
        Ok(cq)
    }

    /// A queue pair of this type is going to complete here.
    pub(crate) fn serve(&self, qp_type: QpType) {
        let kind = if qp_type == QpType::Ud { &self.datagrams } else { &self.connected };
        kind.store(true, Ordering::Relaxed);
    }

    /// Whether the sign that a receive begins with a GRH is true. Devices also give it for connections whose packets have one, though the
    /// buffer does not (IBTA 11.4.2.1).
    #[inline]
    fn has_grh(&self, qp_num: u32) -> bool {
        if !self.datagrams.load(Ordering::Relaxed) {
            return false;
        }
        !self.connected.load(Ordering::Relaxed) || {
            let qp = self.context.registry.numbers.get(&qp_num);
            qp.is_none_or(|qp| qp.is_datagram())
        }
    }

    /// Looks at what may be more than a completion: the sign of a queue pair that failed, or the last of one that is gone.
    #[cold]
    fn is_marker(&self, wc: &ibv_wc) -> bool {
        if wc.status != 0
            && let Some(qp) = self.context.registry.numbers.get(&wc.qp_num)
        {
            qp.failed();
        }
        self.drains.any() && self.drains.take(wc)
    }
}

impl Drop for RdmaCq {
    fn drop(&mut self) {
        self.context.registry.cqs.remove(&self.raw.id());
        if let Some(channel) = &self.channel {
            channel.cqs.remove(&self.raw.id());
        }
    }
}

impl CqOps for RdmaCq {
    #[inline]
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        let mut done = 0;
        let draining = self.drains.any();
        while done < out.len() {
            let most = out.len() - done;
            let got = self.raw.poll(most, |wc| {
                if (wc.status != 0 || draining) && self.is_marker(wc) {
                    return;
                }
                let place = &mut out[done];
                *place = convert::completion(wc);
                if place.flags.contains(WcFlags::GRH) && !self.has_grh(wc.qp_num) {
                    place.flags.remove(WcFlags::GRH);
                }
                done += 1;
            })?;
            if got < most.min(crate::sys::CQ_BATCH) {
                break;
            }
        }
        Ok(done)
    }

    fn req_notify(&self, solicited_only: bool) -> Result<()> {
        self.raw.req_notify(solicited_only)
    }

    fn cqe(&self) -> u32 {
        self.cqe
    }
}
