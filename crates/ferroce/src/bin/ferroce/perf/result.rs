//! What was measured, as JSON and as a table.

use super::plan::{Mode, Op, Plan};
use super::transport::Transport;
use crate::args::Link;
use crate::failure::Result;
use crate::report::{self, Table, figure, grouped, rounded};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A latency distribution in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Latency {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Latency {
    /// From round trips in nanoseconds, of which `parts` make one latency.
    pub(crate) fn of(round_trips: &Histogram<u64>, parts: f64) -> Self {
        let micros = |nanos: f64| rounded(nanos / 1000.0 / parts);
        Self {
            mean: micros(round_trips.mean()),
            p50: micros(round_trips.value_at_quantile(0.5) as f64),
            p99: micros(round_trips.value_at_quantile(0.99) as f64),
            p999: micros(round_trips.value_at_quantile(0.999) as f64),
            max: micros(round_trips.max() as f64),
        }
    }
}

/// What was measured of one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) op: Op,
    pub(crate) mode: Mode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) transport: Option<Transport>,
    pub(crate) size: u32,
    pub(crate) link: Link,
    pub(crate) iterations: u64,
    pub(crate) seconds: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latency_us: Option<Latency>,
    /// `half_round_trip` or `round_trip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latency_of: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mb_per_s: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) msgs_per_s: Option<f64>,
    pub(crate) qps: u32,
    pub(crate) depth: u32,
    pub(crate) mtu: u32,
}

/// What one size came to, before it is put into figures.
pub(crate) struct Run {
    pub(crate) messages: u64,
    pub(crate) elapsed: Duration,
    pub(crate) round_trips: Option<Histogram<u64>>,
}

impl Measurement {
    /// The figures of a run.
    pub(crate) fn of(plan: &Plan, size: u32, link: Link, mtu: u32, run: &Run) -> Self {
        let seconds = run.elapsed.as_secs_f64();
        let parts = if plan.op.both_ends() { 2.0 } else { 1.0 };
        let of = if plan.op.both_ends() { "half_round_trip" } else { "round_trip" };
        let rate = run.messages as f64 / seconds;
        let streamed = plan.mode != Mode::Lat;
        Self {
            op: plan.op,
            mode: plan.mode,
            transport: plan.transport,
            size,
            link,
            iterations: run.messages,
            seconds: rounded(seconds),
            latency_us: run.round_trips.as_ref().map(|histogram| Latency::of(histogram, parts)),
            latency_of: run.round_trips.is_some().then(|| of.into()),
            mb_per_s: streamed.then(|| rounded(rate * f64::from(size) / 1e6)),
            msgs_per_s: streamed.then(|| rounded(rate)),
            qps: plan.qps,
            depth: plan.depth,
            mtu,
        }
    }

    /// What was measured, and by what.
    fn what(&self) -> String {
        match self.transport {
            Some(transport) => format!("{} {}", transport.name(), self.op.name()),
            None => self.op.name().into(),
        }
    }
}

/// One object, or a list if there are several sizes.
pub(crate) fn print_json(measurements: &[Measurement]) -> Result<()> {
    match measurements {
        [one] => report::json(one),
        several => report::json(&several),
    }
}

pub(crate) fn print_table(measurements: &[Measurement]) -> Result<()> {
    let Some(first) = measurements.first() else { return Ok(()) };
    let text = match first.mode {
        Mode::Lat => {
            let of = if first.op.both_ends() { "half round trip" } else { "round trip" };
            let mut table = Table::new(&["bytes", "iterations", "mean", "p50", "p99", "p99.9", "max"]);
            for one in measurements {
                let Some(Latency { mean, p50, p99, p999, max }) = one.latency_us else { continue };
                let micros = [mean, p50, p99, p999, max].map(figure);
                table.row([one.size.to_string(), grouped(one.iterations)].into_iter().chain(micros));
            }
            format!("{} latency in µs ({of}), link {}\n{}", first.what(), first.link, table.render())
        }
        Mode::Bw | Mode::Rate => {
            let mut table = Table::new(&["bytes", "iterations", "MB/s", "messages/s"]);
            for one in measurements {
                table.row([
                    one.size.to_string(),
                    grouped(one.iterations),
                    figure(one.mb_per_s.unwrap_or(0.0)),
                    figure(one.msgs_per_s.unwrap_or(0.0)),
                ]);
            }
            let what = if first.mode == Mode::Bw { "bandwidth" } else { "message rate" };
            format!("{} {what}, link {}\n{}", first.what(), first.link, table.render())
        }
    };
    report::text_line(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_is_half_a_round_trip_where_both_ends_send() {
        let mut round_trips = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        for nanos in [1000, 2000, 3000] {
            round_trips.record(nanos).unwrap();
        }
        let half = Latency::of(&round_trips, 2.0);
        assert!((half.mean - 1.0).abs() < 0.002, "{half:?}");
        assert!((half.p50 - 1.0).abs() < 0.002, "{half:?}");
        assert!((Latency::of(&round_trips, 1.0).max - 3.0).abs() < 0.005);
    }

    #[test]
    fn json_has_what_applies() {
        let one = Measurement {
            op: Op::Send,
            mode: Mode::Rate,
            transport: None,
            size: 8,
            link: Link::Shm,
            iterations: 10,
            seconds: 1.0,
            latency_us: None,
            latency_of: None,
            mb_per_s: Some(1.5),
            msgs_per_s: Some(2.5),
            qps: 1,
            depth: 256,
            mtu: 4096,
        };
        let json = serde_json::to_value(&one).unwrap();
        assert_eq!(
            (json["op"].as_str(), json["mode"].as_str(), json["link"].as_str()),
            (Some("send"), Some("rate"), Some("shm"))
        );
        assert!(json.get("latency_us").is_none());
        assert_eq!(json["msgs_per_s"].as_f64(), Some(2.5));
    }
}
