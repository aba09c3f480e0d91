//! The kernel: Debian's own, unpacked from its package into the cache, never installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::exec::{self, Log};
use crate::packages;

/// The package that depends on the current kernel image.
const META_PACKAGE: &str = "linux-image-amd64";

/// An unpacked kernel package.
pub(super) struct Kernel {
    release: String,
    dir: PathBuf,
}

impl Kernel {
    /// What `uname -r` will say.
    pub(super) fn release(&self) -> &str {
        &self.release
    }

    pub(super) fn image(&self) -> PathBuf {
        self.dir.join(format!("boot/vmlinuz-{}", self.release))
    }

    /// Files of the named modules and of all that they need, in an order in which they can be loaded.
    pub(super) fn modules(&self, names: &[&str]) -> Result<Vec<PathBuf>, Error> {
        let mut files = Vec::new();
        for name in names {
            let mut command = Command::new("/sbin/modprobe");
            command.arg("--dirname").arg(&self.dir).args(["--set-version", &self.release, "--show-depends", name]);
            for file in insmod_lines(&exec::capture(&mut command)?) {
                if !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        Ok(files)
    }

    fn in_cache(cache: &Path, release: &str) -> Option<Self> {
        let kernel = Self { release: release.to_owned(), dir: cache.join(release) };
        kernel.image().is_file().then_some(kernel)
    }
}

/// `modprobe --show-depends` prints `insmod FILE [OPTIONS]` for a module and `builtin NAME` for what the kernel has anyway.
fn insmod_lines(text: &str) -> Vec<PathBuf> {
    text.lines()
        .filter_map(|line| line.strip_prefix("insmod "))
        .filter_map(|rest| rest.split_whitespace().next())
        .map(PathBuf::from)
        .collect()
}

/// Finds the newest kernel in the cache, or fetches the one that apt names now.
pub(super) fn locate(cache: &Path, log: Log) -> Result<Kernel, Error> {
    let entries = std::fs::read_dir(cache).map_err(Error::io(format!("read {}", cache.display())))?;
    let newest = entries
        .flatten()
        .filter_map(|entry| Kernel::in_cache(cache, entry.file_name().to_str()?))
        .max_by_key(|kernel| version_key(&kernel.release));
    if let Some(kernel) = newest {
        return Ok(kernel);
    }
    let mut first = true;
    packages::retry(log, || {
        // Lists that are missing or name a version that has been superseded make the first attempt fail.
        if !std::mem::take(&mut first) || name_from_lists()?.is_none() {
            if !packages::is_root() {
                return Err(Error::NoKernelPackage { package: META_PACKAGE });
            }
            packages::update(log)?;
        }
        let package = name_from_lists()?.ok_or(Error::NoKernelPackage { package: META_PACKAGE })?;
        log.line(&format!("downloading {package}"));
        fetch(cache, &package)
    })
}

/// Sorts releases by their numbers: 6.1.0-9 before 6.1.0-57.
fn version_key(release: &str) -> Vec<u64> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// The current kernel's package, if apt's lists name one.
fn name_from_lists() -> Result<Option<String>, Error> {
    let mut command = Command::new("apt-cache");
    command.args(["depends", META_PACKAGE]);
    // It fails when it knows no such package.
    let text = match exec::capture(&mut command) {
        Ok(text) => text,
        Err(Error::Failed { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned))
}

/// Downloads and unpacks one kernel package. The result appears in the cache at once or not at all.
fn fetch(cache: &Path, package: &str) -> Result<Kernel, Error> {
    let release = package.trim_start_matches("linux-image-").to_owned();
    let scratch = tempfile::Builder::new()
        .prefix("fetch-")
        .tempdir_in(cache)
        .map_err(Error::io(format!("create a directory in {}", cache.display())))?;
    exec::capture(packages::apt_get().args(["download", package]).current_dir(scratch.path()))?;
    let deb = std::fs::read_dir(scratch.path())
        .map_err(Error::io("read the download directory"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .ok_or_else(|| Error::NotFound {
            what: format!("the file that `apt-get download {package}` should have left"),
        })?;
    let unpacked = scratch.path().join("kernel");
    exec::capture(Command::new("dpkg-deb").arg("--extract").arg(&deb).arg(&unpacked))?;
    exec::capture(Command::new("/sbin/depmod").arg("--basedir").arg(&unpacked).arg(&release))?;
    let target = cache.join(&release);
    if let Err(error) = std::fs::rename(&unpacked, &target) {
        // Another run may have been faster.
        if Kernel::in_cache(cache, &release).is_none() {
            return Err(Error::io(format!("move the kernel to {}", target.display()))(error));
        }
    }
    Kernel::in_cache(cache, &release)
        .ok_or_else(|| Error::NotFound { what: format!("boot/vmlinuz-{release} in the package {package}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_files_come_in_the_order_of_loading() {
        let text = "builtin ipv6\ninsmod /x/udp_tunnel.ko \ninsmod /x/rdma_rxe.ko option=1\n";
        assert_eq!(insmod_lines(text), [Path::new("/x/udp_tunnel.ko"), Path::new("/x/rdma_rxe.ko")]);
    }

    #[test]
    fn releases_sort_by_number() {
        assert!(version_key("6.1.0-57-amd64") > version_key("6.1.0-9-amd64"));
        assert!(version_key("6.12.1-1-amd64") > version_key("6.1.0-57-amd64"));
    }
}
