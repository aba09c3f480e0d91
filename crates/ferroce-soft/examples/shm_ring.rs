//! Measures the shared-memory rings between two processes: latency, frame rate, bandwidth.
//!
//! ```text
//! cargo run --release -p ferroce-soft --example shm_ring
//! ```
//!
//! The numbers are those of the link alone: no protocol, no completion. Each figure is the best and the median of
//! several rounds, since on a busy machine the rest measures the neighbours. The processes pin themselves to the first
//! and the last processor that they may use.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferroce_soft::host::{JoinOptions, Membership, Registry};
use ferroce_soft::link::shm::{ShmReceiver, ShmSender};

type Outcome<T> = Result<T, Box<dyn Error>>;

const CHILD: &str = "FERROCE_SHM_RING_CHILD";
const ROUNDS: usize = 15;
const PINGS: u64 = 200_000;
const FRAMES: u64 = 2_000_000;
const BULK_FRAMES: u64 = 200_000;
const BULK_BYTES: usize = 4096;

/// What a frame is about.
const PING: u32 = 1;
const DATA: u32 = 2;
const BULK: u32 = 3;
const ASK: u32 = 4;
const END: u32 = 5;

struct Context {
    sender: ShmSender,
    receiver: ShmReceiver,
    peer: u8,
}

fn main() -> Outcome<()> {
    if let Some(directory) = std::env::var_os(CHILD) {
        return echo(join(directory.into(), 1)?);
    }
    let directory = PathBuf::from(format!("/dev/shm/ferroce-bench-{}", std::process::id()));
    let membership = member(directory.clone())?;
    let mut child = std::process::Command::new(std::env::current_exe()?).env(CHILD, &directory).spawn()?;
    while membership.peer(1).is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let outcome = measure(context(membership, 1, 0)?);
    let status = child.wait()?;
    std::fs::remove_dir_all(&directory)?;
    outcome?;
    if status.success() { Ok(()) } else { Err(format!("the other process ended with {status}").into()) }
}

fn member(directory: PathBuf) -> Outcome<Arc<Membership>> {
    Ok(Arc::new(Registry::join(&JoinOptions { directory: Some(directory), ..JoinOptions::default() })?))
}

fn join(directory: PathBuf, cpu: usize) -> Outcome<Context> {
    context(member(directory)?, 0, cpu)
}

fn context(membership: Arc<Membership>, peer: u8, end: usize) -> Outcome<Context> {
    pin(end)?;
    Ok(Context { sender: ShmSender::new(membership.clone())?, receiver: ShmReceiver::new(membership)?, peer })
}

/// Pins this thread to the first (0) or last (1) processor it may use.
fn pin(end: usize) -> Outcome<()> {
    let allowed = rustix::thread::sched_getaffinity(None)?;
    let mut usable = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let cpu = if end == 0 { usable.next() } else { usable.next_back() };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu.ok_or("no processor")?);
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// The measuring side.
fn measure(mut context: Context) -> Outcome<()> {
    report("half round trip of 8 bytes, ns", false, || {
        let start = Instant::now();
        for ping in 0..PINGS {
            context.send(PING, &ping.to_ne_bytes())?;
            context.wait(PING);
        }
        Ok(start.elapsed().as_nanos() as f64 / PINGS as f64 / 2.0)
    })?;
    for batch in [1, 16] {
        report(&format!("8-byte frames, {batch} per batch, M/s"), true, || {
            let start = Instant::now();
            context.stream(DATA, 8, FRAMES, batch)?;
            Ok(FRAMES as f64 / start.elapsed().as_secs_f64() / 1e6)
        })?;
    }
    report("4096-byte frames, one copy in and one out, GB/s", true, || {
        let start = Instant::now();
        context.stream(BULK, BULK_BYTES, BULK_FRAMES, 4)?;
        Ok((BULK_FRAMES * BULK_BYTES as u64) as f64 / start.elapsed().as_secs_f64() / 1e9)
    })?;
    let empty = 10_000_000;
    report("poll of an empty ring, ns", false, || {
        let start = Instant::now();
        for _ in 0..empty {
            context.receiver.poll(16, &mut |_, _, _| {});
        }
        Ok(start.elapsed().as_nanos() as f64 / f64::from(empty))
    })?;
    context.send(END, &[])
}

fn report(what: &str, most: bool, mut round: impl FnMut() -> Outcome<f64>) -> Outcome<()> {
    let mut values = (0..ROUNDS).map(|_| round()).collect::<Outcome<Vec<f64>>>()?;
    values.sort_by(f64::total_cmp);
    let best = if most { values[ROUNDS - 1] } else { values[0] };
    println!("{what}: best {best:.2}, median {:.2}", values[ROUNDS / 2]);
    Ok(())
}

/// The other side: answers pings, takes the rest, says when asked that it has taken it.
fn echo(mut context: Context) -> Outcome<()> {
    let mut target = vec![0; BULK_BYTES];
    let mut sum = 0;
    let mut idle = 0_u64;
    loop {
        let (mut answer, mut end) = (None, false);
        context.receiver.poll(64, &mut |_, tag, bytes| match tag {
            DATA => sum += bytes.len(),
            BULK => target[..bytes.len()].copy_from_slice(bytes),
            END => end = true,
            _ => answer = Some(tag),
        });
        idle = if answer.is_some() { 0 } else { idle + 1 };
        if idle.is_multiple_of(1 << 24) && !context.receiver.membership().is_alive(context.peer) {
            return Err("the measuring process is gone".into());
        }
        if let Some(tag) = answer {
            context.send(tag, &8u64.to_ne_bytes())?;
        }
        if end {
            std::hint::black_box((sum, target));
            return Ok(());
        }
    }
}

impl Context {
    fn send(&self, tag: u32, bytes: &[u8]) -> Outcome<()> {
        let mut lane = self.sender.lane(self.peer)?.lock();
        loop {
            if let Some(room) = lane.reserve(bytes.len(), tag) {
                room.copy_from_slice(bytes);
                lane.commit();
                return Ok(());
            }
            std::hint::spin_loop();
        }
    }

    fn wait(&mut self, wanted: u32) {
        let mut seen = false;
        while !seen {
            self.receiver.poll(16, &mut |_, tag, _| seen = tag == wanted);
        }
    }

    fn stream(&mut self, tag: u32, bytes: usize, frames: u64, batch: u64) -> Outcome<()> {
        let source = vec![1; bytes];
        let mut sent = 0;
        while sent < frames {
            let mut lane = self.sender.lane(self.peer)?.lock();
            for _ in 0..batch {
                let Some(room) = lane.reserve(bytes, tag) else {
                    break;
                };
                room.copy_from_slice(&source);
                lane.commit();
                sent += 1;
            }
        }
        self.send(ASK, &[])?;
        self.wait(ASK);
        Ok(())
    }
}
