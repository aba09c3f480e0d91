//! What came of the exchange, in the words of the C programs or as JSON.

use super::Plan;
use super::address::Address;
use crate::args::Link;
use crate::failure::Result;
use crate::report::{self, rounded};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The times between receive completions.
#[derive(Debug, Default)]
pub(crate) struct Intervals {
    last: Option<Instant>,
    count: u32,
    total: Duration,
    max: Duration,
    min: Option<Duration>,
}

impl Intervals {
    pub(crate) fn record(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let interval = now - last;
            self.count += 1;
            self.total += interval;
            self.max = self.max.max(interval);
            self.min = Some(self.min.map_or(interval, |min| min.min(interval)));
        }
    }

    fn summary(&self) -> IntervalSummary {
        IntervalSummary {
            min: self.min.unwrap_or_default().as_nanos() as u64,
            mean: (self.total.as_nanos() / u128::from(self.count.max(1))) as u64,
            max: self.max.as_nanos() as u64,
        }
    }
}

#[derive(Debug, Serialize)]
struct IntervalSummary {
    min: u64,
    mean: u64,
    max: u64,
}

/// What came of the exchange.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) seconds: f64,
    pub(crate) received: u64,
    pub(crate) intervals: Option<Intervals>,
    pub(crate) last_ack_lost: bool,
}

#[derive(Serialize)]
struct Document<'a> {
    transport: &'static str,
    role: &'static str,
    link: Link,
    size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    iterations: u64,
    events: bool,
    local: &'a [Address],
    remote: &'a [Address],
    bytes: u64,
    seconds: f64,
    mbit_per_s: f64,
    usec_per_iter: f64,
    /// Messages whose every byte was compared.
    messages_checked: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    receive_interval_ns: Option<IntervalSummary>,
    last_ack_lost: bool,
}

impl Outcome {
    pub(crate) fn report(
        &self,
        plan: &Plan,
        json: bool,
        link: Link,
        mine: &[Address],
        peers: &[Address],
    ) -> Result<()> {
        let bytes = u64::from(plan.size).saturating_mul(plan.iters).saturating_mul(2);
        let usec = self.seconds * 1e6;
        let (mbit_per_s, usec_per_iter) = (bytes as f64 * 8.0 / usec, usec / plan.iters as f64);
        let intervals = self.intervals.as_ref().map(Intervals::summary);
        let checked = if plan.check { self.received } else { 0 };
        if self.last_ack_lost {
            eprintln!("note: the last message was not acknowledged; the peer had most likely finished and gone");
        }
        if json {
            return report::json(&Document {
                transport: plan.name,
                role: if plan.client { "client" } else { "server" },
                link,
                size: plan.size,
                mtu: plan.mtu.map(ferroce::Mtu::bytes),
                iterations: plan.iters,
                events: plan.events,
                local: mine,
                remote: peers,
                bytes,
                seconds: self.seconds,
                mbit_per_s: rounded(mbit_per_s),
                usec_per_iter: rounded(usec_per_iter),
                messages_checked: checked,
                receive_interval_ns: intervals,
                last_ack_lost: self.last_ack_lost,
            });
        }
        let seconds = self.seconds;
        report::text_line(&format!("{bytes} bytes in {seconds:.2} seconds = {mbit_per_s:.2} Mbit/sec"))?;
        report::text_line(&format!("{} iters in {seconds:.2} seconds = {usec_per_iter:.2} usec/iter", plan.iters))?;
        if let Some(IntervalSummary { min, mean, max }) = intervals {
            report::text_line(&format!(
                "receive completions {mean} ns apart on average, {min} at least, {max} at most"
            ))?;
        }
        if plan.check {
            report::text_line(&format!("{checked} messages checked, all correct"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_between_completions() {
        let mut intervals = Intervals::default();
        let start = Instant::now();
        for micros in [0, 10, 40, 60] {
            intervals.record(start + Duration::from_micros(micros));
        }
        let summary = intervals.summary();
        assert_eq!((summary.min, summary.mean, summary.max), (10_000, 20_000, 30_000));
    }
}
