//! Packet sequence numbers: 24 bits that wrap around (IBTA 9.7.1).
//!
//! Two PSNs are compared by the shorter way around the circle, which is why no more than half of it
//! (2^23 packets) may ever be outstanding. All functions ignore the upper 8 bits of their arguments
//! and return values within [`PSN_MASK`].

/// The 24 bits of a PSN, a QPN or an MSN.
pub const PSN_MASK: u32 = 0xff_ffff;

/// `a + n` on the circle.
#[inline]
#[must_use]
pub const fn psn_add(a: u32, n: u32) -> u32 {
    a.wrapping_add(n) & PSN_MASK
}

/// `a - n` on the circle.
#[inline]
#[must_use]
pub const fn psn_sub(a: u32, n: u32) -> u32 {
    a.wrapping_sub(n) & PSN_MASK
}

/// The signed distance `a - b`, from -2^23 to 2^23 - 1: positive if `a` is after `b`.
#[inline]
#[must_use]
pub const fn psn_diff(a: u32, b: u32) -> i32 {
    (a.wrapping_sub(b) << 8).cast_signed() >> 8
}

/// Whether `a` comes before `b`.
#[inline]
#[must_use]
pub const fn psn_lt(a: u32, b: u32) -> bool {
    psn_diff(a, b) < 0
}

/// Whether `a` is `b` or comes before it.
#[inline]
#[must_use]
pub const fn psn_le(a: u32, b: u32) -> bool {
    psn_diff(a, b) <= 0
}

/// Whether `a` comes after `b`.
#[inline]
#[must_use]
pub const fn psn_gt(a: u32, b: u32) -> bool {
    psn_diff(a, b) > 0
}

/// Whether `a` is `b` or comes after it.
#[inline]
#[must_use]
pub const fn psn_ge(a: u32, b: u32) -> bool {
    psn_diff(a, b) >= 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_circle_closes() {
        assert_eq!(psn_add(PSN_MASK, 1), 0);
        assert_eq!(psn_sub(0, 1), PSN_MASK);
        assert_eq!(psn_diff(0, PSN_MASK), 1);
        assert_eq!(psn_diff(PSN_MASK, 0), -1);
        assert_eq!(psn_diff(0x80_0000, 0), -0x80_0000);
        assert_eq!(psn_diff(0x7f_ffff, 0), 0x7f_ffff);
        assert!(psn_lt(PSN_MASK, 0) && psn_le(PSN_MASK, 0) && psn_gt(0, PSN_MASK));
        assert!(psn_ge(7, 7) && psn_le(7, 7) && !psn_gt(7, 7) && !psn_lt(7, 7));
    }

    proptest! {
        #[test]
        fn distance_undoes_addition(a: u32, n in -0x80_0000i32..0x80_0000) {
            let b = psn_add(a, n.cast_unsigned());
            prop_assert!(b <= PSN_MASK);
            prop_assert_eq!(psn_diff(b, a), n);
            prop_assert_eq!(psn_sub(b, n.cast_unsigned()), a & PSN_MASK);
        }
    }
}
