//! A ring against the model of one: a queue.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::super::ring::{Consumer, HEADER, Kind, LINE, Producer, RingMemory, Word, frame_bytes};
use super::{Lines, plain};
use std::sync::atomic::Ordering;

const LINES: usize = 32;
const LONGEST: usize = 10 * LINE - HEADER;

#[derive(Debug, Clone)]
enum Act {
    Send {
        length: usize,
        tag: u32,
    },
    /// Write a frame and think better of it, or die.
    Abandon {
        length: usize,
        dies: bool,
    },
    Prepare,
    Receive(usize),
    Wait,
    NewWriter,
    NewReader,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (0..=LONGEST, 0..1_u32 << 24).prop_map(|(length, tag)| Act::Send { length, tag }),
        1 => (0..=LONGEST, any::<bool>()).prop_map(|(length, dies)| Act::Abandon { length, dies }),
        2 => Just(Act::Prepare),
        6 => (0..6_usize).prop_map(Act::Receive),
        1 => Just(Act::Wait),
        1 => Just(Act::NewWriter),
        1 => Just(Act::NewReader),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn behaves_like_a_queue(acts in prop::collection::vec(act(), 0..200)) {
        let lines = Lines::new(LINES, LONGEST, plain);
        let mut producer = Producer::attach(lines.clone()).unwrap();
        let mut consumer = Consumer::attach(lines.clone()).unwrap();
        let mut queue = VecDeque::new();
        let mut used = 0;
        let mut value = 1;
        for act in acts {
            match act {
                Act::Send { length, tag } => {
                    let Some(place) = producer.reserve(Kind::Data, tag, length) else {
                        // Full only if there is a reason: the frame, a skip of the same size at most, what is unread,
                        // what is read but not noted (an eighth of the ring and a frame) and one line.
                        let unnoted = LINES * LINE / 8 + frame_bytes(LONGEST) * 2;
                        prop_assert!(used + 2 * frame_bytes(length) + unnoted + LINE > LINES * LINE);
                        continue;
                    };
                    prop_assert!(place + length <= LINES * LINE);
                    lines.write(place, length, value);
                    prop_assert!(producer.commit());
                    queue.push_back((length, tag, value));
                    used += frame_bytes(length);
                    value += 1;
                }
                Act::Abandon { length, dies } => {
                    if let Some(place) = producer.reserve(Kind::Data, 0, length) {
                        lines.write(place, length, u64::MAX / 2);
                    }
                    if dies {
                        // The next writer does not know of it.
                        producer = Producer::attach(lines.clone()).unwrap();
                    }
                }
                Act::Prepare => producer.prepare(),
                Act::Receive(most) => {
                    for _ in 0..most {
                        prop_assert_eq!(consumer.is_ready(), !queue.is_empty());
                        let Some(step) = consumer.take().unwrap() else {
                            prop_assert!(queue.is_empty());
                            break;
                        };
                        let read = (step.length, step.tag, lines.read(&step));
                        prop_assert_eq!(queue.pop_front(), Some(read));
                        used -= frame_bytes(step.length);
                        consumer.release();
                    }
                }
                Act::Wait => {
                    if producer.request_wakeup() {
                        // Reading all there is frees enough to be told.
                        let mut told = false;
                        while let Some(step) = consumer.take().unwrap() {
                            prop_assert_eq!(queue.pop_front().unwrap().2, lines.read(&step));
                            told |= consumer.release();
                        }
                        used = 0;
                        prop_assert!(told);
                        consumer.woken();
                        prop_assert!(producer.reserve(Kind::Data, 0, LONGEST).is_some());
                    } else {
                        prop_assert!(producer.reserve(Kind::Data, 0, LONGEST).is_some());
                    }
                }
                Act::NewWriter => producer = Producer::attach(lines.clone()).unwrap(),
                Act::NewReader => {
                    consumer.note();
                    consumer = Consumer::attach(lines.clone()).unwrap();
                }
            }
        }
        while let Some(step) = consumer.take().unwrap() {
            prop_assert_eq!(queue.pop_front().unwrap().2, lines.read(&step));
        }
        prop_assert!(queue.is_empty());
    }

    /// Whatever bytes a ring holds, neither end panics, leaves the ring or runs for ever.
    #[test]
    fn any_bytes(
        words in prop::collection::vec(
            prop_oneof![
                any::<u64>(),
                Just(0_u64),
                // Plausible ones: a kind, a small tag, a length about the size of the ring.
                (0..5_u64, 0..3000_u64).prop_map(|(kind, length)| kind << 56 | length),
            ],
            LINES + 3,
        ),
        scale in prop_oneof![Just(0_u64), Just(LINE as u64), any::<u64>()],
    ) {
        let lines = Lines::new(LINES, LONGEST, plain);
        for (line, word) in lines.headers.iter().zip(&words) {
            line.store(*word, Ordering::Relaxed);
        }
        lines.head.store((words[LINES] % 100).wrapping_mul(scale), Ordering::Relaxed);
        lines.tail.store((words[LINES + 1] % 100).wrapping_mul(scale), Ordering::Relaxed);
        if let Ok(mut consumer) = Consumer::attach(lines.clone()) {
            for _ in 0..1000 {
                match consumer.take() {
                    Ok(Some(step)) => prop_assert!(step.payload + step.length <= lines.bytes()),
                    Ok(None) | Err(_) => break,
                }
                consumer.release();
            }
        }
        lines.head.store((words[LINES] % 100).wrapping_mul(scale), Ordering::Relaxed);
        if let Ok(mut producer) = Producer::attach(lines.clone()) {
            for at in 0..100 {
                if let Some(place) = producer.reserve(Kind::Data, 1, at * 6) {
                    prop_assert!(place + at * 6 <= lines.bytes());
                    producer.commit();
                    producer.prepare();
                }
                // A reader gone mad.
                lines.head.store(words[at % words.len()], Ordering::Relaxed);
                let _ = producer.request_wakeup();
            }
        }
    }
}
