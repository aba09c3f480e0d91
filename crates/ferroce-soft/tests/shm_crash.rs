//! Contexts that are killed: the others go on, and nothing stays behind.

mod shm_support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use ferroce_soft::host::{LockError, Registry};
use ferroce_soft::link::shm::Frame;
use rand::Rng;
use shm_support::{Context, Process, Scratch, check, command, fill, join, length, options, role, watchdog};

const ROUNDS: usize = 150;

/// Frames between pairs of contexts: each sender numbers what it sends to one incarnation from zero.
#[derive(Default)]
struct Traffic {
    sent: HashMap<u64, u64>,
    received: HashMap<u64, u64>,
}

impl Traffic {
    /// Sends a frame to everybody who lives, if there is room.
    fn send_to_all(&mut self, context: &Context) {
        for slot in 0..254 {
            let Ok(lane) = context.sender.lane(slot) else {
                continue;
            };
            let mut lane = lane.lock();
            let Some(incarnation) = lane.incarnation() else {
                continue;
            };
            let number = self.sent.entry(incarnation).or_default();
            let who = context.member.incarnation();
            if let Some(room) = lane.reserve(length(*number), 7) {
                fill(room, who, *number);
                lane.commit();
                *number += 1;
            }
        }
    }

    /// Whoever sent it and whatever became of them: whole, in order, without a gap.
    fn receive(&mut self, frame: Frame<'_>) {
        let expected = self.received.entry(frame.incarnation).or_default();
        assert_eq!(check(frame.bytes, frame.incarnation), *expected);
        assert_eq!((frame.tag, frame.bytes.len()), (7, length(*expected)));
        *expected += 1;
    }
}

/// One turn of a context that talks to all.
fn turn(context: &mut Context, traffic: &mut Traffic) {
    traffic.send_to_all(context);
    context.receiver.poll_frames(256, |frame| traffic.receive(frame));
    assert_eq!(context.receiver.counters().rings_shut, 0);
}

/// Talks to all until it is killed.
fn talk(directory: &Path) {
    let mut context = Context::join(directory);
    let mut traffic = Traffic::default();
    for turns in 0_u64.. {
        turn(&mut context, &mut traffic);
        if turns.is_multiple_of(64) {
            context.sender.detach_dead();
            context.receiver.retire_dead();
            context.member.reap().ok();
        }
    }
}

/// Joins and leaves until it is killed.
fn come_and_go(directory: &Path) {
    loop {
        let mut context = Context::join(directory);
        turn(&mut context, &mut Traffic::default());
    }
}

#[test]
fn killed_at_random() {
    watchdog();
    match role() {
        Some((role, directory)) if role == "talk" => return talk(&directory),
        Some((_, directory)) => return come_and_go(&directory),
        None => {}
    }
    let scratch = Scratch::new();
    let directory = scratch.path();
    let spawn = |role| Process::spawn(command("killed_at_random", role, &directory));
    let mut context = Context::join(&directory);
    let mut traffic = Traffic::default();
    // One that is never killed, whose traffic has to go on whatever happens to the others.
    let survivor = spawn("talk");
    context.await_peer(1);
    let survivor_incarnation = context.member.peer(1).unwrap();
    let mut mortals: Vec<_> = ["talk", "talk", "come and go"].map(|role| (role, spawn(role))).into();
    let mut random = rand::rng();
    for _ in 0..ROUNDS {
        let victim = random.random_range(0..mortals.len());
        // Not to wait for anything, but to die at another point each time; often in the middle of the first join.
        let deadline = std::time::Instant::now() + Duration::from_micros(random.random_range(0..20_000));
        while std::time::Instant::now() < deadline {
            turn(&mut context, &mut traffic);
        }
        let (role, mut process) = mortals.swap_remove(victim);
        process.kill();
        mortals.push((role, spawn(role)));
        // On a busy machine somebody may hold the lock for longer than this is ready to wait.
        while let Err(error) = context.member.reap() {
            assert!(matches!(error, LockError::Busy { .. }), "{error}");
        }
        context.sender.detach_dead();
        context.receiver.retire_dead();
        // The survivor still sends, and what it sends is received.
        let before = traffic.received.get(&survivor_incarnation).copied();
        while traffic.received.get(&survivor_incarnation).copied() == before {
            turn(&mut context, &mut traffic);
        }
    }
    assert!(context.member.is_alive(1));
    drop((survivor, mortals));
    // All are dead; the next who joins finds their slots and removes their files.
    drop(join(&directory));
    assert_eq!(scratch.files(), Scratch::expected_files(&[&context.member]));
    assert_eq!(context.member.live_slots().len(), 1);
    // What they had sent is read, and then their rings are given back.
    assert_rings_are_given_back(&mut context, &mut traffic, &directory);
}

/// With all others dead, reads what they sent and gives their rings back: of the segment only the control page and the
/// ring to itself have storage.
fn assert_rings_are_given_back(context: &mut Context, traffic: &mut Traffic, directory: &Path) {
    while !context.receiver.prepare_sleep() {
        context.receiver.poll_frames(256, |frame| traffic.receive(frame));
    }
    context.receiver.cancel_sleep();
    context.receiver.retire_dead();
    let segment = directory.join(format!("slot-{}-{}", context.member.slot(), context.member.incarnation()));
    let bytes = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(segment).unwrap()) * 512;
    assert!(bytes <= 2 * 4096 + (512 << 10), "{bytes} bytes are still in use");
}

/// What the traced process does: joins, talks to the one who lives, leaves.
fn one_life(directory: &Path) {
    let mut context = Context::join(directory);
    turn(&mut context, &mut Traffic::default());
}

/// Kills a context before and after each system call that it makes, from its join to the end of its leave: there is no
/// such instant after which the next join does not find everything in order.
#[test]
fn killed_at_every_system_call() {
    watchdog();
    if let Some((_, directory)) = role() {
        // Said only now, because who is not traced cannot be waited for. Zero: not permitted.
        println!("{}", if trace::by_parent() { rustix::thread::gettid().as_raw_pid() } else { 0 });
        trace::stop();
        return one_life(&directory);
    }
    let scratch = Scratch::new();
    let directory = scratch.path();
    let mut context = Context::join(&directory);
    let mut traffic = Traffic::default();
    let mut stops = 0;
    loop {
        let mut command = command("killed_at_every_system_call", "traced", &directory);
        command.stdout(Stdio::piped());
        let mut process = Process::spawn(command);
        let mut output = BufReader::new(process.take_output());
        let thread = loop {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the traced process says nothing");
            // The test harness may have begun the line.
            if let Some(Ok(thread)) = line.split_whitespace().last().map(str::parse) {
                break thread;
            }
        };
        if thread == 0 {
            eprintln!("skipped: this system does not permit tracing");
            return;
        }
        let ended = trace::run(thread, stops);
        if !ended {
            process.send_kill();
            // Its process cannot be waited for before.
            trace::await_end(thread);
        }
        process.kill();
        // Another finds a slot, and nothing of the dead one stays.
        let next = Registry::join(&options(&directory)).unwrap();
        assert_eq!(scratch.files(), Scratch::expected_files(&[&context.member, &next]), "after {stops} stops");
        assert_eq!(next.live_slots().len(), 2);
        drop(next);
        // The living talk on.
        turn(&mut context, &mut traffic);
        turn(&mut context, &mut traffic);
        assert_rings_are_given_back(&mut context, &mut traffic, &directory);
        assert!(traffic.received[&context.member.incarnation()] > 0);
        if ended {
            break;
        }
        stops += 1;
    }
    // From join to leave there are well over a hundred.
    assert!(stops > 100, "only {stops} stops");
}

/// Just enough of ptrace(2).
mod trace {
    use std::ptr::null_mut;

    /// Lets the parent trace this thread. Returns whether that is permitted.
    pub(super) fn by_parent() -> bool {
        // SAFETY: takes no pointers; from here on this thread stops for signals.
        unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<()>(), null_mut::<()>()) == 0 }
    }

    /// Stops this thread for its tracer.
    pub(super) fn stop() {
        // SAFETY: sends a signal to this thread, which stops it.
        unsafe { libc::raise(libc::SIGSTOP) };
    }

    /// Waits for the end of a thread that was killed.
    pub(super) fn await_end(thread: libc::pid_t) {
        while !run(thread, 0) {}
    }

    /// Lets the thread run for that many stops, one before and one after each system call. Returns true if it ended
    /// before.
    pub(super) fn run(thread: libc::pid_t, stops: usize) -> bool {
        // That of the signal, and the stops.
        for stop in 0..=stops {
            let mut status = 0;
            // SAFETY: the pointer is to a local.
            let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) };
            assert_eq!(waited, thread, "{}", std::io::Error::last_os_error());
            if !libc::WIFSTOPPED(status) {
                return true;
            }
            if stop < stops {
                // SAFETY: a stopped tracee of this thread; no pointers are used.
                unsafe { libc::ptrace(libc::PTRACE_SYSCALL, thread, null_mut::<()>(), null_mut::<()>()) };
            }
        }
        false
    }
}
