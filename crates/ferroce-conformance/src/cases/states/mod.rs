//! The state machine of a queue pair: what is legal works, what is not is refused and changes nothing.

use crate::Case;

mod attributes;
mod fixture;
mod posting;
mod transitions;

pub(super) fn add(all: &mut Vec<Case>) {
    transitions::add(all);
    attributes::add(all);
    posting::add(all);
}
