use super::{InterfaceAddress, UdVerbs};
use crate::ud::{EndpointId, Failure, SendError};
use std::fmt;

/// An endpoint: sends to one interface. Dropping it closes it; what was sent before is still delivered, for as long as the interface lives
/// and the peer takes it in time ([`crate::ud::Config::linger`]).
pub struct UdEndpoint {
    pub(super) interface: UdVerbs,
    pub(super) id: EndpointId,
    pub(super) peer: InterfaceAddress,
    /// Not one that is lent to a pending request.
    pub(super) owned: bool,
}

impl UdEndpoint {
    pub(super) fn new(interface: UdVerbs, id: EndpointId, peer: InterfaceAddress) -> Self {
        Self { interface, id, peer, owned: true }
    }

    /// The interface that it sends to.
    pub fn peer(&self) -> InterfaceAddress {
        self.peer
    }

    /// Sends an active message: `payload` to the peer's handler of id `am`. It was copied when this returns.
    ///
    /// # Errors
    ///
    /// [`SendError`]: nothing was sent. After [`SendError::Busy`] make progress and try again.
    pub fn am(&self, am: u8, payload: &[u8]) -> Result<(), SendError> {
        self.interface.0.send(self.id, |protocol, now| protocol.send(now, self.id, am, payload), |_, error| error)
    }

    /// Whether the peer has all that was sent. If not, it is asked to say so; make progress and call again.
    ///
    /// # Errors
    ///
    /// [`SendError::Failed`] if that will never be.
    pub fn flush(&self) -> Result<bool, SendError> {
        self.interface.0.with(|state, now| state.protocol.flush(now, self.id))
    }

    /// Asks the peer for a sign of life; the endpoint fails if none comes in time.
    ///
    /// # Errors
    ///
    /// [`SendError::Failed`] if it has failed.
    pub fn check(&self) -> Result<(), SendError> {
        self.interface.0.with(|state, now| state.protocol.check(now, self.id))
    }

    /// Whether it is connected to the interface at `peer`. Compares addresses, never address handles or link-layer addresses.
    pub fn is_connected(&self, peer: InterfaceAddress) -> bool {
        self.interface.0.state.lock().protocol.is_connected(self.id, peer.0)
    }

    /// Why it failed, if it did.
    pub fn failure(&self) -> Option<Failure> {
        self.interface.0.state.lock().failures.get(&self.id).map(|(failure, _)| *failure)
    }
}

impl Drop for UdEndpoint {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let (told, waited) = self.interface.0.with(|state, now| {
            // Closed once, here, so it is known.
            let _ = state.protocol.close(now, self.id);
            state.failures.remove(&self.id);
            state.peers.remove(&self.id);
            (state.told.remove(&self.id), state.waiting.forget(self.id))
        });
        // Somebody else's destructors may run in them; flushes that nobody waits for any more are canceled.
        drop((told, waited));
    }
}

impl fmt::Debug for UdEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdEndpoint").field("id", &self.id).field("peer", &self.peer).finish()
    }
}
