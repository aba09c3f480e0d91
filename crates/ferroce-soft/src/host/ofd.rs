//! Open-file-description locks: the sign of life of a slot.
//!
//! They belong to the open file, not to the process (fcntl(2), "Open file description locks"): other descriptors of the
//! same file in the same process conflict with them, and closing such a descriptor does not drop them.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

fn whole_file() -> libc::flock {
    // SAFETY: `flock` is a plain C structure of integers, for which all zeros is a value: the whole file, from its
    // start, and process id 0, as these locks demand.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

fn fcntl(file: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open, the command is one of the two that take a `flock` and `lock` is one.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Locks the file until the last descriptor of this open file is closed.
///
/// # Errors
///
/// `EAGAIN` if another open file holds a lock on it.
pub(super) fn lock(file: BorrowedFd<'_>) -> io::Result<()> {
    fcntl(file, libc::F_OFD_SETLK, &mut whole_file())
}

/// Whether another open file holds a lock on this one.
///
/// # Errors
///
/// What the kernel says.
pub(super) fn is_locked(file: BorrowedFd<'_>) -> io::Result<bool> {
    let mut lock = whole_file();
    fcntl(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}
