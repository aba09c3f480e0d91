//! The device goes away while ids of all kinds use it (rdma-core #28, spdk #1184): all are told, each call has an answer, and nothing holds the
//! device up.

use crate::support::{PATIENCE, Side, connected};
use ferroce_cm::{ConnParam, EventKind};
use ferroce_verbs::{SendWr, WcStatus};
use std::time::Instant;

/// Prints `ready`, and returns once the device is gone and nothing of it is left.
pub(crate) fn run(a: &Side, b: &Side) {
    let (listener, addr) = b.listen();
    let (active, passive) = connected(a, b);
    let resolved = a.resolved(addr);
    let unread = a.connect(addr, b"");
    // Beside the listener and the connection.
    b.is_asked(1, 2);
    println!("ready");
    // What waits for the other side to read it is under way, too; the listener's own end is told.
    let mut told = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    while !(told.contains(&active) && told.contains(&resolved)) {
        assert!(Instant::now() < deadline, "{} were told", told.len());
        let event = a.event();
        match event.kind() {
            EventKind::DeviceRemoval => told.push(event.id().clone()),
            EventKind::Disconnected(_) | EventKind::Rejected { .. } | EventKind::Unreachable { .. } => {}
            kind => println!("also: {kind:?}"),
        }
    }
    assert!(resolved.connect(&ConnParam::default()).is_err());
    assert!(listener.listen(0).is_err());
    assert!(a.id().bind_addr(addr).is_err(), "nobody has the address");
    // What is posted has an answer, too: an error at once, or with its completion.
    if let Some(qp) = active.qp()
        && let Ok(sge) = a.mr.sge(..64)
        && qp.post_send(&[SendWr::send(1, &[sge])]).is_ok()
    {
        assert_ne!(a.completion().status, WcStatus::Success);
    }
    for id in [active, passive, resolved, unread, listener] {
        id.destroy();
    }
    while let Ok(Some(_)) = b.channel.try_next() {}
    a.is_clean();
    b.is_clean();
}
