//! `ferroce bench reconnect`: an endpoint, its first message and its end, with the address-handle cache and without.

mod cycle;

use crate::args::{Common, parse_seconds};
use crate::failure::Result;
use crate::local;
use crate::report::{self, Table, figure, rounded};
use clap::Args;
use cycle::{Ends, Times};
use ferroce::Ttl;
use serde::Serialize;
use std::time::Duration;

const EXAMPLES: &str = "\
A cycle is: make an endpoint of ud_verbs to another interface of this machine, send a first message, see it arrive, close. One thread does
the work of both ends. A resolution that costs something is modelled: the device's own answer, which comes that much later, at
either end. What the endpoint does after it was closed is not part of the cycle, but shown.

Examples:
  ferroce bench reconnect
  ferroce bench reconnect --resolution 0.003 --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReconnectArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// Cycles of each kind
    #[arg(short = 'n', long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(10..=10_000_000))]
    cycles: u32,
    /// What the slowed resolution costs
    #[arg(long, value_name = "SECONDS", default_value = "0.0001", value_parser = parse_seconds)]
    resolution: Duration,
}

/// Cycles of the kinds that are compared are done in turns, so many of each.
const TURNS: u32 = 5;

#[derive(Serialize)]
struct Document {
    benchmark: &'static str,
    cycles: u32,
    resolution_us: f64,
    /// The resolution is the device's own, held back.
    resolution_is_modelled: bool,
    kinds: Vec<Kind>,
    /// How many times as fast a cycle is with TTL inf as with TTL 0, with the slowed resolution.
    speedup: f64,
    /// The same with the device's own resolution.
    speedup_of_the_device: f64,
}

/// Cycles of one kind, in microseconds.
#[derive(Serialize)]
struct Kind {
    ttl: String,
    slowed: bool,
    cycle_p50_us: f64,
    cycle_p99_us: f64,
    /// Of a cycle, on average, what address handles were waited for at both ends.
    ah_us: f64,
    ah_share: f64,
    /// From the end of the cycle until nothing is left of the endpoint at either end.
    gone_p50_us: f64,
    resolutions_per_cycle: f64,
}

impl Kind {
    fn new(ttl: Ttl, slowed: bool, times: &Times) -> Self {
        let micros = |nanos: u64| rounded(nanos as f64 / 1000.0);
        let ah = times.ah_nanos as f64 / times.cycles.len() as f64;
        Self {
            ttl: ttl.to_string(),
            slowed,
            cycle_p50_us: micros(times.cycles.value_at_quantile(0.5)),
            cycle_p99_us: micros(times.cycles.value_at_quantile(0.99)),
            ah_us: rounded(ah / 1000.0),
            ah_share: rounded(ah / times.cycles.mean()),
            gone_p50_us: micros(times.gone.value_at_quantile(0.5)),
            resolutions_per_cycle: rounded(times.resolutions as f64 / times.cycles.len() as f64),
        }
    }
}

pub(crate) fn run(args: &ReconnectArgs) -> Result<()> {
    let kinds = [(Ttl::Infinite, true), (Ttl::Bypass, true), (Ttl::Infinite, false), (Ttl::Bypass, false)];
    let open = |(ttl, slowed)| -> Result<(Ends, Times)> {
        let delay = if slowed { args.resolution } else { Duration::ZERO };
        let contexts = [(), ()].map(|()| local::open(&args.common, local::link(&args.common)?));
        let [here, there] = contexts;
        let (here, there) = (here?, there?);
        let ip = local::pick_gid(&here, 1, args.common.gid_index, None)?.ip();
        Ok((Ends::new([&here, &there], ip, ttl, delay)?, Times::new()?))
    };
    let mut ends = kinds.into_iter().map(open).collect::<Result<Vec<_>>>()?;
    for (ends, _) in &mut ends {
        // What is only slow the first time is not measured.
        ends.cycles((args.cycles / 20).max(2), &mut Times::new()?)?;
    }
    for _ in 0..TURNS {
        for (ends, times) in &mut ends {
            ends.cycles(args.cycles.div_ceil(TURNS), times)?;
        }
    }
    let kinds: Vec<Kind> =
        kinds.iter().zip(&ends).map(|(&(ttl, slowed), (_, times))| Kind::new(ttl, slowed, times)).collect();
    let ratio =
        |with: usize, without: usize| rounded(kinds[without].cycle_p50_us / kinds[with].cycle_p50_us.max(0.001));
    let document = Document {
        benchmark: "reconnect",
        cycles: args.cycles.div_ceil(TURNS) * TURNS,
        resolution_us: rounded(args.resolution.as_secs_f64() * 1e6),
        resolution_is_modelled: true,
        speedup: ratio(0, 1),
        speedup_of_the_device: ratio(2, 3),
        kinds,
    };
    if args.common.json { report::json(&document) } else { report::text_line(&human(&document)) }
}

fn human(document: &Document) -> String {
    let mut table = Table::new(&["endpoint, message, close", "p50", "p99", "of it the AH", "share", "gone after"]);
    let us = |value| format!("{} µs", figure(value));
    for kind in &document.kinds {
        let resolution = match kind.slowed {
            true => us(document.resolution_us),
            false => "of the device".into(),
        };
        table.row([
            format!("TTL {}, resolution {resolution}", kind.ttl),
            us(kind.cycle_p50_us),
            us(kind.cycle_p99_us),
            us(kind.ah_us),
            format!("{} %", figure(100.0 * kind.ah_share)),
            us(kind.gone_p50_us),
        ]);
    }
    format!(
        "{}\nwith the cache {} × as fast as without, of the device's own resolution {} ×\nThe resolution of {} is modelled: the \
         device's own answer, that much later, at either end.",
        table.render(),
        figure(document.speedup),
        figure(document.speedup_of_the_device),
        us(document.resolution_us),
    )
}
