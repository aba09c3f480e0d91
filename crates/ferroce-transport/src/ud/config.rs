use super::Nanos;
use std::time::Duration;

/// Most packets of one endpoint that are sent and not acknowledged, and that its peer holds until those before them come.
pub const MAX_WINDOW: u32 = 1024;
/// Packets that may be in flight before anything was acknowledged.
pub(super) const FIRST_WINDOW: u32 = 16;
/// The least congestion window.
pub(super) const MIN_WINDOW: u32 = 2;
/// How long an acknowledgement waits for data to travel with.
pub(super) const DELAYED_ACK: Nanos = 500_000;
/// The retransmission timeout before a round trip was measured.
pub(super) const FIRST_RTO: Nanos = 20_000_000;
/// Its bounds afterwards. The lower one is what a thread may wait for its processor.
pub(super) const MIN_RTO: Nanos = 2_000_000;
pub(super) const MAX_RTO: Nanos = 1_000_000_000;

/// Something that is sent again until it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retry {
    tries: u32,
    /// When it is sent next.
    pub(super) next: Nanos,
    /// Until when.
    pub(super) deadline: Nanos,
}

impl Retry {
    pub(super) fn new(now: Nanos, config: &Config) -> Self {
        Self { tries: 0, next: now, deadline: now + config.connect_timeout.as_nanos() as Nanos }
    }

    /// Whether it is to be sent now; if so it counts as sent.
    pub(super) fn due(&mut self, now: Nanos, random: u64) -> bool {
        if self.next > now {
            return false;
        }
        let wait = (FIRST_RTO << self.tries.min(16)).min(MAX_RTO);
        self.tries += 1;
        // Up to a quarter longer, so that those who began together do not go on together.
        self.next = (now + wait + random % (wait / 4)).min(self.deadline);
        true
    }
}

/// How an interface behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most bytes of a packet, with [`super::HEADER_LEN`]: the path MTU. At least 256.
    pub mtu: usize,
    /// How long connecting may take, and how long a session that a peer began may wait for its first packet.
    pub connect_timeout: Duration,
    /// How long a peer may acknowledge nothing of what it was sent, all retransmissions included, until the endpoint fails.
    pub peer_timeout: Duration,
    /// How long a closed endpoint goes on to deliver what was sent before.
    pub linger: Duration,
    /// An endpoint from which nothing was heard for this long asks for a sign of life; `None`: only when told to.
    pub keepalive: Option<Duration>,
    /// Most sessions that peers began and that wait for their first packet. A forged CONNECT costs no more than this.
    pub max_half_open: usize,
    /// Most sessions that peers began, altogether. What peers can make this end remember is no more than this.
    pub max_accepted: usize,
    /// Most bytes of packets that came before others which they must wait for, of all sessions. More are dropped, and sent again: so a
    /// peer that leaves gaps on purpose costs no more than this.
    pub max_held: usize,
}

impl Default for Config {
    /// MTU 4096; half a minute to connect, to be heard of, and to linger; no keepalive; 4096 half-open sessions
    /// of about a million; 64 MiB held.
    fn default() -> Self {
        Self {
            mtu: 4096,
            connect_timeout: Duration::from_secs(30),
            peer_timeout: Duration::from_secs(30),
            linger: Duration::from_secs(30),
            keepalive: None,
            max_half_open: 4096,
            max_accepted: 1 << 20,
            max_held: 64 << 20,
        }
    }
}

impl Config {
    pub(super) fn peer_timeout(&self) -> Nanos {
        self.peer_timeout.as_nanos() as Nanos
    }

    /// Most bytes of one message.
    pub fn max_message(&self) -> usize {
        self.mtu.saturating_sub(super::HEADER_LEN)
    }
}
