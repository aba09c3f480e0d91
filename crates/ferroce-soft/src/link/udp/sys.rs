//! The system calls that no safe wrapper offers: `sendmsg`/`sendmmsg` with ancillary data of the UDP and IP layers,
//! `recvmsg`/`recvmmsg` into one buffer, and integer socket options.
//!
//! All of the link's `unsafe` is here. Names and ancillary data are plain bytes, encoded and decoded by
//! safe code in [`super::name`] and [`super::cmsg`]; this module only lends them to the kernel for the
//! length of one call.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::cmsg::Control;
use super::name::SockName;

/// Most messages that one system call moves.
pub(super) const MAX_MESSAGES: usize = 64;

/// One datagram, or one batch that the kernel cuts into datagrams, on its way out.
#[derive(Clone, Copy)]
pub(super) struct Outgoing<'a> {
    pub(super) name: &'a SockName,
    pub(super) control: &'a [u8],
    pub(super) payload: &'a [u8],
}

/// Where the kernel puts everything about one received datagram but its payload.
#[derive(Clone, Default)]
pub(super) struct Incoming {
    pub(super) name: SockName,
    pub(super) control: Control,
    /// Bytes of payload received.
    pub(super) len: usize,
    /// `MSG_TRUNC` and the like.
    pub(super) flags: libc::c_int,
}

impl Outgoing<'_> {
    /// The header to send this message with. It points into `self`'s borrows and at `iov`, which is
    /// filled here, and is valid as long as they are.
    fn header(&self, iov: &mut MaybeUninit<libc::iovec>) -> libc::msghdr {
        let iov =
            iov.write(libc::iovec { iov_base: self.payload.as_ptr().cast_mut().cast(), iov_len: self.payload.len() });
        // SAFETY: all zero is a valid msghdr: null pointers and zero lengths.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        let name = self.name.as_bytes();
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len() as libc::socklen_t;
        header.msg_iov = iov;
        header.msg_iovlen = 1;
        if !self.control.is_empty() {
            header.msg_control = self.control.as_ptr().cast_mut().cast();
            header.msg_controllen = self.control.len() as _;
        }
        header
    }
}

/// Lets `fd` stand for what `by` stands for, in one step. What it stood for is closed.
pub(super) fn replace(fd: BorrowedFd<'_>, by: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both descriptors are open, as they are borrowed; `fd` is open before and after, so its owner's view of it holds.
    let done = unsafe { libc::dup3(by.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sends one message without blocking.
pub(super) fn send_one(fd: BorrowedFd<'_>, message: &Outgoing<'_>) -> io::Result<()> {
    let mut iov = MaybeUninit::uninit();
    let header = message.header(&mut iov);
    // SAFETY: `header` points at name, control and payload, which `message` borrows, and at `iov`,
    // which lives to the end of this function. The kernel only reads them.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Sends up to [`MAX_MESSAGES`] messages with one system call, without blocking. Returns how many
/// went; the error is that of the first one.
pub(super) fn send_many<'a>(fd: BorrowedFd<'_>, messages: impl Iterator<Item = Outgoing<'a>>) -> io::Result<usize> {
    let mut iovs = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_MESSAGES];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_MESSAGES];
    let mut count = 0;
    for ((message, iov), header) in messages.zip(&mut iovs).zip(&mut headers) {
        header.write(libc::mmsghdr { msg_hdr: message.header(iov), msg_len: 0 });
        count += 1;
    }
    // SAFETY: the first `count` headers are initialised; each points at its element of `iovs`, which
    // lives to the end of this function, and at memory borrowed for 'a, which outlives this call.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr().cast(),
            count as libc::c_uint,
            (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as _,
        )
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives up to `slots.len()` (at most [`MAX_MESSAGES`]) datagrams with one system call, without
/// blocking. Datagram *i* goes to `storage[i * stride..][..stride]` and what else is known of it to `slots[i]`.
/// Returns how many came, at least one.
///
/// # Panics
///
/// If there are no slots or `storage` is too short for them.
pub(super) fn receive(
    fd: BorrowedFd<'_>,
    storage: &mut [u8],
    stride: usize,
    slots: &mut [Incoming],
) -> io::Result<usize> {
    assert!(!slots.is_empty() && stride > 0);
    let count = slots.len().min(MAX_MESSAGES);
    let slots = &mut slots[..count];
    assert!(storage.len() / stride >= slots.len());
    if let [slot] = slots {
        return receive_one(fd, &mut storage[..stride], slot).map(|()| 1);
    }
    let mut iovs = [const { MaybeUninit::<libc::iovec>::uninit() }; MAX_MESSAGES];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; MAX_MESSAGES];
    let parts = storage.chunks_exact_mut(stride);
    for (((slot, part), iov), header) in slots.iter_mut().zip(parts).zip(&mut iovs).zip(&mut headers) {
        header.write(libc::mmsghdr { msg_hdr: slot.header(part, iov), msg_len: 0 });
    }
    // SAFETY: as many headers as slots are initialised, for the zip above is as long as its shortest part,
    // which the assertions make `slots`. Each points at its own part of `storage`, its own slot and
    // its own iovec, all of which outlive the call and are touched by nobody else during it.
    let received = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            headers.as_mut_ptr().cast(),
            slots.len() as libc::c_uint,
            libc::MSG_DONTWAIT as _,
            ptr::null_mut(),
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    for (slot, header) in slots.iter_mut().zip(&headers).take(received) {
        // SAFETY: initialised above.
        let header = unsafe { header.assume_init_ref() };
        slot.finish(&header.msg_hdr, header.msg_len as usize);
    }
    Ok(received)
}

fn receive_one(fd: BorrowedFd<'_>, part: &mut [u8], slot: &mut Incoming) -> io::Result<()> {
    let mut iov = MaybeUninit::uninit();
    let mut header = slot.header(part, &mut iov);
    // SAFETY: `header` points at `part`, `slot` and `iov`, all of which outlive the call and are
    // touched by nobody else during it.
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    slot.finish(&header, received);
    Ok(())
}

impl Incoming {
    /// The header to receive into this slot and `part` with; valid as long as all three arguments are.
    fn header(&mut self, part: &mut [u8], iov: &mut MaybeUninit<libc::iovec>) -> libc::msghdr {
        let iov = iov.write(libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        // SAFETY: all zero is a valid msghdr: null pointers and zero lengths.
        let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        let name = self.name.space();
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_namelen = name.len() as libc::socklen_t;
        header.msg_iov = iov;
        header.msg_iovlen = 1;
        let control = self.control.space();
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = control.len() as _;
        header
    }

    #[allow(clippy::unnecessary_cast, reason = "musl has other integer types here")]
    fn finish(&mut self, header: &libc::msghdr, len: usize) {
        self.name.set_len(header.msg_namelen as usize);
        self.control.set_len(header.msg_controllen as usize);
        self.len = len;
        self.flags = header.msg_flags;
    }
}

/// Sets an integer socket option.
pub(super) fn set_int(fd: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the option value is a live c_int and its size is what is said.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    check(result)
}

/// Reads a socket option that is an array of words, such as `SO_MEMINFO`. Words that the kernel does
/// not know stay 0.
pub(super) fn get_words<const N: usize>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<[u32; N]> {
    let mut words = [0; N];
    let mut len = size_of::<[u32; N]>() as libc::socklen_t;
    // SAFETY: `words` has room for `len` bytes and any bit pattern is a valid u32.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, words.as_mut_ptr().cast(), &raw mut len) };
    check(result).map(|()| words)
}

/// Attaches a classic BPF program that chooses among the sockets of one `SO_REUSEPORT` group.
pub(super) fn attach_reuseport_cbpf(fd: BorrowedFd<'_>, program: &[libc::sock_filter]) -> io::Result<()> {
    let fprog = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: `fprog` describes `program`, which the kernel copies and checks before it returns.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const fprog).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    check(result)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
