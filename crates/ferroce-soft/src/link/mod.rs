//! Links: what carries packets from one device to another.

pub mod capture;
pub mod fault;
pub mod udp;
