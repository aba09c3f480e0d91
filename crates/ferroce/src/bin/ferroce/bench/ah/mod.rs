//! `ferroce bench ah`: the address-handle cache, beside a hash map under a spinlock.

mod measure;
mod spinlock;

use crate::args::{Common, parse_seconds};
use crate::failure::Result;
use crate::local;
use crate::report::{self, Table, figure, grouped, rounded};
use clap::Args;
use ferroce::{AhAttr, Ttl};
use measure::Bench;
use serde::Serialize;
use std::time::Duration;

const EXAMPLES: &str = "\
A hit is a get and the put of what it returns. Gets of one thread and of two, and of the spinlock's map, are measured in turns; each
figure is the best of many, for the machine has other things to do as well.

Examples:
  ferroce bench ah
  ferroce bench ah --seconds 5 --json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct AhArgs {
    #[command(flatten)]
    pub(crate) common: Common,
    /// How long to measure each figure
    #[arg(short = 't', long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    seconds: Duration,
    /// Entries of the large cache
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1000..=100_000_000))]
    entries: u32,
    /// How long the slow resolution takes
    #[arg(long, value_name = "SECONDS", default_value = "3", value_parser = parse_seconds)]
    resolution: Duration,
}

#[derive(Serialize)]
struct Document {
    benchmark: &'static str,
    hits: Vec<Hit>,
    /// A hit with a TTL of a second, which looks at the clock.
    ttl_1s_ns: f64,
    two_threads: Scaling,
    large: Large,
    slow_resolution: Slow,
}

/// A get and a put, in nanoseconds.
#[derive(Serialize)]
struct Hit {
    addresses: u32,
    cache_ns: f64,
    spinlock_ns: f64,
    ratio: f64,
}

/// Two threads on different addresses, as a multiple of one.
#[derive(Serialize)]
struct Scaling {
    cache: f64,
    spinlock: f64,
}

#[derive(Serialize)]
struct Large {
    entries: u32,
    bytes_per_entry: f64,
    /// An entry at random.
    get_ns: f64,
    /// The same in a cache of a thousand entries.
    get_of_1000_ns: f64,
    spinlock_get_ns: f64,
}

/// The p99 of gets of other addresses.
#[derive(Serialize)]
struct Slow {
    resolution_s: f64,
    p99_without_ns: u64,
    p99_with_ns: u64,
    ratio: f64,
}

pub(crate) fn run(args: &AhArgs) -> Result<()> {
    let context = local::open(&args.common, local::link(&args.common)?)?;
    let pd = context.alloc_pd()?;
    let gid = local::pick_gid(&context, 1, args.common.gid_index, None)?;
    let ah = pd.create_ah(&AhAttr::roce(gid.gid, gid.index))?;
    let bench = Bench::new(&pd, ah, args.seconds);
    let hit = |addresses| -> Result<Hit> {
        let (cache_ns, spinlock_ns) = bench.hit(addresses)?;
        let ratio = rounded(cache_ns / spinlock_ns);
        Ok(Hit { addresses, cache_ns: rounded(cache_ns), spinlock_ns: rounded(spinlock_ns), ratio })
    };
    // First: what the process has had before is not counted.
    let many = bench.many(args.entries)?;
    let hits = vec![hit(1)?, hit(16)?, hit(256)?];
    let (cache, spinlock) = bench.scaling()?;
    let (without, with) = bench.beside_slow(args.resolution)?;
    let document = Document {
        benchmark: "ah",
        hits,
        ttl_1s_ns: rounded(bench.hit_with(Ttl::Finite(Duration::from_secs(1)))?),
        two_threads: Scaling { cache: rounded(cache), spinlock: rounded(spinlock) },
        large: Large {
            entries: args.entries,
            bytes_per_entry: rounded(many.bytes),
            get_ns: rounded(many.get),
            get_of_1000_ns: rounded(many.get_of_1000),
            spinlock_get_ns: rounded(many.spinlock),
        },
        slow_resolution: Slow {
            resolution_s: args.resolution.as_secs_f64(),
            p99_without_ns: without,
            p99_with_ns: with,
            ratio: rounded(with as f64 / without.max(1) as f64),
        },
    };
    if args.common.json { report::json(&document) } else { report::text_line(&human(&document)) }
}

fn human(document: &Document) -> String {
    let mut table = Table::new(&["get and put", "cache", "spinlock and map", "ratio"]);
    for hit in &document.hits {
        let what = match hit.addresses {
            1 => "1 address".into(),
            many => format!("{many} addresses"),
        };
        let ns = |value| format!("{} ns", figure(value));
        table.row([what, ns(hit.cache_ns), ns(hit.spinlock_ns), figure(hit.ratio)]);
    }
    let Document { two_threads, large, slow_resolution: slow, .. } = document;
    let times = |value| format!("{} ×", figure(value));
    let ns = |value| format!("{} ns", figure(value));
    table.row(["2 threads, as a multiple of 1".into(), times(two_threads.cache), times(two_threads.spinlock)]);
    table.row([
        format!("{} entries, at random", grouped(large.entries.into())),
        ns(large.get_ns),
        ns(large.spinlock_get_ns),
        figure(large.get_ns / large.spinlock_get_ns),
    ]);
    table.row(["1 000 entries, at random".into(), ns(large.get_of_1000_ns)]);
    table.row(["1 address, TTL 1 s".into(), ns(document.ttl_1s_ns)]);
    format!(
        "{}\n{} entries take {} bytes each, without what the device keeps\np99 of other addresses: {} ns, and {} ns while a \
         resolution takes {} s ({} ×)",
        table.render(),
        grouped(large.entries.into()),
        figure(large.bytes_per_entry),
        slow.p99_without_ns,
        slow.p99_with_ns,
        slow.resolution_s,
        figure(slow.ratio),
    )
}
