//! Who manages connections: this crate's own protocol on queue pair 1, or the kernel.

use crate::channel::{ChannelCore, EventChannel};
use crate::id::{Id, IdCore};
use crate::kernel::KernelManager;
use crate::manager::Manager;
use crate::proto::{Config, Counters, Usage};
use crate::{PortSpace, Result};
use ferroce_verbs::Context;
use rand::rngs::StdRng;
use std::sync::Arc;

/// What is behind ids.
#[derive(Clone)]
pub(crate) enum Backend {
    /// The protocol itself, on a device that gives its queue pair 1 away.
    Native(Arc<Manager>),
    /// The kernel's connection manager, for a device of the kernel.
    Kernel(Arc<KernelManager>),
}

impl Backend {
    /// An id is on `channel`, from now on.
    pub(crate) fn serves(&self, channel: &Arc<ChannelCore>) {
        if let Self::Kernel(manager) = self {
            manager.serves(channel);
        }
    }
}

/// Manages the connections of one open device. Clones are handles to one manager; ids are made with it and keep it.
///
/// A device that gives its queue pair 1 away has its connections managed by this crate's own protocol, in the threads that make progress
/// for the device. Those of a device of the kernel are managed by the kernel (`/dev/infiniband/rdma_cm`), as it keeps queue pair 1; a
/// thread of the manager, or one that waits for an event, reads what it says. Ids, channels and events are the same.
#[derive(Clone)]
pub struct ConnectionManager(pub(crate) Backend);

impl ConnectionManager {
    /// Manages the connections of `context`, with the defaults.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Device`] if the context has a manager of its own already; [`crate::Error::Unavailable`] if the kernel is to manage them
    /// and cannot.
    pub fn new(context: &Context) -> Result<Self> {
        if context.gsi().is_none() {
            return Ok(Self(Backend::Kernel(KernelManager::open(context)?)));
        }
        Self::with_config(context, |_| {})
    }

    /// Manages the connections of `context`, with settings of the protocol that `change` has changed.
    ///
    /// # Errors
    ///
    /// As of [`Self::new`]; [`crate::Error::NoGsi`] if the kernel manages them, whose settings are not the program's.
    pub fn with_config(context: &Context, change: impl FnOnce(&mut Config)) -> Result<Self> {
        use rand::SeedableRng;
        Self::with_rng(context, StdRng::from_os_rng(), change)
    }

    /// As [`Self::with_config`], with a source of randomness of the caller's: with a known one a simulation can be repeated.
    ///
    /// # Errors
    ///
    /// As of [`Self::with_config`].
    pub fn with_rng(context: &Context, rng: StdRng, change: impl FnOnce(&mut Config)) -> Result<Self> {
        Ok(Self(Backend::Native(Manager::new(context, rng, change)?)))
    }

    /// Makes an id (`rdma_create_id`), whose events come to `channel`.
    #[must_use]
    pub fn create_id(&self, channel: &EventChannel, port_space: PortSpace) -> Id {
        IdCore::create(&self.0, channel.core().clone(), port_space)
    }

    /// The device.
    #[must_use]
    pub fn context(&self) -> &Context {
        match &self.0 {
            Backend::Native(manager) => &manager.context,
            Backend::Kernel(manager) => manager.context(),
        }
    }

    /// What is held: for those who look for leaks. Where the kernel manages connections, these are the ids that it has for this manager, and
    /// the events of destroyed ids that it has counted and that were not read yet; what else it holds is its own.
    #[must_use]
    pub fn usage(&self) -> Usage {
        match &self.0 {
            Backend::Native(manager) => manager.usage(),
            Backend::Kernel(manager) => manager.usage(),
        }
    }

    /// Ids that exist. Where the kernel manages connections, an id exists from the first call on that it takes part in.
    #[must_use]
    pub fn id_count(&self) -> usize {
        match &self.0 {
            Backend::Native(manager) => manager.id_count(),
            Backend::Kernel(manager) => manager.id_count(),
        }
    }

    /// Named counters of the protocol; all 0 where it is the kernel's, which has its own (`/sys/class/infiniband/*/ports/*/cm_*`).
    #[must_use]
    pub fn counters(&self) -> Counters {
        match &self.0 {
            Backend::Native(manager) => manager.counters(),
            Backend::Kernel(_) => Counters::default(),
        }
    }
}

impl std::fmt::Debug for ConnectionManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConnectionManager").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
