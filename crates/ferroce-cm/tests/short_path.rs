//! Connect, listen, accept: in three lines, blocking and async.

mod cases;
mod support;

use cases::short_path;
use ferroce_soft::LinkMode;
use support::bed::Bed;

#[test]
fn blocking() {
    short_path::blocking(&Bed::soft(LinkMode::Auto));
}

#[test]
fn as_futures() {
    short_path::as_futures(&Bed::soft(LinkMode::Auto));
}

#[test]
fn refusals_are_values() {
    short_path::refusals_are_values(&Bed::soft(LinkMode::Auto));
}
