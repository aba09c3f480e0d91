//! The general services interface: queue pair 1, over which management agents of all programs of a host exchange datagrams
//! (IBTA 3.9.4). Connection management is built on it; other programs do not need it.

use crate::provider::GsiOps;
use crate::{Ah, Context, Gid, Result};
use std::net::IpAddr;
use std::sync::{Arc, Weak};

/// Bytes of a management datagram (MAD).
pub const MAD_LEN: usize = 256;

/// Where a management datagram came from, and where it went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MadOrigin {
    /// Address of the sender.
    pub remote: IpAddr,
    /// The local address that it was sent to.
    pub local: IpAddr,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
}

/// Receives the management datagrams of a context.
///
/// All calls come from whichever thread makes progress for the context, with locks of the device held: they must not block,
/// and may use the device only to send with [`Gsi::send`] and to look at the clock.
pub trait MadHandler: Send + Sync {
    /// A datagram came to queue pair 1, for this context as far as its communication id or its service id says.
    fn receive(&self, origin: &MadOrigin, mad: &[u8; MAD_LEN]);

    /// The time that [`Gsi::wake_at`] named has come. It is named once for each call.
    fn expired(&self);

    /// The peers of these reliable connected queue pairs of the context have been silent for too long, and so the queue pairs have
    /// failed: a request was given up after its last retry, or, while nothing was outstanding, the peer gave no sign of life. A
    /// device that cannot tell does not call it.
    fn peers_lost(&self, _qpns: &[u32]) {}
}

/// What a service is bound to: at most one context of a host has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServiceBinding {
    /// The service id (IBTA 12.7.3).
    pub service_id: u64,
    /// The local address, or all of them.
    pub local: Option<Gid>,
}

/// This context's share of queue pair 1. Cheap to clone; holds the context.
#[derive(Clone)]
pub struct Gsi(pub(crate) Arc<dyn GsiOps>);

impl Context {
    /// This context's share of queue pair 1; `None` if the device keeps it to itself, as a device of the kernel does.
    #[must_use]
    pub fn gsi(&self) -> Option<Gsi> {
        self.ops().clone().gsi().map(Gsi)
    }
}

impl Gsi {
    /// Hands all datagrams to `handler` from now on, for as long as it exists.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Invalid`] if a handler that still exists was set before.
    pub fn set_handler(&self, handler: Weak<dyn MadHandler>) -> Result<()> {
        self.0.set_handler(handler)
    }

    /// Sends a datagram to queue pair 1 at `to`. Never blocks; like all datagrams it may be lost.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Invalid`] if the address handle is another device's.
    pub fn send(&self, to: &Ah, mad: &[u8; MAD_LEN]) -> Result<()> {
        self.0.send(to.ops().as_ref(), mad)
    }

    /// Claims a service: requests for it come to this context, whichever context of the host the network gives them to.
    /// Waits for the registry of the host, at most some seconds.
    ///
    /// # Errors
    ///
    /// [`crate::Error::InUse`] if a context of this host has it.
    pub fn bind_service(&self, binding: ServiceBinding) -> Result<()> {
        self.0.bind_service(binding)
    }

    /// Gives a service up. That it is not this context's is fine. Never blocks.
    pub fn release_service(&self, binding: ServiceBinding) {
        self.0.release_service(binding);
    }

    /// The top byte of all communication ids of this context: by it the host knows what is for whom.
    #[must_use]
    pub fn comm_id_prefix(&self) -> u8 {
        self.0.comm_id_prefix()
    }

    /// Time of the device, in nanoseconds since some fixed moment.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.0.now()
    }

    /// Has [`MadHandler::expired`] called at `deadline`, in the time of [`Self::now`], if no earlier call is asked for
    /// already. `u64::MAX` asks for none.
    pub fn wake_at(&self, deadline: u64) {
        self.0.wake_at(deadline);
    }
}
