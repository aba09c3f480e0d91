//! The way to one receiver.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::error::AttachError;
use super::memory::MappedRing;
use super::ring::{Kind, Producer};
use super::{MAX_FRAME, MAX_TAG, doorbell};
use crate::host::{Control, Mapping, Membership, SegmentError, ring};

/// The way to one slot. Shared by the threads of this process.
#[derive(Debug, Default)]
pub struct Lane {
    /// The incarnation to which the lane leads; zero for none. Changed only under the lock.
    attached: AtomicU64,
    /// The incarnation of which it was said that no lane can lead to it; zero for none.
    lamented: AtomicU64,
    route: Mutex<Option<Route>>,
}

/// An attached ring.
#[derive(Debug)]
struct Route {
    incarnation: u64,
    control: Mapping,
    producer: Producer<MappedRing>,
    wake: OwnedFd,
    /// This context: slot and incarnation.
    own: (u8, u64),
    /// This context's incarnation, until the reader was told.
    hello: Option<u64>,
    /// Since when the ring is full, as far as anybody asked, and up to where it was free then.
    full: Option<(u64, Duration)>,
}

impl Lane {
    /// Whether the lane leads to this incarnation.
    #[inline]
    pub(super) fn leads_to(&self, incarnation: u64) -> bool {
        self.attached.load(Ordering::Acquire) == incarnation
    }

    /// Makes the lane lead to the incarnation that lives in `slot` now.
    pub(super) fn attach(&self, membership: &Membership, slot: u8) -> Result<(), AttachError> {
        let mut route = self.route.lock();
        // Asked under the lock, so that of two threads the later does not undo what the earlier did.
        let incarnation = membership.peer(slot).ok_or(AttachError::PeerGone { slot })?;
        if self.leads_to(incarnation) {
            return Ok(());
        }
        let new = Route::open(membership, slot, incarnation).inspect_err(|error| self.lament(incarnation, error))?;
        *route = Some(new);
        self.attached.store(incarnation, Ordering::Release);
        Ok(())
    }

    /// Says, once for each peer, why shared memory cannot lead to it: whoever waits in vain for an answer must be able to find
    /// out, and packets are tried one after the other.
    fn lament(&self, incarnation: u64, error: &AttachError) {
        let gone = matches!(error, AttachError::PeerGone { .. } | AttachError::NoSuchSlot { .. });
        if !gone && self.lamented.swap(incarnation, Ordering::Relaxed) != incarnation {
            tracing::warn!("no shared memory to another context: {error}");
        }
    }

    /// Gives up the ring if it leads to an incarnation that does not live any more; `live` says which one does.
    pub(super) fn detach_dead(&self, live: impl Fn() -> Option<u64>) {
        let attached = self.attached.load(Ordering::Acquire);
        if attached == 0 || live() == Some(attached) {
            return;
        }
        let mut route = self.route.lock();
        // Asked once more: it may have been attached to another one meanwhile.
        let attached = self.attached.load(Ordering::Acquire);
        if live() != Some(attached) && route.as_ref().is_some_and(|route| route.incarnation == attached) {
            *route = None;
            self.attached.store(0, Ordering::Release);
        }
    }

    /// Locks the lane against the other threads of this process, for one batch of frames.
    pub fn lock(&self) -> LaneGuard<'_> {
        LaneGuard { route: self.route.lock(), dirty: false }
    }
}

impl Route {
    fn open(membership: &Membership, slot: u8, incarnation: u64) -> Result<Self, AttachError> {
        let segment = membership.open_segment(slot, incarnation).map_err(|e| explain(slot, 0, e))?;
        let geometry = segment.geometry();
        let ring = segment.map_ring(membership.slot()).map_err(|e| explain(slot, geometry.stride(), e))?;
        let control = segment.into_control();
        // That the last writer of this ring is gone: it had this context's slot, and the slot is free for another only
        // once the kernel has said that its owner ended, or the owner has left.
        let producer = Producer::attach(MappedRing::new(Arc::new(ring), 0, geometry))
            .map_err(|_| AttachError::Damaged { slot, why: "its ring is in an impossible state" })?;
        let wake = membership.open_wake(slot, incarnation).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => AttachError::PeerGone { slot },
            _ => AttachError::Io { slot, what: "open the FIFO beside", source },
        })?;
        let own = membership.slot();
        let active = &control.view::<Control>(0).active.0;
        if let Some(word) = active.get(usize::from(own / 64)) {
            word.fetch_or(1 << (own % 64), Ordering::Release);
        }
        Ok(Self {
            incarnation,
            control,
            producer,
            wake,
            own: (own, membership.incarnation()),
            hello: Some(membership.incarnation()),
            full: None,
        })
    }

    /// Tells the reader who writes from here on, before the first frame.
    #[cold]
    fn say_hello(&mut self, own: u64) -> bool {
        let Some(place) = self.producer.reserve(Kind::Hello, 0, 8) else {
            return false;
        };
        // SAFETY: the producer belongs to a lane, of which there is one for each ring, under its lock; it has just
        // reserved these bytes, and the slice ends with this statement.
        unsafe { self.producer.memory().payload_mut(place, 8) }.copy_from_slice(&own.to_le_bytes());
        self.producer.commit();
        self.hello = None;
        true
    }
}

fn explain(slot: u8, bytes: usize, error: SegmentError) -> AttachError {
    match error {
        SegmentError::Gone => AttachError::PeerGone { slot },
        SegmentError::Layout => AttachError::Damaged { slot, why: "it has another layout" },
        SegmentError::NoSpace(source) => AttachError::NoSpace { slot, bytes, source },
        SegmentError::Io(what, source) => AttachError::Io { slot, what, source },
    }
}

/// A locked lane: writes frames, and wakes the receiver at the end if it sleeps.
///
/// Dropping the guard is [`Self::finish`].
#[derive(Debug)]
pub struct LaneGuard<'a> {
    route: MutexGuard<'a, Option<Route>>,
    /// Frames were published since the receiver was last looked after.
    dirty: bool,
}

impl LaneGuard<'_> {
    /// The incarnation to which the frames go. `None` if the lane was detached between [`super::ShmSender::lane`] and
    /// [`Lane::lock`], because the peer ended.
    #[must_use]
    pub fn incarnation(&self) -> Option<u64> {
        self.route.as_ref().map(|route| route.incarnation)
    }

    /// Room for a frame of `length` bytes, in the receiver's memory: write it, then [`Self::commit`]. The bytes are
    /// whatever was there before.
    ///
    /// `None` if the ring is full, or the lane detached. A reservation that is not committed is forgotten.
    ///
    /// # Panics
    ///
    /// If `length` is above [`MAX_FRAME`] or `tag` above [`MAX_TAG`].
    #[inline]
    pub fn reserve(&mut self, length: usize, tag: u32) -> Option<&mut [u8]> {
        assert!(length <= MAX_FRAME && tag <= MAX_TAG, "a frame of {length} bytes with tag {tag:#x} is not possible");
        let route = self.route.as_mut()?;
        if let Some(own) = route.hello
            && !route.say_hello(own)
        {
            return None;
        }
        let place = route.producer.reserve(Kind::Data, tag, length)?;
        // SAFETY: the producer is the only writer of its ring, under this guard's lock; it has just reserved these
        // bytes, and the slice borrows the guard, so it ends before the next reservation.
        Some(unsafe { route.producer.memory().payload_mut(place, length) })
    }

    /// Whether the receiver can read the memory of this process.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        self.route.as_ref().is_some_and(|route| {
            let readable = &route.control.view::<Control>(0).readable.0;
            readable[usize::from(route.own.0)].load(Ordering::Relaxed) == route.own.1
        })
    }

    /// Publishes the frame that was reserved last; nothing if there is none.
    #[inline]
    pub fn commit(&mut self) {
        if let Some(route) = self.route.as_mut() {
            self.dirty |= route.producer.commit();
        }
    }

    /// Asks the receiver to wake this context (see [`Membership::wake_fd`]) once it has freed room.
    ///
    /// Returns false if there is no reason to wait: room was freed meanwhile, or the lane is detached. Try again then.
    ///
    /// A receiver that dies wakes nobody; whoever waits has a deadline.
    #[must_use = "false means that nobody will wake this context"]
    pub fn request_space_wakeup(&mut self) -> bool {
        self.route.as_mut().is_some_and(|route| route.producer.request_wakeup())
    }

    /// To be asked when there is no room, with the time: whether the receiver has freed nothing at all since this was first
    /// asked, for `patience` or longer. Its process is stopped, and may be so for ever.
    #[cold]
    pub fn is_stuck(&mut self, now: Duration, patience: Duration) -> bool {
        let Some(route) = self.route.as_mut() else { return false };
        let freed = route.producer.freed();
        match route.full {
            Some((at, since)) if at == freed => now.saturating_sub(since) >= patience,
            _ => {
                route.full = Some((freed, now));
                false
            }
        }
    }

    /// Ends the batch: wakes the receiver if it sleeps.
    pub fn finish(self) {}
}

impl Drop for LaneGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if let (true, Some(route)) = (self.dirty, self.route.as_mut()) {
            let sign = &route.control.view::<Control>(0).sleeping.0;
            doorbell::wake(sign, || ring(&route.wake));
            route.producer.prepare();
        }
    }
}
