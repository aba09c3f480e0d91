//! Being one of the contexts of a host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::Errno;

use super::admin::{Admin, SlotInfo, slot_info};
use super::error::LockError;
use super::join::Registry;
use super::lock::Guard;
use super::segment::{OwnSegment, PeerSegment, SegmentError, wake_name};

/// An occupied slot. Dropping it leaves: the entry is freed and the files are removed, without waiting for anybody.
///
/// All methods may be called from any thread.
#[derive(Debug)]
pub struct Membership {
    registry: Registry,
    slot: u8,
    incarnation: u64,
    segment: OwnSegment,
    wake: OwnedFd,
    sends: AtomicBool,
    receives: AtomicBool,
    found_dead: bool,
    /// What the entry tells the others to look for in this process.
    _word: Box<AtomicU64>,
}

/// Where another context keeps its memory, as far as it says so.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    /// Its process id as it sees it: if it is in another namespace, that is another process here, or none.
    pub(crate) pid: u32,
    /// An address in it, and what is there.
    pub(crate) word: (u64, u64),
}

impl Membership {
    pub(super) fn new(
        registry: Registry,
        (slot, incarnation): (u8, u64),
        (segment, wake, word): (OwnSegment, OwnedFd, Box<AtomicU64>),
        found_dead: bool,
    ) -> Self {
        Self {
            registry,
            slot,
            incarnation,
            found_dead,
            segment,
            wake,
            sends: AtomicBool::new(false),
            receives: AtomicBool::new(false),
            _word: word,
        }
    }

    /// The slot, below [`super::SLOTS`].
    #[must_use]
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// The incarnation: different for every join to one registry, never zero.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether joining freed slots whose owners had died.
    pub(crate) fn found_dead(&self) -> bool {
        self.found_dead
    }

    /// The runtime directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.registry.directory().path()
    }

    /// A random number that all contexts of this registry share and those of others do not.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.registry.table().head.nonce.load(Ordering::Relaxed)
    }

    /// The GUID of the device that all contexts of this registry are of. It outlives them, so that a peer can tell that a
    /// program which starts again uses the QP numbers of its predecessor.
    #[must_use]
    pub fn node_guid(&self) -> u64 {
        self.registry.table().head.guid.load(Ordering::Relaxed)
    }

    /// A descriptor that is readable once somebody woke this context: to be polled, not read.
    #[must_use]
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes [`Self::wake_fd`] unreadable again. Call it after a wake-up and before looking for work.
    ///
    /// Returns whether there was a wake-up. Never blocks, and reads no more than a FIFO holds even if a peer writes
    /// without end.
    pub fn drain_wake(&self) -> bool {
        let mut buffer = [0; 4096];
        let mut woken = false;
        for _ in 0..16 {
            match rustix::io::read(&self.wake, &mut buffer) {
                Ok(read) => {
                    woken |= read > 0;
                    if read < buffer.len() {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(_) => break,
            }
        }
        woken
    }

    /// The incarnation that lives in a slot: one atomic load.
    ///
    /// A context that died is still here until somebody reaps it; see [`Self::is_alive`].
    #[must_use]
    #[inline]
    pub fn peer(&self, slot: u8) -> Option<u64> {
        self.registry.table().entry(slot)?.live()
    }

    /// The process of the incarnation that lives in a slot.
    pub(crate) fn process(&self, slot: u8, incarnation: u64) -> Option<Process> {
        let entry = self.registry.table().entry(slot)?;
        let word = (entry.word_at.load(Ordering::Relaxed), entry.word.load(Ordering::Relaxed));
        let process = Process { pid: entry.pid.load(Ordering::Relaxed), word };
        // Asked last: if it still lives there now, what was read is its own.
        std::sync::atomic::fence(Ordering::Acquire);
        (entry.live() == Some(incarnation)).then_some(process)
    }

    /// The occupied slots, this one included.
    #[must_use]
    pub fn live_slots(&self) -> Vec<SlotInfo> {
        self.registry.live().map(|(slot, incarnation)| slot_info(&self.registry, slot, incarnation)).collect()
    }

    /// Whether the owner of a slot exists, asked of the kernel: a few system calls.
    ///
    /// If the kernel cannot say, for instance for lack of descriptors, the answer is yes.
    #[must_use]
    pub fn is_alive(&self, slot: u8) -> bool {
        self.peer(slot).is_some_and(|incarnation| self.registry.owner_exists(slot, incarnation))
    }

    /// Frees the slots of contexts that died and removes their files; says which they were.
    ///
    /// # Errors
    ///
    /// [`LockError`] if the registry's lock cannot be had within 100 ms: try later.
    pub fn reap(&self) -> Result<Vec<(u8, u64)>, LockError> {
        self.with_admin_lock(Duration::from_millis(100), |admin| admin.reap())
    }

    /// Runs `work` under the registry's lock, for which it waits at most `patience`. Zero tries once.
    ///
    /// The lock is nothing to hold for long: all who join meanwhile wait. A process that dies with it has released it.
    ///
    /// # Errors
    ///
    /// [`LockError`] if the lock cannot be had; `work` has not run.
    pub fn with_admin_lock<T>(&self, patience: Duration, work: impl FnOnce(&Admin<'_>) -> T) -> Result<T, LockError> {
        let lock = Guard::acquire(self.registry.directory(), patience)?;
        Ok(work(&Admin::new(self, lock)))
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The segment into which the others write.
    pub(crate) fn segment(&self) -> &OwnSegment {
        &self.segment
    }

    /// Opens the segment of another context.
    pub(crate) fn open_segment(&self, slot: u8, incarnation: u64) -> Result<PeerSegment, SegmentError> {
        PeerSegment::open(self.registry.directory(), slot, incarnation)
    }

    /// Wakes the owner of a slot, if it has one that can be woken.
    pub(crate) fn wake_peer(&self, slot: u8) {
        if let Some(fifo) = self.peer(slot).and_then(|incarnation| self.open_wake(slot, incarnation).ok()) {
            ring(&fifo);
        }
    }

    /// Opens the FIFO that wakes another context.
    pub(crate) fn open_wake(&self, slot: u8, incarnation: u64) -> io::Result<OwnedFd> {
        self.registry.directory().open_fifo(&wake_name(slot, incarnation)).map_err(|error| error.into_io())
    }

    /// Taken by the one object that writes into the rings of others on behalf of this slot.
    pub(crate) fn sender_claim(&self) -> &AtomicBool {
        &self.sends
    }

    /// Taken by the one object that reads this slot's rings.
    pub(crate) fn receiver_claim(&self) -> &AtomicBool {
        &self.receives
    }
}

/// Writes one byte into a FIFO. If it is full, its reader has reason enough to wake.
#[cold]
pub(crate) fn ring(fifo: &OwnedFd) {
    while rustix::io::write(fifo, &[1]) == Err(Errno::INTR) {}
}

impl Drop for Membership {
    fn drop(&mut self) {
        // The entry first: files without an entry are swept by the next join, an entry without files only by a reaper.
        // No lock: whoever takes the slot now uses another incarnation and so other files.
        if let Some(entry) = self.registry.table().entry(self.slot) {
            entry.clear(self.incarnation);
        }
        self.registry.remove_files(self.slot, self.incarnation);
    }
}
