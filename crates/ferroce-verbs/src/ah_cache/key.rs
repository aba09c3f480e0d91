use crate::{AhAttr, Gid, GlobalRoute, Pd};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

/// The identity of an address within a protection domain: every field of the parsed attributes, and nothing else. Whatever the
/// attributes look like in memory, padding included, plays no part.
///
/// The protection domain counts because the device checks that a queue pair and the address handles that it uses belong to the
/// same one. It is named by its object's address, which nobody else has for as long as an entry holds the domain.
#[derive(Clone, Copy)]
pub(super) struct Key([u64; 5]);

impl Key {
    #[inline]
    pub(super) fn new(pd: &Pd, attr: &AhAttr) -> Self {
        Self::with(Self::pd_word(pd), attr)
    }

    /// That of a protection domain that there is in every model.
    #[cfg(test)]
    pub(super) fn of(attr: &AhAttr) -> Self {
        Self::with(8, attr)
    }

    #[inline]
    fn with(pd: u64, attr: &AhAttr) -> Self {
        let AhAttr { grh, dlid, sl, src_path_bits, static_rate, port_num } = *attr;
        let route = grh.unwrap_or(GlobalRoute {
            dgid: Gid::from_bytes([0; 16]),
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 0,
            traffic_class: 0,
        });
        let GlobalRoute { dgid, sgid_index, flow_label, hop_limit, traffic_class } = route;
        let [high, low] = halves(dgid);
        let small = u64::from_le_bytes([
            hop_limit,
            traffic_class,
            dlid as u8,
            (dlid >> 8) as u8,
            sl,
            src_path_bits,
            static_rate,
            port_num,
        ]);
        // An object lies at an address that is a multiple of 8, so the lowest bit is free.
        let pd = pd | u64::from(grh.is_some());
        Self([high, low, u64::from(sgid_index) << 32 | u64::from(flow_label), small, pd])
    }

    /// What names a protection domain.
    #[inline]
    pub(super) fn pd_word(pd: &Pd) -> u64 {
        // A model has one, and its runs must not differ.
        if cfg!(test) { 8 } else { Arc::as_ptr(pd.ops()).cast::<()>().addr() as u64 }
    }

    /// Where among a thread's few slots the address is looked for first, as a part of all: zero is the beginning, 2^32 the end. Addresses that
    /// follow one another, as those of a cluster do, are spread evenly: hardly any gets into another's way, where at random many would.
    /// It costs little, and may be guessed by anybody: who chooses addresses that share a place can have them, and what else
    /// is there, looked for in the table, whose hash nobody can guess. Each put of one that takes another's place takes the lock of the book
    /// of this process, too.
    #[inline]
    pub(super) fn place(&self, cache: u64) -> u32 {
        let Self([high, low, route, small, pd]) = *self;
        // The peer's number is at the end of the GID, most significant byte first.
        let (peer, prefix) = if cfg!(target_endian = "little") { (high.swap_bytes(), low) } else { (low, high) };
        let others = prefix ^ route ^ small.rotate_left(17) ^ pd.rotate_left(32) ^ cache;
        // By the golden ratio; what else differs, by another number, so that it leads to other places.
        let place = peer.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(others.wrapping_mul(0xd1b5_4a32_d192_ed03));
        (place >> 32) as u32
    }

    /// All that it is.
    #[inline]
    pub(super) fn words(&self) -> [u64; 5] {
        self.0
    }

    /// What [`Self::words`] were of.
    #[inline]
    pub(super) fn from_words(words: [u64; 5]) -> Self {
        Self(words)
    }

    /// The peer, zero without a GRH.
    pub(super) fn dgid(&self) -> [u64; 2] {
        [self.0[0], self.0[1]]
    }

    /// Whether it goes to this GID.
    pub(super) fn goes_to(&self, gid: Gid) -> bool {
        self.has_grh() && self.dgid() == halves(gid)
    }

    /// Whether it goes to an address of this prefix.
    pub(super) fn goes_into(&self, prefix: IpAddr, len: u8) -> bool {
        let [high, low] = self.dgid();
        let gid = Gid::from_bytes((u128::from(high) << 64 | u128::from(low)).to_ne_bytes());
        let shared = |a: u128, b: u128, len: u32| len == 0 || (a ^ b) >> (128 - len.min(128)) == 0;
        self.has_grh()
            && match (gid.ip(), prefix) {
                (IpAddr::V4(ip), IpAddr::V4(prefix)) => {
                    shared(u128::from(ip.to_bits()) << 96, u128::from(prefix.to_bits()) << 96, len.into())
                }
                (IpAddr::V6(ip), IpAddr::V6(prefix)) => shared(ip.to_bits(), prefix.to_bits(), len.into()),
                _ => false,
            }
    }

    pub(super) fn has_grh(&self) -> bool {
        self.0[4] & 1 == 1
    }

    pub(super) fn sgid_index(&self) -> Option<u32> {
        self.has_grh().then_some((self.0[2] >> 32) as u32)
    }

    pub(super) fn port_num(&self) -> u8 {
        (self.0[3] >> 56) as u8
    }

    /// Whether it belongs to this protection domain.
    pub(super) fn is_of(&self, pd: &Pd) -> bool {
        self.0[4] & !1 == Self::pd_word(pd)
    }
}

// Word by word: a comparison of bytes would call a function, and wait for the words to get through to memory.
impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        let differing = |n: usize| self.0[n] ^ other.0[n];
        differing(0) | differing(1) | differing(2) | differing(3) | differing(4) == 0
    }
}

impl Eq for Key {}

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.iter().for_each(|word| state.write_u64(*word));
    }
}

/// Both words in one, by a multiplication.
#[inline]
pub(super) fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0x243f_6a88_85a3_08d3) * u128::from(b ^ 0x1319_8a2e_0370_7344);
    (product >> 64) as u64 ^ product as u64
}

/// A GID in two words, whatever their order.
#[inline]
pub(super) fn halves(gid: Gid) -> [u64; 2] {
    let gid = u128::from_ne_bytes(gid.to_bytes());
    [(gid >> 64) as u64, gid as u64]
}
