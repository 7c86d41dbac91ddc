//! Tiles: some groups of rows times some tokens, with all sums in registers.
//!
//! The sum of a row and a token is added up in one order, whatever the tile: a token's outputs are the same to
//! the bit alone and among others. Kernels have no closures: the instructions of a kernel do not apply to them.

use super::packed::{Packed, Scales, block_bytes, parts};
use super::planes::scale;
use super::states::{Block, Numbers, Span, States};
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
            macro_rules! by_bits {
                ($states:expr, $($bits:literal $has_values:literal),*) => {
                    match (weights.bits, weights.values.is_some()) {
                        $(($bits, $has_values) => {
                            by_tokens::<_, $bits, $has_values>(with, rows, $states, size, outputs);
                        })*
                        _ => {}
                    }
                };
            }
            if states.is_rounded() {
                by_bits!(&states.rounded[places], 2 false, 3 false, 4 false, 4 true, 5 false, 6 false, 8 false);
            } else {
                by_bits!(&states.floats[places], 2 false, 3 false, 4 false, 4 true, 5 false, 6 false, 8 false);
            }
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
fn by_tokens<N: Numbers, const BITS: u32, const VALUES: bool>(
    with: Instructions,
    rows: Rows<'_>,
    states: &[Block<N>],
    size: usize,
    outputs: &mut [&mut [f32]],
) {
    macro_rules! tiles {
        ($($tokens:literal $groups:literal),*) => {
            match size {
                $($tokens => {
                    let states = states.as_chunks().0;
                    with.run(Tile::<N, BITS, VALUES, $groups, $tokens>(rows, states, outputs));
                })*
                _ => {}
            }
        };
    }
    tiles!(1 6, 2 4, 3 3, 5 2, 7 1, 9 1);
}

struct Tile<'a, 'b, 'c, N, const BITS: u32, const VALUES: bool, const G: usize, const T: usize>(
    Rows<'a>,
    &'a [[Block<N>; T]],
    &'b mut [&'c mut [f32]],
);

impl<N: Numbers, const BITS: u32, const VALUES: bool, const G: usize, const T: usize> Job
    for Tile<'_, '_, '_, N, BITS, VALUES, G, T>
{
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self(Rows { weights, from, to, first }, states, outputs) = self;
        let (scales, bytes) = (weights.scales, weights.bytes());
        // Numbers that are multiplied with their sign are not above what they mean.
        let is_signed = match (N::IS_ROUNDED, VALUES) {
            (true, _) => (VALUES || BITS == 8) && S::HAS_SIGNED_BYTES,
            (false, has_values) => has_values,
        };
        let is_offset = !is_signed;
        // Products of bytes take 128 off, or numbers without a sign.
        let sign = if N::IS_ROUNDED { 0x80 } else { 0 };
        let values =
            weights.values.map_or([0; 16], |values| values.map(|of| of.cast_unsigned() ^ sign));
        let has_minimum = match scales {
            Scales::Half(_) | Scales::UpperHalf | Scales::Signed(_) => is_offset,
            Scales::HalfAndMinimum | Scales::Super | Scales::Nibbles => true,
        };
        let (unit_bytes, group_bytes) = (scales.unit_bytes(BITS) * S::LANES, weights.group_bytes());
        let block_bytes = block_bytes(BITS) * S::LANES;
        let parts = parts(BITS);
        // Processors do not predict the jump to the next tile. A single group is one stream.
        let ahead = if G == 1 { 2048 } else { G * group_bytes };
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
                    let place = scales.bytes(BITS) * S::LANES + block * block_bytes;
                    let mut blocks: [&[u8]; G] = [&[]; G];
                    for of in 0..G {
                        blocks[of] = &units[of][place..][..block_bytes];
                    }
                    let Some(states) = states.next() else {
                        break;
                    };
                    for of in blocks {
                        for line in (0..block_bytes).step_by(64) {
                            simd.prefetch(of.as_ptr().wrapping_add(ahead + line));
                        }
                    }
                    // Written out, so that shifts are constants and all sums stay in registers.
                    macro_rules! part {
                        ($part:literal) => {
                            let eights = $part * 4 / parts..($part + 1) * 4 / parts;
                            let products = N::products::<S, BITS, VALUES, G, T>(
                                simd, &values, blocks, states, eights,
                            );
                            let place = if parts == 1 { 0 } else { 1 + $part };
                            for of in 0..G {
                                let (scale, minimum) = scale::<S, BITS>(
                                    simd, units[of], scales, block, $part, is_offset,
                                );
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
                for token in 0..outputs.len().min(T) {
                    let output = &mut outputs[token][row..];
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
