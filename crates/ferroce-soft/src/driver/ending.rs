//! The end of the process, which comes before the driver's thread can do anything more: what has been sent leaves, and what was captured is
//! written.
//!
//! That holds for contexts that are open when the program ends as well, be it because it left them open or because another thread of its
//! gave up the last reference only then.
#![allow(unsafe_code)]

use super::port::{Port, SETTLE};
use parking_lot::Mutex;
use std::sync::{Arc, Once, Weak};
use std::time::Instant;

/// Those of a parent process, too, in a child that `fork` made: they are not the child's to settle.
static PORTS: Mutex<Vec<Weak<Port>>> = Mutex::new(Vec::new());

/// The process does not end before [`Port::settle`] was called for this port.
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

extern "C" fn at_exit() {
    let until = Instant::now() + SETTLE;
    // In time, though somebody calls `exit` in a handler of signals, in the middle of anything.
    let Some(ports) = PORTS.try_lock_until(until).map(|mut ports| std::mem::take(&mut *ports)) else { return };
    for port in ports.iter().filter_map(Weak::upgrade) {
        port.settle(until);
    }
}
