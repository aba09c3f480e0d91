use crate::scenario::Scenario;
use ferroce_soft::memory::{MemoryConfig, MemoryFaults, Random};
use ferroce_verbs::Mtu;
use std::time::Duration;

/// What one run of reliable connections is like: drawn from its seed.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) scenario: Scenario,
    pub(super) hosts: usize,
    /// Contexts of each host.
    pub(super) contexts: usize,
    pub(super) pairs: usize,
    /// Sends of each end.
    pub(super) ops: u64,
    pub(super) mtu: Mtu,
    pub(super) max_len: usize,
    /// Sends and receives outstanding at each end.
    pub(super) depth: u32,
    pub(super) max_sge: u32,
    pub(super) inline: u32,
    pub(super) signaled: f64,
    pub(super) sig_all: bool,
    pub(super) srq: bool,
    pub(super) shared_cq: bool,
    /// Probability that a chance to post receives is not taken.
    pub(super) lazy: f64,
    /// Probability of each step to make a send queue drain, or one that drains go on.
    pub(super) drains: f64,
    pub(super) rd_atomic: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) rnr_timer: u8,
    pub(super) network: MemoryConfig,
}

impl Plan {
    pub(super) fn draw(scenario: Scenario, seed: u64, random: &mut Random) -> Self {
        let mtu = *random.pick(&Mtu::ALL);
        let mtu_bytes = mtu.bytes() as usize;
        // Now and then messages that take more packets than one turn sends and one read asks for.
        let max_len = match random.below(10) {
            0 => (150 * mtu_bytes).min(80 << 10),
            1..=4 => 5 * mtu_bytes,
            _ => 2 * mtu_bytes,
        };
        let rate = *random.pick(&[0, 0, 0, 200_000_000, 2_000_000_000]);
        let faults = faults(scenario, random);
        let network = MemoryConfig {
            seed,
            faults,
            answer_within: Duration::from_nanos(*random.pick(&[0, 500, 5_000, 20_000])),
            rate,
            send_buffer: *random.pick(&[4 << 10, 16 << 10, 64 << 10]),
            ..MemoryConfig::default()
        };
        // Without losses and late packets any number of retries has to do.
        let lossless = faults.loss == 0.0 && faults.corrupt == 0.0 && faults.reorder == 0.0;
        Self {
            scenario,
            hosts: random.within(1, 3) as usize,
            contexts: random.within(1, 2) as usize,
            pairs: random.within(1, 4) as usize,
            ops: random.within(4, if max_len > 32 << 10 { 12 } else { 40 }),
            mtu,
            max_len,
            depth: *random.pick(&[1, 2, 3, 8, 16, 32]),
            max_sge: *random.pick(&[1, 2, 5]),
            inline: *random.pick(&[0, 16, 200, 1024]),
            signaled: *random.pick(&[0.0, 0.3, 1.0]),
            sig_all: random.chance(0.1),
            srq: scenario != Scenario::Rnr && random.chance(0.3),
            shared_cq: random.chance(0.5),
            lazy: *random.pick(&[0.0, 0.5, 0.9]),
            drains: *random.pick(&[0.0, 0.01, 0.1]),
            rd_atomic: *random.pick(&[1, 2, 4, 16]),
            // 16 to 67 ms: far more than a packet is ever late, even behind a full send buffer.
            timeout: random.within(12, 14) as u8,
            retry_cnt: if scenario == Scenario::RcStorm || lossless { random.below(8) as u8 } else { 7 },
            rnr_retry: if scenario == Scenario::Rnr { random.below(7) as u8 } else { 7 },
            rnr_timer: random.within(1, 14) as u8,
            network,
        }
    }

    /// Bytes of one buffer: the longest message, with gaps between its pieces.
    pub(super) fn slot_len(&self) -> usize {
        (self.max_len + crate::pattern::GAP * self.max_sge as usize).next_multiple_of(8)
    }
}

fn faults(scenario: Scenario, random: &mut Random) -> MemoryFaults {
    let micros = |random: &mut Random, most: u64| Duration::from_nanos(random.below(most * 1000));
    let min_delay = micros(random, 10);
    let delays = MemoryFaults {
        min_delay,
        max_delay: min_delay + micros(random, 10),
        reorder_by: micros(random, 60),
        ..MemoryFaults::default()
    };
    match scenario {
        // A network as bad as the specification of this simulator has it; sometimes a good one, for what only speed shows.
        Scenario::Rc if random.chance(0.1) => delays,
        Scenario::Rc => MemoryFaults { loss: 0.1, duplicate: 0.1, reorder: 0.1, corrupt: 0.1, ..delays },
        // Nothing is lost, so that only missing receives can make anything fail.
        Scenario::Rnr => MemoryFaults { duplicate: 0.1, reorder: 0.1, ..delays },
        Scenario::Partition if random.chance(0.5) => MemoryFaults { duplicate: 0.1, ..delays },
        Scenario::RcStorm => {
            let mut upto = |most: f64| most * random.below(1000) as f64 / 1000.0;
            MemoryFaults { loss: upto(0.6), duplicate: upto(0.5), reorder: upto(0.5), corrupt: upto(0.3), ..delays }
        }
        _ => {
            let mut upto = |most: f64| most * random.below(1000) as f64 / 1000.0;
            MemoryFaults { loss: upto(0.03), duplicate: upto(0.1), reorder: upto(0.1), corrupt: upto(0.03), ..delays }
        }
    }
}
