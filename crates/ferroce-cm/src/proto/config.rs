//! What an endpoint is told once.

use super::Nanos;
use rand::Rng;
use rand::rngs::StdRng;

const MS: Nanos = 1_000_000;
const S: Nanos = 1_000 * MS;

/// The settings of an [`Endpoint`](super::Endpoint). Times are in nanoseconds; exponents are those of the wire, see
/// [`ferroce_wire::cm::time`].
#[derive(Clone, Debug)]
pub struct Config {
    /// The GUID of the channel adapter: peers tell adapters apart by it.
    pub ca_guid: u64,
    /// The top byte of every local communication id and SIDR request id: it names the process that owns it, so that
    /// several may share an address.
    pub comm_id_prefix: u8,
    /// Bounds.
    pub limits: Limits,
    /// When messages that must be answered are sent again.
    pub retry: RetryPolicy,
    /// How long we may take to answer a REP, as our REQs say: a kernel's ib_cm sends its REP again after this, and
    /// does not answer duplicates of the REQ meanwhile. So it is shorter than that kernel's own 20 (4.3 s): 18 is
    /// 1.07 s.
    pub local_cm_response_timeout: u8,
    /// How long a peer may take to answer our REQ, as our REQs say. 20 is 4.3 s, the kernel's.
    pub remote_cm_response_timeout: u8,
    /// How often messages are sent again at most, as our REQs say: what the peer does. We keep to deadlines. 15, the
    /// kernel's.
    pub max_cm_retries: u8,
    /// How much more time we ask for (MRA) if a request or a reply comes again while the user has not decided. 20 is
    /// 4.3 s.
    pub mra_service_timeout: u8,
    /// When a peer is to ask again (MRA) if the backlog is full. 17 is 0.54 s.
    pub busy_service_timeout: u8,
    /// A listener whose backlog is full and which has taken no request for this long is not about to: requests are
    /// rejected. 1 s.
    pub listener_patience: Nanos,
    /// How long a request waits for the user's decision. 60 s.
    pub request_timeout: Nanos,
    /// How long a REP waits for its RTU, unless the user says, and the requester is not less patient. 30 s.
    pub accept_timeout: Nanos,
    /// How long a user who disconnects waits for the peer's DREP at most. 10 s.
    pub disconnect_timeout: Nanos,
    /// How long a DREQ is sent again, if nobody waits for the DREP or no longer does, so that a peer behind a
    /// partition learns of the end after all. 30 s.
    pub linger_timeout: Nanos,
    /// How long a connection that has ended is remembered at least, so that late duplicates are recognised: longer
    /// than a packet lives in the network. 1 s.
    pub timewait: Nanos,
    /// How long our adapter takes to acknowledge, an exponent, as our REPs say. 15 is 134 ms.
    pub target_ack_delay: u8,
}

impl Config {
    /// The defaults.
    #[must_use]
    pub const fn new(ca_guid: u64, comm_id_prefix: u8) -> Self {
        Self {
            ca_guid,
            comm_id_prefix,
            limits: Limits::DEFAULT,
            retry: RetryPolicy::DEFAULT,
            local_cm_response_timeout: 18,
            remote_cm_response_timeout: 20,
            max_cm_retries: 15,
            mra_service_timeout: 20,
            busy_service_timeout: 17,
            listener_patience: S,
            request_timeout: 60 * S,
            accept_timeout: 30 * S,
            disconnect_timeout: 10 * S,
            linger_timeout: 30 * S,
            timewait: S,
            target_ack_delay: 15,
        }
    }
}

/// Bounds on what an endpoint holds, so that no peer decides how much memory it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections, those that are being torn down included. At most 2^23, half of the communication ids. 2^20.
    pub connections: usize,
    /// Connections that peers asked for and that are not established yet. One peer may have as many as are still
    /// free, so a flood from one address leaves half of them to others, from two addresses a third, and so on. 65536.
    pub half_open: usize,
    /// Destroyed connections that still wait for the peer's DREP. Beyond that DREQ is sent once only. 65536.
    pub lingering: usize,
    /// Destroyed connections that are remembered, so that duplicates are recognised. Beyond that the oldest is
    /// forgotten. 131072.
    pub timewait: usize,
    /// Service id resolutions of ours; and, separately, those of peers, answered ones that are remembered included.
    /// 16384.
    pub sidr: usize,
    /// Messages to send that were not taken yet. What does not fit counts as lost by the network. 16384.
    pub transmit: usize,
}

impl Limits {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        connections: 1 << 20,
        half_open: 1 << 16,
        lingering: 1 << 16,
        timewait: 1 << 17,
        sidr: 1 << 14,
        transmit: 1 << 14,
    };
}

/// When a message that must be answered is sent again: after `first`, then after twice that, and so on up to `max`.
///
/// A kernel's ib_cm waits 4.6 s each time. A peer recognises duplicates, so sooner does no harm; doubling and jitter
/// keep many clients of a slow server from flooding it in step. A peer that asks for time (MRA) gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The first interval. 100 ms.
    pub first: Nanos,
    /// The longest interval. 2 s.
    pub max: Nanos,
    /// By how much an interval may be shorter or longer, in percent. 25.
    pub jitter_percent: u8,
}

impl RetryPolicy {
    /// The defaults.
    pub const DEFAULT: Self = Self { first: 100 * MS, max: 2 * S, jitter_percent: 25 };

    /// How long to wait after the message has been sent `sent` times.
    pub(super) fn interval(&self, sent: u32, rng: &mut StdRng) -> Nanos {
        let doubled = self.first.max(1).checked_shl(sent.saturating_sub(1).min(40)).unwrap_or(Nanos::MAX);
        self.jitter(doubled.min(self.max.max(1)), rng)
    }

    /// `interval`, a little shorter or longer.
    pub(super) fn jitter(&self, interval: Nanos, rng: &mut StdRng) -> Nanos {
        let spread = interval / 100 * Nanos::from(self.jitter_percent.min(100));
        interval - spread + rng.random_range(0..=2 * spread)
    }
}
