//! More requests at once than a listener takes: each is answered, and soon.

use crate::support::bed::Bed;
use ferroce_cm::{ConnParam, EventKind, RejectReason};
use std::time::Duration;

/// 128 clients at once (rdma-core 6f8e0056e, libfabric #10566): each is accepted once, none has to ask again, which with the kernel takes
/// 4.6 s.
pub(crate) fn a_burst_is_accepted(bed: &Bed) {
    const CLIENTS: usize = 128;
    let (a, b) = (bed.open(), bed.open());
    let (listener, addr) = b.listen();
    let ids: Vec<_> = (0..CLIENTS).map(|_| a.resolved(addr)).collect();
    for id in &ids {
        id.connect(&ConnParam::default()).unwrap();
    }
    b.is_asked(CLIENTS, 1);
    let mut accepted = Vec::new();
    for _ in 0..CLIENTS {
        let (id, _) = b.request();
        id.accept(&ConnParam::default()).unwrap();
        accepted.push(id);
    }
    for side in [&a, &b] {
        for _ in 0..CLIENTS {
            let event = side.event();
            assert!(matches!(event.kind(), EventKind::Established), "{event:?}");
        }
    }
    drop((ids, accepted, listener));
    a.is_clean();
    b.is_clean();
}

/// A listener that nobody reads answers at once what does not fit its backlog (kernel 97cb7e40), which the kernel itself drops. This crate's
/// own protocol has the peer try again first.
pub(crate) fn a_full_backlog_is_answered(bed: &Bed) {
    const BACKLOG: usize = 4;
    let (a, b) = (bed.open(), bed.open());
    let listener = b.id();
    listener.bind_addr((b.ip, 0).into()).unwrap();
    listener.listen(BACKLOG).unwrap();
    let addr = listener.local_addr().unwrap();
    let ids: Vec<_> = (0..BACKLOG + 3)
        .map(|_| {
            let id = a.resolved(addr);
            id.set_options(|options| options.connect_timeout = Duration::from_secs(60)).unwrap();
            id
        })
        .collect();
    for id in &ids {
        id.connect(&ConnParam::default()).unwrap();
    }
    for _ in 0..3 {
        let event = a.event();
        let EventKind::Rejected { reason } = event.kind() else { panic!("{event:?}") };
        assert!(matches!(reason, RejectReason::ConsumerDefined | RejectReason::NoResources), "{reason:?}");
    }
    // The others are where they were.
    let accepted: Vec<_> = (0..BACKLOG).map(|_| b.request().0).collect();
    for id in &accepted {
        id.accept(&ConnParam::default()).unwrap();
    }
    for side in [&a, &b] {
        for _ in 0..BACKLOG {
            let event = side.event();
            assert!(matches!(event.kind(), EventKind::Established), "{event:?}");
        }
    }
    drop((ids, accepted, listener));
    a.is_clean();
    b.is_clean();
}
