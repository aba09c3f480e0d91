//! Local communication ids: nobody can guess the next, and none comes again until all others were used.
//!
//! A peer remembers the ids of connections for some time after their end; an id that came again meanwhile would be
//! taken for a duplicate. So ids are the numbers 1, 2, 3, ... of 24 bits in an order that a key decides: a Feistel
//! network, which is a permutation whatever its round function is. The byte above says whose they are.

use rand::Rng;
use rand::rngs::StdRng;
use std::hash::{DefaultHasher, Hasher};

const HALF: u32 = 12;
const MASK: u32 = (1 << HALF) - 1;

pub(super) struct CommIds {
    prefix: u32,
    key: [u64; 2],
    next: u32,
}

impl CommIds {
    pub(super) fn new(prefix: u8, rng: &mut StdRng) -> Self {
        Self { prefix: u32::from(prefix) << 24, key: rng.random(), next: rng.random() }
    }

    /// An id for which `used` is false, and not 0. There must be one.
    pub(super) fn allocate(&mut self, used: impl Fn(u32) -> bool) -> u32 {
        loop {
            self.next = self.next.wrapping_add(1);
            let id = self.prefix | self.permute(self.next);
            if id != 0 && !used(id) {
                return id;
            }
        }
    }

    fn permute(&self, number: u32) -> u32 {
        let (mut left, mut right) = (number >> HALF & MASK, number & MASK);
        for round in 0..4 {
            let mut hasher = DefaultHasher::new();
            hasher.write_u64(self.key[0]);
            hasher.write_u64(self.key[1]);
            hasher.write_u32(round << HALF | right);
            (left, right) = (right, left ^ hasher.finish() as u32 & MASK);
        }
        left << HALF | right
    }
}

#[cfg(test)]
mod tests {
    use super::CommIds;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn no_id_comes_twice() {
        let mut ids = CommIds::new(7, &mut StdRng::seed_from_u64(1));
        let mut seen = vec![false; 1 << 24];
        for _ in 0..1 << 20 {
            let id = ids.allocate(|_| false);
            assert_eq!(id >> 24, 7);
            assert!(!std::mem::replace(&mut seen[id as usize & 0xff_ffff], true), "{id:#x} came twice");
        }
    }

    #[test]
    fn used_ids_and_zero_are_passed_over() {
        let mut ids = CommIds::new(0, &mut StdRng::seed_from_u64(2));
        let all: Vec<u32> = (0..1000).map(|_| ids.allocate(|_| false)).collect();
        let mut ids = CommIds::new(0, &mut StdRng::seed_from_u64(2));
        assert_eq!(ids.allocate(|id| all[..999].contains(&id)), all[999]);
        assert!(!all.contains(&0));
    }

    #[test]
    fn neighbours_are_far_apart_and_seeds_differ() {
        let mut ids = CommIds::new(0, &mut StdRng::seed_from_u64(3));
        let some: Vec<u32> = (0..1000).map(|_| ids.allocate(|_| false)).collect();
        let close = some.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 1 << 12).count();
        assert!(close < 10, "{close} of 1000 ids are close to the one before");
        let mut others = CommIds::new(0, &mut StdRng::seed_from_u64(4));
        assert_ne!(some[0], others.allocate(|_| false));
    }
}
