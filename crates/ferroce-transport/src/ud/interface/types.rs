use crate::ud::PeerAddress;
use crate::ud::table::EndpointId;

/// A packet to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub to: PeerAddress,
    /// Whose packet it is: its address handle leads there. `None`: it answers something that came for no endpoint.
    pub endpoint: Option<EndpointId>,
    /// What is to be sent.
    pub packet: Vec<u8>,
}

/// How much was sent on an endpoint until some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent(pub(super) u32);

/// A message that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// The endpoint that it came to.
    pub endpoint: EndpointId,
    /// Who sent it.
    pub peer: PeerAddress,
    /// The active message id.
    pub am: u8,
    /// What was sent.
    pub payload: &'a [u8],
}

/// A message cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// There is no such endpoint, or it was closed.
    #[error("there is no endpoint {0}")]
    NoEndpoint(EndpointId),
    /// The endpoint failed; close it.
    #[error("endpoint {0} has failed: close it")]
    Failed(EndpointId),
    /// As much waits to be acknowledged as can: try again when some is.
    #[error("the window of endpoint {0} is full: try again when something was acknowledged")]
    Busy(EndpointId),
    /// The message does not fit a packet.
    #[error("a message of {len} bytes is more than the {most} that fit a packet")]
    TooLong {
        /// Its length.
        len: usize,
        /// The most that is possible.
        most: usize,
    },
    /// Active message ids are below 32.
    #[error("active message id {0} is not below 32")]
    AmId(u8),
    /// The table of endpoints is full.
    #[error("the interface has as many endpoints as it can have")]
    Full,
}

/// What an interface has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Packets that are none of this protocol.
    pub malformed: u64,
    /// Packets for an endpoint that does not exist.
    pub no_endpoint: u64,
    /// Packets for an endpoint that has another peer, or another session with it.
    pub wrong_source: u64,
    /// Acknowledgements of what was never sent.
    pub wrong_ack: u64,
    /// Packets that came twice.
    pub duplicates: u64,
    /// Packets beyond the window, or beyond [`crate::ud::Config::max_held`].
    pub beyond: u64,
    /// CONNECTs for which there was no room.
    pub refused: u64,
}

/// What an interface holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Endpoints that exist, those included that linger or that peers made.
    pub endpoints: usize,
    /// Those of them that peers made.
    pub accepted: usize,
    /// Those of these that wait for their first packet.
    pub half_open: usize,
    /// Bytes of packets that came before others.
    pub held: usize,
    /// Endpoints that have something to send.
    pub ready: usize,
    /// Answers that wait to be sent.
    pub control: usize,
    /// Events that nobody took yet.
    pub events: usize,
    /// Timers, those included that nobody waits for any more.
    pub timers: usize,
}
