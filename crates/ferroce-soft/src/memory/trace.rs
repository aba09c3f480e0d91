use std::net::IpAddr;
use std::time::Duration;

/// What happened to a packet, or to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TraceKind {
    /// It was sent.
    Sent,
    /// It was lost: by chance, by a partition, or because too much was in flight.
    Lost,
    /// It arrived and was handed to the context that it names.
    Delivered,
    /// It arrived damaged: its ICRC was wrong.
    Rejected,
    /// It arrived where nobody is.
    Unroutable,
    /// No packet: a timer of `dst` came up.
    Timer,
}

/// One event of a run.
#[derive(Clone, Copy, Debug)]
pub struct TraceEvent<'a> {
    /// The virtual time.
    pub at: Duration,
    /// What happened.
    pub kind: TraceKind,
    /// The sender.
    pub src: IpAddr,
    /// The receiver.
    pub dst: IpAddr,
    /// BTH up to and including the ICRC; empty for a timer.
    pub packet: &'a [u8],
}

/// What a network did so far.
///
/// `sent + duplicated` is always the sum of all that can become of a packet: `lost`, `blocked`, `overflowed`, `rejected`,
/// `unroutable`, `delivered` and `in_flight`. A datagram to a multicast group counts once for each host with members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MemoryStats {
    /// Packets that hosts sent.
    pub sent: u64,
    /// Second copies.
    pub duplicated: u64,
    /// Lost by chance.
    pub lost: u64,
    /// Lost in a partition.
    pub blocked: u64,
    /// Lost because too many were in flight.
    pub overflowed: u64,
    /// Damaged on the way.
    pub corrupted: u64,
    /// Dropped at the receiver for a wrong ICRC.
    pub rejected: u64,
    /// Dropped because no context has the address and slot that it names.
    pub unroutable: u64,
    /// Handed to a context.
    pub delivered: u64,
    /// On their way.
    pub in_flight: u64,
    /// Most that were on their way at one time.
    pub max_in_flight: u64,
}

impl MemoryStats {
    /// Whether every packet is accounted for.
    pub fn is_consistent(&self) -> bool {
        let ends = self.lost + self.blocked + self.overflowed + self.rejected + self.unroutable + self.delivered;
        self.sent + self.duplicated == ends + self.in_flight
    }
}
