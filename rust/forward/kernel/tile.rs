//! Tiles: some groups of rows times some tokens, with all sums in registers.
//!
//! Loops, from outside to inside:
//!
//! 1. Chunks of rows of [`CHUNK_BYTES`], which stay in the second-level cache while all tokens pass by.
//! 2. Tiles of tokens, of the sizes [`tile_sizes`].
//! 3. Tiles of groups of rows: as many as the registers have sums for. A vector of weights is unpacked once for all
//!    tokens of a tile, and a state is broadcast once for all its groups. Few tokens have too few sums in one group to
//!    hide the latency of float multiplications, so that these tiles have several groups. Rounded states take a quarter
//!    of the multiplications, so that one group is enough, and as a single stream it is read faster. The exception is
//!    one token where vectors have 8 lanes: with AVX2, four groups with prefetches of the next four are read faster.
//! 4. Units of blocks along the columns, and in a unit blocks of 32 columns.
//!
//! The sum of a row and a token is added up in one order, whatever the tile: a token's outputs are the same to
//! the bit alone and among others. Kernels have no closures: the instructions of a kernel do not apply to them.

use std::hint::black_box;
use std::marker::PhantomData;
use std::ops::Range;

use super::packed::{
    BlockKind, Iq4Nl, Iq4Xs, Mxfp4, PackedMatrix, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K,
    Q8_0, Scales, block_bytes, parts,
};
use super::planes::scale;
use super::states::{Block, Numbers, TileSpan, TokenTiles, tile_sizes};
use crate::gguf::blocks::BlockType;
use crate::simd::instructions::Instructions;
use crate::simd::vector::{Job, Simd};

/// The bytes of weights that stay in the second-level cache while all tokens are multiplied with them.
const CHUNK_BYTES: usize = 1 << 17;

/// A multiple of the groups of each tile, so that only the last chunk has a tile in part.
const MAX_TILE_GROUPS: usize = 12;

/// Returns how many groups of rows a chunk has: a multiple of what `factor` is, also where a single group is larger
/// than a chunk.
pub(super) fn groups_per_chunk(group_bytes: usize, factor: usize) -> usize {
    (CHUNK_BYTES / group_bytes.max(1)).max(1).next_multiple_of(factor)
}

/// Some groups of rows, and where their outputs go.
pub(crate) struct RowGroups<'a, 'b> {
    /// The indices of the groups in the matrix.
    pub(crate) groups: Range<usize>,
    /// The outputs of these rows, a slice for each token.
    pub(crate) outputs: &'a mut [&'b mut [f32]],
}

/// Writes the products of some rows with the states of all tokens.
pub(crate) fn multiply(
    isa: Instructions,
    weights: &PackedMatrix,
    states: &TokenTiles,
    rows: RowGroups<'_, '_>,
) {
    let RowGroups { groups, outputs } = rows;
    let chunk = groups_per_chunk(weights.group_bytes(), MAX_TILE_GROUPS);
    let num_blocks = weights.columns / 32;
    for from in groups.clone().step_by(chunk) {
        let to = groups.end.min(from + chunk);
        for TileSpan { start, num_tokens, size } in states.spans() {
            let tile = start * num_blocks..(start + size) * num_blocks;
            let rows = Rows { weights, from, to, first: groups.start };
            let outputs = &mut outputs[start..start + num_tokens];
            macro_rules! by_kind {
                ($($kind:ident)*) => {
                    match (weights.kind, states.is_rounded()) {
                        $((BlockType::$kind, true) => {
                            let states = &states.rounded[tile];
                            by_tokens::<_, $kind>(isa, rows, states, size, outputs);
                        }
                        (BlockType::$kind, false) => {
                            let states = &states.floats[tile];
                            by_tokens::<_, $kind>(isa, rows, states, size, outputs);
                        })*
                        (BlockType::F32 | BlockType::F16 | BlockType::BF16, _) => {}
                    }
                };
            }
            by_kind!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4);
        }
    }
}

/// The groups of rows of a chunk.
#[derive(Clone, Copy)]
struct Rows<'a> {
    /// The matrix.
    weights: &'a PackedMatrix,
    /// The index of the first group.
    from: usize,
    /// The index behind the last group.
    to: usize,
    /// The index of the group of the first output.
    first: usize,
}

/// Multiplies by tiles whose sums fill the registers.
fn by_tokens<N: Numbers, F: BlockKind>(
    isa: Instructions,
    rows: Rows<'_>,
    states: &[Block<N>],
    size: usize,
    outputs: &mut [&mut [f32]],
) {
    macro_rules! tiles {
        ($($tokens:literal $groups:literal $groups_of_8_lanes:literal),*) => {
            match size {
                $($tokens => {
                    let states = states.as_chunks().0;
                    let tile = Tile::<N, F, $groups, $groups_of_8_lanes, $tokens>;
                    isa.run(tile(rows, states, outputs, PhantomData));
                })*
                _ => {}
            }
        };
    }
    tiles!(1 1 6, 2 4 3, 3 3 2, 4 1 2, 5 1 2, 7 1 1, 9 1 1);
}

/// A tile of `T` tokens, whose states are block after block, times groups of rows: of floats `G` at a time, or `H` where
/// vectors have 8 lanes.
struct Tile<'a, 'b, 'c, N, F, const G: usize, const H: usize, const T: usize>(
    Rows<'a>,
    &'a [[Block<N>; T]],
    &'b mut [&'c mut [f32]],
    PhantomData<F>,
);

impl<N: Numbers, F: BlockKind, const G: usize, const H: usize, const T: usize> Job
    for Tile<'_, '_, '_, N, F, G, H, T>
{
    const HAS_DOTS: bool = N::IS_ROUNDED;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self(rows, states, outputs, _) = self;
        // 8 lanes leave 16 registers: of AVX2, and of NEON, where a vector takes two.
        let is_narrow = S::LANES == 8;
        if const { !is_tile_size::<S, N>(T) } {
            // No states are in tiles of this size.
        } else if S::IS_UNROLLED && is_narrow && N::IS_ROUNDED && T == 1 {
            products::<S, N, F, 4, T>(simd, rows, states, outputs);
        } else if !S::IS_UNROLLED || N::IS_ROUNDED {
            products::<S, N, F, 1, T>(simd, rows, states, outputs);
        } else if is_narrow {
            products::<S, N, F, H, T>(simd, rows, states, outputs);
        } else {
            products::<S, N, F, G, T>(simd, rows, states, outputs);
        }
    }
}

/// Returns whether [`tile_sizes`] has this number, when the kernel is compiled.
const fn is_tile_size<S: Simd, N: Numbers>(num_tokens: usize) -> bool {
    let sizes = tile_sizes(S::LOADS_STATES, N::IS_ROUNDED);
    let mut index = 0;
    while index < sizes.len() && sizes[index] != num_tokens {
        index += 1;
    }
    index < sizes.len()
}

/// Computes the products of a tile.
#[inline(always)]
fn products<S: Simd, N: Numbers, F: BlockKind, const G: usize, const T: usize>(
    simd: S,
    Rows { weights, from, to, first }: Rows<'_>,
    states: &[[Block<N>; T]],
    outputs: &mut [&mut [f32]],
) {
    let bytes = weights.bytes();
    // Signed numbers have no zero point to subtract.
    let is_signed = match (N::IS_ROUNDED, F::VALUES) {
        (true, values) => (values.is_some() || F::BITS == 8) && S::HAS_SIGNED_BYTES,
        (false, values) => values.is_some(),
    };
    let has_own = matches!(F::SCALES, Scales::HalfAndMinimum | Scales::KBlock | Scales::Sixteenths);
    // A zero point is subtracted from whole sums, or folded into a minimum.
    let is_offset = !is_signed && !has_own && N::IS_ROUNDED;
    let is_above = !is_signed && !N::IS_ROUNDED;
    let has_minimum = has_own || is_above;
    let scales = F::SCALES;
    let unit_bytes = scales.unit_bytes(F::BITS) * S::LANES;
    let group_bytes = weights.group_bytes();
    let block_bytes = block_bytes(F::BITS) * S::LANES;
    let parts = parts(F::BITS);
    // Processors do not predict the jump to the next tile.
    let ahead = if G == 1 { 4096 } else { G * group_bytes };
    let fetched = match G {
        // Processors read a single stream faster by themselves if nothing but its bytes takes time.
        1 if N::IS_ROUNDED && T == 1 && matches!(F::BITS, 4 | 8) => 0,
        // The compiler does not know this number, and so keeps the prefetches in a loop. When it unrolls them, three
        // tokens of Q4_K take a fifth longer with AVX-512, and so does one token of Q6_K.
        1 => black_box(block_bytes),
        _ => block_bytes,
    };
    for group in (from..to).step_by(G) {
        let mut totals = [[simd.splat(0.0); T]; G];
        let mut states = states.iter();
        for start in (0..group_bytes).step_by(unit_bytes) {
            let mut units: [&[u8]; G] = [&[]; G];
            for index in 0..G {
                let start = (group + index).min(to - 1) * group_bytes + start;
                units[index] = &bytes[start..][..unit_bytes];
            }
            for block in 0..scales.blocks() {
                let start = scales.bytes(F::BITS) * S::LANES + block * block_bytes;
                let mut blocks: [&[u8]; G] = [&[]; G];
                for index in 0..G {
                    blocks[index] = &units[index][start..][..block_bytes];
                }
                let Some(states) = states.next() else {
                    break;
                };
                for block in blocks {
                    for line in (0..fetched).step_by(64) {
                        simd.prefetch(block.as_ptr().wrapping_add(ahead + line));
                    }
                }
                // Written out, so that shifts are constants and all sums stay in registers.
                macro_rules! part {
                    ($part:literal) => {
                        let eights = $part * 4 / parts..($part + 1) * 4 / parts;
                        let products =
                            N::products::<S, F, G, T>(simd, blocks, states, eights, is_offset);
                        let sum = if parts == 1 { 0 } else { 1 + $part };
                        for index in 0..G {
                            let (scale, minimum) =
                                scale::<S, F>(simd, units[index], block, $part, is_above);
                            for token in 0..T {
                                let total = &mut totals[index][token];
                                if has_minimum {
                                    let states = simd.splat(states[token].sums[sum]);
                                    *total = simd.fma(minimum, states, *total);
                                }
                                *total = simd.fma(scale, products[index][token], *total);
                            }
                        }
                    };
                }
                part!(0);
                if parts == 2 {
                    part!(1);
                }
            }
        }
        for index in 0..G {
            // Indices are clamped, so the last group may be written twice with the same values.
            let row = ((group + index).min(to - 1) - first) * S::LANES;
            for token in 0..T {
                // A number that the compiler knows, so that sums need no place in memory.
                let Some(output) = outputs.get_mut(token) else { break };
                let output = &mut output[row..];
                if output.len() >= S::LANES {
                    simd.store(totals[index][token], output);
                } else {
                    // The last rows are filled up with zeros.
                    let mut lanes = [0.0; 16];
                    simd.store(totals[index][token], &mut lanes);
                    output.copy_from_slice(&lanes[..output.len()]);
                }
            }
        }
    }
}
