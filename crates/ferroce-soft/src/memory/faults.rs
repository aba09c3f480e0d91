use crate::random::Random;
use ferroce_wire::BTH_LEN;
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub struct InFlight<'a> {
    /// The virtual time.
    pub at: Duration,
    /// Who sent it.
    pub src: IpAddr,
    /// The host that it goes to; for a datagram to a multicast group, each member in turn.
    pub dst: IpAddr,
    /// BTH up to and including the ICRC.
    pub packet: &'a [u8],
}

/// Decides what the network does to each packet. Called with the network locked: it must not call back.
pub trait FaultPolicy: Send {
    /// What becomes of a packet that is being sent.
    fn fate(&mut self, packet: &InFlight<'_>) -> Fate;

    /// A packet arrived with a right ICRC and is about to be handed to its host.
    fn arrived(&mut self, packet: &InFlight<'_>) {
        let _ = packet;
    }
}

/// What becomes of a packet: each copy that arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// The copies; none if the packet is lost.
    pub copies: [Option<Arrival>; 2],
}

/// How one copy of a packet arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// How long after it was sent.
    pub delay: Duration,
    /// What is wrong with it.
    pub flips: Flips,
}

/// Bits to flip in a packet: none, or up to three. CRC-32 catches all such damage to packets of up to 11 kB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flips([Option<u32>; 3]);

impl Flips {
    /// One to three different bits of a packet of `len` bytes, ICRC included. Never in byte 4 of the BTH: a switch may mark
    /// congestion there, so the ICRC leaves it out and receivers ignore it.
    pub fn random(random: &mut Random, len: usize) -> Self {
        const UNCOVERED: u32 = 4 * 8;
        let mut flips = Self::default();
        if len <= BTH_LEN {
            return flips;
        }
        let count = 1 + random.below(3) as usize;
        for at in 0..count {
            let bit = random.below((len as u64 - 1) * 8) as u32;
            let bit = if bit < UNCOVERED { bit } else { bit + 8 };
            if !flips.0.contains(&Some(bit)) {
                flips.0[at] = Some(bit);
            }
        }
        flips
    }

    /// Whether it flips anything.
    pub fn any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }

    /// Flips the bits, as far as the packet has them.
    pub fn apply(&self, packet: &mut [u8]) {
        for bit in self.0.iter().flatten() {
            if let Some(byte) = packet.get_mut((bit / 8) as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }
}

/// What a bad network does: each probability is that of one packet, in 0..=1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryFaults {
    /// It is lost.
    pub loss: f64,
    /// It arrives twice.
    pub duplicate: f64,
    /// It is held back by up to [`MemoryFaults::reorder_by`], so that later ones overtake it.
    pub reorder: f64,
    /// How long such a packet is held back at most.
    pub reorder_by: Duration,
    /// Bits of it are flipped.
    pub corrupt: f64,
    /// How long every packet takes at least,
    pub min_delay: Duration,
    /// and at most. What is not held back arrives in the order in which it was sent.
    pub max_delay: Duration,
}

/// [`MemoryFaults`] carried out: the policy that a network has unless it is given another one.
#[derive(Clone, Debug)]
pub struct RandomFaults {
    faults: MemoryFaults,
    random: Random,
    /// When the last packet of each direction that was not held back arrives.
    last: HashMap<(IpAddr, IpAddr), Duration>,
}

impl RandomFaults {
    /// Starts from `random`.
    #[must_use]
    pub fn new(faults: MemoryFaults, random: Random) -> Self {
        Self { faults, random, last: HashMap::new() }
    }

    /// Goes on with other faults.
    pub fn set(&mut self, faults: MemoryFaults) {
        self.faults = faults;
    }

    /// How long a packet that nothing happens to takes.
    pub fn usual_delay(&mut self, packet: &InFlight<'_>) -> Duration {
        self.arrival(packet, false, false).delay
    }

    fn arrival(&mut self, packet: &InFlight<'_>, late: bool, corrupt: bool) -> Arrival {
        let MemoryFaults { min_delay, max_delay, reorder_by, .. } = self.faults;
        let (min, max) = (min_delay.as_nanos() as u64, max_delay.as_nanos() as u64);
        let mut delay = Duration::from_nanos(self.random.within(min, max.max(min)));
        let flips = if corrupt { Flips::random(&mut self.random, packet.packet.len()) } else { Flips::default() };
        if late {
            delay += Duration::from_nanos(self.random.below(reorder_by.as_nanos() as u64 + 1));
        } else {
            let last = self.last.entry((packet.src, packet.dst)).or_default();
            *last = (packet.at + delay).max(*last);
            delay = *last - packet.at;
        }
        Arrival { delay, flips }
    }
}

impl FaultPolicy for RandomFaults {
    fn fate(&mut self, packet: &InFlight<'_>) -> Fate {
        let MemoryFaults { loss, duplicate, reorder, corrupt, .. } = self.faults;
        let lost = self.random.chance(loss);
        let twice = self.random.chance(duplicate);
        let late = self.random.chance(reorder);
        let corrupt = self.random.chance(corrupt);
        if lost {
            return Fate::default();
        }
        let first = self.arrival(packet, late, corrupt);
        // The second copy is on its own: it may be late when the first is not, and only one of the two is damaged.
        let late = twice && self.random.chance(reorder);
        let second = twice.then(|| self.arrival(packet, late, false));
        Fate { copies: [Some(first), second] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(at: u64) -> InFlight<'static> {
        let ip = |last| IpAddr::from([10, 0, 0, last]);
        InFlight { at: Duration::from_nanos(at), src: ip(1), dst: ip(2), packet: &[0; 64] }
    }

    #[test]
    fn what_is_not_held_back_stays_in_order() {
        let faults = MemoryFaults { max_delay: Duration::from_micros(50), ..MemoryFaults::default() };
        let mut policy = RandomFaults::new(faults, Random::new(3));
        let mut last = Duration::ZERO;
        for at in 0..1000 {
            let [Some(arrival), None] = policy.fate(&packet(at * 10)).copies else { panic!("one copy") };
            let arrives = Duration::from_nanos(at * 10) + arrival.delay;
            assert!(arrives >= last && !arrival.flips.any());
            last = arrives;
        }
        let mut faults = MemoryFaults { reorder: 0.1, reorder_by: Duration::from_micros(50), ..faults };
        policy.set(faults);
        let arrivals: Vec<_> =
            (0..1000).map(|at| packet(at * 10).at + policy.fate(&packet(at * 10)).copies[0].unwrap().delay).collect();
        assert!(!arrivals.is_sorted());
        faults.loss = 1.0;
        policy.set(faults);
        assert_eq!(policy.fate(&packet(0)), Fate::default());
    }

    #[test]
    fn flips_spare_the_byte_that_the_icrc_does_not_cover() {
        let mut random = Random::new(1);
        for round in 0..5000 {
            let len = 16 + round % 100;
            let flips = Flips::random(&mut random, len);
            let mut bytes = vec![0; len];
            flips.apply(&mut bytes);
            assert_eq!(bytes[4], 0);
            let bits: u32 = bytes.iter().map(|byte| byte.count_ones()).sum();
            assert!((1..=3).contains(&bits) && flips.any());
        }
        assert!(!Flips::random(&mut random, BTH_LEN).any());
    }
}
