use super::frames::{self, Path};
use super::offer::{self, TAG_OFFER};
use super::port::Port;
use crate::config::LinkMode;
use crate::engine::{Offer, Offered, PacketTx, To};
use crate::link::shm::LaneGuard;
use crate::link::udp::{TxBatch, UdpDst};
use ferroce_verbs::Gid;
use ferroce_wire::{GSI_QPN, Headers};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What precedes a packet in a shared-memory frame with [`TAG_ADDRESSED`]: source and destination GID, TOS, TTL.
pub(super) const PREFIX: usize = 36;
/// The frame is a packet, BTH to pad.
pub(super) const TAG_BARE: u32 = 0;
/// The frame is a packet with its addresses before it: a datagram, or what came by UDP to the wrong process.
pub(super) const TAG_ADDRESSED: u32 = 1;

/// How long a full ring may hold up datagrams when its reader reads nothing at all. They may be lost; those behind them are
/// for others.
const DATAGRAM_PATIENCE: Duration = Duration::from_millis(100);

/// Bytes that precede the packet in a frame with `tag`.
#[inline]
pub(super) const fn prefix_of(tag: u32) -> usize {
    if tag == TAG_BARE { 0 } else { PREFIX }
}

/// Writes the addresses that precede a packet.
pub(super) fn put_prefix(out: &mut [u8], src: IpAddr, dst: IpAddr, tos: u8, ttl: u8) {
    out[..16].copy_from_slice(&Gid::from(src).to_bytes());
    out[16..32].copy_from_slice(&Gid::from(dst).to_bytes());
    out[32..PREFIX].copy_from_slice(&[tos, ttl, 0, 0]);
}

/// Puts packets into the links, for one call of one thread: consecutive packets of a queue pair share one lock, one wake-up and,
/// over UDP, one system call. What was put leaves when it is flushed or this is dropped.
pub(super) struct HostTx<'a> {
    port: &'a Port,
    lane: Option<(u8, LaneGuard<'a>)>,
    udp: Option<TxBatch>,
    reserved: Reserved,
    /// How long the packet is for which there is room in the lane, with all that precedes it, and its tag.
    frame: (usize, u32),
    /// Where that packet goes, if it is to be captured.
    path: Option<Path>,
    /// Takes what has nowhere to go.
    void: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reserved {
    None,
    Lane,
    Udp,
}

impl<'a> HostTx<'a> {
    pub(super) fn new(port: &'a Port) -> Self {
        Self { port, lane: None, udp: None, reserved: Reserved::None, frame: (0, 0), path: None, void: Vec::new() }
    }

    /// The slot whose lane leads to the peer, if shared memory does.
    #[inline]
    fn slot_of(&self, to: &To<'_>) -> Option<u8> {
        (to.av.same_host && self.port.uses_shm()).then_some((to.dest_qpn >> 16) as u8)
    }

    /// Makes `slot` the lane that is written to; false if nobody is there.
    fn take_lane(&mut self, slot: u8) -> bool {
        if matches!(&self.lane, Some((current, _)) if *current == slot) {
            return true;
        }
        // The old lane first: two threads that hold one and want the other would wait for ever.
        self.lane = None;
        match self.port.shm_tx.lane(slot) {
            Ok(lane) => {
                self.lane = Some((slot, lane.lock()));
                true
            }
            Err(_) => false,
        }
    }

    /// Whether the lane has room for a frame. If not, this context is woken once it has.
    #[inline]
    fn has_room(&mut self, len: usize, tag: u32) -> bool {
        let Some((_, lane)) = &mut self.lane else { return false };
        if lane.reserve(len, tag).is_some() {
            return true;
        }
        // While the program polls it looks again soon, and a wake-up would only put a second thread in its way.
        !self.port.driver_ticks() && !lane.request_space_wakeup() && lane.reserve(len, tag).is_some()
    }

    /// With faults or a capture. A packet that would be corrupted is lost: shared memory has no checksum by which the receiver
    /// could tell.
    #[cold]
    fn commit_decorated(&mut self) {
        let Some((_, lane)) = &mut self.lane else { return };
        let (len, tag) = self.frame;
        let now = Duration::from_nanos(self.port.now());
        let verdict = self.port.shm_faults.as_ref().map(|faults| faults.lock().decide(now, len));
        let copies = match verdict {
            Some(verdict) if verdict.corrupt.is_some() => 0,
            Some(verdict) => verdict.copies,
            None => 1,
        };
        let Some(frame) = lane.reserve(len, tag).map(|frame| frame.to_vec()) else { return };
        for _ in 0..copies {
            let Some(copy) = lane.reserve(len, tag) else { return };
            copy.copy_from_slice(&frame);
            lane.commit();
            if let (Some(capture), Some(path)) = (&self.port.capture, self.path) {
                frames::sent(capture, path, &frame[prefix_of(tag)..]);
            }
        }
    }

    /// Takes a packet that goes nowhere.
    #[cold]
    fn discard(&mut self, len: usize) -> &mut [u8] {
        self.port.discards.fetch_add(1, Ordering::Relaxed);
        self.reserved = Reserved::None;
        self.void.resize(len, 0);
        &mut self.void
    }

    /// `None` if the socket has no room. Management datagrams, which nobody tries again soon, go to the end of what waits.
    fn reserve_udp(&mut self, to: &To<'_>, len: usize) -> Option<&mut [u8]> {
        if self.port.udp_tx.is_blocked() && to.dest_qpn != GSI_QPN {
            self.reserved = Reserved::None;
            self.port.kick.wake_for_socket(self.port.now());
            return None;
        }
        self.reserved = Reserved::Udp;
        let port = self.port.udp.local_port();
        let remote = match to.av.remote {
            IpAddr::V6(ip) => SocketAddr::V6(SocketAddrV6::new(ip, port, 0, to.av.scope)),
            ip => SocketAddr::new(ip, port),
        };
        let dst = UdpDst { remote, local: to.av.local, tos: to.av.tos, ttl: to.av.ttl };
        let batch = self.udp.get_or_insert_with(|| self.port.udp_tx.batch());
        Some(batch.reserve(&dst, len))
    }
}

impl PacketTx for HostTx<'_> {
    #[inline]
    fn reserve(&mut self, to: &To<'_>, len: usize) -> Option<&mut [u8]> {
        let lane = self.slot_of(to).is_some_and(|slot| self.take_lane(slot));
        if !lane {
            if self.port.link == LinkMode::Shm {
                return Some(self.discard(len));
            }
            return self.reserve_udp(to, len);
        }
        let tag = if to.datagram { TAG_ADDRESSED } else { TAG_BARE };
        let prefix = prefix_of(tag);
        if !self.has_room(prefix + len, tag) {
            self.reserved = Reserved::None;
            let now = Duration::from_nanos(self.port.now());
            let stuck = |(_, lane): &mut (u8, LaneGuard<'_>)| lane.is_stuck(now, DATAGRAM_PATIENCE);
            let lost = to.datagram && self.lane.as_mut().is_some_and(stuck);
            return if lost { Some(self.discard(len)) } else { None };
        }
        self.reserved = Reserved::Lane;
        self.frame = (prefix + len, tag);
        if !self.port.plain {
            self.path = Some(Path::to(to));
        }
        // Reserved once more: a reservation is only a position, and the borrow of the one above has ended.
        let (_, lane) = self.lane.as_mut()?;
        let frame = lane.reserve(prefix + len, tag)?;
        if prefix != 0 {
            put_prefix(frame, to.av.local, to.av.remote, to.av.tos, to.av.ttl);
        }
        Some(&mut frame[prefix..])
    }

    #[inline]
    fn commit(&mut self) {
        match std::mem::replace(&mut self.reserved, Reserved::None) {
            Reserved::None => {}
            Reserved::Lane => {
                if !self.port.plain {
                    self.commit_decorated();
                } else if let Some((_, lane)) = &mut self.lane {
                    lane.commit();
                }
            }
            Reserved::Udp => {
                if let Some(batch) = &mut self.udp {
                    batch.commit();
                }
            }
        }
    }

    fn offer(&mut self, to: &To<'_>, headers: &Headers, offer: &Offer) -> Offered {
        // A capture shows packets with all their bytes.
        let able = self.port.capture.is_none() && self.slot_of(to).is_some_and(|slot| self.take_lane(slot));
        if !able || !self.lane.as_ref().is_some_and(|(_, lane)| lane.is_readable()) {
            return Offered::No;
        }
        let len = offer::frame_len(headers);
        if !self.has_room(len, TAG_OFFER) {
            return Offered::LinkFull;
        }
        let Some((_, lane)) = &mut self.lane else { return Offered::No };
        let Some(frame) = lane.reserve(len, TAG_OFFER) else { return Offered::LinkFull };
        offer::put(frame, headers, offer);
        self.reserved = Reserved::Lane;
        self.frame = (len, TAG_OFFER);
        self.commit();
        Offered::Yes
    }

    #[inline]
    fn flush(&mut self) {
        // A lane is locked after a queue pair, never before one: whoever goes on to the next queue pair must not hold it, or
        // waits for a thread that holds that queue pair and waits for the lane.
        self.lane = None;
        if let Some(batch) = &mut self.udp {
            batch.flush();
            if self.port.udp_tx.is_blocked() {
                self.port.kick.wake_for_socket(self.port.now());
            }
        }
    }
}

/// Reads the addresses that precede a packet: [`PREFIX`] bytes at least.
pub(super) fn parse_prefix(prefix: &[u8]) -> Path {
    let ip = |bytes: &[u8]| {
        let mut gid = [0; 16];
        gid.copy_from_slice(bytes);
        Gid::from_bytes(gid).ip()
    };
    Path { src: ip(&prefix[..16]), dst: ip(&prefix[16..32]), tos: prefix[32], ttl: prefix[33] }
}
