//! Polynomials over GF(2) modulo the CRC-32 polynomial, in the reflected form that the CRC itself
//! uses: bit 31 is the coefficient of x^0, bit 0 that of x^31.

/// The CRC-32 polynomial, reflected, without its x^32 term.
const POLY: u32 = 0xedb8_8320;

/// The polynomial 1.
const ONE: u32 = 1 << 31;

/// `a * x`.
const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ (POLY & (a & 1).wrapping_neg())
}

/// `a / x`. The polynomial has the term 1, so x has an inverse.
const fn over_x(a: u32) -> u32 {
    let carry = (a >> 31).wrapping_neg();
    ((a ^ (POLY & carry)) << 1) | (carry & 1)
}

/// `a * b`, in 32 steps without a branch.
#[inline]
pub(crate) const fn mul(a: u32, b: u32) -> u32 {
    let mut product = 0;
    let mut shifted = b;
    let mut bit = 0;
    while bit < 32 {
        product ^= shifted & (a >> (31 - bit) & 1).wrapping_neg();
        shifted = times_x(shifted);
        bit += 1;
    }
    product
}

/// x^n.
pub(crate) const fn power_of_x(n: u32) -> u32 {
    let mut power = ONE;
    let mut i = 0;
    while i < n {
        power = times_x(power);
        i += 1;
    }
    power
}

/// `FINE[i]` is x^-8i, `COARSE[i]` is x^-2048i: every distance within a datagram is one of each.
static FINE: [u32; 256] = inverse_powers(8);
static COARSE: [u32; 256] = inverse_powers(2048);

/// The powers of x^-`bits`.
const fn inverse_powers(bits: u32) -> [u32; 256] {
    let mut step = ONE;
    let mut bit = 0;
    while bit < bits {
        step = over_x(step);
        bit += 1;
    }
    let mut table = [ONE; 256];
    let mut i = 1;
    while i < 256 {
        table[i] = mul(table[i - 1], step);
        i += 1;
    }
    table
}

/// `a * x^-8n`: takes `n` zero bytes back off a CRC remainder. `n` is at most 65535.
#[inline]
pub(crate) fn unshift_bytes(a: u32, n: u16) -> u32 {
    let [coarse, fine] = n.to_be_bytes();
    let a = mul(a, FINE[usize::from(fine)]);
    if coarse == 0 {
        return a;
    }
    mul(a, COARSE[usize::from(coarse)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn x_and_its_inverse_cancel(a: u32) {
            prop_assert_eq!(over_x(times_x(a)), a);
            prop_assert_eq!(times_x(over_x(a)), a);
        }

        #[test]
        fn multiplication_is_a_ring(a: u32, b: u32, c: u32) {
            prop_assert_eq!(mul(a, ONE), a);
            prop_assert_eq!(mul(a, ONE >> 1), times_x(a));
            prop_assert_eq!(mul(a, b), mul(b, a));
            prop_assert_eq!(mul(mul(a, b), c), mul(a, mul(b, c)));
            prop_assert_eq!(mul(a ^ b, c), mul(a, c) ^ mul(b, c));
        }

        #[test]
        fn unshift_undoes_zero_bytes(a: u32, n: u16) {
            let mut shifted = a;
            for _ in 0..u32::from(n) * 8 {
                shifted = times_x(shifted);
            }
            prop_assert_eq!(unshift_bytes(shifted, n), a);
        }
    }
}
