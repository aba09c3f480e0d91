//! What the kernel shows of its devices.

use crate::Unavailable;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Where the kernel's file systems are.
#[derive(Clone, Debug)]
pub struct Host {
    sys: PathBuf,
    dev: PathBuf,
}

impl Default for Host {
    fn default() -> Self {
        Self::new("/sys", "/dev")
    }
}

impl Host {
    /// Another machine's, for tests.
    pub fn new(sys: impl Into<PathBuf>, dev: impl Into<PathBuf>) -> Self {
        Self { sys: sys.into(), dev: dev.into() }
    }

    /// Whether the kernel has user-space verbs and a device, whatever the library says.
    ///
    /// # Errors
    ///
    /// [`Unavailable::NoKernelSupport`] or [`Unavailable::NoDevices`].
    pub fn check(&self) -> Result<(), Unavailable> {
        let verbs = self.sys.join("class/infiniband_verbs");
        if !verbs.is_dir() {
            return Err(Unavailable::NoKernelSupport { missing: verbs });
        }
        if self.devices().is_empty() { Err(Unavailable::NoDevices) } else { Ok(()) }
    }

    /// Why the library shows none of the kernel's devices.
    #[must_use]
    pub fn why_none(&self) -> Unavailable {
        if let Err(error) = self.check() {
            return error;
        }
        let devices = self.devices();
        // The library leaves out what it has no file for.
        for Listed { name, file } in &devices {
            if let Some(why @ Unavailable::NoDeviceFile { .. }) = self.why_not_open(name, file) {
                return why;
            }
        }
        let names: Vec<String> = devices.into_iter().map(|device| device.name).collect();
        Unavailable::NoProvider { names: names.join(", ") }
    }

    /// Why the device `name`, whose file in `/dev/infiniband` is `file`, cannot be opened; `None` if nothing is wrong with the file.
    #[must_use]
    pub fn why_not_open(&self, name: &str, file: &str) -> Option<Unavailable> {
        let path = self.dev.join("infiniband").join(file);
        let error = OpenOptions::new().read(true).write(true).open(&path).err()?;
        match error.kind() {
            ErrorKind::NotFound => Some(Unavailable::NoDeviceFile { device: name.into(), path }),
            ErrorKind::PermissionDenied => Some(Unavailable::NoPermission { device: name.into(), path, source: error }),
            _ if leads_nowhere(&error) => Some(Unavailable::NoDeviceFile { device: name.into(), path }),
            _ => None,
        }
    }

    /// Opens the file of the kernel's connection manager. Reading an event never blocks.
    ///
    /// # Errors
    ///
    /// [`Unavailable::NoConnectionManager`], [`Unavailable::NoCmFile`], [`Unavailable::NoCmPermission`], or [`Unavailable::Os`].
    pub fn open_cm(&self) -> Result<File, Unavailable> {
        let path = self.dev.join("infiniband/rdma_cm");
        // The kernel says whether it has it even where nobody has made the file.
        let class = self.sys.join("class/misc/rdma_cm");
        let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path);
        opened.map_err(|error| match error.kind() {
            kind if kind == ErrorKind::NotFound || leads_nowhere(&error) => match class.exists() {
                false => Unavailable::NoConnectionManager { missing: class },
                true => Unavailable::NoCmFile { path },
            },
            ErrorKind::PermissionDenied => Unavailable::NoCmPermission { path, source: error },
            _ => Unavailable::Os { what: format!("opening {}", path.display()), source: error },
        })
    }

    /// The kernel's devices that user space can use, in alphabetical order.
    fn devices(&self) -> Vec<Listed> {
        let entries = std::fs::read_dir(self.sys.join("class/infiniband_verbs")).into_iter().flatten().flatten();
        let listed = entries.filter_map(|entry| {
            let name = line(&entry.path().join("ibdev"))?;
            Some(Listed { name, file: entry.file_name().to_string_lossy().into_owned() })
        });
        let mut devices: Vec<Listed> = listed.collect();
        devices.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        devices
    }
}

/// A device as the kernel shows it.
struct Listed {
    name: String,
    /// Its file in `/dev/infiniband`.
    file: String,
}

/// Whether a file is there that is not the device's: one that was made by hand, or has been left behind.
fn leads_nowhere(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO))
}

/// What a file of sysfs says.
fn line(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(4096).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    fn host() -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(dir.path().join("sys"), dir.path().join("dev"));
        (dir, host)
    }

    #[test]
    fn each_reason_has_its_own_error() {
        let (_dir, host) = host();
        let error = host.check().unwrap_err();
        assert!(matches!(&error, Unavailable::NoKernelSupport { missing } if missing.ends_with("infiniband_verbs")));
        assert!(error.to_string().contains("modprobe ib_uverbs"));

        // The module makes the directory, with a file that is no device.
        let verbs = host.sys.join("class/infiniband_verbs");
        create_dir_all(&verbs).unwrap();
        write(verbs.join("abi_version"), "6\n").unwrap();
        assert!(matches!(host.why_none(), Unavailable::NoDevices));
        assert!(host.why_none().to_string().contains("rdma link add"));

        create_dir_all(verbs.join("uverbs0")).unwrap();
        write(verbs.join("uverbs0/ibdev"), "rxe0\n").unwrap();
        host.check().unwrap();
        for error in [host.why_none(), host.why_not_open("rxe0", "uverbs0").unwrap()] {
            assert!(matches!(&error, Unavailable::NoDeviceFile { path, .. } if path.ends_with("infiniband/uverbs0")));
            assert!(error.to_string().starts_with("device rxe0 has no file"), "{error}");
        }
        create_dir_all(host.dev.join("infiniband")).unwrap();
        write(host.dev.join("infiniband/uverbs0"), "").unwrap();
        assert!(host.why_not_open("rxe0", "uverbs0").is_none());
        assert!(matches!(host.why_none(), Unavailable::NoProvider { names } if names == "rxe0"));
    }

    #[test]
    fn each_reason_against_the_connection_manager_has_its_own_error() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, host) = host();
        let error = host.open_cm().unwrap_err();
        assert!(matches!(error, Unavailable::NoConnectionManager { .. }), "{error}");
        assert!(error.to_string().contains("modprobe rdma_ucm"), "{error}");

        create_dir_all(host.sys.join("class/misc/rdma_cm")).unwrap();
        let error = host.open_cm().unwrap_err();
        assert!(matches!(&error, Unavailable::NoCmFile { path } if path.ends_with("infiniband/rdma_cm")), "{error}");

        create_dir_all(host.dev.join("infiniband")).unwrap();
        let file = host.dev.join("infiniband/rdma_cm");
        write(&file, "").unwrap();
        host.open_cm().unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
        match host.open_cm() {
            Err(error @ Unavailable::NoCmPermission { .. }) => assert!(error.to_string().contains("chmod 666")),
            // Root may open anything.
            other => assert!(other.is_ok() && File::open(&file).is_ok(), "{other:?}"),
        }
    }

    /// Device files that were made by hand stay when what they lead to goes.
    #[test]
    fn a_file_that_leads_nowhere_is_none() {
        let (_dir, host) = host();
        let files = host.dev.join("infiniband");
        create_dir_all(&files).unwrap();
        // Opening a socket fails as opening such a file does (`ENXIO`), and making one takes no privilege.
        let _sockets =
            ["rdma_cm", "uverbs0"].map(|name| std::os::unix::net::UnixListener::bind(files.join(name)).unwrap());
        let error = host.open_cm().unwrap_err();
        assert!(matches!(error, Unavailable::NoConnectionManager { .. }), "{error}");
        create_dir_all(host.sys.join("class/misc/rdma_cm")).unwrap();
        let error = host.open_cm().unwrap_err();
        assert!(matches!(error, Unavailable::NoCmFile { .. }), "{error}");
        let error = host.why_not_open("rxe0", "uverbs0");
        assert!(matches!(error, Some(Unavailable::NoDeviceFile { .. })), "{error:?}");
    }

    #[test]
    fn a_file_that_others_own_is_a_matter_of_permission() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, host) = host();
        create_dir_all(host.dev.join("infiniband")).unwrap();
        let file = host.dev.join("infiniband/uverbs0");
        write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
        match host.why_not_open("rxe0", "uverbs0") {
            Some(error @ Unavailable::NoPermission { .. }) => assert!(error.to_string().contains("udev rule")),
            // Root may open anything.
            other => assert!(other.is_none() && File::open(&file).is_ok(), "{other:?}"),
        }
    }
}
