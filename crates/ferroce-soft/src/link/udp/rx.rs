//! Receiving.

use std::io;
use std::net::{IpAddr, SocketAddr};

use ferroce_wire::{BTH_LEN, Flow, FlowIcrc, ICRC_LEN, IcrcCheck, IpPair};

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
    demand: Demand,
}

/// How many datagrams to ask the kernel for.
///
/// With one, the single receive is used, and the kernel does not look for a second that is seldom there: together a tenth
/// of the cost of a small packet. It only asks for more if it often got all that it asked for, and the more often it was
/// wrong the longer it waits for the next try.
#[derive(Clone, Copy, Debug)]
struct Demand {
    ask: usize,
    /// Passes in a row that brought all that was asked for.
    full: u32,
    /// How many of them it takes to ask for more.
    patience: u32,
}

impl Demand {
    const START: Self = Self { ask: 1, full: 0, patience: 2 };
    const MAX_PATIENCE: u32 = 64;

    fn got(&mut self, asked: usize, datagrams: usize) {
        if datagrams == asked {
            self.full += 1;
            if self.full >= self.patience {
                self.ask = (asked * 4).min(MAX_MESSAGES);
            }
        } else if datagrams <= 1 {
            // Nothing waiting says little: that is how polling looks. One where more were asked for says much.
            if datagrams == 1 {
                self.patience = (self.patience * 2).min(Self::MAX_PATIENCE);
            }
            self.full = 0;
            self.ask = 1;
        } else {
            self.patience = Self::START.patience;
            self.ask = datagrams;
        }
    }
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
            demand: Demand::START,
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
        let ask = bufs.demand.ask.min(limit);
        let slots = &mut bufs.slots[..ask];
        let datagrams = loop {
            match sys::receive(self.shared.fd(), &mut bufs.storage, STRIDE, slots) {
                Ok(datagrams) => break datagrams,
                Err(e) => match e.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        bufs.demand.got(ask, 0);
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
        bufs.demand.got(ask, datagrams);
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

/// What the packets of one datagram have in common.
struct Origin {
    src: SocketAddr,
    flow: Flow,
    icrc: FlowIcrc,
    info: RxInfo,
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
        let from = Origin { src, flow, icrc: FlowIcrc::new(&flow), info };
        for (i, packet) in data.chunks(segment).enumerate() {
            self.seen += 1;
            self.packet(&from, i as u16, packet);
        }
    }

    #[inline]
    fn packet(&mut self, from: &Origin, i: u16, bytes: &[u8]) {
        let Origin { src, flow, icrc, info } = from;
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
        let check = icrc.check(i, bytes);
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
            src: *src,
            dst: flow.ip.dst(),
            ifindex: info.ifindex,
            tos: info.tos,
            ttl: info.ttl,
            packet,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked for in each pass, if each time so many are waiting.
    fn asks(waiting: &[usize]) -> Vec<usize> {
        let mut demand = Demand::START;
        let pass = |&waiting: &usize| {
            let ask = demand.ask;
            demand.got(ask, waiting.min(ask));
            ask
        };
        waiting.iter().map(pass).collect()
    }

    #[test]
    fn a_ping_pong_is_received_one_by_one() {
        assert_eq!(asks(&[0, 1, 0, 0, 1, 0, 1, 0, 0, 1]), [1; 10]);
        // Even if nobody polls in between it soon stops to try.
        let tries = asks(&[1; 1000]).iter().filter(|&&ask| ask > 1).count();
        assert!((1..25).contains(&tries), "{tries}");
    }

    #[test]
    fn load_is_received_in_bulk() {
        assert_eq!(asks(&[100; 5]), [1, 1, 4, 16, 64]);
        assert_eq!(asks(&[100, 100, 100, 100, 20, 20, 20]), [1, 1, 4, 16, 64, 20, 64]);
        assert_eq!(asks(&[100, 100, 100, 100, 0, 100, 100, 100]), [1, 1, 4, 16, 64, 1, 1, 4]);
    }
}
