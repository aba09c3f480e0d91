//! What every verbs device must do, written once against the contract.
//!
//! A [`Case`] states one thing that the InfiniBand specification, the kernel's verbs or the contract of
//! [`ferroce_verbs`] demands. [`cases`] lists them all; [`run`] tries them on the two ends that a [`Testbed`] opens, and
//! its [`Report`] says what held, what did not and what was left out.
//!
//! A case assumes nothing beyond the contract. What a device says of itself (no atomics, small MTU) makes cases not
//! applicable; what it cannot do for another reason goes into a [`SkipList`], with the reason.
//!
//! No case measures time. A deadline only turns a hang into a failure. Where something must *not* happen, a case first
//! makes something else happen that comes after it, and then looks: such a check can miss a fault of a slow device, but
//! never blames a good one.
#![forbid(unsafe_code)]

mod case;
mod cases;
mod env;
mod failure;
mod fixture;
mod report;
mod runner;
mod skip;

pub use case::Case;
pub use cases::cases;
pub use env::{End, Env, OneDevice, Side, Testbed};
pub use failure::{CaseResult, Failure};
pub use fixture::Wait;
pub use report::{CaseReport, Report, Verdict};
pub use runner::{Options, run};
pub use skip::{SkipList, matches};
