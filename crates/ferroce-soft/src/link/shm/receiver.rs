//! Receiving from the other contexts of this host.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::error::InUse;
use super::memory::MappedRing;
use super::ring::{Consumer, Damaged, Kind, Step};
use super::{cma, doorbell};
use crate::host::{Membership, SLOTS, ring};

/// A frame, as long as it is in the ring.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The slot that sent it.
    pub slot: u8,
    /// Who lived in the slot when it sent it.
    pub incarnation: u64,
    /// The sender's tag.
    pub tag: u32,
    /// The sender's bytes. See [`super`] on trust.
    pub bytes: &'a [u8],
}

/// What a receiver has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReceiverCounters {
    /// Rings shut because their content made no sense, or because they had no memory.
    pub rings_shut: u64,
    /// Senders woken because they waited for room.
    pub space_wakeups: u64,
    /// Rings taken back after their sender had ended.
    pub rings_retired: u64,
}

impl ReceiverCounters {
    /// The counters under the names that a device gives them.
    pub fn named(self) -> [(&'static str, u64); 3] {
        [
            ("shm_rings_shut", self.rings_shut),
            ("shm_space_wakeups", self.space_wakeups),
            ("shm_rings_retired", self.rings_retired),
        ]
    }
}

#[derive(Debug)]
struct Inbound {
    slot: u8,
    /// The incarnation that writes; zero before it has said so.
    incarnation: u64,
    consumer: Consumer<MappedRing>,
    /// What it holds makes no sense.
    damaged: bool,
    /// Where to wake the writer, once that was needed.
    wake: Option<(u64, OwnedFd)>,
}

/// Reads the rings into which the others write.
#[derive(Debug)]
pub struct ShmReceiver {
    membership: Arc<Membership>,
    rings: Vec<Inbound>,
    /// Which of `rings` is looked at first.
    cursor: usize,
    /// The bits of the rings that were opened, be they in `rings` or shut.
    known: [u64; 4],
    sleeps: AtomicU64,
    counters: ReceiverCounters,
    /// Senders are told if their memory can be read.
    cma: bool,
}

impl ShmReceiver {
    /// The receiver of a membership.
    ///
    /// # Errors
    ///
    /// [`InUse`] if it has one already: a ring has one reader.
    pub fn new(membership: Arc<Membership>) -> Result<Self, InUse> {
        if membership.receiver_claim().swap(true, Ordering::Acquire) {
            return Err(InUse { what: "receiver" });
        }
        Ok(Self {
            membership,
            rings: Vec::with_capacity(SLOTS),
            cursor: 0,
            known: [0; 4],
            sleeps: AtomicU64::new(0),
            counters: ReceiverCounters::default(),
            cma: false,
        })
    }

    /// From now on, tells each sender whether this process can read its memory, as it can unless the kernel forbids that (Yama's
    /// `ptrace_scope`, seccomp, another process id namespace).
    pub(crate) fn allow_cma(&mut self) {
        self.cma = true;
    }

    /// The membership on whose behalf this receives.
    #[must_use]
    pub fn membership(&self) -> &Arc<Membership> {
        &self.membership
    }

    /// Hands up to `budget` frames to `f`: slot of the sender, tag, bytes. Returns how many there were.
    ///
    /// Frames of one sender come in order. Senders take turns from call to call.
    pub fn poll(&mut self, budget: usize, f: &mut dyn FnMut(u8, u32, &[u8])) -> usize {
        self.poll_frames(budget, |frame| f(frame.slot, frame.tag, frame.bytes))
    }

    /// [`Self::poll`], with the incarnation of the sender: a slot may have been taken over between two frames.
    ///
    /// If `f` panics, its frame counts as delivered.
    #[inline]
    pub fn poll_frames(&mut self, budget: usize, mut f: impl FnMut(Frame<'_>)) -> usize {
        let active = self.active();
        if self.has_new(active) {
            self.open_rings(active);
        }
        let (mut left, mut last, mut shut) = (budget, self.cursor, false);
        for at in (self.cursor..self.rings.len()).chain(0..self.cursor) {
            let before = left;
            shut |= self.rings[at].drain(&mut left, &self.membership, self.cma, &mut self.counters, &mut f).is_err();
            if left == 0 {
                // The next call begins with another ring, lest one busy sender keeps the others out.
                last = if at + 1 < self.rings.len() { at + 1 } else { 0 };
                break;
            }
            if left != before {
                last = at;
            }
        }
        self.cursor = last;
        if shut {
            self.shut_damaged();
        }
        budget - left
    }

    /// Says that this context is about to sleep until [`Membership::wake_fd`] is readable. Returns false if there is
    /// something to poll for: do not sleep then.
    ///
    /// After the sleep, whatever ended it, call [`Self::cancel_sleep`], and [`Membership::drain_wake`] if the descriptor was readable,
    /// before polling; until then senders take the trouble of waking.
    #[must_use = "false means that there is something to poll for"]
    pub fn prepare_sleep(&self) -> bool {
        let sleep = self.sleeps.fetch_add(1, Ordering::Relaxed) + 1;
        let sign = &self.membership.segment().control().sleeping.0;
        doorbell::fall_asleep(sign, sleep, || {
            self.has_new(self.active()) || self.rings.iter().any(|ring| ring.consumer.is_ready())
        })
    }

    /// Says that this context is awake.
    pub fn cancel_sleep(&self) {
        doorbell::stay_awake(&self.membership.segment().control().sleeping.0);
    }

    /// Gives back the memory of rings whose senders have ended and whose frames are all delivered; returns how many.
    ///
    /// For now and then: each ring that nobody uses any more costs memory and a little time in each poll. Takes the
    /// registry's lock if there is something to do; if that is busy, does nothing.
    pub fn retire_dead(&mut self) -> usize {
        let claimed = &self.membership.segment().control().claimed.0;
        let bits: [u64; 4] = std::array::from_fn(|at| self.known[at] | claimed[at].load(Ordering::Relaxed));
        let gone = |slot: &u8| has(&bits, *slot) && self.membership.peer(*slot).is_none();
        let candidates: Vec<u8> = (0..SLOTS as u8).filter(gone).collect();
        if candidates.is_empty() {
            return 0;
        }
        let membership = Arc::clone(&self.membership);
        let retired = membership
            .with_admin_lock(Duration::ZERO, |_| candidates.into_iter().filter(|slot| self.retire(*slot)).count());
        retired.unwrap_or(0)
    }

    /// What this receiver has seen since it was made.
    #[must_use]
    pub fn counters(&self) -> ReceiverCounters {
        self.counters
    }

    /// Under the registry's lock: nobody can take a free slot meanwhile, so nobody can begin to write to its ring.
    fn retire(&mut self, slot: u8) -> bool {
        let at = self.rings.iter().position(|ring| ring.slot == slot);
        // A ring that is active and not opened yet may hold frames: the next poll opens it.
        let unopened = has(&self.active(), slot) && !has(&self.known, slot);
        let unread = unopened || at.is_some_and(|at| self.rings[at].consumer.is_ready());
        if unread || self.membership.peer(slot).is_some() || self.membership.segment().release_ring(slot).is_err() {
            return false;
        }
        let (word, bit) = (usize::from(slot / 64), 1 << (slot % 64));
        let control = self.membership.segment().control();
        control.active.0[word].fetch_and(!bit, Ordering::Relaxed);
        control.claimed.0[word].fetch_and(!bit, Ordering::Relaxed);
        self.known[word] &= !bit;
        if let Some(at) = at {
            self.rings.swap_remove(at);
            self.cursor = 0;
        }
        self.counters.rings_retired += 1;
        true
    }

    #[inline]
    fn active(&self) -> [u64; 4] {
        let words = &self.membership.segment().control().active.0;
        std::array::from_fn(|at| words[at].load(Ordering::Acquire))
    }

    /// Whether a ring is active that was not opened. A bit that vanishes says nothing: only this receiver may clear one.
    #[inline]
    fn has_new(&self, active: [u64; 4]) -> bool {
        active.iter().zip(&self.known).any(|(active, known)| active & !known != 0)
    }

    #[cold]
    fn open_rings(&mut self, active: [u64; 4]) {
        for slot in 0..=u8::MAX {
            if !has(&active, slot) || has(&self.known, slot) {
                continue;
            }
            self.known[usize::from(slot / 64)] |= 1 << (slot % 64);
            match self.open_ring(slot) {
                Some(ring) => self.rings.push(ring),
                None => self.counters.rings_shut += 1,
            }
        }
    }

    fn open_ring(&self, slot: u8) -> Option<Inbound> {
        if usize::from(slot) >= SLOTS {
            return None;
        }
        let segment = self.membership.segment();
        segment.reserve_ring(slot).ok()?;
        let memory = MappedRing::new(Arc::clone(segment.map()), segment.geometry().ring(slot), segment.geometry());
        let consumer = Consumer::attach(memory).ok()?;
        Some(Inbound { slot, incarnation: 0, consumer, damaged: false, wake: None })
    }

    #[cold]
    fn shut_damaged(&mut self) {
        let before = self.rings.len();
        self.rings.retain(|ring| !ring.damaged);
        self.counters.rings_shut += (before - self.rings.len()) as u64;
        self.cursor = 0;
    }
}

impl Drop for ShmReceiver {
    fn drop(&mut self) {
        // The next receiver of this membership begins at what is noted in shared memory.
        for ring in &mut self.rings {
            ring.consumer.note();
        }
        self.membership.receiver_claim().store(false, Ordering::Release);
    }
}

fn has(bits: &[u64; 4], slot: u8) -> bool {
    bits[usize::from(slot / 64)] >> (slot % 64) & 1 != 0
}

impl Inbound {
    /// Delivers up to `left` frames and counts it down.
    #[inline]
    fn drain(
        &mut self,
        left: &mut usize,
        membership: &Membership,
        cma: bool,
        counters: &mut ReceiverCounters,
        f: &mut impl FnMut(Frame<'_>),
    ) -> Result<(), Damaged> {
        let mut greeted = false;
        while *left > 0 {
            let step = match self.consumer.take() {
                Ok(Some(step)) => step,
                Ok(None) => break,
                Err(damaged) => {
                    self.damaged = true;
                    return Err(damaged);
                }
            };
            match step.kind {
                Kind::Hello => {
                    self.incarnation = self.read_hello(&step);
                    if cma {
                        self.try_reading(membership);
                    }
                    // Nobody says hello twice in a row but a mad writer, who could keep this loop busy for ever.
                    if std::mem::replace(&mut greeted, true) {
                        break;
                    }
                }
                _ => {
                    *left -= 1;
                    // SAFETY: this is the only reader of the ring; the bytes were just taken, and are freed by `release`
                    // below at the earliest, when `f` has returned.
                    let bytes = unsafe { self.consumer.memory().payload(step.payload, step.length) };
                    f(Frame { slot: self.slot, incarnation: self.incarnation, tag: step.tag, bytes });
                }
            }
            if self.consumer.release() {
                self.wake_writer(membership, counters);
            }
        }
        Ok(())
    }

    /// Finds out whether the writer's memory can be read, and tells it.
    #[cold]
    fn try_reading(&self, membership: &Membership) {
        let Some(process) = membership.process(self.slot, self.incarnation) else { return };
        let (at, word) = process.word;
        if cma::read_word(process.pid, at).is_ok_and(|found| found == word) {
            let readable = &membership.segment().control().readable.0;
            readable[usize::from(self.slot)].store(self.incarnation, Ordering::Relaxed);
        }
    }

    #[cold]
    fn read_hello(&self, step: &Step) -> u64 {
        // SAFETY: as in `drain`.
        let bytes = unsafe { self.consumer.memory().payload(step.payload, step.length) };
        bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// Wakes the writer, which waits for room.
    #[cold]
    fn wake_writer(&mut self, membership: &Membership, counters: &mut ReceiverCounters) {
        let Some(incarnation) = membership.peer(self.slot) else {
            return;
        };
        if self.wake.as_ref().is_none_or(|(known, _)| *known != incarnation) {
            // Without a descriptor now, the request stays, and the next eighth of the ring is the next occasion.
            let Ok(fifo) = membership.open_wake(self.slot, incarnation) else {
                return;
            };
            self.wake = Some((incarnation, fifo));
        }
        if let Some((_, fifo)) = &self.wake {
            // The request is cleared first: a writer that asks again after the wake-up asks anew.
            self.consumer.woken();
            ring(fifo);
            counters.space_wakeups += 1;
        }
    }
}
