//! Bandwidth and message rate: the client keeps the send queues full.

use super::endpoint::Endpoint;
use super::lane::{SendLane, decode};
use super::plan::Plan;
use crate::completions::BATCH;
use crate::failure::{Failure, Result};
use crate::monitor::{self, Halt, Monitor};
use ferroce::{SendOp, WorkCompletion};
use std::time::Duration;

/// What the client streams over all queue pairs.
pub(crate) struct Stream<'a> {
    endpoint: &'a Endpoint,
    lanes: Vec<SendLane<'a>>,
    idle: Duration,
}

impl<'a> Stream<'a> {
    pub(crate) fn new(
        endpoint: &'a Endpoint,
        plan: &Plan,
        op: SendOp,
        data: ferroce::Data<'a>,
        idle: Duration,
    ) -> Self {
        let lane = |(at, qp)| SendLane::new(qp, at, plan, op, data);
        Self { endpoint, lanes: endpoint.qps.iter().enumerate().map(lane).collect(), idle }
    }

    /// Sends `total` messages, or as many as it can until the time is up; returns how many and how long it took, from the
    /// first post to the last completion.
    pub(crate) fn run(&mut self, total: Option<u64>, monitor: &Monitor) -> Result<(u64, Duration)> {
        let (count, mut timed) = (self.lanes.len() as u64, total.is_none());
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            lane.restart(total.map_or(u64::MAX, |total| total / count + u64::from((at as u64) < total % count)));
        }
        let mut wcs = [WorkCompletion::default(); BATCH];
        let (mut done, mut open) = (0, self.lanes.iter().filter(|lane| !lane.is_done()).count());
        let started = monitor.begin();
        for lane in &mut self.lanes {
            lane.top_up()?;
        }
        while open > 0 {
            let taken = self.endpoint.completions.take(&mut wcs)?;
            for wc in &wcs[..taken] {
                if !wc.is_ok() {
                    return Err(Failure::completion("a work request", wc));
                }
                let (at, count) = decode(wc.wr_id);
                let lane = &mut self.lanes[at];
                lane.complete(count);
                done += count;
                lane.top_up()?;
                open -= usize::from(lane.is_done());
            }
            if taken > 0 {
                monitor.set_done(done);
            }
            match monitor.halt() {
                Halt::Running => {}
                Halt::TimeUp if timed => {
                    timed = false;
                    for lane in &mut self.lanes {
                        lane.finish();
                        lane.top_up()?;
                    }
                    open = self.lanes.iter().filter(|lane| !lane.is_done()).count();
                }
                _ => monitor::check(monitor, self.idle, "completions")?,
            }
        }
        let elapsed = started.elapsed();
        Ok((self.lanes.iter().map(SendLane::posted).sum(), elapsed))
    }
}
