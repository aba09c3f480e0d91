//! The Internet checksum (RFC 1071).

/// The ones' complement sum of the big-endian words of `bytes`, added to `sum`; an odd byte counts
/// as the upper half of a word.
pub(crate) fn sum(sum: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<2>();
    let mut sum = u64::from(sum);
    for &word in words {
        sum += u64::from(u16::from_be_bytes(word));
    }
    if let &[last] = rest {
        sum += u64::from(last) << 8;
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u32
}

/// The checksum of what was summed up.
pub(crate) const fn finish(sum: u32) -> u16 {
    !(sum as u16)
}

/// The checksum of an IPv4 header whose checksum field is zero; 0 for a header that carries a right
/// one.
pub(crate) fn of(bytes: &[u8]) -> u16 {
    finish(sum(0, bytes))
}
