//! What the tests of the shared-memory link have in common.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use ferroce_soft::host::{JoinOptions, Membership, Registry};
use ferroce_soft::link::shm::{Frame, MAX_FRAME, ShmReceiver, ShmSender};
use rustix::event::{PollFd, PollFlags, poll};

/// Names the role of a re-executed test.
const ROLE: &str = "FERROCE_TEST_ROLE";
/// Names the runtime directory of a re-executed test. Not the variable of the library, so that it is not found by chance.
const DIRECTORY: &str = "FERROCE_TEST_DIRECTORY";

/// A runtime directory that is removed at the end, on a file system in memory.
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    /// Where the registry is to be; the library makes it.
    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("registry")
    }

    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The files that these members account for.
    pub(crate) fn expected_files(members: &[&Membership]) -> Vec<String> {
        let mut names = vec!["lock".to_owned(), "registry".to_owned()];
        for member in members {
            let name = format!("slot-{}-{}", member.slot(), member.incarnation());
            names.push(format!("{name}.wake"));
            names.push(name);
        }
        names.sort();
        names
    }
}

pub(crate) fn options(directory: &Path) -> JoinOptions {
    JoinOptions { directory: Some(directory.into()), patience: Duration::from_secs(60), ..JoinOptions::default() }
}

pub(crate) fn join(directory: &Path) -> Arc<Membership> {
    Arc::new(Registry::join(&options(directory)).unwrap())
}

/// Ends the process if the test takes so long that it must have hung: a lost wake-up is a failure, not a hung build.
pub(crate) fn watchdog() {
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(240));
        eprintln!("the test hangs: a wake-up was lost, or somebody waits for the dead");
        std::process::exit(101);
    });
}

/// The role of this process, if it was started by [`spawn`], and its directory.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    let role = std::env::var(ROLE).ok()?;
    Some((role, std::env::var_os(DIRECTORY).unwrap().into()))
}

/// A command that runs the named test of this binary again, in another role.
pub(crate) fn command(test: &str, role: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ROLE, role).env(DIRECTORY, directory);
    command
}

/// A child that does not outlive the test.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn spawn(mut command: Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn send_kill(&mut self) {
        self.0.kill().unwrap();
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }

    pub(crate) fn take_output(&mut self) -> std::process::ChildStdout {
        self.0.stdout.take().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A context with both ends.
pub(crate) struct Context {
    pub(crate) member: Arc<Membership>,
    pub(crate) sender: ShmSender,
    pub(crate) receiver: ShmReceiver,
}

impl Context {
    pub(crate) fn join(directory: &Path) -> Self {
        let member = join(directory);
        let sender = ShmSender::new(member.clone()).unwrap();
        let receiver = ShmReceiver::new(member.clone()).unwrap();
        Self { member, sender, receiver }
    }

    /// Polls; sleeps first if there is nothing, until somebody wakes this context.
    pub(crate) fn poll_or_sleep(&mut self, f: impl FnMut(Frame<'_>)) -> usize {
        if self.receiver.prepare_sleep() {
            self.sleep();
            self.receiver.cancel_sleep();
            self.member.drain_wake();
        }
        self.receiver.poll_frames(64, f)
    }

    fn sleep(&self) {
        let mut fds = [PollFd::from_borrowed_fd(self.member.wake_fd(), PollFlags::IN)];
        while poll(&mut fds, None) == Err(rustix::io::Errno::INTR) {}
    }

    /// Sends a frame if there is room. If not, asks to be woken; false may also mean that it is worth trying again.
    pub(crate) fn send(&self, slot: u8, length: usize, tag: u32, fill: impl FnOnce(&mut [u8])) -> bool {
        let Ok(lane) = self.sender.lane(slot) else {
            return true;
        };
        let mut lane = lane.lock();
        loop {
            if let Some(room) = lane.reserve(length, tag) {
                fill(room);
                lane.commit();
                return true;
            }
            if lane.incarnation().is_none() {
                return true;
            }
            if lane.request_space_wakeup() {
                return false;
            }
        }
    }

    /// Waits until somebody else lives in `slot`.
    pub(crate) fn await_peer(&self, slot: u8) {
        while self.member.peer(slot).is_none() {
            std::thread::yield_now();
        }
    }
}

/// A frame's length, from its number: mostly short, sometimes of any length.
pub(crate) fn length(number: u64) -> usize {
    let hash = mix(number);
    let most = match hash % 1000 {
        0 => MAX_FRAME - 8,
        1..100 => 2000,
        _ => 100,
    };
    8 + (hash >> 20) as usize % (most + 1)
}

/// Fills a frame so that every byte tells of its number and of who sent it.
pub(crate) fn fill(bytes: &mut [u8], who: u64, number: u64) {
    let (head, body) = bytes.split_at_mut(8);
    head.copy_from_slice(&number.to_le_bytes());
    let seed = mix(who ^ number << 16);
    for (at, chunk) in body.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&seed.wrapping_mul(at as u64 + 1).to_le_bytes()[..chunk.len()]);
    }
}

/// The number of a frame; asserts that every byte is as [`fill`] wrote it.
pub(crate) fn check(bytes: &[u8], who: u64) -> u64 {
    let (head, body) = bytes.split_at(8);
    let number = u64::from_le_bytes(head.try_into().unwrap());
    let seed = mix(who ^ number << 16);
    for (at, chunk) in body.chunks(8).enumerate() {
        assert_eq!(chunk, &seed.wrapping_mul(at as u64 + 1).to_le_bytes()[..chunk.len()], "a torn frame");
    }
    number
}

fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 31).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (value ^ value >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
}
