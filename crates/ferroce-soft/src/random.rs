/// A small random number generator whose numbers never change: a seed in a bug report means the same for ever, which
/// general-purpose generators do not promise.
///
/// It is SplitMix64 (Steele, Lea and Flood, 2014): fast, with a period of 2^64, and of no use for secrets.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts from `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A generator of its own for part `part` of whatever this one is for. This one does not move.
    #[must_use]
    pub fn fork(&self, part: u64) -> Self {
        let mut child = Self(self.0 ^ part.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self(child.next_u64())
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if that is 0. The bias is below `bound` / 2^64.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// True with probability `p`; values outside of 0 to 1 are taken as the nearer bound.
    pub fn chance(&mut self, p: f64) -> bool {
        chance(self.next_u64(), p)
    }

    /// One of `items`, which must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// Whether random `bits` fall within probability `p`.
pub(crate) fn chance(bits: u64, p: f64) -> bool {
    // 53 bits, which a double holds exactly: 0 is never and 1 always.
    ((bits >> 11) as f64) < p * (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_published_ones() {
        let mut random = Random::new(0);
        assert_eq!(random.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next_u64(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn bounds_hold() {
        let mut random = Random::new(7);
        let mut seen = [0; 5];
        for _ in 0..1000 {
            seen[random.below(5) as usize] += 1;
            assert!((3..=4).contains(&random.within(3, 4)));
            assert!(random.chance(1.0) && !random.chance(0.0));
        }
        assert!(seen.iter().all(|&count| count > 100), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }
}
