//! Refusals with reasons, between two processes: what the one writes is what the other reads, whoever manages the connections of each.

use crate::support::Side;
use ferroce_cm::{ConnParam, EventKind, PortSpace, RejectReason};
use std::net::{IpAddr, SocketAddr};

const PORT: u16 = 7190;
const WISH: &[u8] = b"may I?";

/// What is asked for in this order, with the reason why not.
const REASONS: [(PortSpace, &[u8]); 2] =
    [(PortSpace::Tcp, b"no: a connection would be too much"), (PortSpace::Udp, b"no: there are no datagrams here")];

/// Refuses whatever is asked.
pub(crate) fn refuse(side: &Side) {
    let at = SocketAddr::new(side.ip, PORT).to_string();
    let listeners = REASONS.map(|(port_space, _)| side.listen_at(port_space, &at).0);
    println!("waiting");
    for (port_space, reason) in REASONS {
        let (_, kind, wish) = side.event().into_parts();
        let EventKind::ConnectRequest { id, .. } = kind else { panic!("{kind:?}") };
        assert_eq!(id.port_space(), port_space);
        assert!(wish.starts_with(WISH), "{wish:?}");
        id.reject(reason).unwrap();
    }
    drop(listeners);
    side.is_clean();
}

/// Asks, and wants to hear why not.
pub(crate) fn refused(side: &Side, by: IpAddr) {
    for (port_space, expected) in REASONS {
        let id = side.resolved_in(port_space, SocketAddr::new(by, PORT));
        id.connect(&ConnParam { private_data: WISH, ..ConnParam::default() }).unwrap();
        let (_, kind, reason) = side.event().into_parts();
        assert!(matches!(kind, EventKind::Rejected { reason: RejectReason::ConsumerDefined }), "{kind:?}");
        assert!(reason.starts_with(expected), "{reason:?}");
        // Some managers fill the field up.
        assert!(reason[expected.len()..].iter().all(|byte| *byte == 0), "{reason:?}");
    }
    side.is_clean();
}
