//! What if the network is hostile and time is ours?
//!
//! The software device runs unchanged on a network in memory ([`ferroce_soft::memory`]) that loses, repeats, reorders and
//! damages packets and whose time is virtual. Everything in a run follows from its seed, so a run that fails is reproduced
//! by its seed alone.
//!
//! `cargo test -p ferroce-sim` runs a few hundred seeds of every scenario, with `--release` a few thousand. More:
//!
//! ```console
//! $ FERROCE_SIM_SEEDS=100000 cargo test -p ferroce-sim --release --test scenarios
//! $ cargo run -p ferroce-sim --release -- --help
//! ```
#![deny(unsafe_code)]

mod adversary;
mod arena;
mod connections;
mod failure;
pub mod fuzz;
pub mod log;
mod pattern;
mod reliable;
mod scenario;
mod slots;
mod sweep;
mod trace;
mod unreliable;
mod watch;

pub use failure::Failure;
pub use scenario::{Options, Outcome, Scenario};
pub use sweep::{Failed, Sweep, SweepResult};
pub use trace::TraceHash;
