//! What a case has left. It is looked for while the devices that the case has opened are open: from a process that ends the kernel takes all away,
//! whatever it was.

use crate::support::{PATIENCE, Side};
use ferroce_cm::ConnectionManager;
use ferroce_verbs::Context;
use parking_lot::Mutex;
use std::process::Command;
use std::time::{Duration, Instant};

/// What `rdma resource show` knows of.
const KINDS: [&str; 5] = ["pd", "cq", "mr", "qp", "cm_id"];

/// The counters of a context that say how many objects it has.
const COUNTERS: [&str; 7] = [
    "protection_domains",
    "address_handles",
    "memory_regions",
    "completion_queues",
    "completion_channels",
    "queue_pairs",
    "shared_receive_queues",
];

/// All devices that a case has opened.
#[derive(Default)]
pub(crate) struct Opened(Mutex<Vec<(Context, ConnectionManager)>>);

impl Opened {
    /// Keeps what it stands on open.
    pub(crate) fn note(&self, side: &Side) {
        self.0.lock().push((side.cm.context().clone(), side.cm.clone()));
    }

    /// Waits until neither these devices nor the kernel have anything for programs.
    ///
    /// # Panics
    ///
    /// If something stays, or if the kernel does not tell.
    pub(crate) fn are_empty(&self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = [self.counted(), in_kernel()].concat();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "left:\n{}", left.join("\n"));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// What the contexts and the managers count themselves.
    fn counted(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (context, cm) in &*self.0.lock() {
            let counters = context.counters();
            for name in COUNTERS {
                let found = counters.iter().find(|(found, _)| *found == name);
                match found.unwrap_or_else(|| panic!("the device does not count {name}")).1 {
                    0 => {}
                    count => left.push(format!("{count} {name}")),
                }
            }
            if cm.id_count() != 0 {
                left.push(format!("{} ids", cm.id_count()));
            }
        }
        left
    }
}

/// What the kernel has for programs, a line for each object; no other program is to use RDMA meanwhile. It names the thread that has made an object, and
/// nobody once that has ended; its own objects have names in brackets.
fn in_kernel() -> Vec<String> {
    let mut left = Vec::new();
    for kind in KINDS {
        let shown = Command::new("rdma").args(["resource", "show", kind]).output();
        let shown = shown.unwrap_or_else(|why| panic!("rdma resource show {kind}: {why}"));
        assert!(shown.status.success(), "{kind}: {}", String::from_utf8_lossy(&shown.stderr));
        let text = String::from_utf8_lossy(&shown.stdout);
        left.extend(text.lines().filter(|line| !line.contains(" comm [")).map(|line| format!("{kind}: {line}")));
    }
    left
}
