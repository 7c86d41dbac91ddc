//! The states of tokens, as kernels take them: tile after tile, and in a tile block after block.

use std::ops::Range;

use super::packed::{BlockKind, PackedMatrix, parts};
use super::planes::{self, SIGNED_SHIFT, bytes, loaded, shift, signed_column};
use crate::simd::instructions::Instructions;
use crate::simd::vector::{Job, Simd};

/// Returns the numbers of tokens of tiles, in ascending order: each has a kernel, and zeros fill a tile up between them.
///
/// Up to 9 tokens, the sums of a group of rows, the weights and a state fit in 16 registers. Where floats are products of
/// loaded states (see [`Simd::LOADS_STATES`]), loads for one group and 9 tokens take as long as the products; 5 tokens and
/// two groups fill the registers, too, and need half the loads.
pub(crate) const fn tile_sizes(loads_states: bool, is_rounded: bool) -> &'static [usize] {
    if loads_states && !is_rounded { &[1, 2, 3, 4, 5] } else { &[1, 2, 3, 4, 5, 7, 9] }
}

/// The tokens of a tile.
pub(crate) struct TileSpan {
    /// The index of the first token.
    pub(crate) start: usize,
    /// The number of tokens.
    pub(crate) num_tokens: usize,
    /// The tokens of the kernel, one of [`tile_sizes`]; those beyond `num_tokens` are zero.
    pub(crate) size: usize,
}

/// The precision of the states that weights are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// Unchanged.
    #[default]
    Float32,
    /// Rounded to 8 bits, by one scale for 32 of them.
    Int8,
}

/// 32 states of a token.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Block<T> {
    /// The states, as the kernel takes them.
    pub(crate) states: T,
    /// The step of rounded states, and 1 for others.
    pub(crate) scale: f32,
    /// The sums of all 32 states, of the first and of the last 16.
    pub(crate) sums: [f32; 3],
}

/// States times 2 to the power of minus [`shift`], to cancel the shift of [`column`].
pub(crate) type ScaledStates = [f32; 32];

/// States that are rounded to 8 bits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rounded {
    /// Four states in each word.
    words: [[u8; 4]; 8],
    /// The sums of the first and the last 16, times -1.
    negative_sums: [u32; 2],
}

/// The states of all tokens of a product: tiles, in a tile blocks of 32 columns, in a block tokens.
#[derive(Debug, Default)]
pub(crate) struct TokenTiles {
    /// The states, unless they are rounded.
    pub(crate) floats: Vec<Block<ScaledStates>>,
    /// The rounded states.
    pub(crate) rounded: Vec<Block<Rounded>>,
    /// The number of tokens.
    pub(crate) num_tokens: usize,
    /// The layout of the states, `None` before [`fill`](Self::fill).
    layout: Option<Layout>,
    /// The numbers of tokens of tiles, by [`tile_sizes`].
    sizes: &'static [usize],
}

/// The layouts of states: matrices with the same one share what was filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Not scaled, for rows of floats.
    Raw,
    /// Scaled for columns of 4 bits.
    Nibbles,
    /// Scaled for columns of bytes.
    Bytes,
    /// Scaled for columns of bytes with a sign.
    SignedBytes,
    /// Rounded to 8 bits.
    Rounded,
}

impl TokenTiles {
    /// Begins with the states of other tokens.
    pub(crate) fn clear(&mut self) {
        self.layout = None;
    }

    /// Brings the states, row after row, into the form that these weights need.
    pub(crate) fn fill(
        &mut self,
        isa: Instructions,
        states: &[f32],
        weights: &PackedMatrix,
        activations: Activations,
    ) {
        let (bits, columns) = (weights.bits, weights.columns);
        let layout = match (bits, activations) {
            (0, _) => Layout::Raw,
            (_, Activations::Int8) => Layout::Rounded,
            _ if weights.kind.values().is_some() => Layout::SignedBytes,
            (4, _) => Layout::Nibbles,
            _ => Layout::Bytes,
        };
        if self.layout != Some(layout) {
            self.layout = Some(layout);
            self.num_tokens = states.len() / columns;
            isa.run(Fill { to: self, from: states, columns, bits });
        }
    }

    /// True if the states are rounded to 8 bits.
    pub(crate) fn is_rounded(&self) -> bool {
        self.layout == Some(Layout::Rounded)
    }

    /// All tiles; only the last one can be filled up.
    pub(crate) fn spans(&self) -> impl Iterator<Item = TileSpan> + use<> {
        let (num_tokens, sizes) = (self.num_tokens, self.sizes);
        let most = sizes.last().copied().unwrap_or(1);
        (0..num_tokens).step_by(most).map(move |start| {
            let num_tokens = (num_tokens - start).min(most);
            let size = sizes.iter().copied().find(|&size| size >= num_tokens).unwrap_or(most);
            TileSpan { start, num_tokens, size }
        })
    }
}

/// Writes states into the layout of a kernel.
struct Fill<'a> {
    /// The tiles to fill.
    to: &'a mut TokenTiles,
    /// The states, `(num_tokens, columns)`.
    from: &'a [f32],
    /// The states of a token.
    columns: usize,
    /// The bits of the weights.
    bits: u32,
}

impl Job for Fill<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { to, from, columns, bits } = self;
        to.sizes = tile_sizes(S::LOADS_STATES, to.is_rounded());
        let factors: ScaledStates = std::array::from_fn(|column| {
            let shift = match to.layout {
                Some(Layout::SignedBytes) => SIGNED_SHIFT,
                _ => shift(bits, column % 8),
            };
            f32::from_bits((127 - shift) << 23) // 2 to the power of -shift
        });
        if to.is_rounded() {
            fill::<S, Rounded>(simd, to, from, columns, &factors);
        } else {
            fill::<S, ScaledStates>(simd, to, from, columns, &factors);
        }
    }
}

/// Fills all tiles, token after token.
#[inline(always)]
fn fill<S: Simd, T: Numbers>(
    simd: S,
    states: &mut TokenTiles,
    from: &[f32],
    columns: usize,
    factors: &[f32; 32],
) {
    let num_blocks = columns / 32;
    for TileSpan { start, num_tokens, size } in states.spans() {
        let to = T::all(states);
        to.resize(to.len().max((start + size) * num_blocks), Block::default());
        let tile = &mut to[start * num_blocks..];
        for token in 0..num_tokens {
            let states = &from[(start + token) * columns..][..columns];
            for (block, states) in states.as_chunks().0.iter().enumerate() {
                tile[block * size + token] = T::block(simd, states, factors);
            }
        }
        for token in num_tokens..size {
            for block in 0..num_blocks {
                tile[block * size + token] = Block::default();
            }
        }
    }
}

/// The states of a block, which weights are multiplied with.
pub(crate) trait Numbers: Copy + Default {
    /// True for states that are rounded to 8 bits.
    const IS_ROUNDED: bool;

    /// The blocks of all tiles.
    fn all(states: &mut TokenTiles) -> &mut Vec<Block<Self>>;

    /// Writes a block; `factors` scale the states of each column.
    fn block<S: Simd>(simd: S, states: &[f32; 32], factors: &[f32; 32]) -> Block<Self>;

    /// Returns the products of the columns of a part of a block, before its scale, of `G` groups of rows and `T` tokens.
    /// If `is_offset`, half of the range of numbers of as many bits is subtracted from them.
    ///
    /// Loops run over eights of columns, columns, tokens and groups: the weights of a column are unpacked once for all
    /// tokens, and a state is broadcast once for all groups.
    fn products<S: Simd, F: BlockKind, const G: usize, const T: usize>(
        simd: S,
        blocks: [&[u8]; G],
        states: &[Block<Self>; T],
        eights: Range<usize>,
        is_offset: bool,
    ) -> [[S::Floats; T]; G];
}

impl Numbers for ScaledStates {
    const IS_ROUNDED: bool = false;

    fn all(states: &mut TokenTiles) -> &mut Vec<Block<Self>> {
        &mut states.floats
    }

    #[inline(always)]
    fn block<S: Simd>(_: S, states: &[f32; 32], factors: &[f32; 32]) -> Block<Self> {
        let scaled = std::array::from_fn(|column| states[column] * factors[column]);
        Block { states: scaled, scale: 1.0, sums: sums(states) }
    }

    #[inline(always)]
    fn products<S: Simd, F: BlockKind, const G: usize, const T: usize>(
        simd: S,
        blocks: [&[u8]; G],
        states: &[Block<Self>; T],
        eights: Range<usize>,
        _is_offset: bool,
    ) -> [[S::Floats; T]; G] {
        let mut sums = [[simd.splat(0.0); T]; G];
        let step = step::<F, T>();
        for first in eights.step_by(step) {
            unroll!(S, index in 0..step, 0 1 2 3 => {
                add_eight::<S, F, G, T>(simd, blocks, states, first + index, &mut sums);
            });
        }
        sums
    }
}

impl Numbers for Rounded {
    const IS_ROUNDED: bool = true;

    fn all(states: &mut TokenTiles) -> &mut Vec<Block<Self>> {
        &mut states.rounded
    }

    #[inline(always)]
    fn block<S: Simd>(simd: S, states: &[f32; 32], _: &[f32; 32]) -> Block<Self> {
        let mut max_abs = simd.splat(0.0);
        for lanes in states.chunks_exact(S::LANES) {
            let lanes = simd.load(lanes);
            max_abs = simd.max(simd.max(lanes, simd.mul(lanes, simd.splat(-1.0))), max_abs);
        }
        let max_abs = simd.greatest(max_abs);
        let inverse = simd.splat(if max_abs > 0.0 { 127.0 / max_abs } else { 0.0 });
        let scale = max_abs / 127.0;
        let mut block: Block<Self> = Block { scale, ..Block::default() };
        for half in 0..2 {
            // Whole numbers, so that their sum is exact in any order.
            let mut sum = simd.splat(0.0);
            for start in (16 * half..16 * half + 16).step_by(S::LANES) {
                let whole = simd.round(simd.mul(simd.load(&states[start..]), inverse));
                simd.store_bytes(whole, &mut block.states.words.as_flattened_mut()[start..]);
                sum = simd.add(sum, simd.floats(whole));
            }
            block.sums[1 + half] = simd.sum(sum);
            block.states.negative_sums[half] = negative(block.sums[1 + half]);
        }
        let [_, first, last] = block.sums;
        block.sums = [first + last, first, last].map(|sum| sum * scale);
        block
    }

    #[inline(always)]
    fn products<S: Simd, F: BlockKind, const G: usize, const T: usize>(
        simd: S,
        blocks: [&[u8]; G],
        states: &[Block<Self>; T],
        eights: Range<usize>,
        is_offset: bool,
    ) -> [[S::Floats; T]; G] {
        let width = if F::VALUES.is_some() { 8 } else { F::BITS };
        let halves = (eights.start / 2, eights.end / 2);
        // Each product waits for the one before it in its sum. One token and one group have a single sum, so that it is
        // split in two.
        let takes_turns = S::IS_UNROLLED && G * T == 1;
        let mut sums = [[[simd.splat_word(0); T]; G]; 2];
        let step = step::<F, T>();
        for first in eights.step_by(step) {
            unroll!(S, index in 0..step, 0 1 2 3 => {
                let turn = if takes_turns { index % 2 } else { 0 };
                dot_eight::<S, F, G, T>(simd, blocks, states, first + index, &mut sums[turn]);
            });
        }
        let mut products = [[simd.splat(0.0); T]; G];
        for token in 0..T {
            let factor = simd.splat(states[token].scale);
            for group in 0..G {
                let mut sum = simd.finish(sums[0][group][token], width);
                if takes_turns {
                    sum = simd.add_words(sum, simd.finish(sums[1][group][token], width));
                }
                if is_offset {
                    let [first, last] = states[token].states.negative_sums;
                    let sum_of_states = match halves {
                        (0, 1) => first,
                        (1, 2) => last,
                        _ => first.wrapping_add(last),
                    };
                    let offset = simd.shl(simd.splat_word(sum_of_states), width - 1);
                    sum = simd.add_words(sum, offset);
                }
                products[group][token] = simd.mul(simd.floats(sum), factor);
            }
        }
        products
    }
}

/// Returns how many eights of columns the body of a loop has.
///
/// A short loop stays in the processor's cache of decoded instructions. Eights whose bits share a word are in one body,
/// so that shifts are constants; for one token so are all eights of a part, whose sums wait for each other.
const fn step<F: BlockKind, const T: usize>() -> usize {
    if T > 1 && matches!(F::BITS, 4 | 8) { 1 } else { 4 / parts(F::BITS) }
}

/// A whole number times -1, as a word.
#[expect(clippy::cast_possible_truncation, reason = "states of 8 bits have small sums")]
fn negative(sum: f32) -> u32 {
    (-sum as i32).cast_unsigned()
}

/// The sums of all states, of the first and of the last 16, in the order of the vectors of AVX2.
#[inline(always)]
fn sums(states: &[f32; 32]) -> [f32; 3] {
    let of_half = |start: usize| {
        let mut lanes: [f32; 8] =
            std::array::from_fn(|lane| states[start + lane] + states[start + 8 + lane]);
        for length in [4, 2, 1] {
            for lane in 0..length {
                lanes[lane] += lanes[lane + length];
            }
        }
        lanes[0]
    };
    let (first, last) = (of_half(0), of_half(16));
    [first + last, first, last]
}

/// Adds the products of eight columns with rounded states.
#[inline(always)]
fn dot_eight<S: Simd, F: BlockKind, const G: usize, const T: usize>(
    simd: S,
    blocks: [&[u8]; G],
    states: &[Block<Rounded>; T],
    eight: usize,
    sums: &mut [[S::Words; T]; G],
) {
    let width = if F::VALUES.is_some() { 8 } else { F::BITS };
    let mut words = [[simd.splat_word(0); 2]; G];
    for group in 0..G {
        words[group] = bytes::<S, F>(simd, blocks[group], eight);
        if let Some(values) = F::VALUES {
            // 128 more, which `dot` or the offset subtracts.
            let values = &values.map(|value| value.cast_unsigned() ^ 0x80);
            let [first, second] = words[group];
            words[group] = [simd.lookup(values, first), simd.lookup(values, second)];
        }
    }
    for token in 0..T {
        // With two plain indices instead of this closure, nine tokens take 1.4 times as long with AVX2.
        let [first, second] = [2 * eight, 2 * eight + 1]
            .map(|word| u32::from_le_bytes(states[token].states.words[word]));
        for group in 0..G {
            let sum = sums[group][token];
            sums[group][token] = simd.dot(sum, words[group], [first, second], width);
        }
    }
}

/// Adds the products of eight columns.
#[inline(always)]
fn add_eight<S: Simd, F: BlockKind, const G: usize, const T: usize>(
    simd: S,
    blocks: [&[u8]; G],
    states: &[Block<ScaledStates>; T],
    eight: usize,
    sums: &mut [[S::Floats; T]; G],
) {
    let mut words = [[simd.splat_word(0); 2]; G];
    for group in 0..G {
        words[group] = if let Some(values) = F::VALUES {
            let values = &values.map(i8::cast_unsigned);
            let [first, second] = bytes::<S, F>(simd, blocks[group], eight);
            [simd.lookup(values, first), simd.lookup(values, second)]
        } else {
            loaded::<S, F>(simd, blocks[group], eight)
        };
    }
    unroll!(S, column in 0..8, 0 1 2 3 4 5 6 7 => {
        let mut weights = [simd.splat(0.0); G];
        for group in 0..G {
            weights[group] = if F::VALUES.is_some() {
                signed_column(simd, words[group], column)
            } else {
                planes::column::<S, F>(simd, words[group], column)
            };
        }
        for token in 0..T {
            let state = simd.splat_of(&states[token].states, eight * 8 + column);
            for group in 0..G {
                sums[group][token] = simd.fma(weights[group], state, sums[group][token]);
            }
        }
    });
}
