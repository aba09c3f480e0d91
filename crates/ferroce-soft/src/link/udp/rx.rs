//! Receiving.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ferroce_wire::{BTH_LEN, Flow, ICRC_LEN, IcrcCheck, IpPair, check_icrc};

use super::cmsg::RxInfo;
use super::counters::UdpStatistics;
use super::open::UdpPort;
use super::steering;
use super::sys::{self, Incoming, MAX_MESSAGES};
use super::tx::MAX_SEGMENTS;
use crate::link::capture::{Capture, CaptureMeta, Direction};

/// Something that came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A packet.
    Packet {
        /// Sender's address and port.
        src: SocketAddr,
        /// Destination address in the IP header: one of ours, or a multicast group.
        dst: IpAddr,
        /// Interface that it came in by.
        ifindex: u32,
        /// IPv4 type of service or IPv6 traffic class.
        tos: u8,
        /// IPv4 time to live or IPv6 hop limit.
        ttl: u8,
        /// BTH up to and including the pad, at least 12 bytes. The ICRC has been checked and taken off.
        packet: &'a [u8],
    },
    /// A calibration probe from this host, see [`UdpPort::send_probe`].
    Probe {
        /// The place that this socket has in its `SO_REUSEPORT` group, if the calibration program is attached.
        index: u16,
        /// What the prober sent, to be compared with what the registry says.
        nonce: u64,
    },
}

/// Distance of receive buffers. More than the 64 KiB that GRO can deliver, and not a power of two, so that the
/// beginnings of all buffers do not compete for the same cache lines.
const STRIDE: usize = 0x1_0000 + 4096 + 192;

/// Memory to receive into, reused from pass to pass. One thread's own.
pub struct RxBuffers {
    storage: Box<[u8]>,
    slots: Box<[Incoming]>,
    /// How many datagrams to ask the kernel for next. With one, the cheaper single receive is used.
    ask: usize,
}

impl std::fmt::Debug for RxBuffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RxBuffers").field("datagrams", &self.slots.len()).finish_non_exhaustive()
    }
}

impl RxBuffers {
    /// Room for `datagrams` (1 to 64; clamped) datagrams of any size. Takes some 68 KiB of address space for
    /// each, of which only what datagrams fill becomes resident.
    #[must_use]
    pub fn new(datagrams: usize) -> Self {
        let datagrams = datagrams.clamp(1, MAX_MESSAGES);
        Self {
            storage: vec![0; datagrams * STRIDE].into_boxed_slice(),
            slots: vec![Incoming::default(); datagrams].into_boxed_slice(),
            ask: 1,
        }
    }
}

impl Default for RxBuffers {
    fn default() -> Self {
        Self::new(16)
    }
}

impl UdpPort {
    /// One receive pass with one system call: takes up to `max_datagrams` datagrams, splits those that GRO joined, checks
    /// each packet's ICRC and calls `f` for the good ones.
    ///
    /// Returns the number of packets seen, dropped ones included; 0 means that nothing is waiting. While
    /// there is little traffic only one datagram is asked for, since that is quicker; under load up to
    /// `max_datagrams` and what `bufs` has room for. Less than `max_datagrams` does not mean that the socket is empty.
    ///
    /// # Errors
    ///
    /// Only errors of the socket itself. What a peer or the network does wrong is counted.
    pub fn recv(
        &self,
        bufs: &mut RxBuffers,
        max_datagrams: usize,
        f: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let limit = max_datagrams.clamp(1, bufs.slots.len());
        let ask = bufs.ask.min(limit);
        let slots = &mut bufs.slots[..ask];
        let datagrams = loop {
            match sys::receive(self.shared.fd(), &mut bufs.storage, STRIDE, slots) {
                Ok(datagrams) => break datagrams,
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        bufs.ask = 1;
                        return Ok(0);
                    }
                    // An ICMP error for something that this socket sent: reported once, then gone.
                    Some(
                        libc::EINTR | libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EMSGSIZE,
                    ) => {}
                    _ => return Err(e),
                },
            }
        };
        bufs.ask = if datagrams == ask { ask * 4 } else { datagrams };
        let mut pass = Pass {
            port: self.shared.port,
            statistics: UdpStatistics { rcvd_calls: 1, rcvd_datagrams: datagrams as u64, ..UdpStatistics::default() },
            seen: 0,
            capture: self.shared.capture.as_ref(),
            f,
        };
        for (slot, part) in bufs.slots.iter().zip(bufs.storage.chunks_exact(STRIDE)).take(datagrams) {
            pass.datagram(slot, &part[..slot.len.min(STRIDE)]);
        }
        self.shared.counters.add(&pass.statistics);
        Ok(pass.seen)
    }
}

struct Pass<'f> {
    port: u16,
    statistics: UdpStatistics,
    seen: usize,
    capture: Option<&'f Capture>,
    f: &'f mut dyn FnMut(Received<'_>),
}

impl Pass<'_> {
    fn datagram(&mut self, slot: &Incoming, data: &[u8]) {
        let info = slot.control.decode();
        let flow = slot.name.decode().and_then(|src| {
            let ip = IpPair::new(src.ip(), info.dst?)?;
            Some((src, Flow { ip, src_port: src.port(), dst_port: self.port }))
        });
        let truncated = slot.flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
        let (Some((src, flow)), false, false) = (flow, truncated, data.is_empty()) else {
            self.statistics.rx_malformed += 1;
            self.seen += 1;
            return;
        };
        let segment = if info.segment == 0 { data.len() } else { info.segment };
        for (i, packet) in data.chunks(segment).enumerate() {
            self.seen += 1;
            self.packet(i as u16, src, &flow, &info, packet);
        }
    }

    #[inline]
    fn packet(&mut self, i: u16, src: SocketAddr, flow: &Flow, info: &RxInfo, bytes: &[u8]) {
        if bytes.len() < BTH_LEN + ICRC_LEN {
            match steering::parse_probe(bytes) {
                // Only from this host: nobody else has business with its sockets.
                Some((index, nonce))
                    if (src.ip().is_loopback() || src.ip() == flow.ip.dst()) && src.port() == self.port =>
                {
                    self.statistics.rcvd_probes += 1;
                    (self.f)(Received::Probe { index, nonce });
                }
                _ => self.statistics.rx_malformed += 1,
            }
            return;
        }
        let check = check_icrc(flow, i, bytes);
        if let Some(capture) = self.capture {
            let meta = CaptureMeta {
                direction: Direction::Rx,
                tos: info.tos,
                ttl: info.ttl,
                ip_id: if let IcrcCheck::OkWithId(id) = check { id } else { i },
            };
            capture.record(flow, &meta, bytes);
        }
        match check {
            IcrcCheck::Ok => {}
            // What our own peers send if GRO or its absence regroups their packets.
            IcrcCheck::OkWithId(id) if usize::from(id) < MAX_SEGMENTS => {}
            IcrcCheck::OkWithId(_) => self.statistics.rcvd_foreign_ip_id += 1,
            IcrcCheck::Bad => {
                self.statistics.rx_icrc_encapsulated += 1;
                return;
            }
        }
        let packet = &bytes[..bytes.len() - ICRC_LEN];
        self.statistics.rcvd_pkts += 1;
        self.statistics.rcvd_bytes += packet.len() as u64;
        (self.f)(Received::Packet {
            src,
            dst: flow.ip.dst(),
            ifindex: info.ifindex,
            tos: info.tos,
            ttl: info.ttl,
            packet,
        });
    }
}
