//! ferroce itself, and the two examples of `ferroce-soft` that measure what the tool does not.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::process;
use crate::error::Error;
use crate::exec::{self, Log};
use crate::workspace::Workspace;

/// How long one run may take beyond the time that it measures.
const LIMIT: Duration = Duration::from_secs(120);

/// The built programs.
pub(super) struct Programs {
    /// Where this repository is.
    pub(super) root: PathBuf,
    ferroce: PathBuf,
    /// The least that sockets ask for.
    limit: PathBuf,
    /// What many queue pairs cost.
    many_qps: PathBuf,
}

impl Programs {
    /// Builds all of them, optimized.
    pub(super) fn build(workspace: &Workspace, log: Log) -> Result<(), Error> {
        let examples = ["build", "--locked", "--release", "--package", "ferroce-soft", "--examples"];
        for mut cargo in [crate::steps::build_binaries(workspace), workspace.cargo(examples)] {
            let status = exec::stream(&mut cargo, log, |_| {})?;
            if !status.success() {
                let (command, status) = (exec::shown(&cargo), status.to_string());
                return Err(Error::Failed { command, status, stderr: String::new() });
            }
        }
        Ok(())
    }

    pub(super) fn find(workspace: &Workspace) -> Self {
        let release = workspace.target_dir().join("release");
        let example = |name: &str| release.join("examples").join(name);
        Self {
            root: workspace.root().to_path_buf(),
            ferroce: release.join("ferroce"),
            limit: example("udp_link"),
            many_qps: example("many_qps"),
        }
    }

    /// `ferroce perf` with both ends on this machine, for `time`. The result is what `value` finds in its document.
    pub(super) fn perf(
        &self,
        args: &[&str],
        fault: Option<&str>,
        time: Duration,
        value: fn(&Value) -> Option<f64>,
    ) -> Result<f64, Error> {
        let mut command = clean(&self.ferroce);
        command.arg("perf").args(args).args(["--local", "--json", "--duration"]).arg(time.as_secs_f64().to_string());
        if let Some(fault) = fault {
            command.env("FERROCE_FAULT", fault);
        }
        figure(&mut command, time, value)
    }

    /// `ferroce` with these arguments, which make it print one document.
    pub(super) fn ferroce(&self, args: &[&str]) -> Result<Value, Error> {
        let mut command = clean(&self.ferroce);
        document(command.args(args), Duration::ZERO)
    }

    /// `udp_link limit`: plain sockets doing the same.
    pub(super) fn limit(&self, what: &str, time: Duration) -> Result<f64, Error> {
        let mut command = clean(&self.limit);
        command.args(["limit", what]).arg(time.as_secs_f64().to_string());
        figure(&mut command, time, |json| json["value"].as_f64())
    }

    /// `many_qps`: what a number of connected queue pairs cost.
    pub(super) fn many_qps(&self, args: &[&str], value: fn(&Value) -> Option<f64>) -> Result<f64, Error> {
        let mut command = clean(&self.many_qps);
        command.args(args);
        figure(&mut command, Duration::ZERO, value)
    }
}

/// A command with nothing in its environment that changes what ferroce does.
fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FERROCE_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a program that prints one JSON document.
fn document(command: &mut Command, time: Duration) -> Result<Value, Error> {
    let text = process::run(command, LIMIT + 4 * time)?;
    let unexpected = |error| Error::Output { command: exec::shown(command), why: format!("{error}:\n{text}") };
    serde_json::from_str(&text).map_err(unexpected)
}

/// A figure of that document.
fn figure(command: &mut Command, time: Duration, value: fn(&Value) -> Option<f64>) -> Result<f64, Error> {
    let json = document(command, time)?;
    found(exec::shown(command), &json, value)
}

/// What is looked for in the document of a command.
pub(super) fn found<T>(command: String, json: &Value, value: impl FnOnce(&Value) -> Option<T>) -> Result<T, Error> {
    value(json).ok_or_else(|| Error::Output { command, why: format!("a figure is missing in it:\n{json}") })
}

/// Half a round trip, the median.
pub(super) fn median_us(json: &Value) -> Option<f64> {
    json["latency_us"]["p50"].as_f64()
}

pub(super) fn gb_per_s(json: &Value) -> Option<f64> {
    Some(json["mb_per_s"].as_f64()? / 1e3)
}

pub(super) fn million_msgs_per_s(json: &Value) -> Option<f64> {
    Some(json["msgs_per_s"].as_f64()? / 1e6)
}
