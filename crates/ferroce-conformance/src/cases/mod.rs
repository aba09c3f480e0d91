//! The cases, one module for each part of the contract.

use crate::Case;

mod data;
mod datagram;
mod drain;
mod multicast;
mod notify;
mod queue;
mod srq;
mod status;

/// Every case of the suite, in the order in which a device is best brought up.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    data::add(&mut all);
    notify::add(&mut all);
    queue::add(&mut all);
    srq::add(&mut all);
    datagram::add(&mut all);
    multicast::add(&mut all);
    drain::add(&mut all);
    status::add(&mut all);
    all
}
