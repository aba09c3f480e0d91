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
