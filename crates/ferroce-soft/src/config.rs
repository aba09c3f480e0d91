use crate::link::fault::FaultPlan;
use std::path::PathBuf;
use std::time::Duration;

/// Which link carries packets to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkMode {
    /// Shared memory to contexts of the same user on the same machine, UDP to all others.
    #[default]
    Auto,
    /// Always UDP, even between two contexts on one machine.
    Udp,
    /// Shared memory only; other peers are unreachable.
    Shm,
}

/// How a software device is opened.
#[derive(Clone, Debug)]
pub struct SoftConfig {
    /// Which link carries what is sent. Every context receives from both.
    pub link: LinkMode,
    /// Write every packet, both ways, to this pcap file: those that go through shared memory as they would be on the wire.
    pub capture: Option<PathBuf>,
    /// Faults to inject into what is sent over UDP and shared memory.
    pub fault: Option<crate::FaultConfig>,
    /// Where contexts of one user find each other; `None` for `FERROCE_RUNTIME_DIR`, else a directory in `/dev/shm`
    /// named after the user and the network namespace.
    pub runtime_dir: Option<PathBuf>,
    /// Copy large messages of processes on this machine straight from their memory (cross-memory attach), where the kernel allows
    /// that and those processes offer it, instead of having them copied into shared memory first. On by default.
    ///
    /// A peer whose memory is not there at once, because it is swapped out or is a file on a slow disk, holds this context
    /// up for as long as the kernel takes to get it.
    pub cma: bool,
    /// How long the peer of a reliable connection on which nothing is sent may be silent until it is asked for a sign of life; `None`:
    /// it is never asked. 20 seconds by default. A peer that gives none, asked four times within as long again, is lost: its
    /// queue pair goes to ERR with [`QpFatal`](ferroce_verbs::EventType::QpFatal), and a connection manager says that the connection is
    /// over. Peers at an address that has never answered are not given up: not every device may.
    ///
    /// The question is a duplicate of nothing, which a peer acknowledges and otherwise ignores (IBTA 9.7.5.1.2).
    pub keepalive: Option<Duration>,
}

/// See [`SoftConfig::keepalive`]: less than a minute until a peer counts as lost, and at 10,000 idle connections 500 questions a second.
const KEEPALIVE: Duration = Duration::from_secs(20);

impl Default for SoftConfig {
    fn default() -> Self {
        Self {
            link: LinkMode::default(),
            capture: None,
            fault: None,
            runtime_dir: None,
            cma: true,
            keepalive: Some(KEEPALIVE),
        }
    }
}

/// Seeded faults: each probability is that of one packet, in 0..=1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultConfig {
    /// Where the random numbers start.
    pub seed: u64,
    /// The packet is dropped.
    pub loss: f64,
    /// It is sent twice.
    pub duplicate: f64,
    /// It is sent after the one that follows it.
    pub reorder: f64,
    /// Bits of it are flipped.
    pub corrupt: f64,
}

impl FaultConfig {
    /// How long a packet that is to be overtaken is held back.
    const HELD_BACK: Duration = Duration::from_micros(200);

    pub(crate) fn plan(&self) -> FaultPlan {
        FaultPlan {
            seed: self.seed,
            loss: self.loss,
            duplicate: self.duplicate,
            reorder: self.reorder,
            reorder_by: Self::HELD_BACK,
            corrupt: self.corrupt,
            ..FaultPlan::default()
        }
    }
}
