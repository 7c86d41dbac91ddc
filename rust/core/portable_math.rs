//! Exponentials, logarithms and hashes with identical results on every machine, and helpers for numbers.

/// Returns e to the power of `x` for |x| below 80, with a relative error below 1e-6.
pub(crate) fn exp(x: f32) -> f32 {
    let bits = x * std::f32::consts::LOG2_E;
    // Rounds: a number this large has no room for a fraction.
    let whole = (bits + 12_582_912.0) - 12_582_912.0;
    let y = (bits - whole) * std::f32::consts::LN_2;
    let tail = 1.0 / 24.0 + y * (1.0 / 120.0 + y * (1.0 / 720.0));
    let power = 1.0 + y * (1.0 + y * (0.5 + y * (1.0 / 6.0 + y * tail)));
    #[expect(clippy::cast_possible_truncation, reason = "it is small and whole")]
    let exponent = (whole as i32 + 127).clamp(1, 254).cast_unsigned() << 23;
    power * f32::from_bits(exponent)
}

/// Returns the natural logarithm of a positive normal number, with an absolute error below 1e-6.
pub(crate) fn ln(x: f32) -> f32 {
    let bits = x.to_bits();
    // Mantissa in 2/3..4/3.
    let shifted = bits.wrapping_sub(0x3f2a_aaab);
    let exponent = shifted.cast_signed() >> 23;
    let mantissa = f32::from_bits((shifted & 0x007f_ffff) + 0x3f2a_aaab);
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let s2 = s * s;
    let p = 2.0 * s * (1.0 + s2 * (1.0 / 3.0 + s2 * (0.2 + s2 * (1.0 / 7.0 + s2 * (1.0 / 9.0)))));
    let exponent = exponent as f32;
    exponent * std::f32::consts::LN_2 + p
}

pub(crate) fn log2(x: f32) -> f32 {
    ln(x) * std::f32::consts::LOG2_E
}

/// Returns the smaller number in one instruction: the standard library's `min` also handles NaN.
pub(crate) fn min_finite(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

pub(crate) fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Returns a sort key: larger numbers first, then smaller tokens.
pub(crate) fn rank_of(number: f32, token: u32) -> u64 {
    // Bits of positive numbers compare as these do.
    u64::from(number.to_bits()) << 32 | u64::from(!token)
}

pub(crate) fn saturating_u32(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns a hash of `BITS` bits.
pub(crate) fn hash<const BITS: u32>(token: u32) -> usize {
    (mixed(token) >> (32 - BITS)) as usize
}

pub(crate) fn hash_of_two<const BITS: u32>(first: u32, second: u32) -> usize {
    hash::<BITS>(mixed(first) ^ second)
}

/// Multiplies by 2^32 over the golden ratio, which separates nearby numbers.
fn mixed(token: u32) -> u32 {
    token.wrapping_mul(0x9E37_79B1)
}

#[cfg(test)]
mod tests {
    use super::{exp, ln};

    #[test]
    fn functions_are_close_to_the_standard_library() {
        for i in -2000..2000_i16 {
            let x = f32::from(i) / 100.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 3e-6, "{x}");
            let y = x.exp();
            assert!((ln(y) - y.ln()).abs() < 3e-6, "{y}");
        }
    }
}
