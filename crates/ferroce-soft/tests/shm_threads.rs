//! Threads of one process: lanes are shared, receivers sleep.

mod shm_support;

use std::collections::HashMap;

use shm_support::{Context, Scratch, check, fill, length, watchdog};

const SENDERS: u64 = 3;
const THREADS: u64 = 2;
const FRAMES: u64 = 60_000;

/// Several contexts, each with several threads on one lane, send to one receiver, which sleeps when it can.
#[test]
fn many_to_one() {
    watchdog();
    let scratch = Scratch::new();
    let mut receiver = Context::join(&scratch.path());
    let target = receiver.member.slot();
    let senders: Vec<_> = (0..SENDERS).map(|_| Context::join(&scratch.path())).collect();
    std::thread::scope(|scope| {
        for sender in &senders {
            let member = &sender.member;
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for number in 0..FRAMES {
                        let who = u64::from(member.slot()) << 8 | thread;
                        // The FIFO is shared by the threads of the context, so this one looks again by itself.
                        while !sender.send(target, length(number), thread as u32, |room| {
                            fill(room, who, number);
                        }) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
        }
        let mut next: HashMap<(u8, u32), u64> = HashMap::new();
        let mut left = SENDERS * THREADS * FRAMES;
        while left > 0 {
            receiver.poll_or_sleep(|frame| {
                let number = next.entry((frame.slot, frame.tag)).or_default();
                assert_eq!(check(frame.bytes, u64::from(frame.slot) << 8 | u64::from(frame.tag)), *number);
                assert_eq!(frame.bytes.len(), length(*number));
                *number += 1;
                left -= 1;
            });
        }
        assert!(next.values().all(|number| *number == FRAMES));
    });
    assert_eq!(receiver.receiver.counters().rings_shut, 0);
}
