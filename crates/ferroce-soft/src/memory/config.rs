use super::MemoryFaults;
use ferroce_verbs::Mtu;
use std::time::Duration;

/// When virtual time passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Only when the network is told to step or advance. Polling a completion queue runs what is due at the present time.
    #[default]
    Manual,
    /// Polling an empty completion queue while nothing is due moves on to the next event as well. A program that polls in
    /// a loop then sees delays, retransmissions and timeouts as it would on a real network, only sooner.
    Polled,
}

/// What a network in memory is like.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// Names the run: the same seed and the same calls give the same run, packet by packet.
    pub seed: u64,
    /// What happens to packets.
    pub faults: MemoryFaults,
    /// When virtual time passes.
    pub clock: Clock,
    /// The largest path MTU of every host.
    pub mtu: Mtu,
    /// A host answers a packet after a random time up to this one, and takes in further packets meanwhile.
    pub answer_within: Duration,
    /// Bytes a second that each host can send; 0 for no limit.
    pub rate: u64,
    /// Bytes that wait to be sent, per host, before the link counts as full. Only with a `rate`.
    pub send_buffer: u32,
    /// Packets in flight in the whole network; further ones are dropped.
    pub max_in_flight: usize,
    /// As [`crate::SoftConfig::keepalive`], but none by default.
    pub keepalive: Option<Duration>,
}

impl Default for MemoryConfig {
    /// A perfect network: nothing is lost and everything arrives at once.
    fn default() -> Self {
        Self {
            seed: 0,
            faults: MemoryFaults::default(),
            clock: Clock::default(),
            mtu: Mtu::Mtu4096,
            answer_within: Duration::ZERO,
            rate: 0,
            send_buffer: 64 << 10,
            max_in_flight: 1 << 16,
            keepalive: None,
        }
    }
}
