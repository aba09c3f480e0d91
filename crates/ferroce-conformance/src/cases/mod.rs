//! The cases, one module for each part of the contract.

use crate::Case;

mod data;
mod datagram;
mod drain;
mod inventory;
mod lifetime;
mod multicast;
mod notify;
mod queue;
mod srq;
mod states;
mod status;
mod threads;

/// Every case of the suite, in the order in which a device is best brought up.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    inventory::add(&mut all);
    states::add(&mut all);
    data::add(&mut all);
    notify::add(&mut all);
    queue::add(&mut all);
    srq::add(&mut all);
    datagram::add(&mut all);
    multicast::add(&mut all);
    drain::add(&mut all);
    status::add(&mut all);
    lifetime::add(&mut all);
    threads::add(&mut all);
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_well_formed() {
        let mut seen = BTreeSet::new();
        for case in super::cases() {
            let name = case.name().to_owned();
            let fine = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "/-".contains(c);
            assert!(name.chars().all(fine) && name.contains('/'), "{name}");
            assert!(seen.insert(name.clone()), "{name} comes twice");
        }
    }
}
