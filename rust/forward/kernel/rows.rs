//! Products of rows of floats where they lie, and the states of some tokens: a lane is a column.
//!
//! Loops, from outside to inside: chunks of rows that stay in the second-level cache, tiles of tokens, tiles of rows,
//! blocks of 32 columns (two or four vectors of states), vectors. The tiles have up to 10 sums (2 rows by 5 tokens) in
//! 16 registers, and 18 (2 rows by 9 tokens) in the 32 of AVX-512; of one token, 8 rows are 8 streams from memory.
//!
//! As in tiles, the sum of a row and a token is added up in one order. Here this order depends on the number of
//! lanes.

use super::packed::PackedMatrix;
use super::states::{Block, ScaledStates, TileSpan, TokenTiles};
use super::tile::{RowGroups, groups_per_chunk};
use crate::gguf::blocks::BlockType;
use crate::simd::instructions::Instructions;
use crate::simd::vector::{Job, Simd};

/// A multiple of the rows of each tile, so that only the last chunk has a tile in part.
const MAX_TILE_ROWS: usize = 24;

/// Writes the products of some rows with the states of all tokens; each group is a row.
pub(crate) fn multiply_rows(
    isa: Instructions,
    weights: &PackedMatrix,
    states: &TokenTiles,
    rows: RowGroups<'_, '_>,
) {
    let RowGroups { groups, outputs } = rows;
    let row_bytes = weights.columns * weights.kind.block_bytes();
    let chunk = groups_per_chunk(row_bytes, MAX_TILE_ROWS);
    let num_blocks = weights.columns / 32;
    for from in groups.clone().step_by(chunk) {
        let to = groups.end.min(from + chunk);
        let bytes = &weights.bytes()[from * row_bytes..to * row_bytes];
        for TileSpan { start, num_tokens, size } in states.spans() {
            let states = &states.floats[start * num_blocks..(start + size) * num_blocks];
            let outputs = &mut outputs[start..start + num_tokens];
            let (kind, first) = (weights.kind, from - groups.start);
            macro_rules! tiles {
                ($($tokens:literal $rows:literal),*) => {
                    match size {
                        $($tokens => {
                            let states = states.as_chunks().0;
                            isa.run(RowTile::<$rows, $tokens> {
                                kind, bytes, row_bytes, first, states, outputs,
                            });
                        })*
                        _ => {}
                    }
                };
            }
            tiles!(1 8, 2 4, 3 3, 4 2, 5 2, 7 2, 9 2);
        }
    }
}

/// A tile: `R` rows at a time, times `T` tokens.
struct RowTile<'a, 'b, 'c, const R: usize, const T: usize> {
    /// The type of the floats.
    kind: BlockType,
    /// All rows, one after the other.
    bytes: &'a [u8],
    /// The bytes of a row.
    row_bytes: usize,
    /// The index of the first output of each token.
    first: usize,
    /// The states, block after block.
    states: &'a [[Block<ScaledStates>; T]],
    /// The outputs of all rows, a slice for each token.
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
    /// Multiplies floats of `SIZE` bytes, which are float16 or the upper bytes of float32.
    #[inline(always)]
    fn by_kind<S: Simd, const SIZE: usize, const IS_HALF: bool>(self, simd: S) {
        let Self { bytes, row_bytes, first, states, outputs, .. } = self;
        let num_rows = bytes.len() / row_bytes.max(1);
        for row in (0..num_rows).step_by(R) {
            let mut sums = [[simd.splat(0.0); T]; R];
            let mut rows: [&[u8]; R] = [&[]; R];
            for index in 0..R {
                rows[index] = &bytes[(row + index).min(num_rows - 1) * row_bytes..][..row_bytes];
            }
            for (block, states) in states.iter().enumerate() {
                let mut blocks: [&[u8]; R] = [&[]; R];
                for index in 0..R {
                    blocks[index] = &rows[index][block * 32 * SIZE..][..32 * SIZE];
                    // Processors do not predict the jump to the next rows.
                    for line in (0..32 * SIZE).step_by(64) {
                        simd.prefetch(blocks[index].as_ptr().wrapping_add(R * row_bytes + line));
                    }
                }
                for column in (0..32).step_by(S::LANES) {
                    let mut weights = [simd.splat(0.0); R];
                    for index in 0..R {
                        let numbers = &blocks[index][column * SIZE..];
                        weights[index] = match (SIZE, IS_HALF) {
                            (4, _) => simd.bits(simd.words(numbers)),
                            (_, true) => simd.halves(numbers),
                            _ => simd.upper_halves(numbers),
                        };
                    }
                    for token in 0..T {
                        let state = simd.load(&states[token].states[column..]);
                        for index in 0..R {
                            sums[index][token] =
                                simd.fma(weights[index], state, sums[index][token]);
                        }
                    }
                }
            }
            for index in 0..R {
                // Row indices are clamped, so the last row may be written twice with the same value.
                let output = first + (row + index).min(num_rows - 1);
                for token in 0..outputs.len().min(T) {
                    outputs[token][output] = simd.sum(sums[index][token]);
                }
            }
        }
    }
}
