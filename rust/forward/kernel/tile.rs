//! Tiles: some groups of rows times some tokens, with all sums in registers.
//!
//! The sum of a row and a token is added up in one order, whatever the tile: a token's outputs are the same to
//! the bit alone and among others. Kernels have no closures: the instructions of a kernel do not apply to them.

use std::marker::PhantomData;

use super::planes::{Bits4, Bits5, Bits6, Bits8, Numbers, bytes, column, loaded, scale};
use super::states::{ByteBlock, FloatBlock, Span, States};
use crate::simd::{Instructions, Job, Simd};
use crate::weights::{Packed, Plane, Scales};

/// Weights that stay in the second cache while all tokens are multiplied with them.
pub(super) const CHUNK_BYTES: usize = 1 << 17;

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
    let chunk = (CHUNK_BYTES / weights.group_bytes().max(1)).next_multiple_of(12);
    let num_blocks = weights.columns / 32;
    for from in groups.clone().step_by(chunk) {
        let to = groups.end.min(from + chunk);
        for Span { start, num_tokens, size } in states.spans() {
            let places = start * num_blocks..(start + size) * num_blocks;
            let rows = Rows { weights, from, to, first: groups.start, size };
            let outputs = &mut outputs[start..start + num_tokens];
            if states.is_rounded() {
                by_plane(with, rows, &states.bytes[places], outputs);
            } else {
                by_plane(with, rows, &states.floats[places], outputs);
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
    /// The number of tokens of the kernel, at least that of the outputs.
    size: usize,
}

fn by_plane<B: Block>(
    with: Instructions,
    rows: Rows<'_>,
    states: &[B],
    outputs: &mut [&mut [f32]],
) {
    match rows.weights.plane {
        Plane::Bits4 => by_tokens::<B, Bits4>(with, rows, states, outputs),
        Plane::Bits5 => by_tokens::<B, Bits5>(with, rows, states, outputs),
        Plane::Bits6 => by_tokens::<B, Bits6>(with, rows, states, outputs),
        Plane::Bits8 => by_tokens::<B, Bits8>(with, rows, states, outputs),
    }
}

/// Multiplies by tiles whose sums fill the registers.
fn by_tokens<B: Block, N: Numbers>(
    with: Instructions,
    rows: Rows<'_>,
    states: &[B],
    outputs: &mut [&mut [f32]],
) {
    macro_rules! tiles {
        ($($tokens:literal $groups:literal),*) => {
            match rows.size {
                $($tokens => {
                    let states = states.as_chunks().0;
                    with.run(Tile::<B, N, $groups, $tokens>(rows, states, outputs, PhantomData));
                })*
                _ => {}
            }
        };
    }
    tiles!(1 6, 2 4, 3 3, 5 2, 7 1, 9 1);
}

/// States of a token that are multiplied with a block of weights.
trait Block: Sized + Copy {
    const IS_ROUNDED: bool;

    /// Returns the products of the columns of a part of a block, before its scale.
    fn products<S: Simd, N: Numbers, const G: usize, const T: usize>(
        simd: S,
        blocks: [&[u8]; G],
        states: &[Self; T],
        part: usize,
    ) -> [[S::Floats; T]; G];

    /// The sum of the states of a part.
    fn sum(&self, part: usize) -> f32;
}

impl Block for FloatBlock {
    const IS_ROUNDED: bool = false;

    #[inline(always)]
    fn products<S: Simd, N: Numbers, const G: usize, const T: usize>(
        simd: S,
        blocks: [&[u8]; G],
        states: &[Self; T],
        part: usize,
    ) -> [[S::Floats; T]; G] {
        let mut sums = [[simd.splat(0.0); T]; G];
        let length = 4 / N::PARTS;
        for eight in part * length..(part + 1) * length {
            let mut words = [[simd.splat_word(0); 2]; G];
            for group in 0..G {
                words[group] = loaded::<S, N>(simd, blocks[group], eight);
            }
            macro_rules! columns {
                ($($column:literal)*) => {
                    $(let mut weights = [simd.splat(0.0); G];
                    for group in 0..G {
                        weights[group] =
                            column::<S, N>(simd, words[group], $column);
                    }
                    for token in 0..T {
                        let state = simd.splat(states[token].states[eight * 8 + $column]);
                        for group in 0..G {
                            sums[group][token] = simd.fma(weights[group], state, sums[group][token]);
                        }
                    })*
                };
            }
            columns!(0 1 2 3 4 5 6 7);
        }
        sums
    }

    #[inline(always)]
    fn sum(&self, part: usize) -> f32 {
        self.sums[part]
    }
}

impl Block for ByteBlock {
    const IS_ROUNDED: bool = true;

    #[inline(always)]
    fn products<S: Simd, N: Numbers, const G: usize, const T: usize>(
        simd: S,
        blocks: [&[u8]; G],
        states: &[Self; T],
        part: usize,
    ) -> [[S::Floats; T]; G] {
        let mut sums = [[simd.splat_word(0); T]; G];
        let length = 4 / N::PARTS;
        for eight in part * length..(part + 1) * length {
            let mut words = [[simd.splat_word(0); 2]; G];
            for group in 0..G {
                words[group] = bytes::<S, N>(simd, blocks[group], eight);
            }
            for half in 0..2 {
                for token in 0..T {
                    let state = u32::from_le_bytes(states[token].states[eight * 2 + half]);
                    for group in 0..G {
                        let sum = sums[group][token];
                        sums[group][token] = simd.dot(sum, words[group][half], state, N::BITS);
                    }
                }
            }
        }
        let mut products = [[simd.splat(0.0); T]; G];
        for token in 0..T {
            let factor = simd.splat(states[token].scale);
            for group in 0..G {
                let sum = simd.floats(simd.finish(sums[group][token], N::BITS));
                products[group][token] = simd.mul(sum, factor);
            }
        }
        products
    }

    #[inline(always)]
    fn sum(&self, part: usize) -> f32 {
        self.sums[part]
    }
}

struct Tile<'a, 'b, 'c, B, N, const G: usize, const T: usize>(
    Rows<'a>,
    &'a [[B; T]],
    &'b mut [&'c mut [f32]],
    PhantomData<N>,
);

impl<B: Block, N: Numbers, const G: usize, const T: usize> Job for Tile<'_, '_, '_, B, N, G, T> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self(Rows { weights, from, to, first, .. }, states, outputs, _) = self;
        let (scales, bytes): (_, &[u8]) = (weights.scales, &weights.bytes);
        // Numbers that are multiplied with their sign are not above what they mean.
        let is_offset = !(B::IS_ROUNDED && N::BITS == 8 && S::HAS_SIGNED_BYTES);
        let has_minimum = match scales {
            Scales::Half(_) | Scales::Signed => is_offset,
            Scales::HalfAndMinimum | Scales::Super => true,
        };
        let (unit_bytes, group_bytes) = (weights.unit_bytes(), weights.group_bytes());
        let block_bytes = N::PLANE.block_bytes() * S::LANES;
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
                    let place = scales.bytes() * S::LANES + block * block_bytes;
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
                    for part in 0..N::PARTS {
                        let products = B::products::<S, N, G, T>(simd, blocks, states, part);
                        let place = if N::PARTS == 1 { 0 } else { 1 + part };
                        for of in 0..G {
                            let (scale, minimum) =
                                scale(simd, units[of], scales, block, part, is_offset);
                            for token in 0..T {
                                let total = &mut totals[of][token];
                                if has_minimum {
                                    let sum = simd.splat(states[token].sum(place));
                                    *total = simd.fma(minimum, sum, *total);
                                }
                                *total = simd.fma(scale, products[of][token], *total);
                            }
                        }
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
