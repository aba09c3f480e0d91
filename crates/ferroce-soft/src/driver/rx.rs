use super::frames::{self, Path};
use super::offer::{self, SlotMemory, TAG_OFFER};
use super::port::{Port, Who};
use super::steering;
use super::tx::{HostTx, PREFIX, TAG_ADDRESSED, TAG_BARE, parse_prefix, put_prefix};
use crate::engine::{Engine, Nanos, Origin, QueuePair, Wants, mad_of};
use crate::link::shm::ShmReceiver;
use crate::link::udp::{Received, RxBuffers};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The receive stage: held by one thread at a time.
pub(super) struct Rx {
    pub(super) shm: ShmReceiver,
    buffers: RxBuffers,
    /// Queue pairs that want to send because of what came in this round.
    wants: Vec<Arc<QueuePair>>,
    /// Queue pairs that owe an acknowledgement which may wait until the next round.
    deferred: Vec<Arc<QueuePair>>,
    rounds: u32,
    /// Rounds until UDP is no longer looked at by those who poll, unless something comes.
    udp_hot: u32,
    /// Packets taken in since a timer became due that has not been run.
    overdue: usize,
}

/// Frames taken from shared memory in one round.
const SHM_BUDGET: usize = 64;
/// Datagrams taken from the socket in one round.
const UDP_BUDGET: usize = 16;
/// A look at the socket is a system call: those who poll stop looking after this many in vain, and leave it to epoll.
const UDP_PATIENCE: u32 = 2000;
/// What came before a timer was due is taken in before it fires, and that is no more packets than this: what the largest
/// receive buffer holds.
const BACKLOG: usize = 16 << 10;
/// Rounds of those who poll between two attempts to send what waits for room in the socket, each a system call.
const DRAIN_INTERVAL: u32 = 8;
/// Rounds between looks at the clock.
const CLOCK_INTERVAL: u32 = 64;

impl Rx {
    pub(super) fn new(shm: ShmReceiver) -> Self {
        Self {
            shm,
            buffers: RxBuffers::new(UDP_BUDGET),
            wants: Vec::new(),
            deferred: Vec::new(),
            rounds: 0,
            udp_hot: 0,
            overdue: 0,
        }
    }

    /// One round: takes in what came, sends what it leads to. Returns whether there was anything.
    pub(super) fn round(&mut self, port: &Port, engine: &Engine, who: Who) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        let mut busy = false;
        let mut now = port.now();
        if who == Who::Driver || self.rounds.is_multiple_of(CLOCK_INTERVAL) {
            now = port.refresh_now();
        }
        // The program had its chance to answer; what it did not acknowledge by that is acknowledged now.
        if !self.deferred.is_empty() {
            busy = true;
            let mut tx = HostTx::new(port);
            for qp in self.deferred.drain(..) {
                qp.transmit(engine, &mut tx, now);
            }
        }
        let patient = who == Who::Poller && port.driver_ticks();
        let due = engine.next_deadline().is_some_and(|deadline| deadline <= now);
        let mut taken = self.receive_shm(port, engine, patient);
        if who == Who::Driver || self.udp_hot != 0 || due || port.udp_pending.load(Ordering::Relaxed) {
            port.udp_pending.store(false, Ordering::Relaxed);
            taken += self.receive_udp(port, engine, patient);
        }
        busy |= taken != 0;
        if !self.wants.is_empty() {
            let mut tx = HostTx::new(port);
            for qp in self.wants.drain(..) {
                qp.transmit(engine, &mut tx, now);
            }
        }
        if port.udp_tx.is_blocked() && (who == Who::Driver || self.rounds.is_multiple_of(DRAIN_INTERVAL)) {
            port.udp_tx.batch().drain();
        }
        if engine.has_ready() {
            busy |= engine.transmit_ready(&mut HostTx::new(port), now);
        }
        if who == Who::Driver && port.shm_faults.is_some() {
            // What injected faults hold back leaves in time even if nothing else does.
            port.udp_tx.batch().flush();
        }
        if due {
            // The acknowledgement that a timer waits for may have come in time and be unread: whoever was slow must not
            // blame the peer.
            self.overdue += taken;
            if taken == 0 || self.overdue >= BACKLOG {
                self.overdue = 0;
                now = port.refresh_now();
                engine.on_timers(&mut HostTx::new(port), now);
            }
            busy = true;
        }
        busy
    }

    fn receive_shm(&mut self, port: &Port, engine: &Engine, patient: bool) -> usize {
        let Self { shm, wants, deferred, .. } = self;
        let mut now = None;
        shm.poll_frames(SHM_BUDGET, |frame| {
            let now = *now.get_or_insert_with(|| port.refresh_now());
            // There are no offers while there is a capture.
            if let Some(capture) = &port.capture {
                frames::received(capture, engine, frame.tag, frame.bytes);
            }
            let mut note = |qp, want| note(wants, deferred, patient, qp, want);
            match frame.tag {
                TAG_BARE => engine.receive(&Origin::Host { slot: frame.slot }, frame.bytes, now, &mut note),
                TAG_ADDRESSED if frame.bytes.len() > PREFIX => {
                    let (prefix, bytes) = frame.bytes.split_at(PREFIX);
                    let Path { src, dst, tos, ttl } = parse_prefix(prefix);
                    let origin = Origin::Net { src, dst, tos, ttl };
                    engine.receive(&origin, bytes, now, &mut note);
                }
                TAG_OFFER if let Some((offer, headers)) = offer::parse(frame.bytes) => {
                    let memory = SlotMemory::new(port, frame.slot, frame.incarnation, &engine.counters);
                    let origin = Origin::Host { slot: frame.slot };
                    engine.receive_offer(&origin, &headers, &offer, &memory, now, &mut note);
                }
                _ => crate::engine::count(&engine.counters.malformed_packets),
            }
        })
    }

    fn receive_udp(&mut self, port: &Port, engine: &Engine, patient: bool) -> usize {
        let Self { buffers, wants, deferred, .. } = self;
        let mut now: Option<Nanos> = None;
        let slot = port.membership.slot();
        let mut strays = 0;
        let received = port.udp.recv(buffers, UDP_BUDGET, &mut |received| match received {
            Received::Packet { src, dst, tos, ttl, packet, .. } => {
                let now = *now.get_or_insert_with(|| port.refresh_now());
                let (src, dst) = (src.ip().to_canonical(), dst.to_canonical());
                let mut deliver = || {
                    let origin = Origin::Net { src, dst, tos, ttl };
                    engine.receive(&origin, packet, now, &mut |qp, want| note(wants, deferred, patient, qp, want));
                };
                let dest = packet[5];
                if let Some(mad) = mad_of(packet) {
                    port.mad_owners(mad, dst, |owner| match owner == slot {
                        true => deliver(),
                        false => forward(port, owner, src, dst, tos, ttl, packet),
                    });
                } else if dest == slot || packet[5..8] == [0xff; 3] {
                    deliver();
                } else {
                    strays += 1;
                    forward(port, dest, src, dst, tos, ttl, packet);
                }
            }
            Received::Probe { index, nonce } => steering::probed(port, index, nonce),
        });
        if strays != 0 {
            port.strays.fetch_add(strays, Ordering::Relaxed);
        }
        match received {
            Ok(0) => {
                if self.udp_hot == 1 {
                    // From now on the driver's thread watches the socket.
                    port.udp_cold.store(true, Ordering::Release);
                    port.kick.wake();
                }
                self.udp_hot = self.udp_hot.saturating_sub(1);
                0
            }
            Ok(seen) => {
                self.udp_hot = UDP_PATIENCE;
                port.udp_cold.store(false, Ordering::Relaxed);
                seen
            }
            Err(error) => {
                tracing::warn!(%error, "receiving from the RoCEv2 port failed");
                0
            }
        }
    }
}

fn note(
    wants: &mut Vec<Arc<QueuePair>>,
    deferred: &mut Vec<Arc<QueuePair>>,
    patient: bool,
    qp: Arc<QueuePair>,
    want: Wants,
) {
    let list = if patient && want == Wants::Acknowledge { deferred } else { wants };
    // Runs of packets for one queue pair need one entry.
    if !list.last().is_some_and(|last| Arc::ptr_eq(last, &qp)) {
        list.push(qp);
    }
}

/// Passes on a packet that came to this socket and is for another context. If that has no room the packet is lost, as on a
/// wire.
#[cold]
fn forward(port: &Port, slot: u8, src: std::net::IpAddr, dst: std::net::IpAddr, tos: u8, ttl: u8, packet: &[u8]) {
    let Ok(lane) = port.shm_tx.lane(slot) else { return };
    let mut lane = lane.lock();
    if let Some(frame) = lane.reserve(PREFIX + packet.len(), TAG_ADDRESSED) {
        put_prefix(frame, src, dst, tos, ttl);
        frame[PREFIX..].copy_from_slice(packet);
        lane.commit();
    }
}
