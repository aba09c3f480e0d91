use super::key::Key;
use crate::LinkLayer;
use crate::sync::{Hashing, Mutex};
use hashbrown::{HashMap, HashSet};
use std::net::IpAddr;

/// A neighbour: a network device of this machine, and an address there.
type Neighbour = (u32, IpAddr);

/// What a cache knows of neighbours: which of them are routers, and what they changed to, for resolutions that were under way
/// meanwhile. One memory for all resolutions, as nobody knows which neighbour an address leads to until it is resolved.
pub(super) struct Neighbours(Mutex<State>);

struct State {
    /// Those that are not the peers themselves.
    routers: HashSet<Neighbour, Hashing>,
    /// Some address goes by one that nobody knows.
    is_one_unknown: bool,
    changes: HashMap<Neighbour, Change, Hashing>,
    /// How many changes there were.
    count: u64,
    /// Of those up to this one some are forgotten.
    forgotten: u64,
}

struct Change {
    /// Which of all changes was its last.
    at: u64,
    mac: Option<[u8; 6]>,
    /// Which was the last one that another with another MAC came after.
    undone: u64,
}

/// A moment: so many changes came before it.
#[derive(Clone, Copy, Default)]
pub(super) struct Moment(u64);

impl Neighbours {
    /// Neighbours whose changes are remembered: about what a kernel's own table has before it lets go of some. Beyond that it is as if
    /// all had changed.
    const MOST: usize = 4096;

    pub(super) fn new() -> Self {
        Self(Mutex::new(State {
            routers: HashSet::default(),
            is_one_unknown: false,
            changes: HashMap::default(),
            count: 0,
            forgotten: 0,
        }))
    }

    pub(super) fn now(&self) -> Moment {
        Moment(self.0.lock().count)
    }

    /// A neighbour has this MAC from now on; returns whether that may concern others than the peer of this address.
    pub(super) fn note(&self, ifindex: u32, ip: IpAddr, mac: Option<[u8; 6]>) -> bool {
        let mut state = self.0.lock();
        let neighbour = (ifindex, ip);
        state.count += 1;
        if state.changes.len() >= Self::MOST && !state.changes.contains_key(&neighbour) {
            state.changes.clear();
            state.forgotten = state.count;
        }
        let at = state.count;
        let change = state.changes.entry(neighbour).or_insert(Change { at, mac, undone: 0 });
        if change.mac != mac {
            change.undone = change.at;
        }
        (change.at, change.mac) = (at, mac);
        state.is_one_unknown || state.routers.contains(&neighbour)
    }

    /// An address was resolved so: whether that may have been overtaken since. It is known from now on by which neighbour the address
    /// goes, so the caller has the shard locked to which the next change of it leads.
    pub(super) fn overtook(&self, since: Moment, key: &Key, link: Option<&LinkLayer>) -> bool {
        let Some(link) = link else { return false };
        let mut state = self.0.lock();
        let neighbour = (link.ifindex, link.next_hop);
        if link.is_unknown() {
            state.is_one_unknown = true;
            return state.count > since.0;
        }
        if !key.goes_to(link.next_hop.into()) {
            state.routers.insert(neighbour);
        }
        let is_other = |change: &Change| change.at > since.0 && (change.mac != link.mac || change.undone > since.0);
        state.forgotten > since.0 || state.changes.get(&neighbour).is_some_and(is_other)
    }

    /// An address could not be resolved: whether a neighbour has changed since by which it may be reached now. The usual change is that
    /// the peer does not answer, which is what the failure says, too.
    pub(super) fn may_mend(&self, since: Moment, key: &Key) -> bool {
        let state = self.0.lock();
        let leads_there = |neighbour: &Neighbour| key.goes_to(neighbour.1.into()) || state.routers.contains(neighbour);
        let answers = |change: &Change| change.at > since.0 && change.mac.is_some();
        let mut changes = state.changes.iter();
        state.forgotten > since.0 || changes.any(|(neighbour, change)| answers(change) && leads_there(neighbour))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AhAttr, Gid};
    use ferroce_testing::model::sample;
    use std::net::Ipv4Addr;

    const A: Option<[u8; 6]> = Some([1; 6]);
    const B: Option<[u8; 6]> = Some([2; 6]);

    fn ip(n: u32) -> IpAddr {
        Ipv4Addr::from(0x0a00_0000 + n).into()
    }

    fn link(n: u32, mac: Option<[u8; 6]>) -> LinkLayer {
        LinkLayer { ifindex: 1, next_hop: ip(n), mac }
    }

    /// And the address of peer 1. Only in a model, for its locks.
    fn new() -> (Neighbours, Key) {
        (Neighbours::new(), Key::of(&AhAttr::roce(Gid::from(ip(1)), 0)))
    }

    #[test]
    fn what_is_resolved_is_compared_with_the_last_word() {
        sample(2, || {
            let (it, key) = &new();
            it.note(1, ip(1), A);
            let since = it.now();
            assert!(!it.overtook(since, key, Some(&link(1, B))), "that was before");
            it.note(1, ip(1), B);
            assert!(it.overtook(since, key, Some(&link(1, A))));
            assert!(!it.overtook(since, key, Some(&link(1, B))), "that is what it says");
            it.note(1, ip(1), A);
            assert!(it.overtook(since, key, Some(&link(1, A))), "it may have been seen in between");
            let since = it.now();
            it.note(1, ip(1), B);
            assert!(!it.overtook(since, key, Some(&link(1, B))));
            assert!(!it.overtook(since, key, None) && !it.overtook(it.now(), key, Some(&link(1, A))));
        });
    }

    #[test]
    fn many_others_do_not_matter_until_they_are_too_many() {
        sample(2, || {
            let (it, key) = &new();
            let since = it.now();
            for n in 2..2 + Neighbours::MOST as u32 {
                it.note(1, ip(n), A);
                it.note(1, ip(n), B);
            }
            assert!(!it.overtook(since, key, Some(&link(1, A))));
            it.note(1, ip(1), A);
            assert!(it.overtook(since, key, Some(&link(1, A))), "something is forgotten");
            assert!(!it.overtook(it.now(), key, Some(&link(1, A))));
        });
    }

    #[test]
    fn a_failure_is_mended_by_who_answers() {
        sample(2, || {
            let (it, key) = &new();
            let since = it.now();
            assert!(!it.note(1, ip(9), A) && !it.may_mend(since, key), "whoever that is");
            it.note(1, ip(1), A);
            assert!(it.may_mend(since, key));
            it.note(1, ip(1), None);
            assert!(!it.may_mend(since, key));
            assert!(!it.overtook(it.now(), key, Some(&link(9, A))), "it is a router");
            assert!(it.note(1, ip(9), A) && it.may_mend(since, key));
            assert!(!it.may_mend(it.now(), key));
        });
    }

    #[test]
    fn an_unknown_way_is_anybodys() {
        sample(2, || {
            let (it, key) = &new();
            let since = it.now();
            assert!(!it.note(1, ip(5), A));
            assert!(
                it.overtook(since, key, Some(&LinkLayer::UNKNOWN))
                    && !it.overtook(it.now(), key, Some(&LinkLayer::UNKNOWN))
            );
            assert!(it.note(1, ip(5), A));
        });
    }
}
