//! The end of the process, which comes before the driver's thread can do anything more: what has been sent leaves, and what was captured is
//! written.
//!
//! That holds for contexts that are open when the program ends as well, be it because it left them open or because another thread of its
//! gave up the last reference only then.
#![allow(unsafe_code)]

use super::port::{LATE, Port, SETTLE};
use parking_lot::Mutex;
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

/// Those of a parent process, too, in a child that `fork` made: they are not the child's to settle.
static PORTS: Mutex<Vec<Weak<Port>>> = Mutex::new(Vec::new());

/// The process does not end before what this port has to send and to write is out.
pub(super) fn settles(port: &Arc<Port>) {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the function takes nothing, unwinds into nobody (it would abort), and uses what outlives every call of it: statics,
        // and ports that it holds references to. A library that is unloaded takes its handlers with it (atexit(3), NOTES).
        if unsafe { libc::atexit(at_exit) } != 0 {
            tracing::warn!("the end of the process cannot be watched: the end of a capture may be missing");
        }
    });
    let mut ports = PORTS.lock();
    ports.retain(|port| port.strong_count() != 0);
    ports.push(Arc::downgrade(port));
}

/// How long the end of a process waits for whoever makes progress, which may be the very thread that ends it.
const ROUND: Duration = Duration::from_millis(100);

/// Waits for nothing without end, as far as it can be helped: somebody may have called `exit` in the middle of anything, or even in a handler of
/// signals.
extern "C" fn at_exit() {
    let now = Instant::now();
    let Some(ports) = PORTS.try_lock_until(now + ROUND).map(|mut ports| std::mem::take(&mut *ports)) else { return };
    let ports: Vec<_> = ports.iter().filter_map(Weak::upgrade).filter(|port| !port.is_inherited()).collect();
    ports.iter().for_each(|port| port.await_round(now + ROUND));
    // First where there is no need to wait.
    let waits: Vec<_> = ports.iter().filter(|port| !port.send_waiting(now)).collect();
    let until = Instant::now() + SETTLE;
    if waits.iter().filter(|port| !port.send_waiting(until)).count() != 0 {
        say(&format!("packets that were sent are lost: {LATE}"));
    }
    let until = Instant::now() + SETTLE;
    for capture in ports.iter().filter_map(|port| port.capture.as_ref()) {
        if let Err(error) = capture.finish_until(until) {
            say(&format!("the capture is incomplete: {error}"));
        }
    }
}

/// There is no log any more: what it needs of this thread may be gone.
fn say(text: &str) {
    let _ = rustix::io::write(std::io::stderr(), format!("warning: {text}\n").as_bytes());
}
