//! Threads that close whatever they like, whenever they like, while one reads events: over each link.

mod cases;
mod support;

use cases::races::{channels_close_and_ids_migrate_meanwhile, churn};
use ferroce_cm::PortSpace;
use ferroce_soft::LinkMode;
use support::bed::Bed;

#[test]
fn one_reader() {
    churn(&Bed::soft(LinkMode::Auto), PortSpace::Tcp, 1500, 1);
}

#[test]
fn several_readers_of_one_channel() {
    // R6: with librdmacm the events of one id are processed in any order.
    churn(&Bed::soft(LinkMode::Auto), PortSpace::Tcp, 1500, 3);
}

#[test]
fn over_udp() {
    churn(&Bed::soft(LinkMode::Udp), PortSpace::Tcp, 800, 1);
}

#[test]
fn datagrams() {
    churn(&Bed::soft(LinkMode::Auto), PortSpace::Udp, 1500, 3);
}

#[test]
fn datagrams_over_udp() {
    churn(&Bed::soft(LinkMode::Udp), PortSpace::Udp, 800, 1);
}

#[test]
fn channels_close_and_migrate() {
    channels_close_and_ids_migrate_meanwhile(&Bed::soft(LinkMode::Auto), 150);
}
