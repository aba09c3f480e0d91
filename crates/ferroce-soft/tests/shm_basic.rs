//! Contexts of one process: joining, sending, receiving, leaving.

use std::path::Path;
use std::sync::Arc;

use ferroce_soft::host::{JoinError, JoinOptions, Membership, Registry};
use ferroce_soft::link::shm::{AttachError, MAX_FRAME, MAX_TAG, ShmReceiver, ShmSender};

fn options(directory: &Path) -> JoinOptions {
    JoinOptions { directory: Some(directory.join("registry")), ..JoinOptions::default() }
}

fn join(directory: &Path) -> Arc<Membership> {
    Arc::new(Registry::join(&options(directory)).unwrap())
}

fn send(sender: &ShmSender, slot: u8, tag: u32, bytes: &[u8]) -> bool {
    let mut lane = sender.lane(slot).unwrap().lock();
    let Some(room) = lane.reserve(bytes.len(), tag) else {
        return false;
    };
    room.copy_from_slice(bytes);
    lane.commit();
    true
}

fn receive(receiver: &mut ShmReceiver) -> Vec<(u8, u32, Vec<u8>)> {
    let mut frames = Vec::new();
    receiver.poll(1000, &mut |slot, tag, bytes| {
        frames.push((slot, tag, bytes.to_vec()));
    });
    frames
}

fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory.join("registry")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn frames_go_round() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (a, b) = (join(directory.path()), join(directory.path()));
    assert_eq!((a.slot(), b.slot()), (0, 1));
    assert_ne!(a.incarnation(), b.incarnation());
    assert_eq!(a.nonce(), b.nonce());
    assert_eq!(a.peer(1), Some(b.incarnation()));
    assert_eq!(a.peer(2), None);
    assert_eq!(a.peer(254), None);

    let (to_b, to_a) = (ShmSender::new(a.clone()).unwrap(), ShmSender::new(b.clone()).unwrap());
    let (mut at_a, mut at_b) = (ShmReceiver::new(a.clone()).unwrap(), ShmReceiver::new(b.clone()).unwrap());
    assert!(receive(&mut at_b).is_empty());
    assert!(send(&to_b, 1, 5, b"ping"));
    assert!(send(&to_b, 1, MAX_TAG, &[7; MAX_FRAME]));
    assert!(send(&to_b, 1, 0, b""));
    assert_eq!(receive(&mut at_b), [(0, 5, b"ping".to_vec()), (0, MAX_TAG, vec![7; MAX_FRAME]), (0, 0, vec![])]);
    assert!(send(&to_a, 0, 6, b"pong"));
    let mut from = None;
    at_a.poll_frames(1, |frame| {
        from = Some((frame.slot, frame.incarnation, frame.bytes.to_vec()));
    });
    assert_eq!(from, Some((1, b.incarnation(), b"pong".to_vec())));
    // To itself.
    assert!(send(&to_a, 1, 9, b"self"));
    assert_eq!(receive(&mut at_b), [(1, 9, b"self".to_vec())]);
}

#[test]
fn one_sender_and_one_receiver() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let a = join(directory.path());
    let sender = ShmSender::new(a.clone()).unwrap();
    assert!(ShmSender::new(a.clone()).is_err());
    drop(sender);
    let sender = ShmSender::new(a.clone()).unwrap();
    let mut receiver = ShmReceiver::new(a.clone()).unwrap();
    assert!(ShmReceiver::new(a.clone()).is_err());
    assert!(send(&sender, 0, 1, b"one"));
    assert!(send(&sender, 0, 2, b"two"));
    let mut seen = Vec::new();
    receiver.poll(1, &mut |_, tag, _| seen.push(tag));
    // The next ones continue where these stop.
    drop((sender, receiver));
    let sender = ShmSender::new(a.clone()).unwrap();
    assert!(send(&sender, 0, 3, b"three"));
    let mut receiver = ShmReceiver::new(a.clone()).unwrap();
    seen.extend(receive(&mut receiver).into_iter().map(|(_, tag, _)| tag));
    assert_eq!(seen, [1, 2, 3]);
}

#[test]
fn leaving_frees_slot_and_files() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let a = join(directory.path());
    let b = join(directory.path());
    let sender = ShmSender::new(a.clone()).unwrap();
    assert!(send(&sender, 1, 1, b"x"));
    assert!(a.is_alive(1));
    drop(b);
    assert!(!a.is_alive(1));
    assert!(matches!(sender.lane(1), Err(AttachError::PeerGone { slot: 1 })));
    assert!(matches!(sender.lane(254), Err(AttachError::NoSuchSlot { slot: 254 })));
    assert_eq!(files(directory.path()), ["lock", "registry", "slot-0-1", "slot-0-1.wake"]);
    assert_eq!(a.live_slots().len(), 1);
    // A slot is used again as late as possible.
    let c = join(directory.path());
    assert_eq!(c.slot(), 2);
    for expected in (3..254).chain(1..2) {
        let next = join(directory.path());
        assert_eq!(next.slot(), expected);
    }
    sender.detach_dead();
    let again = join(directory.path());
    assert_eq!(again.slot(), 3);
    assert!(again.incarnation() > 254);
}

#[test]
fn all_slots_taken() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let members: Vec<_> = (0..254).map(|_| join(directory.path())).collect();
    let error = Registry::join(&options(directory.path())).unwrap_err();
    assert!(matches!(error, JoinError::Full { .. }), "{error}");
    assert_eq!(Registry::list(options(directory.path()).directory.as_deref()).unwrap().len(), 254);
    drop(members);
    assert_eq!(files(directory.path()), ["lock", "registry"]);
}

#[test]
fn a_new_incarnation_is_noticed() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let a = join(directory.path());
    let mut receiver = ShmReceiver::new(a.clone()).unwrap();
    let mut seen = Vec::new();
    for round in 0..3 {
        // Slots are handed out in turn: occupy the others, so that the same comes again.
        let mut others: Vec<_> = (0..253).map(|_| join(directory.path())).collect();
        let at = others.iter().position(|member| member.slot() == 100).unwrap();
        let b = others.swap_remove(at);
        let sender = ShmSender::new(b.clone()).unwrap();
        assert!(send(&sender, 0, round, b"hello"));
        assert!(send(&sender, 0, round, b"again"));
        receiver.poll_frames(1, |frame| {
            seen.push((frame.tag, frame.incarnation == b.incarnation()));
        });
    }
    // What a context sent before it left arrives, under its incarnation.
    assert_eq!(receive(&mut receiver).len(), 3);
    assert_eq!(seen, [(0, true), (0, false), (1, false)]);
    assert_eq!(receiver.retire_dead(), 1);
    assert_eq!(receiver.counters().rings_retired, 1);
    assert_eq!(receiver.retire_dead(), 0);
}

#[test]
fn room_wakes_the_sender_that_waits() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (a, b) = (join(directory.path()), join(directory.path()));
    let sender = ShmSender::new(a.clone()).unwrap();
    let mut receiver = ShmReceiver::new(b.clone()).unwrap();
    let mut sent = 0;
    while send(&sender, 1, 0, &[1; 4000]) {
        sent += 1;
    }
    assert!(sender.lane(1).unwrap().lock().request_space_wakeup());
    assert!(!a.drain_wake());
    assert_eq!(receive(&mut receiver).len(), sent);
    assert!(a.drain_wake());
    assert_eq!(receiver.counters().space_wakeups, 1);
    // There is room now: nothing to wait for, and nobody is woken for what nobody waits for.
    assert!(!sender.lane(1).unwrap().lock().request_space_wakeup());
    for _ in 0..2 * sent {
        assert!(send(&sender, 1, 0, &[2; 4000]));
        assert_eq!(receive(&mut receiver).len(), 1);
    }
    assert!(!a.drain_wake());
}

#[test]
fn a_sleeper_is_woken_once() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let (a, b) = (join(directory.path()), join(directory.path()));
    let sender = ShmSender::new(a).unwrap();
    let mut receiver = ShmReceiver::new(b.clone()).unwrap();
    // A ring that was not there at the last poll is work too.
    assert!(send(&sender, 1, 1, b"first"));
    assert!(!receiver.prepare_sleep());
    assert!(!b.drain_wake());
    assert_eq!(receive(&mut receiver).len(), 1);
    assert!(receiver.prepare_sleep());
    assert!(send(&sender, 1, 2, b"second"));
    assert!(b.drain_wake());
    // The sign is down: the next one costs the sender no system call.
    assert!(send(&sender, 1, 3, b"third"));
    assert!(!b.drain_wake());
    receiver.cancel_sleep();
    assert_eq!(receive(&mut receiver).len(), 2);
}
