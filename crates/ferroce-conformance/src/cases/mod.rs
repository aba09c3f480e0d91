//! The cases, one module for each part of the contract.

use crate::Case;

mod data;

/// Every case of the suite, in the order in which a device is best brought up.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    data::add(&mut all);
    all
}
