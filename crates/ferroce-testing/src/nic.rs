//! Sends as a NIC does: the address handle's MAC goes into the frame, and no kernel looks for a better one.

use crate::wire::{HERE, Mac, THERE};
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const PORT: u16 = 4000;
/// `ETH_P_IP`.
const ETHERTYPE: u16 = 0x0800;

/// Sends a datagram from the first host of [`crate::wire::wire`] for the second one's [`Inbox`], by the network device `ifindex`, to the
/// station `to`.
///
/// # Panics
///
/// If that is not allowed.
pub fn send(ifindex: u32, to: Mac, payload: &[u8]) {
    let frame = frame(to, payload);
    // SAFETY: the calls take numbers, and pointers to what lives here for as long as they run, with their sizes.
    unsafe {
        let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0, "a packet socket: {}", std::io::Error::last_os_error());
        let fd = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_ll = zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ETHERTYPE.to_be();
        address.sll_ifindex = ifindex as i32;
        let len = size_of::<libc::sockaddr_ll>() as u32;
        let sent =
            libc::sendto(fd.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0, (&raw const address).cast(), len);
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }
}

fn frame(to: Mac, payload: &[u8]) -> Vec<u8> {
    let mut frame = to.to_vec();
    frame.extend([2, 0, 0, 0, 0, 1]);
    frame.extend(ETHERTYPE.to_be_bytes());
    let udp = 8 + payload.len() as u16;
    let mut ip = vec![0x45, 0];
    ip.extend((20 + udp).to_be_bytes());
    ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    ip.extend(HERE.octets());
    ip.extend(THERE.octets());
    let sum: u32 = ip.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame.extend(ip);
    frame.extend(PORT.to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend(udp.to_be_bytes());
    // No checksum.
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// What has arrived there; opened before anything is sent.
pub struct Inbox(std::net::UdpSocket);

impl Inbox {
    /// On the second host.
    ///
    /// # Panics
    ///
    /// If it is not run there.
    pub fn open() -> Self {
        let socket = std::net::UdpSocket::bind((THERE, PORT)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self(socket)
    }

    /// What has arrived since the last time.
    pub fn take(&self) -> Vec<Vec<u8>> {
        let mut buffer = [0; 100];
        std::iter::from_fn(|| self.0.recv(&mut buffer).ok().map(|len| buffer[..len].to_vec())).collect()
    }
}
