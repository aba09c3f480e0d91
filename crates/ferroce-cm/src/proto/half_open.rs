//! Who has how many half-open connections, and who may have another one.

use super::Address;
use ferroce_verbs::Gid;
use std::collections::HashMap;

/// The accounts. There are never more of them than half-open connections.
#[derive(Default)]
pub(super) struct HalfOpen {
    total: usize,
    by_peer: HashMap<(Gid, u32), usize>,
}

impl HalfOpen {
    pub(super) const fn total(&self) -> usize {
        self.total
    }

    /// Whether this peer may have another one: nobody may have more than are left for everybody else. (Dynamic
    /// thresholds, as switches share their buffers: Choudhury and Hahne, 1998.)
    pub(super) fn admits(&self, peer: &Address, limit: usize) -> bool {
        let has = self.by_peer.get(&key(peer)).copied().unwrap_or(0);
        has < limit.saturating_sub(self.total)
    }

    pub(super) fn add(&mut self, peer: &Address) {
        self.total += 1;
        *self.by_peer.entry(key(peer)).or_default() += 1;
    }

    pub(super) fn remove(&mut self, peer: &Address) {
        self.total -= 1;
        let has = self.by_peer.get_mut(&key(peer)).expect("the peer has one");
        *has -= 1;
        if *has == 0 {
            self.by_peer.remove(&key(peer));
        }
    }
}

const fn key(peer: &Address) -> (Gid, u32) {
    (peer.remote, peer.scope_id)
}

#[cfg(test)]
mod tests {
    use super::HalfOpen;
    use crate::proto::Address;
    use ferroce_verbs::Gid;
    use std::net::Ipv4Addr;

    fn peer(n: u8) -> Address {
        Address { local: Gid::default(), remote: Gid::from(Ipv4Addr::new(10, 0, 0, n)), scope_id: 0 }
    }

    #[test]
    fn a_flood_leaves_room_for_others() {
        let mut half_open = HalfOpen::default();
        for flooder in 1..=3 {
            while half_open.admits(&peer(flooder), 100) {
                half_open.add(&peer(flooder));
            }
        }
        // 50 for the first, half of the rest for the second, and so on; a newcomer still gets some.
        assert_eq!(half_open.total(), 50 + 25 + 13);
        assert!(half_open.admits(&peer(4), 100));
    }

    #[test]
    fn a_peer_without_any_is_forgotten() {
        let mut half_open = HalfOpen::default();
        half_open.add(&peer(1));
        half_open.add(&peer(1));
        half_open.remove(&peer(1));
        assert_eq!(half_open.by_peer.len(), 1);
        half_open.remove(&peer(1));
        assert!(half_open.by_peer.is_empty());
        assert_eq!(half_open.total(), 0);
    }
}
