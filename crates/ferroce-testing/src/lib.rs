//! What the tests of several crates need, and nothing else does.

pub mod tshark;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use std::os::fd::BorrowedFd;
use std::process::Command;

/// Moves this thread, and the threads and processes that it starts from now on, to a network namespace of its own with a loopback
/// interface: a host without neighbours. Contexts of other tests that come and go would share its UDP port, and a port has one
/// registry.
///
/// # Panics
///
/// If that is not allowed: it takes root, or user namespaces. Also if `ip`, of the package iproute2, is missing.
pub fn isolate() {
    let user = if rustix::process::geteuid().is_root() { UnshareFlags::empty() } else { UnshareFlags::NEWUSER };
    // SAFETY: no file descriptor table is unshared, which is what the function warns of.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET | user) }
        .expect("a network namespace, for which root or user namespaces are needed");
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.expect("ip, from the package iproute2").success());
}

/// Moves this thread, and the threads and processes that it starts from now on, to a network namespace that [`isolate`] made.
///
/// # Panics
///
/// If that is not allowed: the namespace must be of this process's user namespace.
pub fn enter(namespace: BorrowedFd<'_>) {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network)).expect("entering a network namespace");
}
