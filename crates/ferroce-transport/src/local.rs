//! The local address that an interface uses.

use ferroce_verbs::{Context, Error, GidEntry, Result};
use std::net::IpAddr;

/// The entry of `address`; without one, the first that is not a loopback address, else the first.
pub(crate) fn choose(context: &Context, port: u8, address: Option<IpAddr>) -> Result<GidEntry> {
    if let Some(ip) = address {
        return context.find_gid(port, ip);
    }
    let table = context.gid_table(port)?;
    let best = table.iter().find(|entry| !entry.loopback).or(table.first());
    best.cloned().ok_or_else(|| Error::invalid("device", "it has no address: bring a network interface up"))
}
