//! Product of a block of rows on one thread, with vector instructions of x86-64.
//!
//! Tiles of rows and tokens stay in registers. The next rows are prefetched, because hardware prefetchers
//! do not predict their order.

use crate::linear::layer_weights::{LayerWeights, RowBlock};
use std::arch::x86_64::{
    __m256, __m512, _MM_HINT_T0, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehl_ps,
    _mm_prefetch, _mm_shuffle_ps, _mm256_castps256_ps128, _mm256_castsi256_ps,
    _mm256_cvtepu16_epi32, _mm256_extractf128_ps, _mm256_fmadd_ps, _mm256_setzero_ps,
    _mm256_slli_epi32, _mm512_castsi512_ps, _mm512_cvtepu16_epi32, _mm512_fmadd_ps,
    _mm512_reduce_add_ps, _mm512_setzero_ps, _mm512_slli_epi32,
};

pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// Writes the outputs of a block if [`is_available`].
pub(crate) fn multiply(part: RowBlock<'_>, states: &[&[f32]]) {
    if is_available() {
        by_vectors(part, states, is_x86_feature_detected!("avx512f"));
    }
}

/// Writes the outputs of a block with wide or narrow vectors.
fn by_vectors(mut part: RowBlock<'_>, states: &[&[f32]], is_wide: bool) {
    let outputs = part.outputs.as_mut_slice();
    #[expect(unsafe_code, reason = "the compiler cannot know the processor")]
    // SAFETY: the functions need nothing but the instructions that `multiply` found.
    unsafe {
        match (part.weights, is_wide) {
            (LayerWeights::F32(weights), true) => wide_f32::product(weights, states, outputs),
            (LayerWeights::F32(weights), false) => narrow_f32::product(weights, states, outputs),
            (LayerWeights::BF16(weights), true) => wide_bf16::product(weights, states, outputs),
            (LayerWeights::BF16(weights), false) => narrow_bf16::product(weights, states, outputs),
        }
    }
}

/// Defines a module with `product` for one type of weights and vectors.
///
/// `$rows` and the last of `$tokens` are the largest tile that fits the registers.
macro_rules! kernel {
    (
        $name:ident, $features:literal, $weight:ty, $vector:ident, $lanes:literal,
        $rows:literal, [$($tokens:literal)* ... $most:literal],
        $read:ident, $add:ident, $zero:ident, $sum:ident
    ) => {
        mod $name {
            use std::array;
            use std::ops::Range;

            use super::{$vector, $read, $add, $zero, $sum, prefetch};

            #[target_feature(enable = $features)]
            pub(super) fn product(weights: &[$weight], states: &[&[f32]], outputs: &mut [&mut [f32]]) {
                let size = states[0].len();
                let num_rows = weights.len() / size;
                let whole = num_rows - num_rows % $rows;
                for row in (0..whole).step_by($rows) {
                    of_rows::<$rows>(&weights[row * size..], states, outputs, row);
                }
                for row in whole..num_rows {
                    of_rows::<1>(&weights[row * size..], states, outputs, row);
                }
            }

            /// Writes the outputs of the first `ROWS` rows of the weights.
            #[inline]
            #[target_feature(enable = $features)]
            fn of_rows<const ROWS: usize>(
                weights: &[$weight],
                states: &[&[f32]],
                outputs: &mut [&mut [f32]],
                row: usize,
            ) {
                let num_groups = states.len().div_ceil($most);
                let mut start = 0;
                for group in 0..num_groups {
                    let num_tokens = (states.len() - start).div_ceil(num_groups - group);
                    let end = start + num_tokens;
                    let (states, outputs) = (&states[start..end], &mut outputs[start..end]);
                    // Each group fetches a part of the next rows.
                    let fetched = ROWS * group / num_groups..ROWS * (group + 1) / num_groups;
                    match num_tokens {
                        $($tokens => tile::<ROWS, $tokens>(weights, states, outputs, row, fetched),)*
                        _ => tile::<ROWS, $most>(weights, states, outputs, row, fetched),
                    }
                    start = end;
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            fn tile<const ROWS: usize, const TOKENS: usize>(
                weights: &[$weight],
                states: &[&[f32]],
                outputs: &mut [&mut [f32]],
                row: usize,
                fetched: Range<usize>,
            ) {
                let size = states[0].len();
                let num_vectors = size / $lanes;
                let next = weights.as_ptr().wrapping_add(ROWS * size);
                let rows: [_; ROWS] = array::from_fn(|row| vectors(&weights[row * size..], num_vectors));
                let states: [_; TOKENS] = array::from_fn(|token| vectors(states[token], num_vectors));
                let mut sums = [[$zero(); ROWS]; TOKENS];
                for place in 0..num_vectors {
                    let mut of_rows = [$zero(); ROWS];
                    for (vector, row) in of_rows.iter_mut().zip(rows) {
                        *vector = $read(&row[place]);
                    }
                    for row in fetched.clone() {
                        prefetch(next.wrapping_add(row * size + place * $lanes));
                    }
                    for (sums, states) in sums.iter_mut().zip(states) {
                        let of_token: $vector = bytemuck::pod_read_unaligned(bytemuck::bytes_of(&states[place]));
                        for (sum, of_row) in sums.iter_mut().zip(of_rows) {
                            *sum = $add(of_row, of_token, *sum);
                        }
                    }
                }
                for (output, sums) in outputs.iter_mut().zip(sums) {
                    for (output, sum) in output[row..][..ROWS].iter_mut().zip(sums) {
                        *output = $sum(sum);
                    }
                }
            }

            fn vectors<T>(of: &[T], number: usize) -> &[[T; $lanes]] {
                &of.as_chunks().0[..number]
            }
        }
    };
}

kernel!(
    wide_f32, "avx512f", f32, __m512, 16, 4, [1 2 3 4 ... 5],
    wide, _mm512_fmadd_ps, _mm512_setzero_ps, _mm512_reduce_add_ps
);
kernel!(
    wide_bf16, "avx512f", u16, __m512, 16, 4, [1 2 3 4 ... 5],
    wide_halves, _mm512_fmadd_ps, _mm512_setzero_ps, _mm512_reduce_add_ps
);
kernel!(
    narrow_f32, "avx2,fma", f32, __m256, 8, 3, [1 2 3 ... 4],
    narrow, _mm256_fmadd_ps, _mm256_setzero_ps, sum
);
kernel!(
    narrow_bf16, "avx2,fma", u16, __m256, 8, 3, [1 2 3 ... 4],
    narrow_halves, _mm256_fmadd_ps, _mm256_setzero_ps, sum
);

#[inline]
#[target_feature(enable = "avx512f")]
fn wide(of: &[f32; 16]) -> __m512 {
    bytemuck::pod_read_unaligned(bytemuck::bytes_of(of))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn wide_halves(of: &[u16; 16]) -> __m512 {
    let halves = bytemuck::pod_read_unaligned(bytemuck::bytes_of(of));
    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn narrow(of: &[f32; 8]) -> __m256 {
    bytemuck::pod_read_unaligned(bytemuck::bytes_of(of))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn narrow_halves(of: &[u16; 8]) -> __m256 {
    let halves = bytemuck::pod_read_unaligned(bytemuck::bytes_of(of));
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum(of: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(of), _mm256_extractf128_ps::<1>(of));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}

#[inline]
fn prefetch<T>(place: *const T) {
    #[expect(unsafe_code, reason = "the function takes any place")]
    // SAFETY: to fetch a place does nothing that a program can see, wherever it is.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(place.cast());
    }
}

#[cfg(test)]
mod tests {
    use super::{LayerWeights, RowBlock, by_vectors, is_available};

    #[test]
    fn narrow_vectors_compute_what_wide_ones_do() {
        if !is_available() || !is_x86_feature_detected!("avx512f") {
            return;
        }
        let halves: Vec<u16> = (0..11 * 48).map(|place| 0x3f00 + place % 256).collect();
        let weights: Vec<_> =
            halves.iter().map(|&half| f32::from_bits(u32::from(half) << 16)).collect();
        let states: Vec<f32> = (0..9 * 48u16).map(|place| f32::from(place % 7) - 2.5).collect();
        let states: Vec<_> = states.chunks(48).collect();
        let made = |weights, is_wide| {
            let mut outputs = vec![f32::NAN; 9 * 11];
            let outputs_of_part = outputs.chunks_mut(11).collect();
            by_vectors(RowBlock { weights, outputs: outputs_of_part }, &states, is_wide);
            outputs
        };
        let expected = made(LayerWeights::F32(&weights), true);
        for weights in [LayerWeights::F32(&weights), LayerWeights::BF16(&halves)] {
            for is_wide in [false, true] {
                let mut both = expected.iter().zip(made(weights, is_wide));
                assert!(both.all(|(a, b)| (a - b).abs() < 1e-4 * a.abs().max(1.0)));
            }
        }
        assert!(
            (expected[0] - expected[1]).abs() > 0.1 && (expected[0] - expected[11]).abs() > 0.1
        );
    }
}
