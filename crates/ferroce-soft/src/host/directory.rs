//! The directory in which the contexts of one user and one network namespace meet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::error::DirectoryError;

/// What the names of default directories begin with.
pub(super) const PREFIX: &str = "ferroce-";

/// Names the runtime directory. Takes the place of the default below `/dev/shm`.
pub(super) const VARIABLE: &str = "FERROCE_RUNTIME_DIR";

/// An open runtime directory, checked to be this user's alone.
///
/// All files are opened relative to its descriptor, so exchanging the path later redirects nobody.
#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    /// It is named after the namespace, and not by anybody.
    default: bool,
}

impl Directory {
    /// Opens `path`, or the directory that the environment names, or the default; makes it if it is missing.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, DirectoryError> {
        let (path, default) = match (path, std::env::var_os(VARIABLE)) {
            (Some(path), _) => (path.to_owned(), false),
            (None, Some(path)) if !path.is_empty() => (path.into(), false),
            _ => (default_path()?, true),
        };
        match rustix::fs::mkdirat(CWD, &path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(DirectoryError::Io { what: "create", path, source: error.into() }),
        }
        Ok(Self { default, ..Self::existing(&path)? })
    }

    /// Opens `path`, which must be there.
    pub(super) fn existing(path: &Path) -> Result<Self, DirectoryError> {
        let path = path.to_owned();
        let io = |what, source: Errno| DirectoryError::Io { what, path: path.clone(), source: source.into() };
        // Looked at before it is opened, because a directory of another user would only say EACCES.
        let before = rustix::fs::statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).map_err(|e| io("examine", e))?;
        check(&path, &before, FileType::Directory)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(|e| io("open", e))?;
        // Looked at again, because only now it cannot be exchanged any more.
        let opened = rustix::fs::fstat(&fd).map_err(|e| io("examine", e))?;
        check(&path, &opened, FileType::Directory)?;
        Ok(Self { fd, path, default: false })
    }

    /// Whether it is named after the network namespace, rather than by the user.
    pub(super) fn is_default(&self) -> bool {
        self.default
    }

    /// Whether somebody has removed it since it was opened.
    pub(super) fn is_removed(&self) -> bool {
        rustix::fs::fstat(&self.fd).is_ok_and(|stat| stat.st_nlink == 0)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file in the directory, for messages.
    pub(super) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Opens a file of the directory. It must be a regular file that is this user's alone.
    pub(super) fn open_file(&self, name: &str, flags: OFlags) -> Result<OwnedFd, DirectoryError> {
        self.open_typed(name, flags, FileType::RegularFile)
    }

    /// Opens both ends of a FIFO of the directory, without blocking.
    ///
    /// Whoever has both ends open never sees end-of-file, `ENXIO` or `EPIPE`, and so no SIGPIPE, whatever the others
    /// do (fifo(7): opening read-write succeeds on Linux).
    pub(super) fn open_fifo(&self, name: &str) -> Result<OwnedFd, DirectoryError> {
        self.open_typed(name, OFlags::RDWR | OFlags::NONBLOCK, FileType::Fifo)
    }

    fn open_typed(&self, name: &str, flags: OFlags, kind: FileType) -> Result<OwnedFd, DirectoryError> {
        let io = |what, source: Errno| DirectoryError::Io { what, path: self.path_of(name), source: source.into() };
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::RUSR | Mode::WUSR).map_err(|e| io("open", e))?;
        let stat = rustix::fs::fstat(&fd).map_err(|e| io("examine", e))?;
        check(&self.path_of(name), &stat, kind)?;
        Ok(fd)
    }

    /// Makes a FIFO.
    pub(super) fn make_fifo(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::mknodat(&self.fd, name, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?)
    }

    /// Removes a file. That it is gone already is fine; anything else is left to the next join.
    pub(super) fn remove(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::empty());
    }
}

impl DirectoryError {
    /// Whether the file in question does not exist.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// Whether what failed is to open what was there a moment ago, rather than to make it.
    pub(super) fn is_opening(&self) -> bool {
        matches!(self, Self::Io { what: "examine" | "open", .. })
    }

    /// What the kernel said, or a description of what was seen.
    pub(super) fn into_io(self) -> io::Error {
        match self {
            Self::Io { source, .. } | Self::NoNetworkNamespace { source, .. } => source,
            other => io::Error::new(io::ErrorKind::PermissionDenied, other),
        }
    }
}

fn default_path() -> Result<PathBuf, DirectoryError> {
    // The namespace of the calling thread, which is where its sockets will be.
    let path = "/proc/thread-self/ns/net";
    let stat = rustix::fs::stat(path)
        .map_err(|e| DirectoryError::NoNetworkNamespace { path: path.into(), source: e.into() })?;
    let user = rustix::process::geteuid().as_raw();
    Ok(format!("/dev/shm/{PREFIX}{user}-{}", stat.st_ino).into())
}

fn check(path: &Path, stat: &Stat, kind: FileType) -> Result<(), DirectoryError> {
    let found = FileType::from_raw_mode(stat.st_mode);
    if found != kind {
        return Err(match kind {
            FileType::Directory => DirectoryError::NotADirectory { path: path.into() },
            _ => DirectoryError::Io {
                what: "use",
                path: path.into(),
                source: io::Error::new(io::ErrorKind::InvalidInput, format!("it is a {found:?}, not a {kind:?}")),
            },
        });
    }
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        return Err(DirectoryError::NotOwner { path: path.into(), owner: stat.st_uid, user });
    }
    let mode = stat.st_mode & 0o7777;
    if mode & 0o077 != 0 {
        return Err(DirectoryError::Exposed { path: path.into(), mode });
    }
    Ok(())
}
