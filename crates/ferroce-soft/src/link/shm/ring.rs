//! One ring: frames from one writer to one reader.
//!
//! Positions are byte counts that only grow; modulo the size of the ring they are places in it. Frames begin at
//! multiples of 64, a cache line, with a header of eight bytes; the payload follows at once, so that header and small
//! payload travel between the processors together.
//!
//! ```text
//!  |header|payload....................|(unused)|header|payload...| 0 |...
//!  ^ multiple of 64                            ^                 ^ tail: the header of what is not yet published
//! ```
//!
//! # The invariant
//!
//! **The header at the tail is zero.** A new ring is all zeros; and before the writer publishes a frame by storing its
//! header, it zeroes the place where the next header will be. The reader never writes into frames. It follows that
//!
//! - the reader needs no position from the writer: it reads headers until it finds zero;
//! - a writer may die at any instant. Before it stored the header of frame *k*, that header is zero and all the rest it
//!   wrote is invisible. After that, the header behind *k* is zero. There is no instant between, since one aligned store
//!   does it;
//! - the next writer of the ring finds the tail by itself. The tail that the dead one noted in shared memory is at most
//!   one step old, so from there it walks over published frames to the first zero ([`Producer::attach`]).
//!
//! A frame that does not fit before the end of the ring is written at its start. Its header there is stored first, then
//! at the tail a marker that sends the reader to the start: again one store makes the frame visible.
//!
//! # Room
//!
//! The reader notes its position in shared memory once it has freed an eighth of the ring. The writer keeps what it saw
//! and looks again only when it runs out. It never writes over what is not freed, and always leaves one line free for
//! the zero behind the last frame.
//!
//! A writer that found the ring full may ask to be woken. It is told to try again if there is room for two frames of
//! the greatest length, which is at most seven eighths of a ring; so if it waits, more than an eighth of the ring is
//! still to be freed, and the reader will pass a point at which it notes its position and looks who waits.

use std::sync::atomic::Ordering;

use super::MAX_TAG;

/// Distance between possible frame positions, in bytes.
pub(super) const LINE: usize = 64;

/// Bytes of a header.
pub(super) const HEADER: usize = 8;

/// An atomic word of shared memory.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    /// Exchanges the value; no ordering beyond that of the fences around it.
    fn exchange(&self, new: u64);
    /// Replaces `current` by `new`; no ordering beyond that of the fences around it.
    fn replace(&self, current: u64, new: u64);
    /// A fence of all orders.
    fn fence();
}

/// The memory of a ring.
pub(super) trait RingMemory {
    type Word: Word;

    /// Bytes for frames: a power of two.
    fn bytes(&self) -> usize;
    /// Bytes of the longest possible frame: seven eighths of the ring have room for two of them.
    fn longest(&self) -> usize;
    /// The word at a place below [`Self::bytes`] that is a multiple of [`LINE`].
    fn header(&self, place: usize) -> &Self::Word;
    /// The writer's position.
    fn tail(&self) -> &Self::Word;
    /// The reader's position.
    fn head(&self) -> &Self::Word;
    /// Not zero if the writer wants to be woken when there is room.
    fn waiting(&self) -> &Self::Word;
}

/// What kind of thing a header introduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A frame of the user.
    Data = 1,
    /// Nothing up to the end of the ring.
    Skip = 2,
    /// The incarnation of the writer that begins here, eight bytes.
    Hello = 3,
}

fn pack(kind: Kind, tag: u32, length: usize) -> u64 {
    (kind as u64) << 56 | u64::from(tag & MAX_TAG) << 32 | length as u64
}

/// The bytes that a frame takes with header and padding.
pub(super) const fn frame_bytes(length: usize) -> usize {
    (HEADER + length).next_multiple_of(LINE)
}

/// Room for two frames of the greatest length.
pub(super) const fn ample(longest: usize) -> usize {
    2 * frame_bytes(longest)
}

/// No position is ever beyond this: at 100 GB/s it takes a year and a half.
const FARTHEST: u64 = 1 << 62;

/// How many lines to zero ahead: the next few small frames.
const AHEAD: usize = 16;

/// The ring's state in shared memory contradicts itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damaged;

#[derive(Debug, Clone, Copy)]
struct Reservation {
    start: u64,
    next: u64,
    header: u64,
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Producer<M> {
    memory: M,
    tail: u64,
    /// The reader's position as last seen.
    head: u64,
    /// All lines from the tail to here begin with zero. At least one line.
    clean: u64,
    reserved: Option<Reservation>,
}

impl<M: RingMemory> Producer<M> {
    /// Begins where the last writer ended, which may have been killed.
    ///
    /// Only one writer may exist. That the last one is gone has been proven before.
    pub(super) fn attach(memory: M) -> Result<Self, Damaged> {
        let bytes = memory.bytes() as u64;
        let head = memory.head().load(Ordering::Acquire);
        let noted = memory.tail().load(Ordering::Acquire);
        if !noted.is_multiple_of(LINE as u64) || noted > FARTHEST || head > FARTHEST {
            return Err(Damaged);
        }
        let mut tail = noted;
        while let Some(step) = parse(&memory, tail)? {
            tail += step.bytes as u64;
            if tail - noted > bytes {
                return Err(Damaged);
            }
        }
        // Only now: the reader may have freed a frame whose writer was killed before it noted the tail behind it.
        if tail.wrapping_sub(head) > bytes {
            return Err(Damaged);
        }
        memory.tail().store(tail, Ordering::Release);
        Ok(Self { memory, tail, head, clean: tail + LINE as u64, reserved: None })
    }

    /// Finds room for a frame and returns the place of its payload; `None` if there is none now.
    ///
    /// A reservation that is not committed is forgotten by the next one. What was written there all the same is no longer clean.
    pub(super) fn reserve(&mut self, kind: Kind, tag: u32, length: usize) -> Option<usize> {
        let bytes = self.memory.bytes();
        let (size, place) = (frame_bytes(length), self.place(self.tail));
        let start = if size <= bytes - place { self.tail } else { self.tail + (bytes - place) as u64 };
        let next = start + size as u64;
        let room = self.has_room(next);
        // One that begins at the same place and is no shorter covers what the last one may have left there.
        if let Some(old) = self.reserved.take()
            && !(room && old.start == start && next >= old.next)
        {
            self.clean = self.clean.min(old.start + LINE as u64);
        }
        if !room {
            return None;
        }
        self.reserved = Some(Reservation { start, next, header: pack(kind, tag, length) });
        Some(self.place(start) + HEADER)
    }

    /// Publishes what was reserved last, if anything.
    pub(super) fn commit(&mut self) -> bool {
        let Some(Reservation { start, next, header }) = self.reserved.take() else {
            return false;
        };
        if self.clean <= next {
            self.header(next).store(0, Ordering::Relaxed);
            self.clean = next + LINE as u64;
        }
        if start != self.tail {
            self.header(start).store(header, Ordering::Release);
            let skip = pack(Kind::Skip, 0, (start - self.tail) as usize);
            self.header(self.tail).store(skip, Ordering::Release);
        } else {
            self.header(start).store(header, Ordering::Release);
        }
        self.tail = next;
        // Release: it must not be seen before the header. A tail too far ahead would strand the next writer.
        self.memory.tail().store(next, Ordering::Release);
        true
    }

    /// Zeroes a few lines ahead, once the reader has what it is to get.
    ///
    /// Publishing has to wait for the zero behind the frame, and that line may have to come from the reader's processor.
    /// Meanwhile the reader, which looks at the line of the frame all the time, would take that one away again.
    pub(super) fn prepare(&mut self) {
        if self.clean > self.tail + (AHEAD / 2 * LINE) as u64 {
            return;
        }
        let most = self.head.wrapping_add(self.memory.bytes() as u64).min(self.tail + (AHEAD * LINE) as u64);
        while self.clean < most {
            self.header(self.clean).store(0, Ordering::Relaxed);
            self.clean += LINE as u64;
        }
    }

    /// Asks the reader to wake this writer when it frees room. Returns false if there is ample room already: try again
    /// instead of waiting.
    pub(super) fn request_wakeup(&mut self) -> bool {
        self.memory.waiting().store(1, Ordering::Relaxed);
        // Either the reader, which notes its position before it looks here, sees the request, or this sees its position.
        M::Word::fence();
        if self.has_room(self.tail + ample(self.memory.longest()) as u64) {
            self.memory.waiting().store(0, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Up to where the reader has freed the ring, when this last looked.
    pub(super) fn freed(&self) -> u64 {
        self.head
    }

    pub(super) fn memory(&self) -> &M {
        &self.memory
    }

    /// Whether everything up to `end`, and the line for the zero behind it, is free.
    fn has_room(&mut self, end: u64) -> bool {
        let bytes = self.memory.bytes() as u64;
        let free = |head| (end + LINE as u64).wrapping_sub(head) <= bytes;
        if free(self.head) {
            return true;
        }
        let head = self.memory.head().load(Ordering::Acquire);
        if self.tail.wrapping_sub(head) > bytes {
            // A reader that claims to have read what was not written: nothing is free for it.
            return false;
        }
        self.head = head;
        free(head)
    }

    fn place(&self, position: u64) -> usize {
        position as usize & (self.memory.bytes() - 1)
    }

    fn header(&self, position: u64) -> &M::Word {
        self.memory.header(self.place(position))
    }
}

/// One published thing in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) kind: Kind,
    pub(super) tag: u32,
    /// Place of the payload.
    pub(super) payload: usize,
    pub(super) length: usize,
    /// Bytes with header and padding.
    pub(super) bytes: usize,
}

/// Reads what is at a position; `None` if nothing is published there. Everything in the header is checked: the payload
/// lies within the ring.
#[inline]
fn parse<M: RingMemory>(memory: &M, position: u64) -> Result<Option<Step>, Damaged> {
    let place = position as usize & (memory.bytes() - 1);
    let header = memory.header(place).load(Ordering::Acquire);
    if header == 0 {
        return Ok(None);
    }
    let length = (header & u64::from(u32::MAX)) as usize;
    let tag = (header >> 32) as u32 & MAX_TAG;
    let kind = match header >> 56 {
        1 => Kind::Data,
        2 => Kind::Skip,
        3 => Kind::Hello,
        _ => return Err(Damaged),
    };
    let rest = memory.bytes() - place;
    let bytes = if kind == Kind::Skip { length } else { frame_bytes(length) };
    let legal = match kind {
        Kind::Data => length <= memory.longest() && bytes <= rest,
        Kind::Hello => length == 8 && bytes <= rest,
        Kind::Skip => place != 0 && length == rest,
    };
    if !legal {
        return Err(Damaged);
    }
    Ok(Some(Step { kind, tag, payload: place + HEADER, length, bytes }))
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Consumer<M> {
    memory: M,
    head: u64,
    /// What was last noted in shared memory.
    noted: u64,
}

impl<M: RingMemory> Consumer<M> {
    /// Begins where the last reader of this process ended, or at the start of a new ring.
    pub(super) fn attach(memory: M) -> Result<Self, Damaged> {
        let head = memory.head().load(Ordering::Relaxed);
        if !head.is_multiple_of(LINE as u64) || head > FARTHEST {
            return Err(Damaged);
        }
        Ok(Self { memory, head, noted: head })
    }

    /// Whether something can be taken.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.memory.header(self.head as usize & (self.memory.bytes() - 1)).load(Ordering::Acquire) != 0
    }

    /// Takes the next thing that is not a skip. Its bytes stay valid until [`Self::release`].
    #[inline]
    pub(super) fn take(&mut self) -> Result<Option<Step>, Damaged> {
        // A skip leads to the start of the ring, where there cannot be another: at most two rounds.
        loop {
            let Some(step) = parse(&self.memory, self.head)? else {
                return Ok(None);
            };
            self.head = self.head.wrapping_add(step.bytes as u64);
            if step.kind != Kind::Skip {
                return Ok(Some(step));
            }
        }
    }

    /// Frees what was taken, once there is enough of it. Returns true if the writer waits and is to be woken now.
    #[inline]
    pub(super) fn release(&mut self) -> bool {
        if self.head.wrapping_sub(self.noted) < (self.memory.bytes() / 8) as u64 {
            return false;
        }
        self.note()
    }

    /// Frees what was taken. Returns true if the writer waits and is to be woken now.
    pub(super) fn note(&mut self) -> bool {
        self.noted = self.head;
        self.memory.head().store(self.head, Ordering::Release);
        M::Word::fence();
        self.memory.waiting().load(Ordering::Relaxed) != 0
    }

    /// The writer was woken.
    pub(super) fn woken(&self) {
        self.memory.waiting().store(0, Ordering::Relaxed);
    }

    pub(super) fn memory(&self) -> &M {
        &self.memory
    }
}
