//! What the cache is compared with: a hash map under a spinlock that is held for the lookup, as UCX has it. It is as fast as that can
//! be: a hash of a few instructions, reference counts that need no atomic operations since a put takes the lock too, no TTL, no
//! eviction, and entries that are never freed.

use ferroce::AhAttr;
use spin::mutex::SpinMutex;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

pub(super) struct SpinlockMap(SpinMutex<Table>);

#[derive(Default)]
struct Table {
    indices: HashMap<Whole, u32, BuildHasherDefault<Fold>>,
    counts: Vec<u32>,
}

/// All attributes count for equality, but only the peer for the hash.
#[derive(PartialEq, Eq)]
struct Whole(AhAttr);

impl Hash for Whole {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let gid = self.0.grh.map_or(0, |grh| u128::from_be_bytes(grh.dgid.to_bytes()));
        state.write_u64((gid >> 64) as u64 ^ gid as u64 ^ u64::from(self.0.dlid));
    }
}

/// One multiplication, so that all bits count.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a key is one word");
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl SpinlockMap {
    pub(super) fn new(attrs: impl Iterator<Item = AhAttr>) -> Self {
        let mut table = Table::default();
        for (index, attr) in (0..).zip(attrs) {
            table.indices.insert(Whole(attr), index);
            table.counts.push(0);
        }
        Self(SpinMutex::new(table))
    }

    #[inline]
    pub(super) fn get(&self, attr: &AhAttr) -> u32 {
        let mut table = self.0.lock();
        let index = table.indices[&Whole(*attr)];
        table.counts[index as usize] += 1;
        index
    }

    #[inline]
    pub(super) fn put(&self, index: u32) {
        self.0.lock().counts[index as usize] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce::Gid;
    use std::net::Ipv4Addr;

    #[test]
    fn counts_what_is_held() {
        let to = |n: u32| AhAttr::roce(Gid::from(Ipv4Addr::from(n)), 0);
        let map = SpinlockMap::new((0..100).map(to));
        assert_eq!(map.get(&to(7)), 7);
        assert_eq!(map.get(&to(7)), 7);
        map.put(7);
        assert_eq!(map.0.lock().counts[7], 1);
        assert_eq!(map.get(&to(99)), 99);
    }
}
