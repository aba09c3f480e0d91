//! Writers that are killed after any number of stores.

use super::super::ring::{Consumer, HEADER, Kind, LINE, Producer};
use super::{FUSE, Lines, plain};

const LINES: usize = 16;
const LONGEST: usize = 3 * LINE - HEADER;

/// Lengths that make frames of one to three lines, in an order that wraps with and without a skip.
fn length(at: u64) -> usize {
    [LONGEST, 10, 70, 56, LONGEST, LONGEST, 1, 120][at as usize % 8]
}

/// Sends until the fuse has burnt or all is sent; returns the values whose commit returned.
fn send(lines: &std::sync::Arc<Lines<super::Plain>>, first: u64, count: u64, fuse: usize) -> Vec<u64> {
    FUSE.set(fuse);
    let mut committed = Vec::new();
    let mut producer = Producer::attach(lines.clone()).unwrap();
    for value in first..first + count {
        let Some(place) = producer.reserve(Kind::Data, 0, length(value)) else {
            break;
        };
        lines.write(place, length(value), value * 100);
        producer.commit();
        if FUSE.get() == 0 {
            break;
        }
        committed.push(value);
        producer.prepare();
        if FUSE.get() == 0 {
            break;
        }
    }
    FUSE.set(usize::MAX);
    committed
}

#[test]
fn killed_after_any_store() {
    // Begin at every place of the ring, so that every alignment of the kill with its end is met.
    for start in 0..40 {
        for fuse in 0..60 {
            let lines = Lines::new(LINES, LONGEST, plain);
            let mut consumer = Consumer::attach(lines.clone()).unwrap();
            let mut take_all = || {
                let mut values = Vec::new();
                while let Some(step) = consumer.take().unwrap() {
                    let value = lines.read(&step) / 100;
                    assert_eq!(step.length, length(value));
                    values.push(value);
                    consumer.release();
                }
                values
            };
            for value in 0..start {
                assert_eq!(send(&lines, value, 1, usize::MAX), [value]);
                assert_eq!(take_all(), [value]);
            }
            // One is killed, and so is the next, which finds what the first one left.
            let mut sent = send(&lines, start, 3, fuse);
            let received = take_all();
            // What was committed has arrived; of the last one, either nothing or all.
            assert!(received.starts_with(&sent), "{received:?} {sent:?}");
            assert!(received.len() <= sent.len() + 1);
            sent = send(&lines, 50, 2, fuse / 2);
            let received = take_all();
            assert!(received.starts_with(&sent) && received.len() <= sent.len() + 1);
            assert_eq!(send(&lines, 60, 2, usize::MAX), [60, 61]);
            assert_eq!(take_all(), [60, 61]);
        }
    }
}

/// A writer that is killed while the ring is unread, once or many times, leaves a ring that is read in order.
#[test]
fn killed_with_frames_unread() {
    for fuse in 0..60 {
        let lines = Lines::new(LINES, LONGEST, plain);
        let mut sent = Vec::new();
        for round in 0..4 {
            sent.push(send(&lines, round * 10, 2, fuse));
        }
        let mut consumer = Consumer::attach(lines.clone()).unwrap();
        let mut received = Vec::new();
        while let Some(step) = consumer.take().unwrap() {
            received.push(lines.read(&step) / 100);
        }
        assert!(received.is_sorted());
        for value in sent.into_iter().flatten() {
            assert!(received.contains(&value), "{value} is missing from {received:?} with fuse {fuse}");
        }
    }
}
