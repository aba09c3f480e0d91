//! Tests of the protocols of ring and doorbell, over memory that is made for it.

mod crash;
mod model;
mod property;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ring::{HEADER, Kind, LINE, RingMemory, Step, Word};

/// A header that says: a frame of 40 bytes with tag 0xBAD. Stands where a careless reader would take it for one.
const DECOY: u64 = 1 << 56 | 0xBAD << 32 | 40;

/// The memory of a ring, made of words of some kind: the headers of lines, and of each line the first word of payload.
struct Lines<W> {
    headers: Vec<W>,
    payloads: Vec<W>,
    tail: W,
    head: W,
    waiting: W,
    longest: usize,
}

impl<W> Lines<W> {
    fn new(lines: usize, longest: usize, mut word: impl FnMut() -> W) -> Arc<Self> {
        assert!(2 * super::ring::frame_bytes(longest) + LINE <= lines * LINE / 8 * 7);
        Arc::new(Self {
            headers: (0..lines).map(|_| word()).collect(),
            payloads: (0..lines).map(|_| word()).collect(),
            tail: word(),
            head: word(),
            waiting: word(),
            longest,
        })
    }
}

impl<W: Word> RingMemory for Arc<Lines<W>> {
    type Word = W;

    fn bytes(&self) -> usize {
        self.headers.len() * LINE
    }

    fn longest(&self) -> usize {
        self.longest
    }

    fn header(&self, place: usize) -> &W {
        assert!(place.is_multiple_of(LINE));
        &self.headers[place / LINE]
    }

    fn tail(&self) -> &W {
        &self.tail
    }

    fn head(&self) -> &W {
        &self.head
    }

    fn waiting(&self) -> &W {
        &self.waiting
    }
}

/// A word that can say when it is part of a payload, which is read and written without atomics.
trait Payload: Word {
    fn written(&self);
    fn read(&self);
}

impl<W: Payload> Lines<W> {
    /// Writes a payload that is known by `value`, with decoys where its later lines could be taken for headers.
    fn write(&self, place: usize, length: usize, value: u64) {
        let first = place / LINE;
        assert_eq!(place % LINE, HEADER);
        self.payloads[first].written();
        self.payloads[first].store(value, Ordering::Relaxed);
        let last = (place + length).div_ceil(LINE).max(first + 1);
        for line in first + 1..last {
            self.headers[line].store(DECOY, Ordering::Relaxed);
            self.payloads[line].store(value + line as u64, Ordering::Relaxed);
        }
    }

    /// Reads a payload and asserts that it is whole.
    fn read(&self, step: &Step) -> u64 {
        assert_eq!(step.kind, Kind::Data);
        let first = step.payload / LINE;
        self.payloads[first].read();
        let value = self.payloads[first].load(Ordering::Relaxed);
        let last = (step.payload + step.length).div_ceil(LINE).max(first + 1);
        for line in first + 1..last {
            assert_eq!(self.headers[line].load(Ordering::Relaxed), DECOY, "a torn frame");
            assert_eq!(self.payloads[line].load(Ordering::Relaxed), value + line as u64, "a torn frame");
        }
        value
    }
}

thread_local! {
    /// How many stores this thread's writer survives.
    static FUSE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Whether this store is still done.
fn burns() -> bool {
    FUSE.with(|fuse| {
        let left = fuse.get();
        fuse.set(left.saturating_sub(usize::from(left != usize::MAX)));
        left > 0
    })
}

/// An ordinary word.
struct Plain(std::sync::atomic::AtomicU64);

impl Word for Plain {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        if burns() {
            self.0.store(value, order);
        }
    }

    fn exchange(&self, new: u64) {
        self.0.swap(new, Ordering::Relaxed);
    }

    fn replace(&self, current: u64, new: u64) {
        let _ = self.0.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn fence() {
        std::sync::atomic::fence(Ordering::SeqCst);
    }
}

impl Payload for Plain {
    fn written(&self) {}
    fn read(&self) {}
}

fn plain() -> Plain {
    Plain(std::sync::atomic::AtomicU64::new(0))
}
