//! What the kernel has for us, until the last of those who name it is done.

use super::KernelManager;
use std::sync::Arc;

/// An id of the kernel's. Whoever names it in a command holds it meanwhile: its number is used again once it is destroyed, which happens when
/// it is dropped.
pub(crate) struct KernelId {
    manager: Arc<KernelManager>,
    uid: u64,
    number: u32,
}

impl KernelId {
    /// With uid 0 it has no events.
    pub(super) fn new(manager: Arc<KernelManager>, uid: u64, number: u32) -> Self {
        Self { manager, uid, number }
    }

    /// What its events carry.
    pub(crate) fn uid(&self) -> u64 {
        self.uid
    }

    /// The kernel's number.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for KernelId {
    fn drop(&mut self) {
        let reported = self.manager.device.destroy_id(self.number);
        if let Err(error) = &reported {
            tracing::warn!(%error, id = self.number, "the kernel did not destroy an id");
        }
        if self.uid != 0 {
            self.manager.table.lock().leave(self.uid, reported.ok());
        }
    }
}

/// Membership of a multicast group, which ends when it is dropped.
pub(crate) struct KernelGroup {
    /// Held: with the id would go the membership, whose number is used again.
    id: Arc<KernelId>,
    uid: u64,
    number: u32,
}

impl KernelGroup {
    pub(super) fn new(id: Arc<KernelId>, uid: u64, number: u32) -> Self {
        Self { id, uid, number }
    }
}

impl Drop for KernelGroup {
    fn drop(&mut self) {
        let manager = &self.id.manager;
        let reported = manager.device.leave_multicast(self.number);
        if let Err(error) = &reported {
            tracing::debug!(%error, membership = self.number, "the kernel did not end a membership");
        }
        manager.table.lock().leave(self.uid, reported.ok());
    }
}
