//! All interleavings of writer and reader, within bounds, under the memory model of the language: no frame is torn, no
//! wake-up is lost.
//!
//! Loom reports a lost wake-up as a deadlock, and a torn or stale frame as a failed assertion.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex};

use super::super::doorbell;
use super::super::ring::{Consumer, HEADER, Kind, LINE, Producer, RingMemory, Word};
use super::{FUSE, Lines, Payload, burns};

/// A word of the model.
struct Modelled {
    word: AtomicU64,
    /// Written by a writer that may be killed.
    mortal: bool,
    /// Touched with the word where it is payload: loom reports accesses that are not ordered.
    payload: UnsafeCell<()>,
}

// SAFETY: the cell holds nothing; it is there for loom, which itself makes sure that only one thread runs.
unsafe impl Sync for Modelled {}

impl Payload for Modelled {
    fn written(&self) {
        self.payload.with_mut(|_| ());
    }

    fn read(&self) {
        self.payload.with(|_| ());
    }
}

impl Word for Modelled {
    fn load(&self, order: Ordering) -> u64 {
        self.word.load(order)
    }

    fn store(&self, value: u64, order: Ordering) {
        if !self.mortal || burns() {
            self.word.store(value, order);
        }
    }

    fn exchange(&self, new: u64) {
        self.word.swap(new, Ordering::Relaxed);
    }

    fn replace(&self, current: u64, new: u64) {
        let _ = self.word.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn fence() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

fn word(mortal: bool) -> Modelled {
    Modelled { word: AtomicU64::new(0), mortal, payload: UnsafeCell::new(()) }
}

fn immortal() -> Modelled {
    word(false)
}

/// A FIFO that one context sleeps on.
struct Fifo {
    filled: Mutex<bool>,
    changed: Condvar,
}

impl Fifo {
    fn new() -> Self {
        Self { filled: Mutex::new(false), changed: Condvar::new() }
    }

    fn write(&self) {
        *self.filled.lock().unwrap() = true;
        self.changed.notify_one();
    }

    /// Sleeps until it is readable, and drains it.
    fn wait(&self) {
        let mut filled = self.filled.lock().unwrap();
        while !*filled {
            filled = self.changed.wait(filled).unwrap();
        }
        *filled = false;
    }
}

/// What the two contexts share.
struct Shared {
    lines: Arc<Lines<Modelled>>,
    sleeping: Modelled,
    reader: Fifo,
    writer: Fifo,
}

impl Shared {
    fn new(lines: usize, longest: usize) -> Arc<Self> {
        Arc::new(Self {
            lines: Lines::new(lines, longest, immortal),
            sleeping: immortal(),
            reader: Fifo::new(),
            writer: Fifo::new(),
        })
    }

    /// One batch of one frame. Waits for room if there is none.
    fn send(&self, producer: &mut Producer<Arc<Lines<Modelled>>>, length: usize, value: u64) {
        loop {
            if let Some(place) = producer.reserve(Kind::Data, 0, length) {
                self.lines.write(place, length, value);
                producer.commit();
                doorbell::wake(&self.sleeping, || self.reader.write());
                producer.prepare();
                return;
            }
            if producer.request_wakeup() {
                self.writer.wait();
            }
        }
    }

    /// Takes frames until `last` was taken, sleeping while there is none.
    fn receive_until(&self, consumer: &mut Consumer<Arc<Lines<Modelled>>>, last: u64) -> Vec<u64> {
        let mut values = Vec::new();
        let mut sleep = 0;
        while values.last() != Some(&last) {
            if let Some(step) = consumer.take().unwrap() {
                values.push(self.lines.read(&step));
                if consumer.release() {
                    consumer.woken();
                    self.writer.write();
                }
                continue;
            }
            sleep += 1;
            if doorbell::fall_asleep(&self.sleeping, sleep, || consumer.is_ready()) {
                self.reader.wait();
                doorbell::stay_awake(&self.sleeping);
            }
        }
        values
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(model);
}

#[test]
fn frames_arrive_whole_and_nobody_sleeps_on() {
    check(3, || {
        let shared = Shared::new(8, LINE);
        let writer = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                let mut producer = Producer::attach(shared.lines.clone()).unwrap();
                shared.send(&mut producer, 10, 1000);
                shared.send(&mut producer, LINE, 2000);
            })
        };
        let mut consumer = Consumer::attach(shared.lines.clone()).unwrap();
        assert_eq!(shared.receive_until(&mut consumer, 2000), [1000, 2000]);
        writer.join().unwrap();
    });
}

/// Two writers, each with its ring, wake one reader: the sign is taken down by one while the other is about to look.
#[test]
fn two_writers_wake_one_reader() {
    check(3, || {
        let first = Shared::new(4, LINE - HEADER);
        let second = Lines::new(4, LINE - HEADER, immortal);
        let writers: Vec<_> = [first.lines.clone(), second.clone()]
            .into_iter()
            .map(|lines| {
                let shared = first.clone();
                loom::thread::spawn(move || {
                    let mut producer = Producer::attach(lines.clone()).unwrap();
                    let place = producer.reserve(Kind::Data, 0, 8).unwrap();
                    lines.write(place, 8, 1);
                    producer.commit();
                    doorbell::wake(&shared.sleeping, || shared.reader.write());
                })
            })
            .collect();
        let mut consumers = [first.lines.clone(), second].map(|lines| Consumer::attach(lines).unwrap());
        let (mut seen, mut sleep) = (0, 0);
        while seen < 2 {
            let before = seen;
            for consumer in &mut consumers {
                seen += usize::from(consumer.take().unwrap().is_some());
            }
            sleep += 1;
            let has_work = || consumers.iter().any(Consumer::is_ready);
            if seen == before && doorbell::fall_asleep(&first.sleeping, sleep, has_work) {
                first.reader.wait();
                doorbell::stay_awake(&first.sleeping);
            }
        }
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

/// The ring is full: the writer sleeps until the reader has freed room, which it tells at certain points only.
#[test]
fn a_full_ring_wakes_its_writer() {
    check(3, || {
        let shared = Shared::new(16, LINE - HEADER);
        let mut producer = Producer::attach(shared.lines.clone()).unwrap();
        for value in 0..15 {
            let place = producer.reserve(Kind::Data, 0, 8).unwrap();
            shared.lines.write(place, 8, value);
            producer.commit();
        }
        assert!(producer.reserve(Kind::Data, 0, 8).is_none());
        let writer = {
            let shared = shared.clone();
            loom::thread::spawn(move || shared.send(&mut producer, 8, 15))
        };
        let mut consumer = Consumer::attach(shared.lines.clone()).unwrap();
        let values = shared.receive_until(&mut consumer, 15);
        assert!(values.into_iter().eq(0..16));
        writer.join().unwrap();
    });
}

/// A frame is written where one was read only after that was read: there is no fence here to help.
#[test]
fn room_is_free_when_it_is_written() {
    check(3, || {
        let lines = Lines::new(16, LINE - HEADER, immortal);
        let mut producer = Producer::attach(lines.clone()).unwrap();
        let mut send = move |lines: &Lines<Modelled>, value| {
            let Some(place) = producer.reserve(Kind::Data, 0, 8) else {
                return false;
            };
            lines.write(place, 8, value);
            producer.commit()
        };
        for value in 0..15 {
            assert!(send(&lines, value));
        }
        let writer = {
            let lines = lines.clone();
            loom::thread::spawn(move || {
                for value in 15..17 {
                    while !send(&lines, value) {
                        loom::thread::yield_now();
                    }
                }
            })
        };
        let mut consumer = Consumer::attach(lines.clone()).unwrap();
        let mut expected = 0;
        while expected < 17 {
            match consumer.take().unwrap() {
                Some(step) => {
                    assert_eq!(lines.read(&step), expected);
                    expected += 1;
                    consumer.release();
                }
                None => loom::thread::yield_now(),
            }
        }
        writer.join().unwrap();
    });
}

/// The writer is killed after any number of stores, and another continues, while the reader reads.
#[test]
fn a_killed_writer_is_followed() {
    let mortal = || word(true);
    for fuse in 0..14 {
        check(2, move || {
            let lines = Lines::new(8, LINE, mortal);
            let writer = {
                let lines = lines.clone();
                loom::thread::spawn(move || {
                    FUSE.set(fuse);
                    let mut producer = Producer::attach(lines.clone()).unwrap();
                    for value in [1000, 2000] {
                        let place = producer.reserve(Kind::Data, 0, LINE).unwrap();
                        lines.write(place, LINE, value);
                        producer.commit();
                    }
                    FUSE.set(usize::MAX);
                    let mut producer = Producer::attach(lines.clone()).unwrap();
                    let place = producer.reserve(Kind::Data, 0, LINE).unwrap();
                    lines.write(place, LINE, 3000);
                    producer.commit();
                })
            };
            let mut consumer = Consumer::attach(lines.clone()).unwrap();
            let mut values = Vec::new();
            while values.last() != Some(&3000) {
                match consumer.take().unwrap() {
                    Some(step) => values.push(lines.read(&step)),
                    None => loom::thread::yield_now(),
                }
            }
            assert!([&[3000][..], &[1000, 3000], &[1000, 2000, 3000]].contains(&&values[..]), "{values:?}");
            writer.join().unwrap();
        });
    }
}

/// The model is worth something: without the fence on one side it finds the lost wake-up.
#[test]
#[should_panic(expected = "deadlock")]
fn without_a_fence_a_wakeup_is_lost() {
    check(3, || {
        let shared = Shared::new(4, LINE - HEADER);
        let writer = {
            let shared = shared.clone();
            loom::thread::spawn(move || {
                let mut producer = Producer::attach(shared.lines.clone()).unwrap();
                let place = producer.reserve(Kind::Data, 0, 8).unwrap();
                shared.lines.write(place, 8, 1);
                producer.commit();
                if shared.sleeping.load(Ordering::Relaxed) != 0 {
                    shared.reader.write();
                }
            })
        };
        let mut consumer = Consumer::attach(shared.lines.clone()).unwrap();
        assert_eq!(shared.receive_until(&mut consumer, 1), [1]);
        writer.join().unwrap();
    });
}

/// And it finds the torn frame if the header is stored without release.
#[test]
#[should_panic(expected = "Causality violation")]
fn without_release_a_frame_is_torn() {
    check(3, || {
        let lines = Lines::new(8, LINE, immortal);
        let writer = {
            let lines = lines.clone();
            loom::thread::spawn(move || {
                lines.write(HEADER, LINE, 1000);
                lines.header(0).store(1 << 56 | LINE as u64, Ordering::Relaxed);
            })
        };
        let mut consumer = Consumer::attach(lines.clone()).unwrap();
        loop {
            match consumer.take().unwrap() {
                Some(step) => {
                    assert_eq!(lines.read(&step), 1000, "a torn frame");
                    break;
                }
                None => loom::thread::yield_now(),
            }
        }
        writer.join().unwrap();
    });
}
