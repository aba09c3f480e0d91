//! The thread that reads events.

use super::KernelManager;
use ferroce_abi::rdma_cm::CmFile;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// What wakes the thread when it is not an event.
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    pub(super) fn ring(&self) {
        // Cannot fail but for a counter that is full, and then the thread is about to wake anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    fn hush(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// A file that cannot be read is tried again after this.
const RETRY: Duration = Duration::from_millis(100);

/// Starts the thread, which ends when the manager is gone.
pub(super) fn start(file: Arc<CmFile>, alarm: Arc<Alarm>, manager: Weak<KernelManager>) -> io::Result<()> {
    let run = move || {
        while let Some(manager) = manager.upgrade() {
            let turn = manager.turn();
            // It may be the last reference.
            drop(manager);
            let wake_at = match turn {
                Ok(turn) if turn.more => continue,
                Ok(turn) => turn.wake_at,
                Err(error) => {
                    tracing::debug!(%error, "the events of the kernel's connection manager cannot be read");
                    std::thread::sleep(RETRY);
                    continue;
                }
            };
            let timeout = wake_at.map(|deadline| {
                let left = deadline.saturating_duration_since(Instant::now());
                // Rounded up, or it would wake too early and look again.
                Timespec::try_from(left + Duration::from_millis(1)).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 })
            });
            let (file, bell) = (file.as_fd(), alarm.0.as_fd());
            let mut fds =
                [PollFd::from_borrowed_fd(file, PollFlags::IN), PollFd::from_borrowed_fd(bell, PollFlags::IN)];
            // Interrupted is as good as woken.
            let _ = poll(&mut fds, timeout.as_ref());
            if !fds[1].revents().is_empty() {
                alarm.hush();
            }
        }
    };
    std::thread::Builder::new().name("ferroce-cm".into()).spawn(run).map(drop)
}
