//! Builds, tests and measures the project: `cargo xtask <command>`.
//!
//! | module | the question it answers |
//! |---|---|
//! | `cli` | what can be asked for? |
//! | `steps` | what does a full test run consist of? The tables live here |
//! | `runner` | in which order, and when does it stop? |
//! | `report` | what came out? |
//! | `tally` | how many checks passed, counted from what the programs print |
//! | `exec` | how is a program run and its output passed on? |
//! | `packages` | is what the checks need installed? |
//! | `workspace` | where are things, and what is in the workspace? |
//! | `deny` | may we use what we depend on? |
//! | `bench` | how fast is it, and how fast are others? |
//! | `vm` | does it work with a real kernel? |
#![forbid(unsafe_code)]

mod bench;
mod cli;
mod deny;
mod error;
mod exec;
mod packages;
mod report;
mod runner;
mod steps;
mod storm;
mod tally;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match dispatch(cli::Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {}", error::chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Runs one command; `false` means that it ran and something it checked failed.
fn dispatch(cli: cli::Cli) -> Result<bool, error::Error> {
    let workspace = workspace::Workspace::locate()?;
    match cli.command {
        cli::Command::Test(args) => runner::test(&workspace, &args),
        cli::Command::Bench(args) => bench::command(&workspace, &args),
        cli::Command::Vm(args) => vm::command(&workspace, &args),
    }
}
