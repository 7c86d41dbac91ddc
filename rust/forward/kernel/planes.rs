//! Numbers of a block, from the planes of bits that hold them.

use super::packed::{Scales, nibble};
use crate::simd::vector::Simd;

/// A column of eight is unpacked as its number times 2 to this power: a shift less.
pub(crate) const fn shift(bits: u32, column: usize) -> u32 {
    match bits {
        4 if column < 7 => nibble(column),
        _ if bits > 4 && column % 4 < 3 => nibble(column % 4),
        _ => 0,
    }
}

#[inline(always)]
fn word<S: Simd>(simd: S, block: &[u8], place: usize) -> S::Words {
    simd.words(&block[place * 4 * S::LANES..])
}

/// Four columns in the bytes of a word, then the next four; `eight` counts eights of columns.
#[inline(always)]
pub(crate) fn bytes<S: Simd, const BITS: u32>(
    simd: S,
    block: &[u8],
    eight: usize,
) -> [S::Words; 2] {
    if BITS == 8 {
        return [word(simd, block, 2 * eight), word(simd, block, 2 * eight + 1)];
    }
    let low = word(simd, block, eight);
    let (first, second) = (simd.and(low, 0x0f0f_0f0f), simd.and(simd.shr(low, 4), 0x0f0f_0f0f));
    if BITS == 4 {
        return [first, second];
    }
    let bits = BITS - 4;
    let per_word = 4 / bits as usize;
    let high = word(simd, block, 4 + eight / per_word);
    let place = [0, 1, 2, 3][eight % per_word] * bits;
    let mask = 0x1010_1010 * (2 * bits - 1);
    let of_first = simd.and(simd.shl(high, 4 - place), mask);
    let of_second = simd.and(simd.shr(high, place), mask);
    [simd.or(first, of_first), simd.or(second, of_second)]
}

/// The words that [`column`] takes the columns of an eight from.
#[inline(always)]
pub(crate) fn loaded<S: Simd, const BITS: u32>(
    simd: S,
    block: &[u8],
    eight: usize,
) -> [S::Words; 2] {
    if BITS == 4 { [word(simd, block, eight); 2] } else { bytes::<S, BITS>(simd, block, eight) }
}

/// A column of an eight, times 2 to the power of [`shift`].
#[inline(always)]
pub(crate) fn column<S: Simd, const BITS: u32>(
    simd: S,
    loaded: [S::Words; 2],
    column: usize,
) -> S::Floats {
    match BITS {
        4 if column == 7 => simd.floats(simd.shr(loaded[0], 28)),
        4 => simd.floats(simd.and(loaded[0], 0xf << nibble(column))),
        _ if column % 4 == 3 => simd.floats(simd.shr(loaded[column / 4], 24)),
        _ => simd.floats(simd.and(loaded[column / 4], 0xff << nibble(column % 4))),
    }
}

/// The scale and the minimum of a part of a block of a unit; what numbers are above zero is in the minimum if
/// `is_offset`.
#[inline(always)]
pub(crate) fn scale<S: Simd>(
    simd: S,
    unit: &[u8],
    scales: Scales,
    block: usize,
    part: usize,
    is_offset: bool,
) -> (S::Floats, S::Floats) {
    let above = match scales {
        Scales::Half(above) if is_offset => above,
        Scales::Signed if is_offset => 32.0,
        _ => 0.0,
    };
    let first = simd.halves(unit);
    match scales {
        Scales::Half(_) => (first, simd.mul(first, simd.splat(-above))),
        Scales::HalfAndMinimum => (first, simd.halves(&unit[2 * S::LANES..])),
        Scales::Super => {
            let minimum = simd.mul(simd.halves(&unit[2 * S::LANES..]), simd.splat(-1.0));
            let (scale, of_minimum) = (byte(simd, unit, 4, block), byte(simd, unit, 12, block));
            (simd.mul(first, scale), simd.mul(minimum, of_minimum))
        }
        Scales::Signed => {
            let scale = simd.add(byte(simd, unit, 2, 2 * block + part), simd.splat(-128.0));
            let scale = simd.mul(first, scale);
            (scale, simd.mul(scale, simd.splat(-above)))
        }
    }
}

/// A byte of each lane, of words that begin `start` bytes of each lane after the first one.
#[inline(always)]
fn byte<S: Simd>(simd: S, unit: &[u8], start: usize, place: usize) -> S::Floats {
    let words = simd.words(&unit[(start + place / 4 * 4) * S::LANES..]);
    simd.floats(simd.and(simd.shr(words, [0, 8, 16, 24][place % 4]), 0xff))
}
