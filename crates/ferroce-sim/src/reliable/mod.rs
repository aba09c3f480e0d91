//! Reliable connections: random traffic between random ends, and what must hold during and after it.

mod complete;
mod disturb;
mod drain;
mod end;
mod op;
mod plan;
mod post;
mod run;
mod words;
mod world;

use crate::failure::Failure;
use crate::scenario::{Options, Outcome, Scenario};
use ferroce_soft::memory::Random;
use plan::Plan;
use world::World;

/// Runs `scenario` once.
pub(crate) fn run(scenario: Scenario, seed: u64, options: &Options) -> Result<Outcome, Failure> {
    let mut random = Random::new(seed).fork(scenario as u64);
    let plan = Plan::draw(scenario, seed, &mut random);
    if options.log {
        eprintln!("{plan:#?}");
    }
    World::new(plan, seed, random, options)?.run()
}
