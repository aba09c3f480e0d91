//! What was measured on, and which versions of what.

use std::collections::BTreeMap;
use std::process::Command;

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
    /// The load before anything was measured: programs that ran or wanted to, over a minute.
    pub(super) load: f64,
    /// Whether the programs had a network namespace of their own.
    pub(super) isolated: bool,
}

impl Machine {
    pub(super) fn look(isolated: bool) -> Result<Self, Error> {
        let read = |path: &str| std::fs::read_to_string(path).map_err(Error::io(format!("read {path}")));
        let (cpuinfo, meminfo, load) = (read("/proc/cpuinfo")?, read("/proc/meminfo")?, read("/proc/loadavg")?);
        let number = |text: Option<&str>| text.and_then(|text| text.split_whitespace().next()?.parse().ok());
        Ok(Self {
            cpu: field(&cpuinfo, "model name").unwrap_or(std::env::consts::ARCH).to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: (number(field(&meminfo, "MemTotal")).unwrap_or(0.0) / 1024.0 / 1024.0_f64).round(),
            virtual_machine: field(&cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|f| f == "hypervisor")),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            load: number(Some(&load)).unwrap_or(0.0),
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
    fn this_machine_is_described() {
        let machine = Machine::look(false).unwrap();
        assert!(machine.cpus > 0 && machine.memory_gib > 0.0 && !machine.kernel.is_empty(), "{machine:?}");
    }
}
