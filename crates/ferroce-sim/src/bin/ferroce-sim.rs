//! Runs simulations: many seeds to look for a failure, or one to look at it.
#![forbid(unsafe_code)]

use clap::Parser;
use ferroce_sim::{Failed, Options, Scenario, Sweep};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::process::ExitCode;
use std::time::Instant;

/// Run the software device over a network that loses, repeats, reorders and damages packets.
///
/// Everything in a run follows from its seed. A run that fails is printed as the command that repeats it.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:
  ferroce-sim                                  1000 seeds of every scenario
  ferroce-sim --scenario rc --seeds 100000     a night's worth of one
  ferroce-sim --scenario rc --seed 17 --log    one run, with every packet

The tests run the same scenarios; FERROCE_SIM_SEEDS=100000 cargo test -p ferroce-sim --release
runs that many seeds of each."
)]
struct Args {
    /// Which scenario to run; all of them by default
    #[arg(long, value_parser = |name: &str| name.parse::<Scenario>())]
    scenario: Option<Scenario>,
    /// Run this seed only
    #[arg(long, conflicts_with_all = ["seeds", "from"])]
    seed: Option<u64>,
    /// How many seeds of each scenario to run, of long ones so many times fewer
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Threads to run seeds on; as many as there are processors by default
    #[arg(long)]
    jobs: Option<usize>,
    /// Run each seed twice and compare what happened
    #[arg(long)]
    twice: bool,
    /// Print every packet and completion to standard error; with --seed only
    #[arg(long, requires = "seed")]
    log: bool,
    /// Print one JSON object for each scenario
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    scenario: &'static str,
    seeds: u64,
    failed_seeds: Vec<u64>,
    completed: u64,
    failed: u64,
    bytes: u64,
    packets: u64,
    virtual_seconds: f64,
    seconds: f64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let scenarios = args.scenario.map_or_else(|| Scenario::ALL.to_vec(), |scenario| vec![scenario]);
    let mut ok = true;
    for scenario in scenarios {
        let seeds = (args.seeds / scenario.weight()).max(1);
        let (from, count) = args.seed.map_or((args.from, seeds), |seed| (seed, 1));
        let report = run(&args, scenario, from, count);
        ok &= report.failed_seeds.is_empty();
        if args.json {
            match serde_json::to_string(&report) {
                Ok(json) => println!("{json}"),
                Err(error) => eprintln!("{error}"),
            }
        } else {
            println!(
                "{:11} {:>8} seeds, {} failed; {} requests completed, {} failed as they should; {} packets in {:.1} s",
                report.scenario,
                report.seeds,
                report.failed_seeds.len(),
                report.completed,
                report.failed,
                report.packets,
                report.seconds,
            );
        }
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(args: &Args, scenario: Scenario, from: u64, count: u64) -> Report {
    let start = Instant::now();
    let bar = ProgressBar::new(count);
    if let Ok(style) = ProgressStyle::with_template("{prefix:11} {bar:30} {human_pos}/{human_len} seeds, {eta} left") {
        bar.set_style(style);
    }
    bar.set_prefix(scenario.name());
    let sweep = Sweep {
        scenario,
        seeds: from..from.saturating_add(count),
        jobs: args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        twice: args.twice,
        options: Options { log: args.log },
    };
    let result = sweep.run(&|failed: Option<&Failed>| {
        if let Some(failed) = failed {
            bar.suspend(|| eprintln!("{failed}"));
        }
        bar.inc(1);
    });
    bar.finish_and_clear();
    let total = result.total;
    Report {
        scenario: scenario.name(),
        seeds: count,
        failed_seeds: result.failed.iter().map(|failed| failed.seed).collect(),
        completed: total.completed,
        failed: total.failed,
        bytes: total.bytes,
        packets: total.packets,
        virtual_seconds: total.time.as_secs_f64(),
        seconds: start.elapsed().as_secs_f64(),
    }
}
