//! The part of the initial RAM disk that stays the same from run to run: kernel modules and Debian's programs. It is cached.

use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufWriter};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::exec::Log;

use super::cpio::Archive;
use super::kernel::Kernel;
use super::libraries;

/// Modules to load, with those that they need. rxe computes its CRC through the kernel's crypto API, which looks for `crc32` when it is used.
const MODULES: &[&str] =
    &["crc32_generic", "crc32-pclmul", "veth", "dummy", "sch_netem", "ib_umad", "ib_uverbs", "rdma_ucm", "rdma_rxe"];

/// Programs beside busybox. Those that start others (`timeout`, `env`, ...) are here because busybox's own would start its applets first.
const PROGRAMS: &[&str] = &[
    "dash",
    "env",
    "ip",
    "nice",
    "setpriv",
    "setsid",
    "stdbuf",
    "tc",
    "timeout",
    "unshare",
    "nsenter",
    "rdma",
    "cmtime",
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_srq_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "mckey",
    "rping",
    "ucmatose",
    "udaddy",
];

/// Loaded by programs at run time, so that `ldd` does not name them.
const LOADED_AT_RUN_TIME: &[&str] = &["/lib/x86_64-linux-gnu/libgcc_s.so.1", "/usr/libexec/coreutils/libstdbuf.so"];

const PROVIDERS: &str = "/usr/lib/x86_64-linux-gnu/libibverbs";
const PROVIDER_CONFIG: &str = "/etc/libibverbs.d/rxe.driver";

/// Changes whenever this file writes something else from the same sources.
const FORMAT: u32 = 1;

/// Where a file is put: Debian's `/bin`, `/sbin` and `/lib*` are links to the same directories below `/usr`.
pub(super) fn place(path: &Path) -> String {
    let path = path.to_string_lossy();
    let path = path.trim_start_matches('/');
    let merged = ["bin/", "sbin/", "lib/", "lib64/"];
    if merged.iter().any(|prefix| path.starts_with(prefix)) { format!("usr/{path}") } else { path.to_owned() }
}

/// What goes in.
struct Parts {
    modules: Vec<PathBuf>,
    programs: Vec<PathBuf>,
    /// Go to the place that they have on this machine.
    libraries: BTreeSet<PathBuf>,
}

impl Parts {
    fn gather(kernel: &Kernel) -> Result<Self, Error> {
        let modules = kernel.modules(MODULES)?;
        let mut programs = Vec::new();
        let mut libraries: BTreeSet<PathBuf> = LOADED_AT_RUN_TIME.iter().map(PathBuf::from).collect();
        for name in PROGRAMS {
            let program = find_program(name)?;
            libraries.extend(libraries::of(&program)?);
            programs.push(program);
        }
        let provider = rxe_provider()?;
        libraries.extend(libraries::of(&provider)?);
        libraries.insert(provider);
        libraries.insert(PathBuf::from(PROVIDER_CONFIG));
        Ok(Self { modules, programs, libraries })
    }

    /// Changes when any source file does.
    fn key(&self, kernel: &Kernel, busybox: &Path) -> Result<u64, Error> {
        let mut hasher = DefaultHasher::new();
        (FORMAT, kernel.release()).hash(&mut hasher);
        let sources = self.modules.iter().chain(&self.programs).chain(&self.libraries);
        for path in sources.chain([&busybox.to_path_buf()]) {
            let meta = std::fs::metadata(path).map_err(Error::io(format!("read {}", path.display())))?;
            (path, meta.len(), meta.mtime()).hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    fn write(&self, out: File, busybox: &Path) -> io::Result<()> {
        let mut archive = Archive::new(BufWriter::new(out));
        for (link, to) in [("bin", "usr/bin"), ("sbin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
            archive.symlink(link, to)?;
        }
        // Without it, the first process would have no console.
        archive.character_device("dev/console", 5, 1)?;
        for directory in ["proc", "sys", "tmp", "run/netns", "payload", "busybox", "root", "usr/lib64"] {
            archive.directory(directory)?;
        }
        let mut order = String::new();
        for module in &self.modules {
            let name = module.file_name().unwrap_or_default().to_string_lossy();
            archive.copy(&format!("modules/{name}"), module)?;
            order.push_str(&format!("{name}\n"));
        }
        archive.file("modules/order", 0o644, order.as_bytes())?;
        archive.copy("busybox/busybox", busybox)?;
        for program in &self.programs {
            let name = program.file_name().unwrap_or_default().to_string_lossy();
            archive.copy(&format!("usr/bin/{name}"), program)?;
        }
        archive.symlink("usr/bin/sh", "dash")?;
        for library in &self.libraries {
            archive.copy(&place(library), library)?;
        }
        archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/tmp:/bin/sh\n")?;
        archive.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
        archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n10.77.0.1 rxe\n10.77.0.2 soft\n")?;
        archive.finish()?;
        Ok(())
    }
}

/// The cached RAM disk for this kernel and these programs; writes it if it is not there.
pub(super) fn locate(cache: &Path, kernel: &Kernel, log: Log) -> Result<PathBuf, Error> {
    let busybox = find_program("busybox")?;
    let parts = Parts::gather(kernel)?;
    let path = cache.join(format!("base-{:016x}.cpio", parts.key(kernel, &busybox)?));
    if path.is_file() {
        return Ok(path);
    }
    log.line(&format!("writing {}", path.display()));
    let what = || format!("write {}", path.display());
    let scratch = tempfile::NamedTempFile::new_in(cache).map_err(Error::io(what()))?;
    let out = scratch.reopen().map_err(Error::io(what()))?;
    parts.write(out, &busybox).map_err(Error::io(what()))?;
    remove_old(cache);
    scratch.persist(&path).map_err(|error| Error::io(what())(error.error))?;
    Ok(path)
}

/// Removes RAM disks that no run can be reading: it opens one only to copy it, right after finding it.
fn remove_old(cache: &Path) {
    let Ok(entries) = std::fs::read_dir(cache) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let ours = name.to_str().is_some_and(|name| name.starts_with("base-") && name.ends_with(".cpio"));
        let age = entry.metadata().and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
        if ours && age.is_some_and(|age| age.as_secs() > 3600) {
            // Nothing depends on it; the next run tries again.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn find_program(name: &str) -> Result<PathBuf, Error> {
    // Debian's own first: a user's PATH may lead elsewhere.
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| Error::NotFound { what: format!("the program {name}") })
}

/// The provider library of rxe. Its name ends with the version of the interface to libibverbs.
fn rxe_provider() -> Result<PathBuf, Error> {
    std::fs::read_dir(PROVIDERS)
        .map_err(Error::io(format!("read {PROVIDERS}")))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("librxe-")))
        .ok_or_else(|| Error::NotFound { what: format!("{PROVIDERS}/librxe-*.so") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_the_merged_usr() {
        assert_eq!(place(Path::new("/lib/x/libc.so.6")), "usr/lib/x/libc.so.6");
        assert_eq!(place(Path::new("/lib64/ld.so")), "usr/lib64/ld.so");
        assert_eq!(place(Path::new("/usr/lib/x")), "usr/lib/x");
        assert_eq!(place(Path::new("/etc/x")), "etc/x");
    }
}
