//! Sending.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;
use ferroce_wire::{BTH_LEN, Flow, FlowIcrc, ICRC_LEN, IpPair};

use super::backlog::Backlog;
use super::cmsg::Control;
use super::counters::UdpStatistics;
use super::held::{Fate, Faults};
use super::name::SockName;
use super::open::{Shared, UdpConfig};
use super::report::SendReport;
use super::steering::SLOT_OFFSET;
use super::sys::{self, MAX_MESSAGES, Outgoing};
use crate::link::capture::{CaptureMeta, Direction};
use crate::link::fault::BitFlip;

/// Most packets that one batch of segmentation offload holds (`UDP_MAX_SEGMENTS` of `include/linux/udp.h`; 128
/// in newer kernels).
pub(super) const MAX_SEGMENTS: usize = 64;

/// Most bytes in such a batch: an IP packet is at most 65,535 bytes, headers included.
const MAX_BATCH: usize = 65_000;

/// Longest packet, from BTH to pad, that a batch takes. Far beyond the 4096-byte MTU of RoCEv2 and its headers.
pub const MAX_PACKET: usize = 16_384;

/// Bytes of batches that wait for a flush. Room for a full batch and the beginning of the next.
const ARENA: usize = 2 * 0x1_0000;

/// Buffers that are kept for reuse; one for each thread that sends at a time is what is needed.
const POOL: usize = 32;

/// Time to live and hop limit that the socket gives by itself.
pub(super) const DEFAULT_TTL: u8 = 64;

/// Where a packet goes, and from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpDst {
    /// Address and port of the peer or multicast group. A link-local IPv6 address and an IPv6 group need their scope, the
    /// index of the interface; to an IPv4 group the interface of `local` leads.
    pub remote: SocketAddr,
    /// Source address, one of this host and of the peer's family. It is never "any", since the ICRC covers it.
    pub local: IpAddr,
    /// IPv4 type of service or IPv6 traffic class.
    pub tos: u8,
    /// IPv4 time to live or IPv6 hop limit. 0 is taken as 64.
    pub ttl: u8,
}

/// A sender. Any number of threads may use clones of it, or the same one, at once: each takes a [`TxBatch`] of its own.
#[derive(Clone, Debug)]
pub struct UdpTx {
    shared: Arc<Shared>,
}

/// The part of a port's state that sending needs.
#[derive(Debug)]
pub(super) struct TxShared {
    pool: ArrayQueue<Box<Buffer>>,
    gso: bool,
    /// Destinations, hashed to 64 classes, where a device cannot segment. A bit is set once and never cleared.
    no_gso: AtomicU64,
    faults: Option<Faults>,
    backlog: Backlog,
}

impl TxShared {
    pub(super) fn new(config: &UdpConfig) -> Self {
        Self {
            pool: ArrayQueue::new(POOL),
            gso: config.gso,
            no_gso: AtomicU64::new(0),
            faults: config.faults.clone().map(Faults::new),
            backlog: Backlog::default(),
        }
    }

    fn may_segment(&self, ip: IpAddr) -> bool {
        self.gso && self.no_gso.load(Ordering::Relaxed) & class(ip) == 0
    }
}

/// The bit of a destination's class.
fn class(ip: IpAddr) -> u64 {
    let bits = match ip {
        IpAddr::V4(v4) => u64::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits() as u64 ^ (v6.to_bits() >> 64) as u64,
    };
    // Fibonacci hashing: the upper six bits of the product.
    1 << (bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

#[derive(Debug)]
struct Buffer {
    arena: Box<[u8]>,
    groups: Vec<Group>,
}

/// Packets of one destination that leave with one message. All have the length of the first but the last,
/// which may be shorter.
#[derive(Clone)]
pub(super) struct Group {
    dst: UdpDst,
    /// Top byte of the destination QPN: packets for different processes of the peer's host are not mixed, for the peer's
    /// kernel steers a batch as a whole.
    slot: u8,
    flow: Flow,
    icrc: FlowIcrc,
    name: SockName,
    control: Control,
    pub(super) start: usize,
    pub(super) len: usize,
    segment: usize,
    pub(super) count: usize,
    open: bool,
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("dst", &self.dst).field("count", &self.count).finish_non_exhaustive()
    }
}

impl UdpTx {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Whether packets wait for room in the socket. What is sent now would wait behind them: whoever can had better send later.
    /// [`TxBatch::drain`] sends them; the socket is writable, as `poll` says, when it can.
    #[inline]
    #[must_use]
    pub fn is_blocked(&self) -> bool {
        self.shared.tx.backlog.is_blocked()
    }

    /// An empty batch, with a buffer from the pool. The pool is lock-free; a thread that sends often does well to keep
    /// its batch all the same.
    #[must_use]
    pub fn batch(&self) -> TxBatch {
        let buffer = self.shared.tx.pool.pop().unwrap_or_else(|| {
            Box::new(Buffer { arena: vec![0; ARENA].into_boxed_slice(), groups: Vec::with_capacity(MAX_MESSAGES) })
        });
        TxBatch {
            shared: self.shared.clone(),
            buffer: Some(buffer),
            used: 0,
            reserved: None,
            report: SendReport::default(),
            statistics: UdpStatistics::default(),
        }
    }
}

/// Packets on their way out, one thread's own.
///
/// Packets leave when [`flush`](Self::flush) is called, when a batch is full, and when the `TxBatch` is dropped. Consecutive
/// packets for one destination that are equally long, the last perhaps shorter, share one pass through the kernel's
/// network stack; others share one system call.
#[derive(Debug)]
pub struct TxBatch {
    shared: Arc<Shared>,
    /// There until the drop.
    buffer: Option<Box<Buffer>>,
    used: usize,
    reserved: Option<(UdpDst, usize)>,
    report: SendReport,
    statistics: UdpStatistics,
}

impl TxBatch {
    /// Space for one packet of `len` bytes, from BTH to pad. It holds old bytes: the caller overwrites all of it and
    /// then calls [`commit`](Self::commit). Without a commit the reservation is void.
    ///
    /// # Panics
    ///
    /// If `len` is less than 12 (a BTH) or more than [`MAX_PACKET`].
    pub fn reserve(&mut self, dst: &UdpDst, len: usize) -> &mut [u8] {
        assert!((BTH_LEN..=MAX_PACKET).contains(&len), "a packet of {len} bytes");
        if self.used + len + ICRC_LEN > ARENA {
            self.transmit();
        }
        self.reserved = Some((*dst, len));
        &mut self.buffer.as_mut().expect("there until the drop").arena[self.used..self.used + len]
    }

    /// Adds the packet that was written to the space reserved last, with its ICRC. Nothing happens without a reservation.
    pub fn commit(&mut self) {
        let Some((dst, len)) = self.reserved.take() else {
            return;
        };
        if self.shared.tx.faults.is_some() {
            self.commit_with_faults(&dst, len);
        } else {
            self.append(&dst, len, None);
        }
    }

    /// Adds the `len` bytes at the end of the arena, which are a packet from BTH to pad, to the last group or a new one.
    fn append(&mut self, dst: &UdpDst, len: usize, corrupt: Option<BitFlip>) {
        let Some(ip) = IpPair::new(dst.local, dst.remote.ip()) else {
            self.lose(1, libc::EAFNOSUPPORT);
            return;
        };
        let buffer = self.buffer.as_deref_mut().expect("there until the drop");
        let total = len + ICRC_LEN;
        let slot = buffer.arena[self.used + SLOT_OFFSET];
        let joins = buffer
            .groups
            .last()
            .is_some_and(|group| group.open && total <= group.segment && group.slot == slot && group.dst == *dst);
        if !joins {
            let flow = Flow { ip, src_port: self.shared.port, dst_port: dst.remote.port() };
            let ttl = if dst.ttl == DEFAULT_TTL { 0 } else { dst.ttl };
            let family = self.shared.family;
            buffer.groups.push(Group {
                dst: *dst,
                slot,
                flow,
                icrc: FlowIcrc::new(&flow),
                name: SockName::encode(family, &dst.remote),
                control: Control::for_packet(family, dst.local, scope(dst), dst.tos, ttl),
                start: self.used,
                len: 0,
                segment: total,
                count: 0,
                open: self.shared.tx.may_segment(dst.remote.ip()),
            });
        }
        let group = buffer.groups.last_mut().expect("joined or pushed");
        // The kernel numbers the segments of a batch from 0 in the IPv4 identification.
        let id = group.count as u16;
        let packet = &mut buffer.arena[self.used..self.used + total];
        seal(&group.icrc, id, packet);
        if let Some(flip) = corrupt {
            flip.apply(packet);
        }
        if let Some(capture) = &self.shared.capture {
            let meta = CaptureMeta {
                direction: Direction::Tx,
                tos: dst.tos,
                ttl: if dst.ttl == 0 { DEFAULT_TTL } else { dst.ttl },
                ip_id: id,
            };
            capture.record(&group.flow, &meta, packet);
        }
        group.count += 1;
        group.len += total;
        self.used += total;
        let full = group.count == MAX_SEGMENTS || group.len + group.segment > MAX_BATCH;
        group.open &= total == group.segment && !full;
        if full || buffer.groups.len() == MAX_MESSAGES {
            self.transmit();
        }
    }

    #[cold]
    fn commit_with_faults(&mut self, dst: &UdpDst, len: usize) {
        let Some(faults) = &self.shared.tx.faults else {
            return;
        };
        let buffer = self.buffer.as_deref().expect("there until the drop");
        let packet = &buffer.arena[self.used..self.used + len];
        match faults.decide(dst, packet) {
            Fate::Lost => self.statistics.injected_losses += 1,
            Fate::Held => {}
            // What most packets meet is to cost as little as without faults, or it would be measured with them.
            Fate::Send(1, corrupt) => self.append(dst, len, corrupt),
            Fate::Send(copies, corrupt) => {
                let packet = packet.to_vec();
                for copy in 0..copies {
                    self.append_bytes(dst, &packet, corrupt.filter(|_| copy == 0));
                }
            }
        }
    }

    fn append_bytes(&mut self, dst: &UdpDst, packet: &[u8], corrupt: Option<BitFlip>) {
        self.reserve(dst, packet.len()).copy_from_slice(packet);
        self.reserved = None;
        self.append(dst, packet.len(), corrupt);
    }

    /// Adds the packets that an injected delay held back and that are due now, and says when the next one will be: then, at the
    /// latest, this wants to be called again, and after it [`flush`](Self::flush). `None`: none is held, or no faults were
    /// asked for.
    pub fn release_held(&mut self) -> Option<Instant> {
        loop {
            match self.shared.tx.faults.as_ref()?.due() {
                Ok(held) => self.append_bytes(&held.dst, &held.bytes, held.corrupt),
                Err(next) => return next,
            }
        }
    }

    /// Sends all that was committed and says what became of everything since the last report. Does not block.
    pub fn flush(&mut self) -> SendReport {
        if self.shared.tx.faults.is_some() {
            self.release_held();
        }
        self.transmit();
        std::mem::take(&mut self.report)
    }

    /// Whether nothing waits to be flushed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Sends what waits for room in the socket, as far as there is any. Does not block.
    pub fn drain(&mut self) {
        let shared = self.shared.clone();
        if shared.tx.backlog.is_blocked() {
            shared.tx.backlog.drain(|group, bytes| self.send_groups(std::slice::from_ref(group), bytes) == 1);
            self.count();
        }
    }

    /// The same at the end of a process, which may be in the middle of anything: does nothing if that is not over at `until`.
    pub fn drain_until(&mut self, until: Instant) {
        let shared = self.shared.clone();
        if shared.tx.backlog.is_blocked() {
            let send = |group: &Group, bytes: &mut [u8]| self.send_groups(std::slice::from_ref(group), bytes) == 1;
            shared.tx.backlog.drain_until(until, send);
            self.count();
        }
    }

    fn transmit(&mut self) {
        if self.is_empty() {
            return;
        }
        let Some(mut buffer) = self.buffer.take() else {
            return;
        };
        let Buffer { arena, groups } = &mut *buffer;
        for group in &mut *groups {
            if group.count > 1 {
                group.control.push_segment(group.segment as u16);
            }
        }
        // Nothing overtakes what waits; not even if it has gone in the very moment in which this was found out.
        let blocked = self.shared.tx.backlog.is_blocked();
        let mut held = if blocked { self.shared.tx.backlog.hold(groups, arena, false) } else { None };
        let mut handled = 0;
        if held.is_none() {
            handled = self.send_groups(groups, arena);
            if handled < groups.len() {
                held = self.shared.tx.backlog.hold(&groups[handled..], arena, true);
            }
        }
        if let Some(lost) = held {
            let packets: usize = groups[handled..].iter().map(|group| group.count).sum();
            self.statistics.tx_waited += (packets - lost) as u64;
            if lost > 0 {
                self.lose(lost, libc::EAGAIN);
            }
        }
        groups.clear();
        self.used = 0;
        self.buffer = Some(buffer);
        self.count();
    }

    /// Adds what was counted to what others see.
    fn count(&mut self) {
        self.shared.counters.add(&self.statistics);
        self.statistics = UdpStatistics::default();
    }

    /// Sends `groups`, whose bytes are in `arena`, until the socket is full; returns how many of them are dealt with.
    fn send_groups(&mut self, groups: &[Group], arena: &mut [u8]) -> usize {
        let mut rest = groups;
        while let [group, behind @ ..] = rest {
            match self.send(rest.iter().map(|group| group.outgoing(arena))) {
                Ok(sent) => {
                    let (sent, unsent) = rest.split_at(sent);
                    for group in sent {
                        self.sent(group.count, group.len - group.count * ICRC_LEN);
                    }
                    rest = unsent;
                }
                Err(libc::EINTR) => {}
                // The whole buffer is full, so the others would not fit either.
                Err(libc::EAGAIN) => break,
                Err(errno) => {
                    if group.count > 1 {
                        self.send_singly(group, &mut arena[group.start..][..group.len], errno);
                    } else {
                        self.lose(1, errno);
                    }
                    rest = behind;
                }
            }
        }
        groups.len() - rest.len()
    }

    /// Sends the packets of a batch one by one, after the kernel refused it as a whole with `refusal`. If all of them go, the
    /// device on the way cannot segment (`EIO` without checksum offload, `EINVAL` in old kernels), which is remembered.
    fn send_singly(&mut self, group: &Group, bytes: &mut [u8], refusal: i32) {
        if !matches!(refusal, libc::EIO | libc::EINVAL | libc::EMSGSIZE | libc::EOPNOTSUPP) {
            self.lose(group.count, refusal);
            return;
        }
        for (i, packet) in bytes.chunks_mut(group.segment).enumerate() {
            renumber(&group.icrc, i as u16, 0, packet);
        }
        // Without the segment size, which was pushed last.
        let mut control = group.control.clone();
        control.pop_segment();
        let packets: Vec<_> = bytes
            .chunks(group.segment)
            .map(|payload| Outgoing { name: &group.name, control: control.as_bytes(), payload })
            .collect();
        let lost_before = self.report.lost();
        let mut rest = &packets[..];
        while let [_, behind @ ..] = rest {
            match self.send(rest.iter().copied()) {
                Ok(count) => {
                    for packet in &rest[..count] {
                        self.sent(1, packet.payload.len() - ICRC_LEN);
                    }
                    rest = &rest[count..];
                }
                Err(libc::EINTR) => {}
                Err(errno) => {
                    self.lose(1, errno);
                    rest = behind;
                }
            }
        }
        // A batch beyond the path MTU is refused as well, and then it is not the device.
        if refusal != libc::EMSGSIZE && self.report.lost() == lost_before {
            self.statistics.gso_fallbacks += 1;
            let bit = class(group.dst.remote.ip());
            self.shared.tx.no_gso.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn send<'a>(&mut self, mut messages: impl ExactSizeIterator<Item = Outgoing<'a>>) -> Result<usize, i32> {
        let result = if messages.len() == 1 {
            let message = messages.next().expect("there is one");
            sys::send_one(self.shared.fd(), &message).map(|()| 1)
        } else {
            sys::send_many(self.shared.fd(), messages)
        };
        match result {
            Ok(sent) => {
                self.statistics.sent_calls += 1;
                Ok(sent)
            }
            Err(e) => Err(errno(&e)),
        }
    }

    fn sent(&mut self, packets: usize, bytes: usize) {
        self.report.sent += packets;
        self.statistics.sent_pkts += packets as u64;
        self.statistics.sent_bytes += bytes as u64;
    }

    fn lose(&mut self, packets: usize, errno: i32) {
        self.report.lose(packets, errno, &mut self.statistics);
    }
}

impl Drop for TxBatch {
    fn drop(&mut self) {
        self.transmit();
        if let Some(buffer) = self.buffer.take() {
            // Beyond the capacity of the pool the buffer is freed.
            let _ = self.shared.tx.pool.push(buffer);
        }
    }
}

impl Group {
    /// The same, with its bytes at the beginning of a buffer of their own.
    pub(super) fn at_start(&self) -> Self {
        Self { start: 0, ..self.clone() }
    }

    fn outgoing<'a>(&'a self, arena: &'a [u8]) -> Outgoing<'a> {
        Outgoing {
            name: &self.name,
            control: self.control.as_bytes(),
            payload: &arena[self.start..self.start + self.len],
        }
    }
}

/// Writes the ICRC into the last four bytes of `packet`.
fn seal(flow: &FlowIcrc, ip_id: u16, packet: &mut [u8]) {
    if let Some((packet, crc)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
        *crc = flow.icrc(ip_id, packet).to_le_bytes();
    }
}

/// Changes an ICRC for one identification into that for another. A wrong one stays wrong.
fn renumber(flow: &FlowIcrc, from: u16, to: u16, packet: &mut [u8]) {
    if let Some((packet, crc)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
        let change = flow.icrc(from, packet) ^ flow.icrc(to, packet);
        *crc = (u32::from_le_bytes(*crc) ^ change).to_le_bytes();
    }
}

/// Interface of a link-local destination, else 0.
fn scope(dst: &UdpDst) -> u32 {
    match dst.remote {
        SocketAddr::V6(v6) => v6.scope_id(),
        SocketAddr::V4(_) => 0,
    }
}

fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::udp::{Received, RxBuffers, UdpPort};

    /// A packet for slot 0.
    fn numbered(i: u8, len: usize) -> Vec<u8> {
        let mut packet = vec![i; len];
        packet[SLOT_OFFSET] = 0;
        packet
    }

    /// Three packets that the kernel "refused" as one batch with `refusal`.
    fn refused(refusal: i32) -> (SendReport, UdpStatistics, Vec<Vec<u8>>, UdpPort) {
        let config = UdpConfig { port: 0, ..UdpConfig::default() };
        let (a, b) = (UdpPort::open(&config).expect("open"), UdpPort::open(&config).expect("open"));
        let ip = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
        let dst = UdpDst { remote: SocketAddr::new(ip, b.local_port()), local: ip, tos: 0, ttl: 0 };
        let mut batch = a.sender().batch();
        let add = |batch: &mut TxBatch, i, len| {
            batch.reserve(&dst, len).copy_from_slice(&numbered(i, len));
            batch.commit();
        };
        for (i, len) in [(0, 24), (1, 24), (2, 20)] {
            add(&mut batch, i, len);
        }
        let mut buffer = batch.buffer.take().expect("a buffer");
        let mut group = buffer.groups.pop().expect("a group");
        group.control.push_segment(group.segment as u16);
        batch.send_singly(&group, &mut buffer.arena[..group.len], refusal);
        batch.used = 0;
        batch.buffer = Some(buffer);
        // From now on without batches, if the kernel was to blame for the refusal.
        for i in 3..5 {
            add(&mut batch, i, 24);
        }
        let report = batch.flush();
        let (mut got, mut bufs) = (Vec::new(), RxBuffers::default());
        while b
            .recv(&mut bufs, 16, &mut |received| {
                if let Received::Packet { packet, .. } = received {
                    got.push(packet.to_vec());
                }
            })
            .expect("recv")
            != 0
        {}
        (report, a.counters().read(), got, b)
    }

    #[test]
    fn a_batch_that_a_device_cannot_cut_goes_packet_by_packet() {
        let (report, statistics, got, b) = refused(libc::EIO);
        assert_eq!((report.sent, report.lost()), (5, 0));
        assert_eq!(statistics.gso_fallbacks, 1);
        let expected = [(0, 24), (1, 24), (2, 20), (3, 24), (4, 24)];
        assert_eq!(got, expected.map(|(i, len)| numbered(i, len)));
        // Each with the identification 0, and the last two no longer as a batch.
        let statistics = b.counters().read();
        assert_eq!((statistics.rcvd_datagrams, statistics.rcvd_foreign_ip_id), (5, 0));
    }

    #[test]
    fn a_batch_without_a_way_is_lost() {
        let (report, statistics, got, b) = refused(libc::ENETUNREACH);
        assert_eq!((report.sent, report.unreachable), (2, 3));
        assert_eq!(statistics.gso_fallbacks, 0);
        assert_eq!((got.len(), b.counters().read().rcvd_datagrams), (2, 1));
    }
}
