//! Two processes: every byte arrives, and nobody sleeps on.

mod shm_support;

use ferroce_soft::link::shm::Frame;
use shm_support::{Context, Process, Scratch, check, command, fill, length, role, watchdog};

const FRAMES: u64 = 1_000_000;

/// Sends and receives `frames` frames at once, with whom lives in the other slot of two.
fn exchange(context: &mut Context, frames: u64) {
    let own = context.member.slot();
    let peer = 1 - own;
    context.await_peer(peer);
    let (mut sent, mut received) = (0, 0);
    while sent < frames || received < frames {
        let mut blocked = false;
        for _ in 0..64 {
            if sent == frames {
                blocked = true;
                break;
            }
            if !context.send(peer, length(sent), sent as u32 & 0xFF_FFFF, |room| {
                fill(room, own.into(), sent);
            }) {
                blocked = true;
                break;
            }
            sent += 1;
        }
        let before = received;
        context.receiver.poll_frames(64, |frame| take(&mut received, peer, frame));
        if received == before && blocked && (sent < frames || received < frames) {
            context.poll_or_sleep(|frame| take(&mut received, peer, frame));
        }
    }
    assert_eq!(context.receiver.counters().rings_shut, 0);
}

/// Checks a frame and counts it.
fn take(received: &mut u64, peer: u8, frame: Frame<'_>) {
    assert_eq!(frame.slot, peer);
    assert_eq!(frame.tag, *received as u32 & 0xFF_FFFF);
    assert_eq!(frame.bytes.len(), length(*received));
    assert_eq!(check(frame.bytes, peer.into()), *received);
    *received += 1;
}

/// Runs `work` in this process and in another.
fn two_processes(test: &str, work: impl Fn(&mut Context)) {
    watchdog();
    if let Some((_, directory)) = role() {
        return work(&mut Context::join(&directory));
    }
    let scratch = Scratch::new();
    let mut context = Context::join(&scratch.path());
    let mut other = Process::spawn(command(test, "other", &scratch.path()));
    work(&mut context);
    assert!(other.wait().success());
    assert_eq!(scratch.files(), Scratch::expected_files(&[&context.member]));
}

#[test]
fn a_million_frames_each_way() {
    two_processes("a_million_frames_each_way", |context| {
        exchange(context, FRAMES);
    });
}

/// Each side sleeps before each frame: a lost wake-up stops both for ever.
#[test]
fn every_frame_wakes_a_sleeper() {
    two_processes("every_frame_wakes_a_sleeper", |context| {
        let own = context.member.slot();
        context.await_peer(1 - own);
        let mut turn = 0;
        while turn < 40_000 {
            if turn % 2 == u64::from(own) {
                assert!(context.send(1 - own, 100, 0, |room| fill(room, own.into(), turn)));
                turn += 1;
            } else {
                context.poll_or_sleep(|frame| {
                    assert_eq!(check(frame.bytes, u64::from(1 - own)), turn);
                    turn += 1;
                });
            }
        }
    });
}
