//! Reliable messages over datagrams, as a state machine without I/O: time, packets and random numbers come in, packets and events go
//! out.
//!
//! An [`Interface`] is what stands behind one UD queue pair. A program makes endpoints that send to other interfaces (*initiators*); each
//! has its other end there (an *acceptor*), which receives for it and belongs to nobody. The two are a session. It begins when the
//! initiator sends CONNECT to the interface's address, with a random *nonce* that names the session for ever: a packet that comes twice
//! belongs to the same session, a peer that started again to another one. Endpoints have random ids that are never used again, so what
//! comes late finds nobody; and who asks for an endpoint that does not exist is told so (RESET).
//!
//! - *Both at once.* Two programs that connect to each other, at the same time or one after the other, have two sessions, one for each
//!   direction. Nothing is to be agreed on, and closing one does not end the other. (UCX joins the two into one. Which of several belong
//!   together is then a guess of both ends, from the order in which packets come: its reports 6040, 2453, 892, 544, 953 and 1005.)
//! - *Loss.* Acknowledgements say what came out of order (selective acknowledgement). What three later packets overtook is lost; a
//!   timer, with backoff, finds out the rest. Losses shrink the congestion window by three tenths, once for each round trip; otherwise it
//!   grows by an eighth, so that single losses, which say nothing about congestion, leave enough in flight.
//! - *End.* An endpoint that its owner closes delivers what was sent before, says FIN in sequence, and is gone once that is acknowledged,
//!   or after [`Config::linger`]. The address handle that leads to the peer is needed until [`Event::Gone`].
//! - *Identity.* Peers are told apart by GID and queue pair number, never by an address handle or a link-layer address.

mod acceptor;
mod config;
mod endpoint;
mod initiator;
mod interface;
mod rx;
mod table;
mod tx;
mod wire;

pub use config::{Config, MAX_WINDOW};
pub use interface::{Counters, Delivery, Interface, SendError, Sent, Transmit, Usage};
pub use table::{EndpointId, MAX_ENDPOINTS};
pub use wire::HEADER_LEN;

use ferroce_verbs::Gid;
use ferroce_verbs::ah_cache::ResolveCause;

/// Time, in nanoseconds since some fixed moment.
pub type Nanos = u64;

/// Active message ids are below this.
pub const AM_IDS: u8 = 32;

/// Where an interface is: what a peer is told apart by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerAddress {
    /// The GID that its packets come from.
    pub gid: Gid,
    /// Its queue pair.
    pub qpn: u32,
}

/// Something that the owner of an interface must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer answered: the endpoint is connected.
    Connected(EndpointId),
    /// The endpoint refused a message because its window was full, and now it takes one.
    Room(EndpointId),
    /// The endpoint failed. Said once; it can only be closed now. What was not acknowledged may have arrived or not.
    Failed(EndpointId, Failure),
    /// The endpoint does not exist any more, and nothing for its peer is left: its address handle can go.
    Gone(EndpointId),
}

/// Why an endpoint failed, and what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cause}; {evidence}")]
pub struct Failure {
    /// The reason.
    pub cause: Cause,
    /// What speaks for it.
    pub evidence: Evidence,
}

/// Why an endpoint failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Cause {
    /// The peer did not answer in time.
    #[error("the peer did not answer CONNECT in time")]
    ConnectTimeout,
    /// The peer acknowledged nothing for too long.
    #[error("the peer did not acknowledge anything in time")]
    PeerTimeout,
    /// There is no way to the peer.
    #[error("there is no way to the peer")]
    Unreachable,
    /// The peer does not know the session: it closed its interface, started again, or gave up.
    #[error("the peer does not know the session")]
    Reset,
}

/// What was seen before an endpoint failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// When something last came from the peer, or when the endpoint was made.
    pub last_heard: Nanos,
    /// When the peer last acknowledged something new, or was first waited for.
    pub last_progress: Nanos,
    /// Packets that were sent again.
    pub retransmissions: u64,
    /// Signs of life that were asked for.
    pub probes: u32,
    /// How late the timer was that ended it: a process that did not run cannot blame its peer.
    pub timer_late_by: Nanos,
    /// Why its address could not be resolved the last time, if it never could.
    pub resolution: Option<ResolveCause>,
}

impl std::fmt::Display for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { last_heard, last_progress, retransmissions, probes, timer_late_by, resolution } = self;
        write!(
            f,
            "last heard of at {last_heard} ns, last progress at {last_progress} ns, {retransmissions} packets sent again, {probes} probes, timer {timer_late_by} ns late"
        )?;
        match resolution {
            Some(cause) => write!(f, ", the address could not be resolved: {cause}"),
            None => Ok(()),
        }
    }
}
