//! What one run does. The client decides it, and the server is told.

use crate::args::Link;
use clap::ValueEnum;
use ferroce::cm::SetupIn;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Who tears a connection down, and what excludes what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Policy {
    /// Any thread, at any time; only the calls for one id exclude each other
    PerId,
    /// The event thread, between events: other threads only ask for it
    Deferred,
    /// Any thread, but one lock for the channel excludes all calls and the handling of all events
    ChannelLock,
}

impl Policy {
    pub(crate) const ALL: [Self; 3] = [Self::PerId, Self::Deferred, Self::ChannelLock];
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PerId => "per-id",
            Self::Deferred => "deferred",
            Self::ChannelLock => "channel-lock",
        })
    }
}

/// Who creates queue pairs and moves them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Setup {
    /// The event thread, as in librdmacm
    #[default]
    Event,
    /// The IO threads
    Io,
}

impl Setup {
    pub(crate) fn option(self) -> SetupIn {
        match self {
            Self::Event => SetupIn::EventThread,
            Self::Io => SetupIn::Caller,
        }
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Event => "event",
            Self::Io => "io",
        })
    }
}

/// What the calls that a NIC executes take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Nic {
    /// What the software device takes
    #[default]
    None,
    /// As long as public reports measured on NICs (modelled)
    Slow,
}

impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Slow => "slow",
        })
    }
}

/// One run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) policy: Policy,
    pub(crate) io_threads: u32,
    pub(crate) connections: u64,
    /// How many of a hundred are closed before they are established.
    pub(crate) cancel: u32,
    /// Connections at a time.
    pub(crate) window: u32,
    pub(crate) setup_in: Setup,
    pub(crate) nic: Nic,
    /// By how much longer a slow NIC takes than reports say.
    pub(crate) nic_factor: u32,
    pub(crate) link: Link,
    /// Connections that are open from before the run to its end.
    pub(crate) hold: u32,
    /// Nothing is closed before the end.
    pub(crate) keep: bool,
}

/// More threads than this are a mistake.
const MAX_IO_THREADS: u32 = 256;
/// A device has 65 534 queue pairs, and the server may be behind with closing.
const MAX_WINDOW: u32 = 16_384;

/// What a device has of queue pairs, less those whose end takes a moment.
const MAX_OPEN: u64 = 50_000;

impl Plan {
    /// What is wrong with it, if anything.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let bounds = |what, value: u64, most: u64| match value {
            0 => Err(format!("{what}: at least 1")),
            value if value > most => Err(format!("{what}: at most {most}")),
            _ => Ok(()),
        };
        bounds("--io-threads", self.io_threads.into(), MAX_IO_THREADS.into())?;
        bounds("--window", self.window.into(), MAX_WINDOW.into())?;
        bounds("--connections", self.connections, 1 << 40)?;
        let kept = u64::from(self.hold) + if self.keep { self.connections } else { 0 };
        if kept + u64::from(self.window) > MAX_OPEN {
            return Err(format!(
                "--hold and --keep: at most {MAX_OPEN} connections are open at a time, with those of --window"
            ));
        }
        if self.cancel > 90 {
            return Err("--cancel: at most 90 percent".into());
        }
        Ok(())
    }

    /// The window without `--window`: enough to keep all threads busy.
    pub(crate) const fn default_window(nic: Nic) -> u32 {
        match nic {
            Nic::None => 64,
            Nic::Slow => 32,
        }
    }
}
