use crate::failure::Failure;
use crate::{connections, reliable, trace::TraceHash, unreliable};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scenario {
    /// Reliable connections over a network with 10 % each of loss, duplication, reordering and damage, bounded so that seven
    /// retries always suffice: everything succeeds.
    Rc,
    /// Reliable connections over anything, with any number of retries: some give up, and then everything flushes once.
    RcStorm,
    /// A host is cut off in the middle of traffic: all that waits for it fails in time.
    Partition,
    /// Contexts vanish in the middle of traffic and new ones take their place, on the same hosts.
    Restart,
    /// Receives are not posted, and the receiver-not-ready retries run out.
    Rnr,
    /// Unreliable connections: messages may be lost, but what arrives is whole, and in order.
    Uc,
    /// Datagrams: what arrives is whole.
    Ud,
    /// Connection storms between a few hosts: each attempt is decided once and in time, and nothing is left.
    Connections,
    /// The same between a thousand hosts.
    Hosts,
}

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Rc,
        Self::RcStorm,
        Self::Partition,
        Self::Restart,
        Self::Rnr,
        Self::Uc,
        Self::Ud,
        Self::Connections,
        Self::Hosts,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::RcStorm => "rc-storm",
            Self::Partition => "partition",
            Self::Restart => "restart",
            Self::Rnr => "rnr",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Connections => "connections",
            Self::Hosts => "hosts",
        }
    }

    /// How much longer than that of another scenario one run takes, about: where seeds are counted, there are so many times fewer.
    #[must_use]
    pub const fn weight(self) -> u64 {
        match self {
            Self::Hosts => 250,
            _ => 1,
        }
    }

    /// Runs it once.
    ///
    /// # Errors
    ///
    /// The first invariant that did not hold.
    pub fn run(self, seed: u64, options: &Options) -> Result<Outcome, Failure> {
        match self {
            Self::Uc | Self::Ud => unreliable::run(self, seed, options),
            Self::Connections | Self::Hosts => connections::run(self, seed, options),
            _ => reliable::run(self, seed, options),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Scenario {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|scenario| scenario.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|scenario| scenario.name()).collect();
            format!("no scenario {name}; there are {}", names.join(", "))
        })
    }
}

/// How a run is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Print every event of the network to standard error.
    pub log: bool,
}

/// What happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Work requests that completed with success, or connections that were established.
    pub completed: u64,
    /// Work requests that failed or were flushed, as the scenario expects, or attempts to connect that were refused, cancelled, or
    /// not answered in time.
    pub failed: u64,
    /// Bytes of messages that arrived.
    pub bytes: u64,
    /// Packets sent.
    pub packets: u64,
    /// Virtual time.
    pub time: Duration,
    /// Everything that happened, as a number.
    pub trace: TraceHash,
}

impl Outcome {
    /// Adds what happened in another run; the trace stays.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self { completed, failed, bytes, packets, time, trace: _ } = other;
        self.completed += completed;
        self.failed += failed;
        self.bytes += bytes;
        self.packets += packets;
        self.time += *time;
    }
}
