use crate::DeviceGone;
use crate::channel::RdmaChannel;
use crate::context::RdmaContext;
use crate::convert;
use crate::drain::{Drains, Rounds};
use crate::flags::{CONNECTED, FAILED};
use crate::sys::{CQ_BATCH, PollFailed, RawCq};
use ferroce_abi::types::ibv_wc;
use ferroce_verbs::provider::CqOps;
use ferroce_verbs::{Error, QpType, Result, WcFlags, WorkCompletion};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The completion queue cannot be read any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the completion queue is broken: its provider found an entry that it cannot read and answered {returned} (it was overrun, or the device \
     failed); drop it and the queue pairs that complete on it"
)]
pub struct CqBroken {
    /// What the provider returned. It need not be an error number.
    pub returned: i32,
}

/// A completion queue.
pub(crate) struct RdmaCq {
    pub(crate) raw: Arc<RawCq>,
    pub(crate) context: Arc<RdmaContext>,
    channel: Option<Arc<RdmaChannel>>,
    rounds: Arc<Rounds>,
    /// Entries beyond those for markers.
    cqe: u32,
    /// Which kinds of queue pairs it has been made the queue of.
    datagrams: AtomicBool,
    connected: AtomicBool,
    /// What a poll failed with that had taken something before; 0 if none.
    failed: AtomicI32,
}

impl RdmaCq {
    pub(crate) fn new(context: Arc<RdmaContext>, cqe: u32, channel: Option<Arc<RdmaChannel>>) -> Result<Arc<Self>> {
        let most = context.max_cqe();
        if !(1..=most).contains(&cqe) {
            return Err(Error::invalid("cqe", format!("{cqe} is not in 1..={most}")));
        }
        let on = channel.as_ref().map(|channel| channel.raw.clone());
        let room = context.marker_room();
        let raw = Arc::new(RawCq::new(context.raw.clone(), cqe + room, on, context.next_vector())?);
        let entries = raw.entries();
        let cq = Arc::new(Self {
            rounds: Arc::new(Rounds::new(entries)),
            raw,
            context,
            channel,
            cqe: entries.saturating_sub(room),
            datagrams: AtomicBool::new(false),
            connected: AtomicBool::new(false),
            failed: AtomicI32::new(0),
        });
        cq.context.registry.cqs.insert(cq.raw.id(), &cq);
        cq.context.drains.add_cq(cq.raw.id(), room, cq.rounds.clone());
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
        self.datagrams.load(Ordering::Relaxed)
            && (!self.connected.load(Ordering::Relaxed) || !self.context.flags.has(qp_num, CONNECTED))
    }

    /// Looks at what may be more than a completion: the sign of a queue pair that failed, or the last of one that is gone.
    #[cold]
    fn is_marker(&self, wc: &ibv_wc) -> bool {
        if wc.status != 0 {
            self.context.flags.set(wc.qp_num, FAILED);
        }
        self.context.drains.is_marker(wc.qp_num, wc.wr_id)
    }

    /// Notes that so many completions of a queue pair were polled, none of which is a failure: see [`crate::posted`].
    #[inline]
    fn count(&self, qp_num: u32, count: u32) {
        if count != 0 {
            self.context.flags.completed(qp_num, count);
        }
    }

    #[cold]
    fn broken(&self, returned: i32) -> Error {
        self.context.drains.cq_failed(self.raw.id());
        if self.context.raw.is_gone() { DeviceGone.into() } else { Error::Device(Box::new(CqBroken { returned })) }
    }
}

impl Drop for RdmaCq {
    fn drop(&mut self) {
        self.context.drains.remove_cq(self.raw.id());
        self.context.registry.cqs.remove(&self.raw.id());
        if let Some(channel) = &self.channel {
            channel.cqs.remove(&self.raw.id());
        }
    }
}

impl CqOps for RdmaCq {
    #[inline]
    fn poll(&self, out: &mut [WorkCompletion]) -> Result<usize> {
        if self.failed.load(Ordering::Relaxed) != 0 {
            return Err(self.broken(self.failed.swap(0, Ordering::Relaxed)));
        }
        let counts = self.connected.load(Ordering::Relaxed);
        let mut done = 0;
        while done < out.len() {
            // A run of completions of one queue pair.
            let (mut qp_num, mut count) = (0, 0);
            let most = (out.len() - done).min(CQ_BATCH);
            let round = self.rounds.poll();
            let (got, failed) = self.raw.poll(most, |wc| {
                if (wc.status != 0 || Drains::may_be_marker(wc.wr_id)) && self.is_marker(wc) {
                    return;
                }
                let place = &mut out[done];
                *place = convert::completion(wc);
                if place.flags.contains(WcFlags::GRH) && !self.has_grh(wc.qp_num) {
                    place.flags.remove(WcFlags::GRH);
                }
                done += 1;
                if counts && wc.status == 0 {
                    if wc.qp_num != qp_num {
                        self.count(qp_num, count);
                        (qp_num, count) = (wc.qp_num, 0);
                    }
                    count += 1;
                }
            });
            self.count(qp_num, count);
            if let Some(began) = round
                && let Some(round) = self.rounds.took(began, got, got < most)
            {
                self.context.drains.round_over(self.raw.id(), round);
            }
            if let Some(PollFailed(returned)) = failed {
                if done == 0 {
                    return Err(self.broken(returned));
                }
                // What was taken first: it does not come again.
                self.failed.store(returned, Ordering::Relaxed);
                break;
            }
            if got < most {
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
