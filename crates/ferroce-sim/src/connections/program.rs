//! One program of one host: a context, its connection manager, and where its events and completions come.

use crate::failure::Checked;
use ferroce_cm::{ConnectionManager, EventChannel, Id, PortSpace};
use ferroce_soft::memory::{MemoryNetwork, Random};
use ferroce_verbs::provider::Device;
use ferroce_verbs::{Context, Cq, Pd};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::net::{IpAddr, SocketAddr};

/// Completion queue entries: more than any program of a run has receives and sends outstanding.
const CQE: u32 = 4096;

/// What a listener grants.
pub(super) const PORT_SPACES: [PortSpace; 2] = [PortSpace::Tcp, PortSpace::Udp];

/// Where a program runs, whether it does at the moment or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) ip: IpAddr,
    pub(super) port: u16,
}

impl Place {
    pub(super) fn new(host: usize, program: usize) -> Self {
        let [_, _, high, low] = (host as u32 + 1).to_be_bytes();
        Self { ip: IpAddr::from([10, 0, high, low]), port: 7000 + program as u16 }
    }

    pub(super) fn addr(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

pub(super) struct Program {
    // Dropped in this order: ids go before what their queue pairs were made of.
    /// By port space.
    pub(super) listeners: [Option<Id>; 2],
    pub(super) channels: [EventChannel; 2],
    pub(super) cm: ConnectionManager,
    pub(super) cq: Cq,
    pub(super) pd: Pd,
    pub(super) context: Context,
    /// It is about to read its events.
    pub(super) reading: bool,
    /// There may be completions.
    pub(super) completes: bool,
}

impl Program {
    pub(super) fn start(network: &MemoryNetwork, place: Place, random: &mut Random) -> Checked<Self> {
        let context = network.host(place.ip).open()?;
        let pd = context.alloc_pd()?;
        let rng = StdRng::seed_from_u64(random.next_u64());
        Ok(Self {
            listeners: [None, None],
            channels: [EventChannel::new()?, EventChannel::new()?],
            cm: ConnectionManager::with_rng(&context, rng, |_| {})?,
            cq: context.create_cq(CQE, None)?,
            pd,
            context,
            reading: false,
            completes: false,
        })
    }

    /// Begins to listen in a port space.
    pub(super) fn listen(&mut self, place: Place, which: usize, backlog: usize, any: bool) -> Checked {
        let id = self.cm.create_id(&self.channels[0], PORT_SPACES[which]);
        let ip = if any { IpAddr::from([0; 4]) } else { place.ip };
        id.bind_addr(SocketAddr::new(ip, place.port))?;
        id.listen(backlog)?;
        self.listeners[which] = Some(id);
        Ok(())
    }
}
