//! The registry in memory.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::SLOTS;
use super::map::Shared;
use super::services::{SERVICES, Service};

/// First eight bytes of a registry: "ferroceR", little endian.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"ferroceR");

/// Number of the layout of registry and segments. Any change of either takes the next one.
pub(super) const LAYOUT: u32 = 5;

/// Longest name of a context, in bytes.
pub(super) const NAME_BYTES: usize = 64;

/// What the registry file holds: a head, 256 entries, of which 254 are used, and the services of all contexts.
#[repr(C)]
pub(super) struct Table {
    pub(super) head: Head,
    entries: [Entry; 256],
    pub(super) services: [Service; SERVICES],
}

/// The head of the registry.
#[repr(C, align(256))]
pub(super) struct Head {
    pub(super) magic: AtomicU64,
    pub(super) layout: AtomicU32,
    pub(super) next_slot: AtomicU32,
    /// Random, fixed for the life of the registry.
    pub(super) nonce: AtomicU64,
    /// The node GUID of the device that all contexts are of: random, fixed for the life of the registry.
    pub(super) guid: AtomicU64,
    /// The incarnation that the next join gets. Never zero.
    pub(super) next_incarnation: AtomicU64,
    /// Counts the changes of the group of UDP sockets. A probe that was sent before the last one says nothing.
    pub(super) group: AtomicU32,
    /// Counts the changes of any [`Entry::udp_index`].
    pub(super) steering: AtomicU32,
    /// The value of `steering` that the kernel has been told of.
    pub(super) steered: AtomicU32,
    /// One past the last entry of `services` that is in use.
    pub(super) services: AtomicU32,
}

/// One slot. Written by its owner and, under the registry's lock, by whoever joins or reaps.
#[repr(C, align(128))]
pub(super) struct Entry {
    /// The incarnation that lives in the slot; zero if it is free. Everything else means something only while this is
    /// not zero. Stored last when joining and cleared first when leaving.
    live: AtomicU64,
    pub(super) pid: AtomicU32,
    /// One more than the index of the owner's socket in the group; zero while it has none.
    pub(super) udp_index: AtomicU32,
    /// The inode of that socket.
    pub(super) udp_inode: AtomicU64,
    /// What is at this address in the owner's process: whoever can read that can read the rest of its memory.
    pub(super) word_at: AtomicU64,
    pub(super) word: AtomicU64,
    /// Not zero once somebody receives the datagrams of queue pair 1.
    pub(super) gsi: AtomicU32,
    name: [AtomicU64; NAME_BYTES / 8],
}

// SAFETY: atomics only; the padding that the alignment adds is never looked at.
unsafe impl Shared for Table {}

impl Table {
    /// The entry of a slot, if there is such a slot.
    pub(super) fn entry(&self, slot: u8) -> Option<&Entry> {
        self.entries.get(usize::from(slot)).filter(|_| usize::from(slot) < SLOTS)
    }

    /// All entries with their slot numbers.
    pub(super) fn entries(&self) -> impl Iterator<Item = (u8, &Entry)> {
        (0..).zip(&self.entries[..SLOTS])
    }
}

impl Entry {
    /// The incarnation that lives here.
    pub(super) fn live(&self) -> Option<u64> {
        Some(self.live.load(Ordering::Acquire)).filter(|incarnation| *incarnation != 0)
    }

    /// Lets `incarnation` live here. Under the registry's lock, in a free entry.
    pub(super) fn publish(&self, incarnation: u64) {
        self.live.store(incarnation, Ordering::Release);
    }

    /// Frees the entry if `incarnation` lives here.
    pub(super) fn clear(&self, incarnation: u64) -> bool {
        self.live.compare_exchange(incarnation, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(super) fn set_name(&self, name: &str) {
        let mut bytes = [0; NAME_BYTES];
        let length = (0..=NAME_BYTES.min(name.len())).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
        bytes[..length].copy_from_slice(&name.as_bytes()[..length]);
        for (word, eight) in self.name.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*eight), Ordering::Relaxed);
        }
    }

    pub(super) fn name(&self) -> String {
        let bytes: Vec<u8> = self
            .name
            .iter()
            .flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes())
            .take_while(|b| *b != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
