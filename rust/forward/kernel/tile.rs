//! Tiles: some groups of rows times some tokens, with all sums in registers.
//!
//! The sum of a row and a token is added up in one order, whatever the tile: a token's outputs are the same to
//! the bit alone and among others. Kernels have no closures: the instructions of a kernel do not apply to them.

use std::marker::PhantomData;

use super::packed::{
    BlockKind, Iq4Nl, Iq4Xs, Mxfp4, Packed, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
    Scales, block_bytes, parts,
};
use super::planes::scale;
use super::states::{Block, Numbers, Span, States};
use crate::gguf::blocks::BlockType;
use crate::simd::instructions::Instructions;
use crate::simd::vector::{Job, Simd};

/// Weights that stay in the second cache while all tokens are multiplied with them.
const CHUNK_BYTES: usize = 1 << 17;

/// Returns how many groups of rows a chunk has: a multiple of `of`, also where a single group is larger than a chunk.
pub(super) fn chunk_of(group_bytes: usize, of: usize) -> usize {
    (CHUNK_BYTES / group_bytes.max(1)).max(1).next_multiple_of(of)
}

/// Some groups of rows, and where their outputs go.
pub(crate) struct Range<'a, 'b> {
    pub(crate) groups: std::ops::Range<usize>,
    /// The outputs of these rows, a slice for each token.
    pub(crate) outputs: &'a mut [&'b mut [f32]],
}

/// Writes the products of some rows with the states of all tokens.
pub(crate) fn multiply(
    with: Instructions,
    weights: &Packed,
    states: &States,
    range: Range<'_, '_>,
) {
    let Range { groups, outputs } = range;
    let chunk = chunk_of(weights.group_bytes(), 12);
    let num_blocks = weights.columns / 32;
    for from in groups.clone().step_by(chunk) {
        let to = groups.end.min(from + chunk);
        for Span { start, num_tokens, size } in states.spans() {
            let places = start * num_blocks..(start + size) * num_blocks;
            let rows = Rows { weights, from, to, first: groups.start };
            let outputs = &mut outputs[start..start + num_tokens];
            macro_rules! by_kind {
                ($($kind:ident)*) => {
                    match (weights.kind, states.is_rounded()) {
                        $((BlockType::$kind, true) => {
                            let states = &states.rounded[places];
                            by_tokens::<_, $kind>(with, rows, states, size, outputs);
                        }
                        (BlockType::$kind, false) => {
                            let states = &states.floats[places];
                            by_tokens::<_, $kind>(with, rows, states, size, outputs);
                        })*
                        (BlockType::F32 | BlockType::F16 | BlockType::BF16, _) => {}
                    }
                };
            }
            by_kind!(Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K Iq4Nl Iq4Xs Mxfp4);
        }
    }
}

#[derive(Clone, Copy)]
struct Rows<'a> {
    weights: &'a Packed,
    from: usize,
    to: usize,
    /// The group of the first output.
    first: usize,
}

/// Multiplies by tiles whose sums fill the registers.
fn by_tokens<N: Numbers, F: BlockKind>(
    with: Instructions,
    rows: Rows<'_>,
    states: &[Block<N>],
    size: usize,
    outputs: &mut [&mut [f32]],
) {
    macro_rules! tiles {
        ($($tokens:literal $groups:literal),*) => {
            match size {
                // One group is read faster, where its sums do not wait for each other.
                1 if N::IS_ROUNDED || with.lanes() == 16 => {
                    let states = states.as_chunks().0;
                    with.run(Tile::<N, F, 1, 1>(rows, states, outputs, PhantomData));
                }
                $($tokens => {
                    let states = states.as_chunks().0;
                    with.run(Tile::<N, F, $groups, $tokens>(rows, states, outputs, PhantomData));
                })*
                _ => {}
            }
        };
    }
    tiles!(1 6, 2 4, 3 3, 5 2, 7 1, 9 1);
}

struct Tile<'a, 'b, 'c, N, F, const G: usize, const T: usize>(
    Rows<'a>,
    &'a [[Block<N>; T]],
    &'b mut [&'c mut [f32]],
    PhantomData<F>,
);

impl<N: Numbers, F: BlockKind, const G: usize, const T: usize> Job
    for Tile<'_, '_, '_, N, F, G, T>
{
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self(Rows { weights, from, to, first }, states, outputs, _) = self;
        let bytes = weights.bytes();
        // Numbers that are multiplied with their sign are not above what they mean.
        let is_signed = match (N::IS_ROUNDED, F::VALUES) {
            (true, of) => (of.is_some() || F::BITS == 8) && S::HAS_SIGNED_BYTES,
            (false, of) => of.is_some(),
        };
        let has_own = matches!(F::SCALES, Scales::HalfAndMinimum | Scales::Super | Scales::Nibbles);
        // What numbers are above it is taken off whole sums, or is a minimum.
        let is_offset = !is_signed && !has_own && N::IS_ROUNDED;
        let is_above = !is_signed && !N::IS_ROUNDED;
        let has_minimum = has_own || is_above;
        let scales = F::SCALES;
        let unit_bytes = scales.unit_bytes(F::BITS) * S::LANES;
        let group_bytes = weights.group_bytes();
        let block_bytes = block_bytes(F::BITS) * S::LANES;
        let parts = parts(F::BITS);
        // Processors do not predict the jump to the next tile. A single group is one stream, which they read faster
        // by themselves if nothing but its bytes takes time.
        let ahead = if G == 1 { 4096 } else { G * group_bytes };
        let fetched = if G * T > 1 { block_bytes } else { 0 };
        for group in (from..to).step_by(G) {
            let mut totals = [[simd.splat(0.0); T]; G];
            let mut states = states.iter();
            for start in (0..group_bytes).step_by(unit_bytes) {
                let mut units: [&[u8]; G] = [&[]; G];
                for of in 0..G {
                    let of_group = (group + of).min(to - 1) * group_bytes + start;
                    units[of] = &bytes[of_group..][..unit_bytes];
                }
                for block in 0..scales.blocks() {
                    let place = scales.bytes(F::BITS) * S::LANES + block * block_bytes;
                    let mut blocks: [&[u8]; G] = [&[]; G];
                    for of in 0..G {
                        blocks[of] = &units[of][place..][..block_bytes];
                    }
                    let Some(states) = states.next() else {
                        break;
                    };
                    for of in blocks {
                        for line in (0..fetched).step_by(64) {
                            simd.prefetch(of.as_ptr().wrapping_add(ahead + line));
                        }
                    }
                    // Written out, so that shifts are constants and all sums stay in registers.
                    macro_rules! part {
                        ($part:literal) => {
                            let eights = $part * 4 / parts..($part + 1) * 4 / parts;
                            let products =
                                N::products::<S, F, G, T>(simd, blocks, states, eights, is_offset);
                            let place = if parts == 1 { 0 } else { 1 + $part };
                            for of in 0..G {
                                let (scale, minimum) =
                                    scale::<S, F>(simd, units[of], block, $part, is_above);
                                for token in 0..T {
                                    let total = &mut totals[of][token];
                                    if has_minimum {
                                        let sum = simd.splat(states[token].sums[place]);
                                        *total = simd.fma(minimum, sum, *total);
                                    }
                                    *total = simd.fma(scale, products[of][token], *total);
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
            for of in 0..G {
                // Past the last group it is written again.
                let row = ((group + of).min(to - 1) - first) * S::LANES;
                for token in 0..T {
                    // A number that the compiler knows, so that sums need no place in memory.
                    let Some(output) = outputs.get_mut(token) else { break };
                    let output = &mut output[row..];
                    if output.len() >= S::LANES {
                        simd.store(totals[of][token], output);
                    } else {
                        // The last rows are filled up with zeros.
                        let mut lanes = [0.0; 16];
                        simd.store(totals[of][token], &mut lanes);
                        output.copy_from_slice(&lanes[..output.len()]);
                    }
                }
            }
        }
    }
}
