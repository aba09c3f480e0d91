//! What the tests of several crates need, and nothing else does.

pub mod allocated;
pub mod model;
pub mod nic;
pub mod tshark;
pub mod wire;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use std::os::fd::BorrowedFd;
use std::process::Command;

/// Users other than root need a user namespace to make network namespaces in, and only a process with one thread can enter it
/// (unshare(2), `EINVAL`): a test program before its `main`.
#[used]
// SAFETY: the loader calls what is listed here once, before `main`, as functions of this signature; more arguments do no harm.
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = become_root_of_a_user_namespace;

extern "C" fn become_root_of_a_user_namespace() {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() {
        return;
    }
    // SAFETY: no file descriptor table is unshared, which is what the function warns of.
    if unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER) }.is_err() {
        return;
    }
    // What fails here leaves a program that may do less, and `isolate` says so.
    let _ = std::fs::write("/proc/self/setgroups", "deny");
    let _ = std::fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw()));
    let _ = std::fs::write("/proc/self/gid_map", format!("0 {} 1", group.as_raw()));
}

/// Moves this thread, and the threads and processes that it starts from now on, to a network namespace of its own with a loopback
/// interface: a host without neighbours. Contexts of other tests that come and go would share its UDP port, and a port has one
/// registry.
///
/// # Panics
///
/// If that is not allowed: it takes root, or user namespaces. Also if `ip`, of the package iproute2, is missing.
pub fn isolate() {
    // SAFETY: no file descriptor table is unshared, which is what the function warns of.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }
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
