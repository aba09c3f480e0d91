//! `ferroce demo`: the first thing to run.

use crate::args::{Common, Link};
use crate::failure::{Failure, Result};
use crate::perf::{self, Connected, Measurement, Mode, Op, Plan};
use crate::report::{self, Table, figure};
use clap::Args;
use serde::Serialize;
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  ferroce demo
  ferroce demo --json
  ferroce demo --link udp         one link only
  ferroce demo -g 192.0.2.2       between this local address and itself";

/// How long each figure is measured.
const MEASURE: Duration = Duration::from_millis(1000);
/// How long a silent peer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DemoArgs {
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Serialize)]
struct Document {
    links: Vec<Shown>,
    seconds: f64,
}

/// What was seen over one link.
#[derive(Serialize)]
struct Shown {
    link: Link,
    connected: Connected,
    latency: Measurement,
    bandwidth: Measurement,
    rate: Measurement,
}

pub(crate) fn run(args: &DemoArgs) -> Result<()> {
    let started = Instant::now();
    let wanted = crate::local::link(&args.common)?;
    let links = if wanted == Link::Auto { vec![Link::Shm, Link::Udp] } else { vec![wanted] };
    let mut shown = Vec::new();
    for link in links {
        shown.push(show(&args.common, link)?);
    }
    if args.common.json {
        return report::json(&Document { links: shown, seconds: report::rounded(started.elapsed().as_secs_f64()) });
    }
    report::text_line(&human(&shown))
}

/// Measures over one link, with a server process of its own.
fn show(common: &Common, link: Link) -> Result<Shown> {
    let server = perf::start_local_server(common, Op::Send, Mode::Lat)?;
    tracing::debug!(pid = server.pid(), %link, "server");
    let measure = |op, mode| -> Result<(Connected, Measurement)> {
        let plan = Plan { link, duration_ms: MEASURE.as_millis() as u64, ..Plan::new(op, mode) };
        let (connected, measurements) = perf::measure(common, &plan, "127.0.0.1", server.port(), PATIENCE)
            .map_err(|failure| failure.during(format!("{} {} over {link}", op.name(), mode.name())))?;
        let first = measurements.into_iter().next();
        Ok((connected, first.ok_or_else(|| Failure::run("nothing was measured"))?))
    };
    let (connected, latency) = measure(Op::Send, Mode::Lat)?;
    let (_, bandwidth) = measure(Op::Write, Mode::Bw)?;
    let (_, rate) = measure(Op::Send, Mode::Rate)?;
    Ok(Shown { link, connected, latency, bandwidth, rate })
}

fn human(shown: &[Shown]) -> String {
    let mut lines = vec!["RDMA between two processes on this machine, reliable connection:".to_string()];
    lines.extend(shown.iter().map(|one| format!("  {}", one.connected.describe())));
    lines.push(String::new());
    let mut table = Table::new(&["link", "ping-pong 8 B", "p99", "write 64 KiB", "send 8 B"]);
    for one in shown {
        let Some(latency) = one.latency.latency_us else { continue };
        table.row([
            one.link.to_string(),
            format!("{} µs", figure(latency.p50)),
            format!("{} µs", figure(latency.p99)),
            format!("{} GB/s", figure(one.bandwidth.mb_per_s.unwrap_or(0.0) / 1e3)),
            format!("{} M/s", figure(one.rate.msgs_per_s.unwrap_or(0.0) / 1e6)),
        ]);
    }
    lines.push(table.render());
    lines.push(String::new());
    lines.push("ping-pong: half a round trip. Every byte and every message was checked.".into());
    lines.push("Next: ferroce pingpong rc (a server), and on another machine ferroce pingpong rc HOST or".into());
    lines.push("ibv_rc_pingpong -g GID_INDEX HOST; ferroce perf --help measures more.".into());
    lines.join("\n")
}
