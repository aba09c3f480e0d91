//! What one run is like.

use crate::scenario::Scenario;
use ferroce_soft::memory::{MemoryConfig, MemoryFaults, Random};
use std::time::Duration;

/// Twice this is longer than any packet is on its way, and shorter than timewait.
const MAX_DELAY: Duration = Duration::from_millis(400);

/// What one run is like.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) hosts: usize,
    /// Programs of each host, which share its address and its queue pair 1.
    pub(super) programs: usize,
    /// Programs, from the first on, that are asked for connections.
    pub(super) servers: usize,
    pub(super) attempts: u32,
    /// In which time they begin.
    pub(super) within: Duration,
    /// How often a program closes what is not established yet, of 1.
    pub(super) cancels: f64,
    /// How many attempts ask for datagrams, of 1.
    pub(super) datagrams: f64,
    /// How many connections stay open until the end, of 1.
    pub(super) stay: f64,
    /// How late programs read their events at most.
    pub(super) lag: Duration,
    pub(super) backlog: usize,
    /// Hosts that lose power, and programs that are killed.
    pub(super) crashes: u32,
    pub(super) partitions: u32,
    /// Listeners that are closed and opened again.
    pub(super) closes: u32,
    pub(super) network: MemoryConfig,
}

impl Plan {
    pub(super) fn new(scenario: Scenario, seed: u64, random: &mut Random) -> Self {
        let many = scenario == Scenario::Hosts;
        let millis = |random: &mut Random, choice: &[u64]| Duration::from_millis(*random.pick(choice));
        let hosts = if many { 1000 } else { random.within(2, 6) as usize };
        let programs = if !many && random.chance(0.3) { 2 } else { 1 };
        // Now and then everybody wants the same few.
        let all = hosts * programs;
        let servers = if random.chance(0.3) { 1 + random.below(3) as usize } else { all };
        let attempts = if many { 2000 } else { random.within(2, 40) as u32 };
        let max_delay = *random.pick(&[Duration::from_micros(50), Duration::from_millis(5), MAX_DELAY / 4]);
        let reorder_by = if random.chance(0.3) { MAX_DELAY } else { 2 * max_delay };
        let bad = random.chance(0.7);
        let mut upto = |most: f64| if bad { most * random.below(1000) as f64 / 1000.0 } else { 0.0 };
        let faults = MemoryFaults {
            loss: upto(0.2),
            duplicate: upto(0.2),
            reorder: upto(0.2),
            corrupt: upto(0.05),
            reorder_by,
            min_delay: Duration::from_micros(10),
            max_delay,
        };
        let trouble = |random: &mut Random, chance, most: u64| {
            let most = if many { 20 * most } else { most };
            if random.chance(chance) { random.within(1, most) as u32 } else { 0 }
        };
        Self {
            hosts,
            programs,
            servers: servers.min(all),
            attempts,
            within: millis(random, &[0, 10, 3000, 15_000]),
            cancels: *random.pick(&[0.0, 0.1, 0.3]),
            datagrams: *random.pick(&[0.0, 0.1, 0.4]),
            stay: *random.pick(&[0.0, 0.3, 1.0]),
            lag: millis(random, &[0, 1, 50, 1500]),
            backlog: *random.pick(&[1, 4, 1024]),
            crashes: trouble(random, 0.4, 3),
            partitions: trouble(random, 0.3, 3),
            closes: trouble(random, 0.2, 2),
            network: MemoryConfig { seed, faults, ..MemoryConfig::default() },
        }
    }

    /// Nothing but time stands in the way of a connection.
    pub(super) fn is_calm(&self) -> bool {
        let MemoryFaults { loss, corrupt, .. } = self.network.faults;
        loss == 0.0 && corrupt == 0.0 && self.crashes + self.partitions + self.closes == 0
    }
}
