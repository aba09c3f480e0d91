use std::io;
use std::path::PathBuf;

/// Why there is no device of rdma-core. Each says what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The library cannot be loaded.
    #[error(
        "rdma-core's library {name} cannot be loaded ({}): install it (Debian, Ubuntu: apt install libibverbs1 \
         ibverbs-providers; Fedora, RHEL: dnf install libibverbs), or name the file in FERROCE_LIBIBVERBS",
        loader(.source)
    )]
    Library {
        /// What was loaded.
        name: String,
        /// What the dynamic loader says.
        source: libloading::Error,
    },
    /// The library is something else, or too old.
    #[error("{name} has no {symbol}: it is not libibverbs of rdma-core 33 or newer; update rdma-core")]
    Symbol {
        /// What was loaded.
        name: String,
        /// What it lacks.
        symbol: &'static str,
        /// What the dynamic loader says.
        source: libloading::Error,
    },
    /// The kernel has no user-space verbs.
    #[error(
        "the kernel has no user-space verbs (there is no {}): load them (modprobe ib_uverbs); a container has those of its host",
        .missing.display()
    )]
    NoKernelSupport {
        /// The directory that ib_uverbs would have made.
        missing: PathBuf,
    },
    /// The kernel has user-space verbs and no device.
    #[error(
        "the kernel has no RDMA device: load the driver of the adapter, or make one without hardware (modprobe rdma_rxe; rdma link \
         add rxe0 type rxe netdev eth0)"
    )]
    NoDevices,
    /// The kernel has a device that the library does not show.
    #[error(
        "the kernel has the RDMA devices {names}, for which the library has no provider: install them (Debian, Ubuntu: apt install \
         ibverbs-providers; Fedora, RHEL: dnf install rdma-core)"
    )]
    NoProvider {
        /// The kernel's names of the devices.
        names: String,
    },
    /// There is no file to open the device by.
    #[error(
        "device {device} has no file {}, or one that leads nowhere: let udev make it, or give it to the container (docker run --device=/dev/infiniband)",
        .path.display()
    )]
    NoDeviceFile {
        /// The device.
        device: String,
        /// Where its file should be.
        path: PathBuf,
    },
    /// This process may not use the device.
    #[error(
        "no permission to open {} of device {device}: it must be readable and writable for this user (chmod 666, or a group by a \
         udev rule, as rdma-core installs one)",
        .path.display()
    )]
    NoPermission {
        /// The device.
        device: String,
        /// Its file.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// The kernel has no connection manager for programs.
    #[error(
        "the kernel's connection manager is not there for programs (there is no {}): load it (modprobe rdma_ucm); a container has that of \
         its host",
        .missing.display()
    )]
    NoConnectionManager {
        /// What rdma_ucm would have made.
        missing: PathBuf,
    },
    /// There is no file to use the kernel's connection manager by.
    #[error(
        "the kernel's connection manager has no file {}, or one that leads nowhere: let udev make it, or give it to the container (docker run \
         --device=/dev/infiniband)",
        .path.display()
    )]
    NoCmFile {
        /// Where it should be.
        path: PathBuf,
    },
    /// This process may not use the kernel's connection manager.
    #[error(
        "no permission to open {}: it must be readable and writable for this user (chmod 666, or a group by a udev rule, as \
         rdma-core installs one)",
        .path.display()
    )]
    NoCmPermission {
        /// Its file.
        path: PathBuf,
        /// What the kernel says.
        source: io::Error,
    },
    /// Anything else that the library says.
    #[error("{what}: {source}")]
    Os {
        /// What was attempted.
        what: String,
        /// What the library says.
        source: io::Error,
    },
}

/// What the dynamic loader says: it is one error further down.
fn loader(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
