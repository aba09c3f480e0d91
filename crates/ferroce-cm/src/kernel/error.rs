//! What the kernel's error numbers mean.

use crate::Error;
use rustix::io::Errno;
use std::io;
use std::net::SocketAddr;

/// There is nothing to come from a device that is no more.
pub(crate) const GONE: &str = "the device is gone (it was unplugged, reset, or its driver was unloaded)";

/// The kernel refused what a call was `doing`.
pub(crate) fn refused<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Error {
    move |error| {
        let error = error.into();
        let advice = match Errno::from_io_error(&error) {
            Some(Errno::IO | Errno::NODEV | Errno::NXIO) => GONE,
            Some(Errno::NOMEM) => "the kernel has no room for more",
            Some(Errno::INVAL) => {
                "the kernel's connection manager does not take it in this state, or with these values"
            }
            _ => "the kernel's connection manager",
        };
        Error::device(doing)(ferroce_verbs::Error::os(advice, error))
    }
}

/// The kernel cannot use an address.
pub(crate) fn address(addr: SocketAddr, error: io::Error) -> Error {
    let why = match Errno::from_io_error(&error) {
        Some(Errno::ADDRNOTAVAIL) => {
            "this host has no such address, or a listener at all addresses has its port".to_owned()
        }
        Some(Errno::ADDRINUSE) => "another listener of this host has it".to_owned(),
        Some(Errno::NODEV) => {
            "no RDMA device reaches it, or has it: see `ferroce info` for the addresses that they have".to_owned()
        }
        Some(Errno::HOSTUNREACH | Errno::NETUNREACH) => format!("there is no route to it: {error}"),
        Some(Errno::TIMEDOUT) => "it does not answer (ARP or neighbour discovery)".to_owned(),
        Some(Errno::ACCESS) => "ports below 1024 are for root".to_owned(),
        // Of an id that had one.
        Some(Errno::IO | Errno::NXIO) => GONE.to_owned(),
        _ => error.to_string(),
    };
    Error::Address { addr, why }
}

/// The error behind the status of an event.
pub(crate) fn of_status(status: i32) -> io::Error {
    io::Error::from_raw_os_error(status.saturating_abs())
}
