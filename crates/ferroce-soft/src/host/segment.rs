//! The segment of a slot: a control page and one inbound ring for each possible sender.
//!
//! The file is sparse. A ring gets storage when its sender attaches, and loses it when its sender is gone and its frames
//! are read; a context that talks to few others uses little memory.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::OFlags;

use super::directory::Directory;
use super::error::DirectoryError;
use super::layout::LAYOUT;
use super::map::{Mapping, Shared};
use super::{SLOTS, ofd, reserve};

/// First eight bytes of a segment: "ferroceS", little endian.
const MAGIC: u64 = u64::from_le_bytes(*b"ferroceS");

/// What a segment begins with.
#[repr(C)]
pub(crate) struct Control {
    identity: Identity,
    /// Zero while the owner is awake, otherwise the number of the sleep in which it is.
    pub(crate) sleeping: Line<AtomicU64>,
    /// Bit `s` is set once slot `s` has a ring here.
    pub(crate) active: Line<[AtomicU64; 4]>,
    /// Who in each slot has memory that the owner can read: incarnations, zero for nobody.
    pub(crate) readable: Line<[AtomicU64; 256]>,
    /// Bit `s` is set before slot `s` reserves storage for its ring here. A sender that is killed before it sets the other
    /// bit leaves a ring that nobody reads, but not one that nobody can give back.
    pub(crate) claimed: Line<[AtomicU64; 4]>,
}

/// A value on cache lines of its own; two, because the hardware fetches pairs.
#[repr(C, align(128))]
pub(crate) struct Line<T>(pub(crate) T);

#[repr(C, align(128))]
struct Identity {
    magic: AtomicU64,
    layout: AtomicU32,
    slot: AtomicU32,
    incarnation: AtomicU64,
    ring_bytes: AtomicU64,
}

// SAFETY: atomics only; the padding that the alignment adds is never looked at.
unsafe impl Shared for Control {}

/// Where things are in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    ring_bytes: usize,
    page: usize,
}

impl Geometry {
    /// Least size of a ring: seven eighths of it hold two frames of the greatest length, so that one always fits
    /// behind the end of the ring.
    pub(crate) const LEAST_RING: usize = 256 << 10;
    /// Greatest size of a ring.
    pub(crate) const GREATEST_RING: usize = 64 << 20;

    /// The geometry of a segment whose rings have `ring_bytes` bytes, if that is a possible size.
    pub(crate) fn new(ring_bytes: usize) -> Option<Self> {
        let possible = ring_bytes.is_power_of_two() && (Self::LEAST_RING..=Self::GREATEST_RING).contains(&ring_bytes);
        let page = rustix::param::page_size();
        possible.then_some(Self { ring_bytes, page })
    }

    /// Bytes of a ring without its head.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.ring_bytes
    }

    /// Bytes of the head of a ring, and of the control part of a segment: one page.
    pub(crate) fn head_bytes(&self) -> usize {
        self.page
    }

    /// Bytes of a ring with its head.
    pub(crate) fn stride(&self) -> usize {
        self.page + self.ring_bytes
    }

    /// Where the ring of a sender begins.
    pub(crate) fn ring(&self, sender: u8) -> usize {
        debug_assert!(usize::from(sender) < SLOTS);
        self.page + usize::from(sender) * self.stride()
    }

    fn total(&self) -> usize {
        self.page + SLOTS * self.stride()
    }
}

/// The names of a slot's files.
pub(super) fn file_name(slot: u8, incarnation: u64) -> String {
    format!("slot-{slot}-{incarnation}")
}

/// The name of a slot's FIFO.
pub(super) fn wake_name(slot: u8, incarnation: u64) -> String {
    format!("slot-{slot}-{incarnation}.wake")
}

/// Slot and incarnation of a file that [`file_name`] or [`wake_name`] named.
pub(super) fn parse_name(name: &str) -> Option<(u8, u64)> {
    let name = name.strip_suffix(".wake").unwrap_or(name);
    let (slot, incarnation) = name.strip_prefix("slot-")?.split_once('-')?;
    Some((slot.parse().ok()?, incarnation.parse().ok()?))
}

/// The segment that this context owns.
#[derive(Debug)]
pub(crate) struct OwnSegment {
    file: OwnedFd,
    geometry: Geometry,
    map: Arc<Mapping>,
}

impl OwnSegment {
    /// Makes the segment file, locked from its first instant.
    pub(super) fn create(
        directory: &Directory,
        slot: u8,
        incarnation: u64,
        geometry: Geometry,
    ) -> Result<Self, (&'static str, io::Error)> {
        let name = file_name(slot, incarnation);
        let file = directory
            .open_file(&name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
            .map_err(|e| ("create", e.into_io()))?;
        ofd::lock(file.as_fd()).map_err(|e| ("lock", e))?;
        reserve::set_length(file.as_fd(), geometry.total() as u64).map_err(|e| ("set the length of", e))?;
        reserve::reserve(file.as_fd(), 0, geometry.head_bytes() as u64).map_err(|e| ("reserve room in", e))?;
        let map = Mapping::new(file.as_fd(), 0, geometry.total()).map_err(|e| ("map", e))?;
        let identity = &map.view::<Control>(0).identity;
        identity.layout.store(LAYOUT, Ordering::Relaxed);
        identity.slot.store(slot.into(), Ordering::Relaxed);
        identity.incarnation.store(incarnation, Ordering::Relaxed);
        identity.ring_bytes.store(geometry.ring_bytes as u64, Ordering::Relaxed);
        identity.magic.store(MAGIC, Ordering::Release);
        Ok(Self { file, geometry, map: Arc::new(map) })
    }

    pub(crate) fn control(&self) -> &Control {
        self.map.view(0)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The whole segment. Only rings that [`Self::reserve_ring`] has seen may be touched.
    pub(crate) fn map(&self) -> &Arc<Mapping> {
        &self.map
    }

    /// Makes sure that a ring whose bit is set has storage, as its sender should have done, and that it is mapped.
    pub(crate) fn reserve_ring(&self, sender: u8) -> io::Result<()> {
        let (at, bytes) = (self.geometry.ring(sender), self.geometry.stride());
        reserve::reserve(self.file.as_fd(), at as u64, bytes as u64)?;
        self.map.populate(at, bytes);
        Ok(())
    }

    /// Takes a ring's storage away: the ring is as new. Nobody may have it in use.
    pub(crate) fn release_ring(&self, sender: u8) -> io::Result<()> {
        reserve::release(self.file.as_fd(), self.geometry.ring(sender) as u64, self.geometry.stride() as u64)
    }
}

/// A segment cannot be used.
#[derive(Debug)]
pub(crate) enum SegmentError {
    /// It is gone, or belongs to another incarnation.
    Gone,
    /// It is not laid out as this library lays them out.
    Layout,
    /// No room for a ring.
    NoSpace(io::Error),
    /// The kernel refused an operation.
    Io(&'static str, io::Error),
}

/// The segment of another context.
#[derive(Debug)]
pub(crate) struct PeerSegment {
    file: OwnedFd,
    geometry: Geometry,
    control: Mapping,
}

impl PeerSegment {
    pub(super) fn open(directory: &Directory, slot: u8, incarnation: u64) -> Result<Self, SegmentError> {
        let file = match directory.open_file(&file_name(slot, incarnation), OFlags::RDWR) {
            Ok(file) => file,
            Err(error) if error.is_not_found() => return Err(SegmentError::Gone),
            Err(DirectoryError::Io { what, source, .. }) => {
                return Err(SegmentError::Io(what, source));
            }
            Err(other) => return Err(SegmentError::Io("open", other.into_io())),
        };
        let length = rustix::fs::fstat(&file).map_err(|e| SegmentError::Io("examine", e.into()))?.st_size;
        let page = rustix::param::page_size();
        if usize::try_from(length).unwrap_or(0) < page {
            return Err(SegmentError::Layout);
        }
        let control = Mapping::new(file.as_fd(), 0, page).map_err(|e| SegmentError::Io("map", e))?;
        let identity = &control.view::<Control>(0).identity;
        let ring_bytes = usize::try_from(identity.ring_bytes.load(Ordering::Relaxed)).unwrap_or(0);
        let geometry = Geometry::new(ring_bytes).ok_or(SegmentError::Layout)?;
        let known = identity.magic.load(Ordering::Acquire) == MAGIC
            && identity.layout.load(Ordering::Relaxed) == LAYOUT
            && usize::try_from(length) == Ok(geometry.total());
        if !known {
            return Err(SegmentError::Layout);
        }
        let named = identity.slot.load(Ordering::Relaxed) == u32::from(slot)
            && identity.incarnation.load(Ordering::Relaxed) == incarnation;
        if !named {
            return Err(SegmentError::Gone);
        }
        Ok(Self { file, geometry, control })
    }

    /// Reserves and maps the ring of a sender.
    pub(crate) fn map_ring(&self, sender: u8) -> Result<Mapping, SegmentError> {
        let (at, bytes) = (self.geometry.ring(sender) as u64, self.geometry.stride());
        let claimed = &self.control.view::<Control>(0).claimed.0;
        claimed[usize::from(sender / 64)].fetch_or(1 << (sender % 64), Ordering::Relaxed);
        reserve::reserve(self.file.as_fd(), at, bytes as u64).map_err(|e| {
            if no_space(&e) { SegmentError::NoSpace(e) } else { SegmentError::Io("reserve room in", e) }
        })?;
        let map = Mapping::new(self.file.as_fd(), at, bytes).map_err(|e| SegmentError::Io("map", e))?;
        map.populate(0, bytes);
        Ok(map)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The mapping of the control part, which holds a [`Control`].
    pub(crate) fn into_control(self) -> Mapping {
        self.control
    }
}

/// Whether an error says that storage ran out.
pub(super) fn no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
