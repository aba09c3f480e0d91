//! `ferroce bench`: what parts of the stack cost by themselves.

mod ah;
mod reconnect;

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
    /// Endpoints that are made, send a message and are closed: with the address-handle cache, and without.
    Reconnect(reconnect::ReconnectArgs),
}

impl BenchArgs {
    /// Whether results are asked for as JSON.
    pub(crate) fn json(&self) -> bool {
        match &self.what {
            What::Ah(args) => args.common.json,
            What::Reconnect(args) => args.common.json,
        }
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    match &args.what {
        What::Ah(args) => ah::run(args),
        What::Reconnect(args) => reconnect::run(args),
    }
}
