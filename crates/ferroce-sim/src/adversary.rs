use ferroce_soft::memory::{Arrival, Fate, FaultPolicy, InFlight, RandomFaults};
use ferroce_wire::{Ext, Operation, Packet, Syndrome, psn_diff, psn_sub};
use std::collections::HashMap;
use std::net::IpAddr;

/// A network that does what [`RandomFaults`] does, but never so much that a reliable connection with seven retries could
/// give up. That makes the expectation exact: every request succeeds.
///
/// A retry needs a loss, and two rules bound how many losses there can be while the oldest request of a connection
/// stays where it is. Each packet (by queue pair, direction and PSN) is lost at most [`PER_PACKET`] times in the whole run, and
/// at most [`BETWEEN_PROGRESS`] answers are lost between two that acknowledge something new. So the oldest request is lost
/// twice at most; once the peer has it, every answer is news, of which three are lost in a row at most. A read or
/// atomic needs one particular answer, which is lost twice at most.
pub(crate) struct BoundedFaults {
    random: RandomFaults,
    /// The queue pair that executes the requests of each requester.
    responder_of: HashMap<QpAt, QpAt>,
    /// What was lost of each requester's conversation, by its responder.
    halves: HashMap<QpAt, Half>,
}

/// A queue pair: its host and number.
pub(crate) type QpAt = (IpAddr, u32);

#[derive(Default)]
struct Half {
    lost: HashMap<(bool, u32), u32>,
    answers_lost: u32,
    /// The last PSN that an answer which arrived acknowledged.
    acknowledged: Option<u32>,
}

const PER_PACKET: u32 = 2;
const BETWEEN_PROGRESS: u32 = 3;

impl BoundedFaults {
    pub(crate) fn new(random: RandomFaults, responder_of: HashMap<QpAt, QpAt>) -> Self {
        Self { random, responder_of, halves: HashMap::new() }
    }

    /// The conversation that a packet belongs to, whether it is an answer, and what it acknowledges.
    fn classify(&self, packet: &InFlight<'_>) -> Option<(QpAt, bool, u32, Option<u32>)> {
        let body = &packet.packet[..packet.packet.len().checked_sub(4)?];
        let packet_of = Packet::parse(body).ok()?;
        let bth = packet_of.headers.bth;
        let to = (packet.dst, bth.dest_qpn);
        let acknowledged = match packet_of.headers.ext {
            Ext::Aeth(aeth) | Ext::AtomicAck(aeth, _) => match aeth.syndrome {
                Syndrome::Ack { .. } => Some(bth.psn),
                _ => Some(psn_sub(bth.psn, 1)),
            },
            _ => None,
        };
        match bth.opcode.operation() {
            Operation::Ack | Operation::ReadResponse | Operation::AtomicAck => {
                let responder = *self.responder_of.get(&to)?;
                Some((responder, true, bth.psn, acknowledged))
            }
            _ => Some((to, false, bth.psn, None)),
        }
    }
}

impl FaultPolicy for BoundedFaults {
    fn fate(&mut self, packet: &InFlight<'_>) -> Fate {
        let fate = self.random.fate(packet);
        let arrives = fate.copies.iter().flatten().any(|copy| !copy.flips.any());
        if arrives {
            return fate;
        }
        let delay = fate.copies[0].map_or_else(|| self.random.usual_delay(packet), |copy| copy.delay);
        let spared = Fate { copies: [Some(Arrival { delay, ..Arrival::default() }), None] };
        let Some((key, answer, psn, _)) = self.classify(packet) else { return fate };
        let half = self.halves.entry(key).or_default();
        let lost = half.lost.entry((answer, psn)).or_default();
        if *lost >= PER_PACKET || answer && half.answers_lost >= BETWEEN_PROGRESS {
            return spared;
        }
        *lost += 1;
        half.answers_lost += u32::from(answer);
        fate
    }

    fn arrived(&mut self, packet: &InFlight<'_>) {
        if let Some((key, true, _, Some(acknowledged))) = self.classify(packet) {
            let half = self.halves.entry(key).or_default();
            if half.acknowledged.is_none_or(|last| psn_diff(acknowledged, last) > 0) {
                half.acknowledged = Some(acknowledged);
                half.answers_lost = 0;
            }
        }
    }
}
