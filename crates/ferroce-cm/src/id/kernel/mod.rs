//! Ids whose connections the kernel manages.
//!
//! An id's state is noted before a command that changes it, because the event that follows may be read before the command has returned; if it
//! fails, the note is taken back. No lock is held in a command but `setup`, which serialises what concerns the queue pair and the
//! connection, and for which destroying does not wait.

mod attr;
mod connect;
mod events;
mod multicast;
mod resolve;

pub(super) use multicast::Attached;

use super::{Id, IdCore, IdState, Phase};
use crate::backend::Backend;
use crate::kernel::{Backlog, KernelId, KernelManager, refused};
use crate::{Error, PortSpace, Result};
use ferroce_abi::rdma_cm::Private;
use ferroce_wire::cm::TooMuchPrivateData;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

/// What an id has of the kernel's.
#[derive(Default)]
pub(super) struct Part {
    /// From the first command on.
    id: Option<Arc<KernelId>>,
    /// The kernel looks for an address or a route: that of this peer.
    resolving: Option<SocketAddr>,
    backlog: Option<Arc<Backlog>>,
    depths: Option<Depths>,
    /// The program has ended what the peer had not confirmed: the kernel can be told only when it has.
    ends_when_established: bool,
    /// The kernel could not confirm what the peer has granted, and has told the peer.
    rejected: bool,
    groups: Vec<multicast::Group>,
}

/// RDMA reads and atomics that may be outstanding.
#[derive(Clone, Copy)]
struct Depths {
    responder_resources: u8,
    initiator_depth: u8,
}

impl Part {
    /// Whether this is the kernel's id.
    fn is_own(&self, id: &Arc<KernelId>) -> bool {
        self.id.as_ref().is_some_and(|own| Arc::ptr_eq(own, id))
    }

    /// The id is destroyed. To be called without locks.
    pub(super) fn end(mut self) {
        // The kernel's id goes last: with it go its memberships, and a queue pair must be detached before.
        for group in std::mem::take(&mut self.groups) {
            group.leave();
        }
    }

    /// Takes the queue pair out of its groups.
    pub(super) fn take_qps(&mut self) -> Vec<Attached> {
        self.groups.iter_mut().filter_map(multicast::Group::take_qp).collect()
    }
}

impl IdState {
    /// The kernel's id, for a `call` in the phases that `suits` says.
    fn kernel_id(&self, call: &'static str, suits: impl FnOnce(Phase) -> bool) -> Result<Arc<KernelId>> {
        match &self.kernel.id {
            Some(id) if suits(self.phase) => Ok(id.clone()),
            _ => Err(Error::Phase { call, phase: self.phase }),
        }
    }
}

impl IdCore {
    /// The id of what a peer asks for. With `adopt` the kernel's id gets an owner.
    pub(crate) fn of_kernel_request(
        manager: &Arc<KernelManager>,
        listener: &Arc<Self>,
        adopt: impl FnOnce(Weak<Self>) -> Arc<KernelId>,
    ) -> Id {
        let options = *listener.options.lock();
        let backend = Backend::Kernel(manager.clone());
        let channel = listener.queue.channel();
        let id = Self::in_phase(backend, channel, listener.port_space, Phase::Requested, options);
        let kernel_id = adopt(Arc::downgrade(id.core()));
        id.core().state.lock().kernel.id = Some(kernel_id);
        id
    }

    /// Whether there is something that only an event can end.
    pub(crate) fn waits(&self) -> bool {
        self.state.lock().phase != Phase::Connected
    }

    /// What a listener has for requests.
    pub(crate) fn backlog(&self) -> Option<Arc<Backlog>> {
        self.state.lock().kernel.backlog.clone()
    }
}

impl Id {
    /// The kernel's id, made if there is none yet.
    fn in_kernel(&self, manager: &Arc<KernelManager>) -> Result<Arc<KernelId>> {
        let core = self.core();
        if let Some(id) = &self.state()?.kernel.id {
            return Ok(id.clone());
        }
        if core.port_space == PortSpace::IpoIb {
            return Err(Error::Unsupported { what: "connections in the port space IPoIB, where it has datagrams" });
        }
        let made = manager.create(Arc::downgrade(core), core.port_space).map_err(refused("creating an id"))?;
        // If it is not needed it goes without the lock.
        let id = self.state()?.kernel.id.get_or_insert_with(|| made.clone()).clone();
        // Only now is it told when events cannot be read.
        manager.readable().map_err(refused("creating an id")).inspect_err(|_| core.renew(&id))?;
        Ok(id)
    }
}

/// Private data, of which there may be so much.
fn private(data: &[u8], max: usize) -> Result<Private> {
    let too_much = TooMuchPrivateData { len: data.len(), max };
    Private::new(data).filter(|_| data.len() <= max).ok_or_else(|| Error::Protocol(too_much.into()))
}
