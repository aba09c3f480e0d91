use crate::channel::RdmaChannel;
use crate::context::{RdmaContext, limit};
use crate::convert;
use crate::sys::RawCq;
use ferroce_abi::types::ibv_wc;
use ferroce_verbs::provider::CqOps;
use ferroce_verbs::{Error, Result, WorkCompletion};
use std::sync::Arc;

/// A completion queue.
pub(crate) struct RdmaCq {
    pub(crate) raw: Arc<RawCq>,
    pub(crate) context: Arc<RdmaContext>,
    channel: Option<Arc<RdmaChannel>>,
}

impl RdmaCq {
    pub(crate) fn new(context: Arc<RdmaContext>, cqe: u32, channel: Option<Arc<RdmaChannel>>) -> Result<Arc<Self>> {
        let most = limit(context.attr.max_cqe);
        if !(1..=most).contains(&cqe) {
            return Err(Error::invalid("cqe", format!("{cqe} is not in 1..={most}")));
        }
        let on = channel.as_ref().map(|channel| channel.raw.clone());
        let raw = Arc::new(RawCq::new(context.raw.clone(), cqe, on, context.next_vector())?);
        let cq = Arc::new(Self { raw, context, channel });
        cq.context.registry.cqs.insert(cq.raw.id(), &cq);
        if let Some(channel) = &cq.channel {
            channel.cqs.insert(cq.raw.id(), &cq);
        }
        Ok(cq)
    }

    /// A request failed, and with it maybe its queue pair.
    #[cold]
    fn failed(&self, wc: &ibv_wc) {
        if let Some(qp) = self.context.registry.numbers.get(&wc.qp_num) {
            qp.failed();
        }
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
        while done < out.len() {
            let most = out.len() - done;
            let got = self.raw.poll(most, |wc| {
                if wc.status != 0 {
                    self.failed(wc);
                }
                out[done] = convert::completion(wc);
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
        self.raw.entries()
    }
}
