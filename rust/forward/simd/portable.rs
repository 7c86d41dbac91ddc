//! Vectors in plain code, for any processor, and the oracle of the others.

use super::{Job, Simd};
use crate::weights::f16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Portable;

const LANES: usize = 8;

#[inline(always)]
fn of_bytes<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> [T; LANES] {
    let chunks: &[[u8; N]; LANES] = bytes.as_chunks().0.first_chunk().expect("bytes of each lane");
    chunks.map(read)
}

#[inline(always)]
fn zip<T: Copy, U: Copy>(a: [T; LANES], b: [T; LANES], op: impl Fn(T, T) -> U) -> [U; LANES] {
    std::array::from_fn(|lane| op(a[lane], b[lane]))
}

impl Simd for Portable {
    type Floats = [f32; LANES];
    type Words = [u32; LANES];
    const LANES: usize = LANES;
    const HAS_SIGNED_BYTES: bool = false;

    fn run(self, job: impl Job) {
        job.run(self);
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Floats {
        [value; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::Floats {
        *from.first_chunk().expect("a number of each lane")
    }
    #[inline(always)]
    fn store(self, value: Self::Floats, to: &mut [f32]) {
        *to.first_chunk_mut().expect("a place of each lane") = value;
    }
    #[inline(always)]
    fn add(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn sum(self, mut value: Self::Floats) -> f32 {
        for length in [4, 2, 1] {
            for lane in 0..length {
                value[lane] += value[lane + length];
            }
        }
        value[0]
    }
    #[inline(always)]
    fn greatest(self, value: Self::Floats) -> f32 {
        value.into_iter().fold(f32::MIN, f32::max)
    }
    #[inline(always)]
    fn fma(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "callers give what 32 bits hold")]
    fn round(self, value: Self::Floats) -> Self::Words {
        value.map(|of| (of.round_ties_even() as i32).cast_unsigned())
    }
    #[inline(always)]
    fn halves(self, bytes: &[u8]) -> Self::Floats {
        of_bytes(bytes, f16)
    }
    #[inline(always)]
    fn upper_halves(self, bytes: &[u8]) -> Self::Floats {
        of_bytes(bytes, |[low, high]| f32::from_le_bytes([0, 0, low, high]))
    }
    #[inline(always)]
    fn unsigned_bytes(self, bytes: &[u8]) -> Self::Floats {
        of_bytes(bytes, |[byte]| f32::from(byte))
    }
    #[inline(always)]
    fn signed_bytes(self, bytes: &[u8]) -> Self::Floats {
        of_bytes(bytes, |[byte]| f32::from(byte.cast_signed()))
    }
    #[inline(always)]
    fn words(self, bytes: &[u8]) -> Self::Words {
        of_bytes(bytes, u32::from_le_bytes)
    }
    #[inline(always)]
    fn splat_word(self, word: u32) -> Self::Words {
        [word; LANES]
    }
    #[inline(always)]
    fn and(self, words: Self::Words, mask: u32) -> Self::Words {
        words.map(|word| word & mask)
    }
    #[inline(always)]
    fn or(self, a: Self::Words, b: Self::Words) -> Self::Words {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn add_words(self, a: Self::Words, b: Self::Words) -> Self::Words {
        zip(a, b, u32::wrapping_add)
    }
    #[inline(always)]
    fn shl(self, words: Self::Words, by: u32) -> Self::Words {
        words.map(|word| word << by)
    }
    #[inline(always)]
    fn shr(self, words: Self::Words, by: u32) -> Self::Words {
        words.map(|word| word >> by)
    }
    #[inline(always)]
    fn floats(self, words: Self::Words) -> Self::Floats {
        words.map(|word| word.cast_signed() as f32)
    }
    #[inline(always)]
    fn store_bytes(self, words: Self::Words, to: &mut [u8]) {
        let to: &mut [u8; LANES] = to.first_chunk_mut().expect("a byte of each lane");
        *to = words.map(|word| word.to_le_bytes()[0]);
    }
    #[inline(always)]
    fn bits(self, words: Self::Words) -> Self::Floats {
        words.map(f32::from_bits)
    }
    #[inline(always)]
    fn dot(self, sum: Self::Words, numbers: Self::Words, bytes: u32, _: u32) -> Self::Words {
        let bytes = bytes.to_le_bytes().map(|byte| i32::from(byte.cast_signed()));
        zip(sum, numbers, |sum, number| {
            let products =
                number.to_le_bytes().into_iter().zip(bytes).map(|(a, b)| i32::from(a) * b);
            sum.wrapping_add_signed(products.sum())
        })
    }
    #[inline(always)]
    fn finish(self, sum: Self::Words, _: u32) -> Self::Words {
        sum
    }
    #[inline(always)]
    fn prefetch(self, _: *const u8) {}
}
