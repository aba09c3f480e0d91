//! Storage is reserved before it is touched: a full file system is an error value, not a SIGBUS.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// A file of more than the limit would cost the process its life (SIGXFSZ), so the limit is asked first.
fn check_limit(end: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if end > most => Err(Errno::FBIG.into()),
        _ => Ok(()),
    }
}

/// Sets the length of a file without giving it storage.
///
/// # Errors
///
/// `EFBIG` above the process's file size limit (`ulimit -f`), otherwise what the kernel says.
pub(super) fn set_length(file: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    check_limit(bytes)?;
    Ok(rustix::fs::ftruncate(file, bytes)?)
}

/// Gives a range of a file storage. What is there already stays as it is.
///
/// # Errors
///
/// `ENOSPC` or `EDQUOT` if there is none, `EFBIG` above the process's file size limit, `EOPNOTSUPP` if the file system
/// cannot reserve.
pub(super) fn reserve(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    check_limit(offset + bytes)?;
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), offset, bytes) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Gives the storage of a range back; it reads as zeros from now on.
///
/// # Errors
///
/// What the kernel says.
pub(super) fn release(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, hole, offset, bytes)?)
}
