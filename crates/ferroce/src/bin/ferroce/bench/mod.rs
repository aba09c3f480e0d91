//! `ferroce bench`: what parts of the stack cost by themselves.

mod ah;

use crate::failure::Result;
use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The address-handle cache: hits, threads, a million entries, and a resolution that takes three seconds.
    Ah(ah::AhArgs),
}

impl BenchArgs {
    /// Whether results are asked for as JSON.
    pub(crate) fn json(&self) -> bool {
        match &self.what {
            What::Ah(args) => args.common.json,
        }
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        What::Ah(args) => ah::run(args),
    }
}
