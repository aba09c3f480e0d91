//! rc_verbs on the software device: UCT's contracts, and the reports about other implementations that they answer.

mod connections;
mod contracts;
mod events;
mod failures;
mod handlers;
mod hostile;
mod operations;
mod support;
mod teardown;
#[path = "../waiting/mod.rs"]
mod waiting;
