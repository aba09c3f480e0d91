//! Waiting for what interfaces do; a hang becomes a failure.
#![allow(dead_code, reason = "not every test needs all of it")]

use ferroce_transport::uct::{Arm, Interface};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt::Debug;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Makes progress until `done`.
pub(crate) fn until<I: Interface + Debug>(interfaces: &[&I], mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        for interface in interfaces {
            interface.progress().unwrap();
        }
        assert!(Instant::now() < deadline, "nothing more happens: {interfaces:#?}");
    }
}

/// Whether the descriptor is readable within `ms`.
pub(crate) fn readable(interface: &impl Interface, ms: i64) -> bool {
    let timeout = Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000 * 1_000_000) as _ };
    poll(&mut [PollFd::new(&interface.event_fd(), PollFlags::IN)], Some(&timeout)).unwrap() != 0
}

/// Sleeps until there is something to be done, and does it.
pub(crate) fn sleep_until(interface: &(impl Interface + Debug), mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        if interface.arm().unwrap() == Arm::Armed {
            assert!(readable(interface, 30_000), "nobody woke this side: {interface:#?}");
        }
        interface.progress().unwrap();
        assert!(Instant::now() < deadline, "{interface:#?}");
    }
}
