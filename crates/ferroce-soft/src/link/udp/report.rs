//! What became of packets that were to be sent.

use super::counters::UdpStatistics;

/// What became of the packets since the last report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendReport {
    /// Packets handed to the kernel.
    pub sent: usize,
    /// Packets lost because the socket's send buffer or the device's queue was full. Sending less helps.
    pub congested: usize,
    /// Packets lost because they exceed the path MTU.
    pub too_big: usize,
    /// Packets lost because there is no way to the destination, or not from that source address.
    pub unreachable: usize,
    /// Packets lost for another reason.
    pub other: usize,
    /// `errno` of the last loss, 0 if there was none.
    pub errno: i32,
}

impl SendReport {
    /// Packets that were lost.
    #[must_use]
    pub fn lost(&self) -> usize {
        self.congested + self.too_big + self.unreachable + self.other
    }

    /// Notes a loss, in this report and in the statistics, by the `errno` that `sendmsg` gave.
    pub(super) fn lose(&mut self, packets: usize, errno: i32, statistics: &mut UdpStatistics) {
        let (reported, counted) = match errno {
            libc::EAGAIN => (&mut self.congested, &mut statistics.tx_would_block),
            libc::ENOBUFS | libc::ENOMEM => (&mut self.congested, &mut statistics.tx_no_buffers),
            libc::EMSGSIZE => (&mut self.too_big, &mut statistics.tx_too_big),
            // EINVAL: the source address is not one of this host. EPERM: a packet filter.
            libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::ENETDOWN
            | libc::ECONNREFUSED
            | libc::EADDRNOTAVAIL
            | libc::EAFNOSUPPORT
            | libc::EINVAL
            | libc::EPERM
            | libc::EACCES => (&mut self.unreachable, &mut statistics.tx_unreachable),
            _ => (&mut self.other, &mut statistics.tx_other_errors),
        };
        *reported += packets;
        *counted += packets as u64;
        self.errno = errno;
    }
}
