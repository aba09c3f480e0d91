//! The lock under which contexts join, are reaped and agree on things.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rand::Rng;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::directory::Directory;
use super::error::LockError;

pub(super) const FILE: &str = "lock";

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
        let open = || directory.open_file(FILE, OFlags::RDWR | OFlags::CREATE).map_err(|e| io("open", e.into_io()));
        let mut file = open()?;
        let start = Instant::now();
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Whoever had it removed it with the whole registry: others may have made another one already.
                Ok(()) if rustix::fs::fstat(&file).is_ok_and(|stat| stat.st_nlink == 0) => file = open()?,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a lock that was removed while somebody waited for it, others know nothing.
    #[test]
    fn who_waited_for_a_lock_that_is_removed_has_the_new_one() {
        let parent = tempfile::tempdir().unwrap();
        let directory = Directory::open(Some(&parent.path().join("registry"))).unwrap();
        let first = Guard::acquire(&directory, Duration::ZERO).unwrap();
        let second = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| Guard::acquire(&directory, Duration::from_secs(60)).unwrap());
            // For the waiter to wait. If it comes later, it sees only the new lock.
            std::thread::sleep(Duration::from_millis(50));
            directory.remove(FILE);
            drop(first);
            waiter.join().unwrap()
        });
        assert!(matches!(Guard::acquire(&directory, Duration::ZERO), Err(LockError::Busy { .. })));
        drop(second);
        Guard::acquire(&directory, Duration::ZERO).unwrap();
    }
}
