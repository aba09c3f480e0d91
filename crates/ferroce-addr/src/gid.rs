//! The GID table of a port.

use std::collections::HashMap;
use std::net::IpAddr;

use super::LocalAddr;
use ferroce_verbs::Gid;

/// Most entries of a table. More addresses than that have no GID.
pub const MAX_GIDS: usize = 256;

/// An EUI-64 that nobody assigned, made of `bits`: of one station, locally administered.
#[must_use]
pub fn local_eui64(bits: u64) -> u64 {
    bits & !(3 << 56) | 2 << 56
}

/// An entry of a [`GidTable`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Where it comes from. Its interface may be down by now.
    pub addr: LocalAddr,
}

/// What is different in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidChange {
    /// There is a new entry at this index.
    Added(usize),
    /// The entry at this index is gone.
    Removed(usize),
    /// The interface of the entry at this index has another MTU, state, name or link address.
    Modified(usize),
}

/// GIDs with stable indices, a pure function of the snapshots it was given.
///
/// An entry keeps its index as long as its address exists on its interface, even while that is down. An address that goes
/// leaves a hole. A new one, of an interface that is up, goes behind all that were ever used, and into the hole that is
/// oldest only if the table is full: an index that somebody may still have in mind is not soon another's.
///
/// At start the order is: global IPv4, global IPv6, link-local, loopback. So index 0 is the address that programs want that
/// do not ask which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GidTable {
    slots: Vec<Option<GidEntry>>,
    /// Holes, the oldest first.
    holes: Vec<usize>,
}

/// What makes an entry the same entry: GID and interface, for link-local addresses repeat.
type Key = (Gid, u32);

fn key(addr: &LocalAddr) -> Key {
    (Gid::from(addr.ip), addr.ifindex)
}

impl GidTable {
    /// The table at start.
    #[must_use]
    pub fn new(snapshot: &[LocalAddr]) -> Self {
        Self::default().updated(snapshot).0
    }

    /// The table after the addresses became those of `snapshot`, and how it differs from this one.
    #[must_use]
    pub fn updated(&self, snapshot: &[LocalAddr]) -> (Self, Vec<GidChange>) {
        let mut table = self.clone();
        let mut changes = Vec::new();
        let mut now: HashMap<Key, &LocalAddr> = snapshot.iter().map(|addr| (key(addr), addr)).collect();
        for (index, slot) in table.slots.iter_mut().enumerate() {
            let Some(entry) = slot else { continue };
            match now.remove(&key(&entry.addr)) {
                Some(addr) if *addr == entry.addr => {}
                Some(addr) => {
                    entry.addr = addr.clone();
                    changes.push(GidChange::Modified(index));
                }
                None => {
                    *slot = None;
                    table.holes.push(index);
                    changes.push(GidChange::Removed(index));
                }
            }
        }
        let mut new: Vec<&LocalAddr> = now.into_values().filter(|addr| addr.up).collect();
        new.sort_by_key(|addr| (rank(addr), addr.ifindex, addr.ip));
        for addr in new {
            let entry = Some(GidEntry { gid: Gid::from(addr.ip), addr: addr.clone() });
            let index = if table.slots.len() < MAX_GIDS {
                table.slots.push(entry);
                table.slots.len() - 1
            } else if !table.holes.is_empty() {
                let index = table.holes.remove(0);
                table.slots[index] = entry;
                index
            } else {
                break;
            };
            changes.push(GidChange::Added(index));
        }
        (table, changes)
    }

    /// The entry at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&GidEntry> {
        self.slots.get(index)?.as_ref()
    }

    /// The first entry of an address, whatever its interface.
    #[must_use]
    pub fn find(&self, ip: IpAddr) -> Option<(usize, &GidEntry)> {
        let gid = Gid::from(ip);
        self.iter().find(|(_, entry)| entry.gid == gid)
    }

    /// All entries with their indices.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &GidEntry)> {
        let indexed = self.slots.iter().enumerate();
        indexed.filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    /// One more than the highest index ever used. It never shrinks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether no index was ever used.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

/// How much an address is wanted.
fn rank(addr: &LocalAddr) -> u8 {
    match addr.ip {
        ip if ip.is_loopback() => 4,
        IpAddr::V4(_) if !addr.link_local => 0,
        IpAddr::V6(_) if !addr.link_local => 1,
        IpAddr::V6(_) => 2,
        IpAddr::V4(_) => 3,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addr(ip: &str, ifindex: u32) -> LocalAddr {
        let ip: IpAddr = ip.parse().unwrap();
        LocalAddr {
            ip,
            prefix_len: 24,
            ifindex,
            ifname: format!("eth{ifindex}"),
            mtu: 1500,
            up: true,
            loopback: ip.is_loopback(),
            link_local: match ip {
                IpAddr::V4(v4) => v4.is_link_local(),
                IpAddr::V6(v6) => v6.is_unicast_link_local(),
            },
            mac: [2, 0, 0, 0, 0, ifindex as u8],
        }
    }

    fn ips(table: &GidTable) -> Vec<Option<String>> {
        let ip = |index| table.get(index).map(|entry| entry.addr.ip.to_string());
        (0..table.len()).map(ip).collect()
    }

    #[test]
    fn the_most_wanted_come_first() {
        let down = LocalAddr { up: false, ..addr("10.0.0.9", 9) };
        let table = GidTable::new(&[
            addr("127.0.0.1", 1),
            addr("::1", 1),
            addr("fe80::2", 2),
            addr("2001:db8::2", 2),
            addr("169.254.0.1", 2),
            addr("10.0.0.3", 3),
            down,
            addr("10.0.0.2", 2),
        ]);
        let expected = ["10.0.0.2", "10.0.0.3", "2001:db8::2", "fe80::2", "169.254.0.1", "127.0.0.1", "::1"];
        assert_eq!(ips(&table), expected.map(|ip| Some(ip.to_owned())));
        assert_eq!(table.get(0).unwrap().gid.to_bytes()[10..], [0xff, 0xff, 10, 0, 0, 2]);
        let (index, _) = table.find("2001:db8::2".parse().unwrap()).unwrap();
        assert_eq!(index, 2);
    }

    #[test]
    fn an_interface_that_goes_down_keeps_its_place() {
        let a = addr("10.0.0.1", 2);
        let table = GidTable::new(&[a.clone(), addr("10.0.0.2", 3)]);
        let down = LocalAddr { up: false, ..a };
        let (table, changes) = table.updated(&[addr("10.0.0.2", 3), down]);
        assert_eq!(changes, [GidChange::Modified(0)]);
        assert!(!table.get(0).unwrap().addr.up);
    }

    #[test]
    fn an_address_that_moves_to_another_interface_is_another_entry() {
        let table = GidTable::new(&[addr("10.0.0.1", 2)]);
        let (table, changes) = table.updated(&[addr("10.0.0.1", 3)]);
        assert_eq!(changes, [GidChange::Removed(0), GidChange::Added(1)]);
        assert_eq!(ips(&table), [None, Some("10.0.0.1".to_owned())]);
    }

    fn addresses() -> impl Strategy<Value = Vec<LocalAddr>> {
        // Few addresses, so that they go and come back; and a few hundred, so that tables fill.
        let ip = prop_oneof![0..20u16, 0..400u16];
        let one = (ip, 1..4u32, any::<bool>(), 0..4u8).prop_map(|(i, ifindex, up, kind)| {
            let ip = match kind {
                0 => format!("10.0.{}.{}", i / 256, i % 256),
                1 => format!("2001:db8::{i:x}"),
                2 => format!("fe80::{i:x}"),
                _ => format!("127.0.{}.{}", i / 256, i % 256),
            };
            LocalAddr { up, ..addr(&ip, ifindex) }
        });
        proptest::collection::vec(one, 0..300).prop_map(|addrs| {
            let mut seen = std::collections::HashSet::new();
            addrs.into_iter().filter(|addr| seen.insert(key(addr))).collect()
        })
    }

    proptest! {
        #[test]
        fn indices_are_stable(snapshots in proptest::collection::vec(addresses(), 1..8)) {
            let mut table = GidTable::default();
            for snapshot in snapshots {
                let (next, changes) = table.updated(&snapshot);
                let present: HashMap<Key, &LocalAddr> = snapshot.iter().map(|a| (key(a), a)).collect();
                // What was there and still exists is where it was, up to date; what does not exist is nowhere.
                for (index, entry) in table.iter() {
                    let old = key(&entry.addr);
                    let now = present.get(&old).copied();
                    let at = next.get(index).map(|e| &e.addr).filter(|a| key(a) == old);
                    prop_assert_eq!(now, at);
                }
                let keys: Vec<Key> = next.iter().map(|(_, e)| key(&e.addr)).collect();
                prop_assert!(keys.iter().all(|k| present.contains_key(k)));
                let distinct: std::collections::HashSet<_> = keys.iter().collect();
                prop_assert_eq!(distinct.len(), keys.len());
                // New addresses of interfaces that are up have a place unless there is none.
                let missing = present.iter().any(|(k, a)| a.up && !distinct.contains(k));
                prop_assert!(!missing || keys.len() == MAX_GIDS);
                prop_assert!(next.len() <= MAX_GIDS && next.len() >= table.len());
                // The changes are the difference.
                for index in 0..next.len() {
                    let of = |c: &GidChange| matches!(*c, GidChange::Added(i) | GidChange::Removed(i) | GidChange::Modified(i) if i == index);
                    let said: Vec<_> = changes.iter().filter(|c| of(c)).copied().collect();
                    let expected = match (table.get(index), next.get(index)) {
                        (None, None) => vec![],
                        (None, Some(_)) => vec![GidChange::Added(index)],
                        (Some(_), None) => vec![GidChange::Removed(index)],
                        (Some(a), Some(b)) if a == b => vec![],
                        (Some(a), Some(b)) if key(&a.addr) == key(&b.addr) => vec![GidChange::Modified(index)],
                        _ => vec![GidChange::Removed(index), GidChange::Added(index)],
                    };
                    prop_assert_eq!(said, expected);
                }
                // A hole is not reused while there is unused room.
                let reused = changes.iter().any(|c| matches!(*c, GidChange::Added(i) if i < table.len()));
                prop_assert!(!reused || next.len() == MAX_GIDS);
                prop_assert_eq!(next.updated(&snapshot), (next.clone(), vec![]));
                table = next;
            }
        }
    }
}
