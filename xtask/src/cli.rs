//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Builds, tests and measures the project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run every check that must pass before a change is merged
    Test(TestArgs),
    /// Measure ferroce and its peers side by side, and write docs/benchmarks.md and docs/benchmarks.json
    Bench(BenchArgs),
    /// Boot a Debian kernel with Soft-RoCE under QEMU and run scripts inside
    Vm(VmArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Run the remaining steps after one has failed
    #[arg(long)]
    pub(crate) keep_going: bool,

    /// Run only these steps, in the order of the list
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Name the steps and exit
    #[arg(long)]
    pub(crate) list: bool,

    /// Print the result as JSON on standard output (everything else goes to standard error)
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VmArgs {
    /// A script to run inside, with its arguments: "vm/pingpong.sh selftest". May be repeated: all run
    /// in one boot, in order. Without it, those of `cargo xtask test` run
    #[arg(long = "script", value_name = "FILE [ARG...]")]
    pub(crate) scripts: Vec<String>,

    /// A file to copy to /payload inside, with the libraries that it needs. May be repeated
    #[arg(long = "file", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Seconds that each script may take
    #[arg(long, value_name = "S", default_value_t = crate::steps::VM_SCRIPT_SECONDS, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: u64,

    /// Keep the directory of the run: the initial RAM disk and both logs
    #[arg(long)]
    pub(crate) keep: bool,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Runs of each program, of which the median counts [default: 5, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,

    /// Short runs, to see that everything works
    #[arg(long)]
    pub(crate) quick: bool,

    /// Measure only these benchmarks
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) only: Vec<String>,

    /// Name the benchmarks and exit
    #[arg(long)]
    pub(crate) list: bool,

    /// Where to write the result [default: docs; target/bench if it is not a whole one]
    #[arg(long, value_name = "DIRECTORY")]
    pub(crate) output: Option<PathBuf>,

    /// Everything is built and installed, and this is a network namespace of our own
    #[arg(long, hide = true)]
    pub(crate) isolated: bool,
}
