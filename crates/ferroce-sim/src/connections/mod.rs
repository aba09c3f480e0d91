//! Connection storms between whole hosts: the connection manager with its ids and channels, on the software device, over a hostile
//! network in memory.
//!
//! Programs connect, accept, reject, confirm late or never, cancel, migrate ids between channels and read their events late; hosts lose
//! power and come back with the queue pair numbers that they had, programs are killed beside others that live on, and the network is cut.
//! Whatever happens, each attempt is decided once and by its deadline, a connection is there for both sides or for neither, each
//! carries the right messages, and in the end nothing is left of anything.

mod act;
mod check;
mod event;
mod plan;
mod program;
mod traffic;
mod world;

pub(crate) use check::{held, nothing_left};

use crate::failure::Failure;
use crate::scenario::{Options, Outcome, Scenario};
use plan::Plan;
use world::World;

/// Runs `scenario` once.
pub(crate) fn run(scenario: Scenario, seed: u64, options: &Options) -> Result<Outcome, Failure> {
    let mut random = ferroce_soft::memory::Random::new(seed).fork(scenario as u64);
    let plan = Plan::new(scenario, seed, &mut random);
    World::new(plan, random, options)?.run()
}
