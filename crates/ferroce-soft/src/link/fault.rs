//! Faults: what a bad network would do to a packet, decided without doing it.
//!
//! [`FaultInjector`] is a pure decision maker: time comes in, a [`Verdict`] comes out, and whoever owns the link carries it out.
//! So the same plan serves UDP, shared memory and the simulator, and a seed reproduces a run exactly.
//!
//! The random source is xoshiro256++ (Blackman and Vigna), seeded through SplitMix64, as its authors advise. It is written out
//! here because a seed in a bug report has to mean the same for ever, which general-purpose generators do not promise.
//! Every decision takes the same number of draws whatever the plan: turning one fault on or off
//! does not change which packets the others strike.

use std::time::Duration;

use crate::random::{Random, chance};
use ferroce_wire::BTH_LEN;

/// What the network does. Probabilities are per packet, from 0 to 1; others are taken as the nearer bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Names the run.
    pub seed: u64,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// After a loss all packets are lost for that long. Zero: losses are independent.
    pub loss_burst: Duration,
    /// Probability that a packet arrives twice.
    pub duplicate: f64,
    /// Probability that a packet is held back by [`reorder_by`](Self::reorder_by), so that later ones overtake it.
    pub reorder: f64,
    /// How long such a packet is held back, beyond the delay that all packets have.
    pub reorder_by: Duration,
    /// Probability that a bit of a packet is flipped.
    pub corrupt: f64,
    /// How late every packet is.
    pub delay: Duration,
}

/// What happens to one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// How often it is delivered: 0 (lost), 1, or 2.
    pub copies: u8,
    /// How long after now.
    pub delay: Duration,
    /// What is wrong with it. Of two copies this concerns the first.
    pub corrupt: Option<BitFlip>,
}

impl Verdict {
    /// Delivery, at once and unharmed.
    pub const DELIVER: Self = Self { copies: 1, delay: Duration::ZERO, corrupt: None };
}

/// A bit to flip after the ICRC was computed, so that the receiver must reject the packet.
///
/// It is never in byte 4, which the ICRC leaves out because switches mark congestion there. A receiver that does not know the
/// sender's IPv4 identification can notice all but 2^-15 of these, see [`ferroce_wire::check_icrc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitFlip {
    /// Offset in the packet, BTH first.
    pub byte: usize,
    /// The bit.
    pub mask: u8,
}

impl BitFlip {
    /// Flips the bit. Nothing happens if the packet is too short to have it.
    pub fn apply(self, packet: &mut [u8]) {
        if let Some(byte) = packet.get_mut(self.byte) {
            *byte ^= self.mask;
        }
    }
}

/// Makes the decisions of a [`FaultPlan`], packet by packet.
#[derive(Clone, Debug)]
pub struct FaultInjector {
    plan: FaultPlan,
    random: Xoshiro256,
    /// End of the burst of losses.
    lossy_until: Duration,
}

impl FaultInjector {
    /// Starts `plan` from its seed.
    #[must_use]
    pub fn new(plan: FaultPlan) -> Self {
        Self { random: Xoshiro256::new(plan.seed), plan, lossy_until: Duration::ZERO }
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &FaultPlan {
        &self.plan
    }

    /// Decides the fate of a packet of `len` bytes, ICRC included, that is sent at `now`, a time since any moment
    /// that stays the same.
    pub fn decide(&mut self, now: Duration, len: usize) -> Verdict {
        // Always all draws, in this order.
        let lost = self.random.chance(self.plan.loss);
        let twice = self.random.chance(self.plan.duplicate);
        let late = self.random.chance(self.plan.reorder);
        let corrupt = self.random.chance(self.plan.corrupt);
        let place = self.random.next();
        if lost {
            self.lossy_until = now + self.plan.loss_burst;
        }
        let lost = lost || now < self.lossy_until;
        let reorder_by = if late { self.plan.reorder_by } else { Duration::ZERO };
        Verdict {
            copies: if lost { 0 } else { 1 + u8::from(twice) },
            delay: self.plan.delay + reorder_by,
            corrupt: (corrupt && len > BTH_LEN).then(|| bit_at(place, len)),
        }
    }
}

/// A bit of a packet of `len` bytes, but in byte 4.
fn bit_at(random: u64, len: usize) -> BitFlip {
    const UNCOVERED: usize = 4;
    let byte = ((random >> 8) % (len as u64 - 1)) as usize;
    BitFlip { byte: byte + usize::from(byte >= UNCOVERED), mask: 1 << (random & 7) }
}

/// xoshiro256++ 1.0.
#[derive(Clone, Debug)]
struct Xoshiro256([u64; 4]);

impl Xoshiro256 {
    fn new(seed: u64) -> Self {
        let mut split_mix = Random::new(seed);
        Self(std::array::from_fn(|_| split_mix.next_u64()))
    }

    fn next(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// True with probability `p`.
    fn chance(&mut self, p: f64) -> bool {
        chance(self.next(), p)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(plan: &FaultPlan, packets: usize) -> Vec<Verdict> {
        let mut injector = FaultInjector::new(plan.clone());
        (0..packets).map(|i| injector.decide(Duration::from_micros(i as u64), 64)).collect()
    }

    #[test]
    fn the_generator_is_the_published_one() {
        // State 1, 2, 3, 4: first outputs of the reference implementation.
        let mut random = Xoshiro256([1, 2, 3, 4]);
        let expected = [41_943_041, 58_720_359, 3_588_806_011_781_223];
        assert_eq!(expected.map(|_| random.next()), expected);
        // SplitMix64 from 0.
        assert_eq!(Xoshiro256::new(0).0[0], 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn no_fault_no_change() {
        assert!(run(&FaultPlan::default(), 1000).iter().all(|&v| v == Verdict::DELIVER));
    }

    #[test]
    fn certainty_is_certain() {
        let plan = FaultPlan { duplicate: 1.0, corrupt: 1.0, delay: Duration::from_micros(3), ..FaultPlan::default() };
        for verdict in run(&plan, 1000) {
            assert_eq!((verdict.copies, verdict.delay), (2, plan.delay));
            assert!(verdict.corrupt.is_some());
        }
        let plan = FaultPlan { loss: 1.0, ..plan };
        assert!(run(&plan, 1000).iter().all(|v| v.copies == 0));
    }

    #[test]
    fn a_burst_takes_all_that_comes_within_it() {
        let plan = FaultPlan { seed: 5, loss: 0.01, loss_burst: Duration::from_micros(10), ..FaultPlan::default() };
        let single = run(&FaultPlan { loss_burst: Duration::ZERO, ..plan.clone() }, 5000);
        let burst = run(&plan, 5000);
        for (i, verdict) in burst.iter().enumerate() {
            let struck = single[i.saturating_sub(9)..=i].iter().any(|v| v.copies == 0);
            assert_eq!(verdict.copies == 0, struck, "packet {i}");
        }
        assert!(single.iter().any(|v| v.copies == 0));
    }

    proptest! {
        #[test]
        fn a_seed_reproduces_a_run(seed: u64, p in 0.0..1.0) {
            let plan = FaultPlan { seed, loss: p, duplicate: p, reorder: p, corrupt: p, ..FaultPlan::default() };
            prop_assert_eq!(run(&plan, 200), run(&plan, 200));
        }

        #[test]
        fn faults_are_independent(seed: u64, loss in 0.0..1.0, other in 0.0..1.0) {
            let plan = FaultPlan { seed, loss, ..FaultPlan::default() };
            let more = FaultPlan { duplicate: other, corrupt: other, reorder: other, ..plan.clone() };
            let lost = |plan| run(plan, 300).iter().map(|v| v.copies == 0).collect::<Vec<_>>();
            prop_assert_eq!(lost(&plan), lost(&more));
        }

        #[test]
        fn flips_hit_what_the_icrc_covers(seed: u64, len in 13usize..5000) {
            let plan = FaultPlan { seed, corrupt: 1.0, ..FaultPlan::default() };
            let verdict = FaultInjector::new(plan).decide(Duration::ZERO, len);
            let flip = verdict.corrupt.expect("certain");
            prop_assert!(flip.byte < len && flip.byte != 4 && flip.mask.count_ones() == 1);
            let mut packet = vec![0; len];
            flip.apply(&mut packet);
            prop_assert_eq!(packet.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
        }

        #[test]
        fn strange_probabilities_are_harmless(p in proptest::num::f64::ANY) {
            let plan = FaultPlan { loss: p, corrupt: p, duplicate: p, reorder: p, ..FaultPlan::default() };
            run(&plan, 50);
        }
    }

    #[test]
    fn rates_are_about_what_was_asked_for() {
        let plan = FaultPlan { seed: 1, loss: 0.1, ..FaultPlan::default() };
        let lost = run(&plan, 100_000).iter().filter(|v| v.copies == 0).count();
        assert!((9_500..10_500).contains(&lost), "{lost}");
    }
}
