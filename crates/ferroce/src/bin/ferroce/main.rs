//! The `ferroce` command-line tool.
#![forbid(unsafe_code)]

mod args;
mod bench;
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
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misunderstood(&error),
    };
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
        Command::Mckey(args) => rdmacm::run_mckey(&args),
        Command::Cmtime(args) => cmtime::run(&args),
        Command::Bench(args) => bench::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => end(&failure, json),
    }
}

/// Ends with what the parser of the command line has to say: help and the version, which are no error, or what is wrong. Where
/// results were asked for as JSON, that is, too.
fn misunderstood(error: &clap::Error) -> ExitCode {
    let printed = error.print();
    if !error.use_stderr() {
        let unwritten = printed.err().filter(|error| error.kind() != std::io::ErrorKind::BrokenPipe);
        return unwritten.map_or(ExitCode::SUCCESS, |error| {
            end(&Failure::environment(format!("stdout cannot be written to: {error}")), false)
        });
    }
    if std::env::args_os().skip(1).take_while(|arg| arg != "--").any(|arg| arg == "--json") {
        let text = error.render().to_string();
        let message = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
        let failure = Failure::usage(message).hint("--help shows what the command takes");
        let _ = report::json(&failure.document());
    }
    ExitCode::from(failure::Class::Usage as u8)
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
