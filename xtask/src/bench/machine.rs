//! What was measured on, and which versions of what.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use super::{libfabric, ucx};
use crate::error::Error;
use crate::exec;
use crate::workspace::Workspace;

/// The machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Machine {
    pub(super) cpu: String,
    pub(super) cpus: usize,
    pub(super) memory_gib: f64,
    /// Whether it is virtual, as far as the processor tells.
    pub(super) virtual_machine: bool,
    pub(super) kernel: String,
    /// How many processors other programs kept busy in the second before anything was measured.
    pub(super) busy: f64,
    /// Whether the programs had a network namespace of their own.
    pub(super) isolated: bool,
}

impl Machine {
    pub(super) fn look(isolated: bool) -> Result<Self, Error> {
        let read = |path: &str| std::fs::read_to_string(path).map_err(Error::io(format!("read {path}")));
        let (cpuinfo, meminfo) = (read("/proc/cpuinfo")?, read("/proc/meminfo")?);
        let number = |text: Option<&str>| text.and_then(|text| text.split_whitespace().next()?.parse().ok());
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            cpu: field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH).to_owned(),
            cpus,
            memory_gib: (number(field(&meminfo, "MemTotal")).unwrap_or(0.0) / 1024.0 / 1024.0_f64).round(),
            virtual_machine: field(&cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            busy: busy(cpus, || read("/proc/stat"))?,
            isolated,
        })
    }
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// How many of `cpus` processors are not idle, over a second. `stat` reads `/proc/stat`.
fn busy(cpus: usize, stat: impl Fn() -> Result<String, Error>) -> Result<f64, Error> {
    let before = stat()?;
    std::thread::sleep(Duration::from_secs(1));
    let after = stat()?;
    let share = busy_share(&before, &after).unwrap_or(0.0);
    Ok((share * cpus as f64 * 100.0).round() / 100.0)
}

/// The first line has the time of all processors by what they did: user, nice, system, idle, waiting for I/O, and others.
fn busy_share(before: &str, after: &str) -> Option<f64> {
    let times = |text: &str| -> Option<Vec<f64>> {
        let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        numbers.map(|number| number.parse().ok()).collect()
    };
    let (before, after) = (times(before)?, times(after)?);
    let spent: Vec<f64> = after.iter().zip(&before).map(|(after, before)| after - before).collect();
    let all: f64 = spent.iter().take(8).sum();
    let idle = spent.get(3)? + spent.get(4)?;
    (all > 0.0).then(|| 1.0 - idle / all)
}

/// Versions of everything that took part, by name.
pub(super) fn versions(workspace: &Workspace) -> Result<BTreeMap<&'static str, String>, Error> {
    // A source tree that is no repository has no commit; that is no reason not to measure.
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty", "--abbrev=12"]).current_dir(workspace.root());
    let commit = exec::capture(&mut git).map_or_else(|_| "unknown".into(), |text| text.trim().to_owned());
    let rustc = exec::capture(Command::new("rustc").arg("--version").current_dir(workspace.root()))?;
    Ok(BTreeMap::from([
        ("ferroce", format!("{} ({commit})", env!("CARGO_PKG_VERSION"))),
        ("libfabric", libfabric::version()?),
        ("rustc", rustc.trim().trim_start_matches("rustc ").to_owned()),
        ("ucx", ucx::version()?),
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 167\nmodel name\t: A Processor: fast\nmodel name\t: Another\n";
        assert_eq!(field(text, "model name"), Some("A Processor: fast"));
        assert_eq!(field(text, "name"), None);
    }

    #[test]
    fn what_is_not_idle_is_busy() {
        let before = "cpu  100 0 50 1000 10 0 0 0 0 0\ncpu0 1 1 1 1\n";
        assert_eq!(busy_share(before, "cpu  115 5 55 1065 20 0 0 0 7 0\n"), Some(0.25));
        assert_eq!(busy_share(before, before), None);
        assert_eq!(busy_share("", ""), None);
    }

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::look(false).unwrap();
        assert!(machine.cpus > 0 && machine.memory_gib > 0.0 && !machine.kernel.is_empty(), "{machine:?}");
    }
}
