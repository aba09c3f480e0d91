//! Knowing that the addresses changed.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::SocketFlags;

use super::netlink;

/// Says when interfaces or addresses of this network namespace changed.
///
/// Open the watch first and take the first snapshot then, so that no change falls between. It may say so once too
/// often, but never too seldom.
#[derive(Debug)]
pub struct AddrWatch {
    fd: OwnedFd,
}

impl AddrWatch {
    /// Begins to watch.
    ///
    /// # Errors
    ///
    /// If the kernel refuses netlink, as some sandboxes do.
    pub fn open() -> io::Result<Self> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        let fd = netlink::open(groups as u32, SocketFlags::NONBLOCK)?;
        Ok(Self { fd })
    }

    /// Whether there was a change since the last call. Does not block.
    ///
    /// # Errors
    ///
    /// Only if the socket itself is broken.
    pub fn changed(&self) -> io::Result<bool> {
        let mut buffer = vec![0; netlink::BUFFER];
        let mut changed = false;
        loop {
            match netlink::receive(&self.fd, &mut buffer) {
                Ok(_) => changed = true,
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(changed),
                    // More changes than the socket could hold.
                    Some(libc::ENOBUFS) => changed = true,
                    _ => return Err(e),
                },
            }
        }
    }
}

/// The descriptor to poll: readable means that [`changed`](AddrWatch::changed) has something to say.
impl AsFd for AddrWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
