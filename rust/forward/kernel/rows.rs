//! Products of rows of floats where they lie, and the states of some tokens: a lane is a column.
//!
//! As in tiles, the sum of a row and a token is added up in one order. Here this order depends on the number of
//! lanes.

use super::packed::Packed;
use super::states::{Block, ScaledStates, Span, States};
use super::tile::{Range, chunk_of};
use crate::gguf::blocks::BlockType;
use crate::simd::instructions::Instructions;
use crate::simd::vector::{Job, Simd};

/// Writes the products of some rows with the states of all tokens; the groups of the range are rows.
pub(crate) fn multiply_rows(
    with: Instructions,
    weights: &Packed,
    states: &States,
    range: Range<'_, '_>,
) {
    let Range { groups, outputs } = range;
    let row_bytes = weights.columns * weights.kind.block_bytes();
    let chunk = chunk_of(row_bytes, 24);
    let num_blocks = weights.columns / 32;
    for from in groups.clone().step_by(chunk) {
        let to = groups.end.min(from + chunk);
        let bytes = &weights.bytes()[from * row_bytes..to * row_bytes];
        for Span { start, num_tokens, size } in states.spans() {
            let states = &states.floats[start * num_blocks..(start + size) * num_blocks];
            let outputs = &mut outputs[start..start + num_tokens];
            let (kind, first) = (weights.kind, from - groups.start);
            macro_rules! tiles {
                ($($tokens:literal $rows:literal),*) => {
                    match size {
                        $($tokens => {
                            let states = states.as_chunks().0;
                            with.run(RowTile::<$rows, $tokens> {
                                kind, bytes, row_bytes, first, states, outputs,
                            });
                        })*
                        _ => {}
                    }
                };
            }
            tiles!(1 8, 2 4, 3 3, 5 2, 7 2, 9 2);
        }
    }
}

struct RowTile<'a, 'b, 'c, const R: usize, const T: usize> {
    kind: BlockType,
    bytes: &'a [u8],
    row_bytes: usize,
    /// The place of the first output.
    first: usize,
    states: &'a [[Block<ScaledStates>; T]],
    outputs: &'b mut [&'c mut [f32]],
}

impl<const R: usize, const T: usize> Job for RowTile<'_, '_, '_, R, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.kind {
            BlockType::F16 => self.by_kind::<S, 2, true>(simd),
            BlockType::BF16 => self.by_kind::<S, 2, false>(simd),
            _ => self.by_kind::<S, 4, false>(simd),
        }
    }
}

impl<const R: usize, const T: usize> RowTile<'_, '_, '_, R, T> {
    /// Multiplies numbers of some bytes, which are halves or the first bytes of floats.
    #[inline(always)]
    fn by_kind<S: Simd, const SIZE: usize, const IS_HALF: bool>(self, simd: S) {
        let Self { bytes, row_bytes, first, states, outputs, .. } = self;
        let num_rows = bytes.len() / row_bytes.max(1);
        for row in (0..num_rows).step_by(R) {
            let mut sums = [[simd.splat(0.0); T]; R];
            let mut rows: [&[u8]; R] = [&[]; R];
            for of in 0..R {
                rows[of] = &bytes[(row + of).min(num_rows - 1) * row_bytes..][..row_bytes];
            }
            for (block, states) in states.iter().enumerate() {
                let mut blocks: [&[u8]; R] = [&[]; R];
                for of in 0..R {
                    blocks[of] = &rows[of][block * 32 * SIZE..][..32 * SIZE];
                    // Processors do not predict the jump to the next rows.
                    for line in (0..32 * SIZE).step_by(64) {
                        simd.prefetch(blocks[of].as_ptr().wrapping_add(R * row_bytes + line));
                    }
                }
                for column in (0..32).step_by(S::LANES) {
                    let mut weights = [simd.splat(0.0); R];
                    for of in 0..R {
                        let numbers = &blocks[of][column * SIZE..];
                        weights[of] = match (SIZE, IS_HALF) {
                            (4, _) => simd.bits(simd.words(numbers)),
                            (_, true) => simd.halves(numbers),
                            _ => simd.upper_halves(numbers),
                        };
                    }
                    for token in 0..T {
                        let state = simd.load(&states[token].states[column..]);
                        for of in 0..R {
                            sums[of][token] = simd.fma(weights[of], state, sums[of][token]);
                        }
                    }
                }
            }
            for of in 0..R {
                // Past the last row it is written again.
                let place = first + (row + of).min(num_rows - 1);
                for token in 0..outputs.len().min(T) {
                    outputs[token][place] = simd.sum(sums[of][token]);
                }
            }
        }
    }
}
