//! ud_verbs as the transports' common surface has it: UCT's contracts.

mod contracts;
mod faults;
mod handlers;
mod support;
#[path = "../waiting/mod.rs"]
mod waiting;
