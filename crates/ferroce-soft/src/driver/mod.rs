//! Runs an engine on this machine: the links, the clock, and the thread that makes progress while the owner sleeps.
//!
//! Whoever polls makes progress itself. The thread sleeps in epoll and lets the links wake it, until it sees that the
//! program polls in a loop: then it only looks in once a millisecond, so that packets wake nobody. When the program arms a
//! completion queue or stops polling, the thread goes back to epoll.

mod ending;
mod frames;
mod gids;
mod groups;
mod gsi;
mod offer;
mod port;
mod rx;
mod steering;
mod thread;
mod tx;
mod watched;

pub(crate) use port::{Kick, OpenError, Port};
pub(crate) use thread::start;
