//! Unreliable connections and datagrams: what arrives is whole, comes once, and (on connections) in order.

mod inbox;
mod uc;
mod ud;

use crate::failure::Failure;
use crate::scenario::{Options, Outcome, Scenario};
use ferroce_soft::memory::{MemoryConfig, MemoryFaults, Random};
use std::time::Duration;

/// Things that a run does at most; all need far fewer.
const ROUNDS: u32 = 1_000_000;

/// Runs `scenario` once.
pub(crate) fn run(scenario: Scenario, seed: u64, options: &Options) -> Result<Outcome, Failure> {
    let random = Random::new(seed).fork(scenario as u64);
    match scenario {
        Scenario::Ud => ud::run(seed, random, options),
        _ => uc::run(seed, random, options),
    }
}

/// Names message `index` of `end`.
fn key(end: usize, index: usize) -> u64 {
    ((end as u64 + 1) << 32) | index as u64
}

/// A network for one run: a perfect one now and then, for which everything must arrive.
fn network(seed: u64, random: &mut Random) -> MemoryConfig {
    let min_delay = Duration::from_nanos(random.below(10_000));
    let delays = MemoryFaults {
        min_delay,
        max_delay: min_delay + Duration::from_nanos(random.below(10_000)),
        reorder_by: Duration::from_nanos(random.below(60_000)),
        ..MemoryFaults::default()
    };
    let faults = if random.chance(0.2) {
        delays
    } else {
        let mut upto = |most: f64| most * random.below(1000) as f64 / 1000.0;
        MemoryFaults { loss: upto(0.2), duplicate: upto(0.2), reorder: upto(0.2), corrupt: upto(0.1), ..delays }
    };
    MemoryConfig {
        seed,
        faults,
        rate: *random.pick(&[0, 200_000_000, 2_000_000_000]),
        send_buffer: *random.pick(&[4 << 10, 64 << 10]),
        ..MemoryConfig::default()
    }
}

fn is_perfect(faults: &MemoryFaults) -> bool {
    faults.loss == 0.0 && faults.duplicate == 0.0 && faults.reorder == 0.0 && faults.corrupt == 0.0
}
