//! Handles may be dropped in any order, by any thread, at any moment.

use crate::Case;

mod concurrent;
mod drop_order;
mod memory;

pub(super) use concurrent::join_all;

pub(super) fn add(all: &mut Vec<Case>) {
    drop_order::add(all);
    memory::add(all);
    concurrent::add(all);
}
