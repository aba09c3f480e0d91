//! Debian packages that provide programs which the checks run. Which ones is in the tables of `steps`.

use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use crate::error::Error;
use crate::exec::{self, Log};

/// Seconds to wait before the second, third, ... attempt of something that uses the network.
const BACKOFF: [u64; 3] = [3, 10, 30];

/// Makes sure that packages are installed: installs what is missing if we are root, otherwise names it.
pub(crate) fn require(packages: &[&str], log: Log) -> Result<(), Error> {
    let missing = missing(packages)?;
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() {
        return Err(Error::Packages(missing));
    }
    log.line(&format!("installing {}", missing.join(" ")));
    update(log)?;
    retry(log, || {
        let mut apt = apt_get();
        apt.args(["install", "--yes", "--quiet=2", "--no-install-recommends"]).args(&missing);
        exec::capture(&mut apt)
    })?;
    Ok(())
}

/// Fetches apt's package lists.
pub(crate) fn update(log: Log) -> Result<(), Error> {
    retry(log, || {
        let mut apt = apt_get();
        // Without this option, apt-get update succeeds when a mirror cannot be reached.
        apt.args(["update", "--quiet=2", "-o", "APT::Update::Error-Mode=any"]);
        exec::capture(&mut apt)
    })?;
    Ok(())
}

pub(crate) fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").args([
        "-o",
        "DPkg::Lock::Timeout=120",
        "-o",
        "Acquire::Retries=3",
    ]);
    command
}

/// Repeats what may fail because of the network; only the last error counts.
pub(crate) fn retry<T>(log: Log, mut attempt: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for seconds in BACKOFF {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) => log.line(&format!("{error}\ntrying again in {seconds} s")),
        }
        std::thread::sleep(Duration::from_secs(seconds));
    }
    attempt()
}

pub(crate) fn is_root() -> bool {
    // The owner of a process's directory is its effective user.
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

fn missing(packages: &[&str]) -> Result<Vec<String>, Error> {
    let mut command = Command::new("dpkg-query");
    command.args(["--show", "--showformat=${Package} ${db:Status-Status}\n"]).args(packages);
    // It fails when it does not know one of them at all, and still lists the others.
    let output =
        command.output().map_err(|_| Error::NotDebian(packages.iter().map(|&name| name.to_owned()).collect()))?;
    Ok(not_installed(packages, &String::from_utf8_lossy(&output.stdout)))
}

fn not_installed(packages: &[&str], listing: &str) -> Vec<String> {
    let installed: Vec<&str> = listing.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    packages.iter().filter(|name| !installed.contains(name)).map(|&name| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_installed_packages_count() {
        let listing = "kmod installed\niproute2 config-files\n";
        assert_eq!(not_installed(&["kmod", "iproute2", "qemu"], listing), ["iproute2", "qemu"]);
    }
}
