//! Every fault that a user or a peer can make ends with the status that the specification gives it, at both ends.

use crate::Case;

mod bench;
mod event;
mod flush;
mod invalidate;
mod local;
mod receive;
mod remote;
mod retry;
mod unreliable;

pub(super) fn add(all: &mut Vec<Case>) {
    local::add(all);
    remote::add(all);
    receive::add(all);
    invalidate::add(all);
    retry::add(all);
    flush::add(all);
    unreliable::add(all);
    event::add(all);
}
