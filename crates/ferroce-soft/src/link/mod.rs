//! Links: what carries packets from one device to another.

pub mod udp;
