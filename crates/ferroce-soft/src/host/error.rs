//! What can go wrong between the contexts of one host.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The runtime directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// The network namespace, which names the default directory, cannot be read.
    #[error("cannot read the network namespace from {path}: {source}; mount /proc, or name a directory with FERROCE_RUNTIME_DIR", path = .path.display())]
    NoNetworkNamespace {
        /// The file that was asked.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The path is a symbolic link or not a directory.
    #[error("{path} is not a directory (symbolic links are refused); remove it, or name another with FERROCE_RUNTIME_DIR", path = .path.display())]
    NotADirectory {
        /// The path in question.
        path: PathBuf,
    },
    /// The directory, or a file in it, belongs to another user.
    #[error("{path} belongs to user {owner}, this process runs as user {user}; contexts of different users do not share a registry: name another directory with FERROCE_RUNTIME_DIR", path = .path.display())]
    NotOwner {
        /// The path in question.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// Effective user id of this process.
        user: u32,
    },
    /// The directory, or a file in it, is open to other users.
    #[error("{path} has mode {mode:04o} and so is open to other users; name a directory of this user alone with FERROCE_RUNTIME_DIR (one that is missing is made), or, if {path} serves nothing else, run: chmod go-rwx {path}", path = .path.display())]
    Exposed {
        /// The path in question.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The kernel refused an operation.
    #[error("cannot {what} {path}: {source}", path = .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// The registry's lock cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else held it all the time.
    #[error("{path} is held by process {holder} and was not released within {waited:?}; if that process is stopped, continue or end it", path = .path.display(), holder = .holder.map_or_else(|| "(unknown)".to_owned(), |pid| pid.to_string()))]
    Busy {
        /// The lock file.
        path: PathBuf,
        /// Process id of the holder, as seen in the holder's process id namespace.
        holder: Option<u32>,
        /// How long this process waited.
        waited: Duration,
    },
    /// The kernel refused an operation.
    #[error("cannot {what} {path}: {source}", path = .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A context cannot join the others of its host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// The runtime directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The registry's lock cannot be had.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The registry was made by another version of this library.
    #[error("{path} has layout {found}, this version of ferroce uses layout {expected}; end the programs that use it and remove the directory, or name another with FERROCE_RUNTIME_DIR", path = .path.display())]
    Layout {
        /// The registry.
        path: PathBuf,
        /// Its layout number.
        found: u32,
        /// The layout number of this library.
        expected: u32,
    },
    /// The registry is not one.
    #[error("{path} is damaged ({why}); end the programs that use it and remove the directory", path = .path.display())]
    Damaged {
        /// The registry.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// All slots are taken by living contexts.
    #[error("all {slots} slots of {path} are taken by living contexts; close some, or name another directory with FERROCE_RUNTIME_DIR", slots = super::SLOTS, path = .path.display())]
    Full {
        /// The runtime directory.
        path: PathBuf,
    },
    /// An option is out of range.
    #[error("a ring of {bytes} bytes is not possible: give a power of two from {least} to {most}")]
    RingSize {
        /// What was asked for.
        bytes: usize,
        /// The least possible.
        least: usize,
        /// The most possible.
        most: usize,
    },
    /// There is no memory for the registry or the segment.
    #[error("no room for {bytes} bytes in {path}: {source}; free some, or name a directory on a larger file system with FERROCE_RUNTIME_DIR", path = .path.display())]
    NoSpace {
        /// The file to grow.
        path: PathBuf,
        /// By how much.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused an operation.
    #[error("cannot {what} {path}: {source}", path = .path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}
