//! What the client does around every measurement, whatever is measured: it warms up, watches, and breaks off.

use super::latency::{RoundTrip, drive};
use super::plan::Plan;
use super::result::Run;
use crate::failure::{Failure, Result};
use crate::monitor::{Halt, Monitor, idle_failure};
use crate::progress::Progress;
use std::time::Duration;

/// A plan, and how long the peer may be silent.
pub(crate) struct Timing<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) monitor: Monitor,
    pub(crate) idle: Duration,
}

impl Timing<'_> {
    fn progress(&self, size: u32, what: &str) -> Progress {
        let label = format!("{} {} {size} bytes{what}", self.plan.op.name(), self.plan.mode.name());
        Progress::new(label, self.plan.iters)
    }

    pub(crate) fn round_trips<T: RoundTrip>(&self, size: u32, warmup: u64, trip: &mut T) -> Result<Run> {
        self.warm(size, |monitor| self.unbroken(drive(trip, Some(warmup), monitor)?, monitor).map(|_| ()))?;
        let (histogram, elapsed) =
            self.timed(size, |monitor| self.unbroken(drive(trip, self.plan.iters, monitor)?, monitor))?;
        Ok(Run { messages: histogram.len(), elapsed, round_trips: Some(histogram) })
    }

    fn unbroken<T>(&self, outcome: Option<T>, monitor: &Monitor) -> Result<T> {
        outcome.ok_or_else(|| match monitor.halt() {
            Halt::Idle => idle_failure(self.idle, "the answer"),
            _ => Failure::broken_off("the answer"),
        })
    }

    /// What is done before anything counts.
    pub(crate) fn warm(&self, size: u32, run: impl FnOnce(&Monitor) -> Result<()>) -> Result<()> {
        let _watch = self.monitor.watch(None, self.idle, self.progress(size, ", warming up"));
        run(&self.monitor)
    }

    /// What counts.
    pub(crate) fn timed<T>(&self, size: u32, run: impl FnOnce(&Monitor) -> Result<T>) -> Result<T> {
        tracing::debug!(size, "measuring");
        let duration = self.plan.iters.is_none().then(|| Duration::from_millis(self.plan.duration_ms));
        let watch = self.monitor.watch(duration, self.idle, self.progress(size, ""));
        let outcome = run(&self.monitor);
        drop(watch);
        self.monitor.withdraw(Halt::TimeUp);
        outcome
    }
}
