//! The `ferroce` command-line tool.
#![forbid(unsafe_code)]

mod args;
mod child;
mod cm_events;
mod cmtime;
mod completions;
mod demo;
mod failure;
mod info;
mod local;
mod monitor;
mod perf;
mod pingpong;
mod progress;
mod rdmacm;
mod report;
mod rping;
mod storm;
mod tcp;

use args::{Cli, Command};
use clap::Parser;
use failure::Failure;
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(failure) = start_logging() {
        return end(&failure, cli.command.json());
    }
    let json = cli.command.json();
    let outcome = match cli.command {
        Command::Info(args) => info::run(&args),
        Command::Pingpong(args) => pingpong::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Rping(args) => rping::run(&args),
        Command::Storm(args) => storm::run(&args),
        Command::Cmatose(args) => rdmacm::run_cmatose(&args),
        Command::Udaddy(args) => rdmacm::run_udaddy(&args),
        Command::Cmtime(args) => cmtime::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => end(&failure, json),
    }
}

/// Sends what `FERROCE_LOG` asks for to stderr; without it, warnings.
fn start_logging() -> failure::Result<()> {
    let filter = std::env::var("FERROCE_LOG").unwrap_or_default();
    let filter = if filter.trim().is_empty() { "warn".into() } else { filter };
    let filter = EnvFilter::try_new(&filter).map_err(|error| {
        Failure::usage(format!("FERROCE_LOG={filter:?} cannot be understood: {error}"))
            .hint("write a level (error, warn, info, debug, trace) or a filter such as ferroce_soft=debug")
    })?;
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(std::io::stderr).init();
    Ok(())
}

fn end(failure: &Failure, json: bool) -> ExitCode {
    eprintln!("error: {failure}");
    if let Some(hint) = &failure.hint {
        eprintln!("hint: {hint}");
    }
    if json && !failure.documented {
        let _ = report::json(&failure.document());
    }
    ExitCode::from(failure.class as u8)
}
