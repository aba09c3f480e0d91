//! Sending to the other contexts of this host.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::error::{AttachError, InUse};
use super::lane::Lane;
use crate::host::{Membership, SLOTS};

/// Writes into the rings that this context has in the others' segments. Shared by all threads of the process.
#[derive(Debug)]
pub struct ShmSender {
    membership: Arc<Membership>,
    lanes: Box<[Lane]>,
}

impl ShmSender {
    /// The sender of a membership.
    ///
    /// # Errors
    ///
    /// [`InUse`] if it has one already: a ring has one writer.
    pub fn new(membership: Arc<Membership>) -> Result<Self, InUse> {
        if membership.sender_claim().swap(true, Ordering::Acquire) {
            return Err(InUse { what: "sender" });
        }
        let lanes = (0..SLOTS).map(|_| Lane::default()).collect();
        Ok(Self { membership, lanes })
    }

    /// The membership on whose behalf this sends.
    #[must_use]
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// The way to whoever lives in a slot. The first call for an incarnation maps its ring, which takes a few system
    /// calls; after that it is two loads.
    ///
    /// A lane leads to the incarnation that lived in the slot at the last call, and to no other: frames for one that
    /// has died are lost with it. Its own slot is a slot like any other.
    ///
    /// # Errors
    ///
    /// [`AttachError`]; after `NoSpace` and `Io` a later call may succeed.
    #[inline]
    pub fn lane(&self, slot: u8) -> Result<&Lane, AttachError> {
        let lane = self.lanes.get(usize::from(slot)).ok_or(AttachError::NoSuchSlot { slot })?;
        let incarnation = self.membership.peer(slot).ok_or(AttachError::PeerGone { slot })?;
        if !lane.leads_to(incarnation) {
            self.attach(lane, slot)?;
        }
        Ok(lane)
    }

    #[cold]
    fn attach(&self, lane: &Lane, slot: u8) -> Result<(), AttachError> {
        lane.attach(&self.membership, slot)
    }

    /// Gives back the memory and descriptors of lanes to contexts that have ended. For now and then, for instance after
    /// [`Membership::reap`].
    pub fn detach_dead(&self) {
        for (slot, lane) in (0..).zip(&self.lanes) {
            lane.detach_dead(|| self.membership.peer(slot));
        }
    }
}

impl Drop for ShmSender {
    fn drop(&mut self) {
        // The rings first: the next sender of this membership writes to the same.
        self.lanes = Box::default();
        self.membership.sender_claim().store(false, Ordering::Release);
    }
}
