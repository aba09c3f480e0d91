//! The lock under which contexts join, are reaped and agree on things.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rand::Rng;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::directory::Directory;
use super::error::LockError;

const FILE: &str = "lock";

/// How long to sleep between two tries, at most. There is no `flock` with a deadline, and a signal to interrupt one would
/// be the whole process's business. Random, so that of many who try none is always late.
const PAUSE: Duration = Duration::from_millis(1);

/// The lock, held. Dropping it releases it, and so does the end of the process.
#[derive(Debug)]
pub(super) struct Guard {
    file: OwnedFd,
}

impl Guard {
    /// Takes the lock, waiting at most `patience`; zero tries once.
    pub(super) fn acquire(directory: &Directory, patience: Duration) -> Result<Self, LockError> {
        let io = |what, source| LockError::Io { what, path: directory.path_of(FILE), source };
        let file = directory.open_file(FILE, OFlags::RDWR | OFlags::CREATE).map_err(|e| io("open", e.into_io()))?;
        let start = Instant::now();
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) => {
                    let waited = start.elapsed();
                    if waited >= patience {
                        let path = directory.path_of(FILE);
                        return Err(LockError::Busy { path, holder: holder(&file), waited });
                    }
                    std::thread::sleep(rand::rng().random_range(Duration::ZERO..=PAUSE).min(patience - waited));
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(io("lock", error.into())),
            }
        }
        let guard = Self { file };
        // Only for the message above, so failure is no reason to stop. Eleven characters hold any process id.
        let name = format!("{:<11}", std::process::id());
        let _ = rustix::io::pwrite(&guard.file, name.as_bytes(), 0);
        Ok(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Closing would do, unless a child was forked meanwhile and has the descriptor too.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

fn holder(file: &OwnedFd) -> Option<u32> {
    let mut text = [0; 11];
    let read = rustix::io::pread(file, &mut text, 0).map_err(io::Error::from).ok()?;
    std::str::from_utf8(text.get(..read)?).ok()?.trim().parse().ok()
}
