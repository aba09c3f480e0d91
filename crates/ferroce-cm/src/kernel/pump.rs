//! The thread that reads events, while no reader does.

use super::KernelManager;
use super::watch::{Seen, Watch};
use ferroce_abi::rdma_cm::RdmaCm;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A file that cannot be read is tried again after this.
const RETRY: Duration = Duration::from_millis(100);

/// Starts the thread, which ends when the manager is gone.
pub(super) fn start(device: Arc<dyn RdmaCm>, watch: Arc<Watch>, manager: Weak<KernelManager>) -> io::Result<()> {
    let run = move || run(&*device, &watch, &manager);
    std::thread::Builder::new().name("ferroce-cm".into()).spawn(run).map(drop)
}

/// What the thread does.
pub(crate) fn run(device: &dyn RdmaCm, watch: &Watch, manager: &Weak<KernelManager>) {
    let mut seen = Seen::default();
    while watch.await_turn(&mut seen) {
        let Some(manager) = manager.upgrade() else { return };
        let turn = manager.turn();
        // It may be the last reference.
        drop(manager);
        match turn {
            Ok(turn) if turn.more => {
                watch.has_read();
            }
            Ok(turn) => watch.wait_for_more(device, turn.wake_at),
            Err(error) => {
                tracing::debug!(%error, "the events of the kernel's connection manager cannot be read");
                watch.has_read();
                std::thread::sleep(RETRY);
            }
        }
    }
}
