//! Numbers of a block, from the planes of bits that hold them.

use super::packed::{BlockKind, Scales, nibble, parts};
use crate::simd::vector::Simd;

/// A column of eight is unpacked as its number times 2 to this power, which saves a shift.
pub(crate) const fn shift(bits: u32, column: usize) -> u32 {
    match bits {
        4 if column < 7 => nibble(column),
        _ if !matches!(bits, 0 | 4) && column % 4 < 3 => nibble(column % 4),
        _ => 0,
    }
}

/// A word of each lane, by its index in a block.
#[inline(always)]
fn word<S: Simd>(simd: S, block: &[u8], index: usize) -> S::Words {
    simd.words(&block[index * 4 * S::LANES..])
}

/// Four columns in the bytes of a word, then the next four; `eight` counts eights of columns.
#[inline(always)]
pub(crate) fn bytes<S: Simd, F: BlockKind>(simd: S, block: &[u8], eight: usize) -> [S::Words; 2] {
    if F::BITS == 8 {
        return [word(simd, block, 2 * eight), word(simd, block, 2 * eight + 1)];
    }
    if F::BITS < 4 {
        let low = word(simd, block, eight / 2);
        let shift = [0, 4][eight % 2];
        let first = simd.and(simd.shr(low, shift), 0x0303_0303);
        let second = simd.and(simd.shr(low, shift + 2), 0x0303_0303);
        if F::BITS == 2 {
            return [first, second];
        }
        // The third bits of all columns are in one word.
        let high = word(simd, block, 2);
        let (shift, mask) = ([0, 2, 4, 6][eight % 4], 0x0101_0101);
        let of_first = simd.shl(simd.and(simd.shr(high, shift), mask), 2);
        let of_second = simd.shl(simd.and(simd.shr(high, shift + 1), mask), 2);
        return [simd.or(first, of_first), simd.or(second, of_second)];
    }
    let low = word(simd, block, eight);
    let (first, second) = (simd.and(low, 0x0f0f_0f0f), simd.and(simd.shr(low, 4), 0x0f0f_0f0f));
    if F::BITS == 4 {
        return [first, second];
    }
    let bits = F::BITS - 4;
    let per_word = 4 / bits as usize;
    let high = word(simd, block, 4 + eight / per_word);
    let shift = [0, 1, 2, 3][eight % per_word] * bits;
    let mask = 0x1010_1010 * (2 * bits - 1);
    let of_first = simd.and(simd.shl(high, 4 - shift), mask);
    let of_second = simd.and(simd.shr(high, shift), mask);
    [simd.or(first, of_first), simd.or(second, of_second)]
}

/// The words that [`column`] takes the columns of an eight from.
#[inline(always)]
pub(crate) fn loaded<S: Simd, F: BlockKind>(simd: S, block: &[u8], eight: usize) -> [S::Words; 2] {
    if F::BITS == 4 { [word(simd, block, eight); 2] } else { bytes::<S, F>(simd, block, eight) }
}

/// A column of an eight, times 2 to the power of [`shift`].
#[inline(always)]
pub(crate) fn column<S: Simd, F: BlockKind>(
    simd: S,
    loaded: [S::Words; 2],
    column: usize,
) -> S::Floats {
    match F::BITS {
        4 if column == 7 => simd.floats(simd.shr(loaded[0], 28)),
        4 => simd.floats(simd.and(loaded[0], 0xf << nibble(column))),
        _ if column % 4 == 3 => simd.floats(simd.shr(loaded[column / 4], 24)),
        _ => simd.floats(simd.and(loaded[column / 4], 0xff << nibble(column % 4))),
    }
}

/// A column of an eight of signed bytes, times 2 to the power of [`SIGNED_SHIFT`].
#[inline(always)]
pub(crate) fn signed_column<S: Simd>(simd: S, loaded: [S::Words; 2], column: usize) -> S::Floats {
    let word = loaded[column / 4];
    let word = if column % 4 == 3 { word } else { simd.shl(word, 24 - nibble(column % 4)) };
    simd.floats(simd.and(word, 0xff00_0000))
}

/// The shift of columns of signed bytes.
pub(crate) const SIGNED_SHIFT: u32 = 24;

/// The scale and the minimum of a part of a block of a unit. With `is_above`, the zero point is folded into the
/// minimum.
#[inline(always)]
pub(crate) fn scale<S: Simd, F: BlockKind>(
    simd: S,
    unit: &[u8],
    block: usize,
    part: usize,
    is_above: bool,
) -> (S::Floats, S::Floats) {
    let zero_point = match F::SCALES {
        Scales::Half(zero_point) if is_above => zero_point,
        Scales::SignedParts(zero_point) if is_above => zero_point,
        Scales::UpperHalf if is_above => 128.0,
        _ => 0.0,
    };
    let first = match F::SCALES {
        Scales::UpperHalf => simd.upper_halves(unit),
        _ => simd.halves(unit),
    };
    match F::SCALES {
        Scales::Half(_) | Scales::UpperHalf => (first, simd.mul(first, simd.splat(-zero_point))),
        Scales::HalfAndMinimum => (first, simd.halves(&unit[2 * S::LANES..])),
        Scales::KBlock => {
            let minimum = simd.mul(simd.halves(&unit[2 * S::LANES..]), simd.splat(-1.0));
            let (scale, of_minimum) = (byte(simd, unit, 4, block), byte(simd, unit, 12, block));
            (simd.mul(first, scale), simd.mul(minimum, of_minimum))
        }
        Scales::Sixteenths => {
            let minimum = simd.mul(simd.halves(&unit[2 * S::LANES..]), simd.splat(-1.0));
            let index = 2 * block + part;
            let words = simd.words(&unit[(4 + index / 4 * 4) * S::LANES..]);
            let shift = byte_shift(index);
            let scale = simd.floats(simd.and(simd.shr(words, shift), 0xf));
            let of_minimum = simd.floats(simd.and(simd.shr(words, shift + 4), 0xf));
            (simd.mul(first, scale), simd.mul(minimum, of_minimum))
        }
        Scales::SignedParts(_) => {
            let index = parts(F::BITS) * block + part;
            let scale = simd.add(byte(simd, unit, 2, index), simd.splat(-128.0));
            let scale = simd.mul(first, scale);
            (scale, simd.mul(scale, simd.splat(-zero_point)))
        }
    }
}

/// A byte of each lane, of words that begin `start` bytes of each lane after the first one.
#[inline(always)]
fn byte<S: Simd>(simd: S, unit: &[u8], start: usize, index: usize) -> S::Floats {
    let words = simd.words(&unit[(start + index / 4 * 4) * S::LANES..]);
    simd.floats(simd.and(simd.shr(words, byte_shift(index)), 0xff))
}

/// The first bit of a byte of a word, by its index among all bytes. A table would be in memory.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "below 4")]
const fn byte_shift(index: usize) -> u32 {
    8 * (index % 4) as u32
}
