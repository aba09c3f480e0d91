//! What runs came to: tables for people, one JSON document for programs.

use super::memory::{Halves, Taken};
use super::plan::{Nic, Plan, Policy, Setup};
use crate::args::Link;
use crate::report::{Table, figure, grouped, rounded};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What should be gone and is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leaked {
    pub(super) ids: u64,
    /// Connections of the protocol.
    pub(super) connections: u64,
    /// Events that nobody read.
    pub(super) events: u64,
    pub(super) qps: u64,
    pub(super) ahs: u64,
    pub(super) mrs: u64,
}

impl Leaked {
    pub(super) const fn total(&self) -> u64 {
        self.ids + self.connections + self.events + self.qps + self.ahs + self.mrs
    }

    fn plus(self, other: Self) -> Self {
        Self {
            ids: self.ids + other.ids,
            connections: self.connections + other.connections,
            events: self.events + other.events,
            qps: self.qps + other.qps,
            ahs: self.ahs + other.ahs,
            mrs: self.mrs + other.mrs,
        }
    }
}

/// What one end saw of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct EndReport {
    /// Connections over which both messages went.
    pub(super) exchanged: u64,
    pub(super) errors: u64,
    /// The first of them.
    pub(super) samples: Vec<String>,
    pub(super) leaked: Leaked,
    /// Processor time of the process, in microseconds.
    pub(super) cpu_us: u64,
    pub(super) taken: Taken,
}

/// How long setup took, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct SetupTime {
    mean: f64,
    p50: f64,
    p99: f64,
    max: f64,
}

impl SetupTime {
    pub(super) fn new(nanos: &Histogram<u64>) -> Self {
        let us = |nanos: f64| rounded(nanos / 1e3);
        Self {
            mean: us(nanos.mean()),
            p50: us(nanos.value_at_quantile(0.5) as f64),
            p99: us(nanos.value_at_quantile(0.99) as f64),
            max: us(nanos.max() as f64),
        }
    }
}

/// What a run came to. Counts are those of both ends.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Run {
    pub(super) policy: Policy,
    pub(super) io_threads: u32,
    pub(super) setup_in: Setup,
    pub(super) nic: Nic,
    /// The NIC's times are made up.
    pub(super) nic_is_modelled: bool,
    /// By how much longer it takes than reports say.
    pub(super) nic_factor: u32,
    pub(super) link: Link,
    pub(super) window: u32,
    pub(super) connections: u64,
    pub(super) cancelled: u64,
    /// Servers that were killed, with `--kill-every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kills: Option<u64>,
    /// Connections that ended because their server was killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) interrupted: Option<u64>,
    pub(super) rate_per_s: f64,
    pub(super) setup_us: SetupTime,
    /// Processor time of both processes for each connection.
    pub(super) cpu_us_per_connection: f64,
    /// Resident memory.
    pub(super) memory_kib: OfBoth,
    /// Connections in timewait.
    pub(super) timewait: OfBoth,
    pub(super) leaked: Leaked,
    pub(super) errors: u64,
    /// The first of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) error_samples: Vec<String>,
}

/// The most of something at both ends; of servers that were killed, of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct OfBoth {
    pub(super) client: Halves,
    pub(super) server: Halves,
}

/// What the client measured of a run, besides what each end saw.
pub(super) struct Measured {
    pub(super) link: Link,
    pub(super) cancelled: u64,
    pub(super) kills: Option<u64>,
    pub(super) interrupted: u64,
    pub(super) elapsed: Duration,
    pub(super) setup: Histogram<u64>,
    pub(super) client: EndReport,
    pub(super) server: EndReport,
}

impl Run {
    pub(super) fn new(plan: &Plan, measured: Measured) -> Self {
        let Measured { link, cancelled, kills, interrupted, elapsed, setup, client, server } = measured;
        let mut errors = client.errors + server.errors;
        let mut error_samples = [client.samples, server.samples].concat();
        // Of the last connections the client may have taken the answer and gone before the server looked up.
        // Servers that were killed say nothing of what they did.
        if errors == 0 && kills.is_none() && client.exchanged != server.exchanged {
            errors += 1;
            error_samples
                .push(format!("the client completed {} exchanges, the server {}", client.exchanged, server.exchanged));
        }
        let ended = client.exchanged + cancelled + interrupted;
        if errors == 0 && ended != plan.connections {
            errors += 1;
            error_samples
                .push(format!("{ended} of {} connections ended in one of the ways that there are", plan.connections));
        }
        let connections = plan.connections as f64;
        Self {
            policy: plan.policy,
            io_threads: plan.io_threads,
            setup_in: plan.setup_in,
            nic: plan.nic,
            nic_is_modelled: plan.nic == Nic::Slow,
            nic_factor: plan.nic_factor,
            link,
            window: plan.window,
            connections: plan.connections,
            cancelled,
            kills,
            interrupted: kills.map(|_| interrupted),
            rate_per_s: rounded(connections / elapsed.as_secs_f64().max(1e-9)),
            setup_us: SetupTime::new(&setup),
            cpu_us_per_connection: rounded((client.cpu_us + server.cpu_us) as f64 / connections),
            memory_kib: OfBoth { client: client.taken.kib, server: server.taken.kib },
            timewait: OfBoth { client: client.taken.timewait, server: server.taken.timewait },
            leaked: client.leaked.plus(server.leaked),
            errors,
            error_samples,
        }
    }
}

/// What the same churn came to over kernel TCP.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TcpRun {
    pub(super) io_threads: u32,
    pub(super) window: u32,
    pub(super) connections: u64,
    pub(super) rate_per_s: f64,
    pub(super) setup_us: SetupTime,
    pub(super) cpu_us_per_connection: f64,
    pub(super) errors: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) error_samples: Vec<String>,
}

impl TcpRun {
    pub(super) fn new(plan: &Plan, measured: Measured) -> Self {
        let run = Run::new(plan, measured);
        Self {
            io_threads: run.io_threads,
            window: run.window,
            connections: run.connections,
            rate_per_s: run.rate_per_s,
            setup_us: run.setup_us,
            cpu_us_per_connection: run.cpu_us_per_connection,
            errors: run.errors,
            error_samples: run.error_samples,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Tcp {
    pub(super) runs: Vec<TcpRun>,
}

/// The JSON document.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    pub(super) runs: Vec<Run>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tcp: Option<Tcp>,
}

impl Document {
    /// What went wrong, in a few words; `None` if nothing did.
    pub(super) fn verdict(&self) -> Option<String> {
        let tcp = self.tcp.as_ref().map_or(&[][..], |tcp| &tcp.runs);
        let errors = self.runs.iter().map(|run| run.errors).chain(tcp.iter().map(|run| run.errors)).sum::<u64>();
        let leaked = self.runs.iter().map(|run| run.leaked.total()).sum::<u64>();
        (errors + leaked != 0).then(|| format!("{errors} errors, {leaked} leaked"))
    }

    /// The first errors of each run.
    pub(super) fn samples(&self) -> impl Iterator<Item = &String> {
        let tcp = self.tcp.iter().flat_map(|tcp| &tcp.runs).flat_map(|run| &run.error_samples);
        self.runs.iter().flat_map(|run| &run.error_samples).chain(tcp)
    }

    pub(super) fn human(&self) -> String {
        let mut table = Table::new(&[
            "policy",
            "IO threads",
            "setup in",
            "conn/s",
            "setup mean µs",
            "p50",
            "p99",
            "max",
            "CPU µs/conn",
            "RSS MiB",
            "cancelled",
            "errors",
            "leaked",
        ]);
        let numbers = |setup: &SetupTime| [setup.mean, setup.p50, setup.p99, setup.max].map(figure);
        for run in &self.runs {
            let mut row = vec![run.policy.to_string(), run.io_threads.to_string(), run.setup_in.to_string()];
            row.push(figure(run.rate_per_s));
            row.extend(numbers(&run.setup_us));
            row.push(figure(run.cpu_us_per_connection));
            let OfBoth { client, server } = run.memory_kib;
            row.push(figure((client.second_half + server.second_half) as f64 / 1024.0));
            row.extend([run.cancelled, run.errors, run.leaked.total()].map(grouped));
            table.row(row);
        }
        for run in self.tcp.iter().flat_map(|tcp| &tcp.runs) {
            let mut row = vec!["kernel TCP".to_string(), run.io_threads.to_string(), "-".into()];
            row.push(figure(run.rate_per_s));
            row.extend(numbers(&run.setup_us));
            row.push(figure(run.cpu_us_per_connection));
            row.extend(["-".into(), "-".into(), grouped(run.errors), "-".into()]);
            table.row(row);
        }
        table.render()
    }
}
