//! The exchange itself: each queue pair sends its next message when its last one is complete and one has come back.

use super::Plan;
use super::endpoint::{Endpoint, QKEY, RECV, SEND};
use super::outcome::{Intervals, Outcome};
use crate::completions::BATCH;
use crate::failure::{Failure, Result};
use crate::monitor::{self, Monitor};
use crate::progress::Progress;
use ferroce::{Ah, Data, QpType, SendOp, SendWr, UdDest, WcStatus, WorkCompletion};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// For how long a reliable end stays after the exchange: the last acknowledgement may have been lost, and the peer then
/// asks again after its local ACK timeout of 67 ms.
const LINGER: Duration = Duration::from_millis(250);

pub(crate) struct Exchange {
    endpoint: Endpoint,
    /// Where datagrams go.
    dests: Vec<(Ah, u32)>,
    /// Which queue pair has which number.
    index: HashMap<u32, usize>,
    /// What each queue pair waits for: bits of `RECV` and `SEND`.
    pending: Vec<u64>,
    /// Receives that are posted and not yet consumed.
    posted_receives: u32,
    sent: u64,
    received: u64,
    intervals: Option<Intervals>,
    last_ack_lost: bool,
}

impl Exchange {
    pub(crate) fn new(endpoint: Endpoint, dests: Vec<(Ah, u32)>) -> Result<Self> {
        let index = endpoint.qps.iter().enumerate().map(|(at, qp)| (qp.qp_num(), at)).collect();
        let pending = vec![RECV; endpoint.qps.len()];
        let posted_receives = endpoint.rx_depth;
        Ok(Self {
            endpoint,
            dests,
            index,
            pending,
            posted_receives,
            sent: 0,
            received: 0,
            intervals: None,
            last_ack_lost: false,
        })
    }

    /// Exchanges what `plan` says.
    pub(crate) fn run(mut self, plan: &Plan) -> Result<Outcome> {
        self.intervals = plan.intervals.then(Intervals::default);
        let monitor = Monitor::default();
        let _watch = monitor.watch(None, plan.idle, Progress::new(format!("pingpong {}", plan.name), Some(plan.iters)));
        if plan.client {
            for at in 0..self.endpoint.qps.len() {
                self.send(at)?;
            }
        }
        let mut wcs = [WorkCompletion::default(); BATCH];
        tracing::debug!("exchanging");
        let started = Instant::now();
        while !self.is_complete(plan) {
            let taken = self.endpoint.completions.take(&mut wcs)?;
            if taken == 0 {
                monitor::check(&monitor, plan.idle, "the peer's next message")
                    .map_err(|failure| lost(plan, failure))?;
                continue;
            }
            for wc in &wcs[..taken] {
                // What is still under way may fail: the peer leaves as soon as it has what it waits for.
                if self.is_complete(plan) {
                    break;
                }
                if self.is_last_ack_lost(plan, wc) {
                    self.last_ack_lost = true;
                    self.sent = plan.iters;
                } else {
                    self.completed(plan, wc)?;
                }
            }
            monitor.set_done(self.sent + self.received);
        }
        let elapsed = started.elapsed();
        if plan.qp_type == QpType::Rc {
            std::thread::sleep(LINGER);
        }
        Ok(Outcome {
            seconds: elapsed.as_secs_f64(),
            received: self.received,
            intervals: self.intervals,
            last_ack_lost: self.last_ack_lost,
        })
    }

    fn is_complete(&self, plan: &Plan) -> bool {
        self.received >= plan.iters && self.sent >= plan.iters
    }

    /// Whether all that is missing is the acknowledgement of the last message. A C program closes its queue pair as soon
    /// as it has what it waits for; if its last acknowledgement is lost then, nobody is there to repeat it.
    fn is_last_ack_lost(&self, plan: &Plan, wc: &WorkCompletion) -> bool {
        plan.qp_type == QpType::Rc
            && wc.wr_id == SEND
            && wc.status == WcStatus::RetryExcErr
            && self.received >= plan.iters
            && self.sent + 1 == plan.iters
    }

    fn completed(&mut self, plan: &Plan, wc: &WorkCompletion) -> Result<()> {
        if !wc.is_ok() {
            let what = if wc.wr_id == SEND { "a send" } else { "a receive" };
            return Err(Failure::completion(what, wc).during(format!(
                "after {} of {} messages sent and {} received",
                self.sent, plan.iters, self.received
            )));
        }
        let Some(&at) = self.index.get(&wc.qp_num) else {
            return Err(Failure::run(format!(
                "the device reports a completion of queue pair {:#08x}, which is not ours",
                wc.qp_num
            )));
        };
        match wc.wr_id {
            SEND => self.sent += 1,
            _ => self.message_arrived(plan, wc)?,
        }
        self.pending[at] &= !wc.wr_id;
        if self.sent < plan.iters && self.pending[at] == 0 {
            self.send(at)?;
        }
        Ok(())
    }

    fn message_arrived(&mut self, plan: &Plan, wc: &WorkCompletion) -> Result<()> {
        self.received += 1;
        if let Some(intervals) = &mut self.intervals {
            intervals.record(Instant::now());
        }
        let expected = self.endpoint.data.recv_sge()?.length;
        if wc.byte_len != expected {
            return Err(Failure::run(format!(
                "message {} has {} bytes in place of {expected}",
                self.received, wc.byte_len
            ))
            .hint("give both ends the same --size"));
        }
        self.endpoint.data.check(self.received, self.pending.len() == 1)?;
        self.posted_receives -= 1;
        // The C programs refill when as few receives are left as there are queue pairs.
        if self.posted_receives as usize <= self.pending.len() {
            self.endpoint.post_receives(plan.rx_depth - self.posted_receives)?;
            self.posted_receives = plan.rx_depth;
        }
        Ok(())
    }

    fn send(&mut self, at: usize) -> Result<()> {
        let sges = [self.endpoint.data.send_sge()?];
        let qp = self.endpoint.qps[at].clone();
        let data = if self.endpoint.inline { Data::Inline(self.endpoint.data.outgoing()?) } else { Data::Sges(&sges) };
        let ud = self.dests.get(at).map(|(ah, qpn)| UdDest { ah, qpn: *qpn, qkey: QKEY });
        let wr = SendWr { data, ud, ..SendWr::new(SEND, SendOp::Send, &sges) };
        qp.post_send(&[wr]).map_err(|error| Failure::from(error).during("posting a send"))?;
        self.pending[at] = RECV | SEND;
        Ok(())
    }
}

/// What silence means for each kind.
fn lost(plan: &Plan, failure: Failure) -> Failure {
    match plan.qp_type {
        QpType::Rc => failure,
        QpType::Uc | QpType::Ud => failure.hint(format!(
            "{} does not repeat what is lost: a lost message, a peer that ended, or a --size that differs ends the exchange",
            plan.qp_type
        )),
    }
}
