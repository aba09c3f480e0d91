//! What the fuzzers run: bytes in, and a check that nothing bad came of them.
//!
//! Each target is a function of any bytes. The targets of cargo-fuzz in `/fuzz` call them; so do the tests, with the corpus in
//! `/fuzz/corpus` and with random bytes.

mod command;
mod connections;
mod end;
mod engine;
mod inject;
mod input;
mod mads;
mod session;
mod transport;
mod wire;

pub use connections::connections;
pub use engine::engine;
pub use transport::ud;
pub use wire::{cm, grh, packet};

use crate::failure::Failure;

/// Runs one input.
pub type Target = fn(&[u8]) -> Result<(), Failure>;

/// All targets, by the name that they have in `/fuzz`.
pub const TARGETS: [(&str, Target); 6] =
    [("packet", packet), ("grh", grh), ("cm", cm), ("engine", engine), ("connections", connections), ("ud", ud)];
