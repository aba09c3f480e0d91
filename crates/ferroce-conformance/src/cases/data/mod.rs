//! Every operation moves exactly the bytes that it says, and its completions say what it was.

use crate::Case;

mod atomic;
mod datagram;
mod edge;
mod message;
mod order;
mod shape;

pub(super) use atomic::need_atomics;

pub(super) fn add(all: &mut Vec<Case>) {
    message::add(all);
    datagram::add(all);
    atomic::add(all);
    order::add(all);
    edge::add(all);
}
