//! A ring in a mapped file.
//!
//! The head of a ring is a page:
//!
//! | offset | word | written by |
//! |---|---|---|
//! | 0 | tail | writer |
//! | 128 | waiting | writer; reader when it woke it |
//! | 256 | head | reader |
//!
//! The frames follow.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::MAX_FRAME;
use super::ring::{HEADER, LINE, RingMemory, Word, ample};
use crate::host::{Geometry, Mapping, Shared};

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }

    fn exchange(&self, new: u64) {
        self.swap(new, Ordering::Relaxed);
    }

    fn replace(&self, current: u64, new: u64) {
        let _ = self.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed);
    }

    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

#[repr(C)]
struct Head {
    tail: Line,
    waiting: Line,
    head: Line,
}

#[repr(C, align(128))]
struct Line(AtomicU64);

// SAFETY: atomics only; the padding that the alignment adds is never looked at.
unsafe impl Shared for Head {}

/// A ring in a mapping, which it keeps alive.
#[derive(Debug, Clone)]
pub(super) struct MappedRing {
    map: Arc<Mapping>,
    /// Where the head begins in the mapping.
    at: usize,
    /// Address of the first frame.
    frames: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a view of an `Arc<Mapping>`, which may be sent and shared. Words are reached as atomics; payloads only through
// the unsafe methods below, whose callers uphold who may touch what when.
unsafe impl Send for MappedRing {}
// SAFETY: as above.
unsafe impl Sync for MappedRing {}

// A writer that waits for room leaves an eighth of the ring to be freed; see `ring`.
const _: () = assert!(ample(MAX_FRAME) + LINE <= Geometry::LEAST_RING / 8 * 7);

impl MappedRing {
    /// The ring that begins at an offset of a mapping.
    ///
    /// # Panics
    ///
    /// If the ring is not within the mapping.
    pub(super) fn new(map: Arc<Mapping>, at: usize, geometry: Geometry) -> Self {
        let bytes = geometry.ring_bytes();
        assert!(bytes.is_power_of_two() && bytes >= LINE && geometry.head_bytes() >= size_of::<Head>());
        let frames = map.range(at + geometry.head_bytes(), bytes);
        let _: &Head = map.view(at);
        Self { map, at, frames, bytes }
    }

    fn words(&self) -> &Head {
        self.map.view(self.at)
    }

    /// The bytes of a payload, to be written.
    ///
    /// # Panics
    ///
    /// If they are not within the ring.
    ///
    /// # Safety
    ///
    /// The caller is the only writer of the ring and has reserved these bytes; no other reference to them exists in this
    /// process. The reader does not look at them before they are published.
    #[expect(clippy::mut_from_ref, reason = "the bytes are not the ring's own but shared memory's")]
    pub(super) unsafe fn payload_mut(&self, place: usize, length: usize) -> &mut [u8] {
        assert!(place <= self.bytes && length <= self.bytes - place);
        // SAFETY: within the mapping as just checked. File memory is always initialised. Unaliased in this process by
        // contract; other processes keep off by the ring's protocol.
        unsafe { std::slice::from_raw_parts_mut(self.frames.add(place).as_ptr(), length) }
    }

    /// The bytes of a payload, to be read.
    ///
    /// # Panics
    ///
    /// If they are not within the ring.
    ///
    /// # Safety
    ///
    /// The caller is the only reader of the ring, has taken these bytes and not freed them yet. The writer does not
    /// write to them then; one that does all the same, against the protocol, changes what is read but not where.
    pub(super) unsafe fn payload(&self, place: usize, length: usize) -> &[u8] {
        assert!(place <= self.bytes && length <= self.bytes - place);
        // SAFETY: within the mapping as just checked, initialised as above, and not written by this process meanwhile.
        unsafe { std::slice::from_raw_parts(self.frames.add(place).as_ptr(), length) }
    }
}

impl RingMemory for MappedRing {
    type Word = AtomicU64;

    #[inline]
    fn bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    fn longest(&self) -> usize {
        MAX_FRAME
    }

    #[inline]
    fn header(&self, place: usize) -> &AtomicU64 {
        debug_assert!(place < self.bytes && place.is_multiple_of(LINE));
        // Masked, so that no caller's error can lead out of the ring.
        let place = place & (self.bytes - 1) & !(LINE - 1);
        const { assert!(LINE >= HEADER) };
        // SAFETY: `place` is below `bytes` and a multiple of 64, `bytes` is a power of two of at least 64: the word is
        // within the frames, which lie in the mapping that `self.map` keeps, and it is aligned because frames begin at a
        // page. While it is a header it is only reached as an atomic.
        unsafe { self.frames.add(place).cast().as_ref() }
    }

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        &self.words().tail.0
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        &self.words().head.0
    }

    #[inline]
    fn waiting(&self) -> &AtomicU64 {
        &self.words().waiting.0
    }
}
