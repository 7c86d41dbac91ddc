//! The states of tokens, as kernels take them: tile after tile, and in a tile block after block.

use std::ops::Range;

use super::packed::{BlockKind, Packed};
use super::planes::{SIGNED_SHIFT, bytes, column, loaded, shift, signed_column};
use crate::simd::instructions::Instructions;
use crate::simd::vector::{Job, Simd};

/// Numbers of tokens that there are kernels for; more sums than of the last do not fit in the registers.
pub(crate) const SIZES: [usize; 6] = [1, 2, 3, 5, 7, 9];

/// The first token of a tile, and the number of its tokens.
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) num_tokens: usize,
    /// The next number of tokens that there is a kernel for; what is more is zero.
    pub(crate) size: usize,
}

/// The precision of the states that weights are multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    #[default]
    Float32,
    /// Rounded to 8 bits, by one scale for 32 of them.
    Int8,
}

/// 32 states of a token.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Block<T> {
    pub(crate) states: T,
    /// Rounded states are multiples of it.
    pub(crate) scale: f32,
    /// The sums of all 32 states, and of the first and the last 16.
    pub(crate) sums: [f32; 3],
}

/// Times a power of two that [`shift`] takes off.
pub(crate) type ScaledStates = [f32; 32];
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rounded {
    /// Four states in each word.
    words: [[u8; 4]; 8],
    /// The sums of the first and the last 16, times -1.
    negative_sums: [u32; 2],
}

#[derive(Debug, Default)]
pub(crate) struct States {
    pub(crate) floats: Vec<Block<ScaledStates>>,
    pub(crate) rounded: Vec<Block<Rounded>>,
    pub(crate) num_tokens: usize,
    form: Option<Form>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Raw,
    Nibbles,
    Bytes,
    SignedBytes,
    Rounded,
}

impl States {
    /// Begins with the states of other tokens.
    pub(crate) fn clear(&mut self) {
        self.form = None;
    }

    /// Brings the states, row after row, into the form that these weights need.
    pub(crate) fn fill(
        &mut self,
        with: Instructions,
        states: &[f32],
        weights: &Packed,
        activations: Activations,
    ) {
        let (bits, columns) = (weights.bits, weights.columns);
        let form = match (bits, activations) {
            (0, _) => Form::Raw,
            (_, Activations::Int8) => Form::Rounded,
            _ if weights.kind.values().is_some() => Form::SignedBytes,
            (4, _) => Form::Nibbles,
            _ => Form::Bytes,
        };
        if self.form != Some(form) {
            self.form = Some(form);
            self.num_tokens = states.len() / columns;
            with.run(Fill { to: self, from: states, columns, bits });
        }
    }

    pub(crate) fn is_rounded(&self) -> bool {
        self.form == Some(Form::Rounded)
    }

    /// All tiles; only the last one can be filled up.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Span> + use<> {
        let most = SIZES[SIZES.len() - 1];
        let num_tokens = self.num_tokens;
        (0..num_tokens).step_by(most).map(move |start| {
            let num_tokens = (num_tokens - start).min(most);
            let size = SIZES.into_iter().find(|&size| size >= num_tokens).unwrap_or(most);
            Span { start, num_tokens, size }
        })
    }
}

struct Fill<'a> {
    to: &'a mut States,
    from: &'a [f32],
    columns: usize,
    bits: u32,
}

impl Job for Fill<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { to, from, columns, bits } = self;
        let factors: ScaledStates = std::array::from_fn(|column| {
            let shift = match to.form {
                Some(Form::SignedBytes) => SIGNED_SHIFT,
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

#[inline(always)]
fn fill<S: Simd, T: Numbers>(
    simd: S,
    states: &mut States,
    from: &[f32],
    columns: usize,
    factors: &[f32; 32],
) {
    let num_blocks = columns / 32;
    for Span { start, num_tokens, size } in states.spans() {
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
    const IS_ROUNDED: bool;

    fn all(states: &mut States) -> &mut Vec<Block<Self>>;

    fn block<S: Simd>(simd: S, states: &[f32; 32], factors: &[f32; 32]) -> Block<Self>;

    /// Returns the products of the columns of a part of a block, before its scale. If `is_offset`, half of what
    /// numbers of as many bits can be is taken off them.
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

    fn all(states: &mut States) -> &mut Vec<Block<Self>> {
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
        // Written out, so that shifts are constants.
        macro_rules! eights {
            ($($eight:literal)*) => {
                $(if eights.contains(&$eight) {
                    add_eight::<S, F, G, T>(simd, blocks, states, $eight, &mut sums);
                })*
            };
        }
        eights!(0 1 2 3);
        sums
    }
}

impl Numbers for Rounded {
    const IS_ROUNDED: bool = true;

    fn all(states: &mut States) -> &mut Vec<Block<Self>> {
        &mut states.rounded
    }

    #[inline(always)]
    fn block<S: Simd>(simd: S, states: &[f32; 32], _: &[f32; 32]) -> Block<Self> {
        let mut most = simd.splat(0.0);
        for lanes in states.chunks_exact(S::LANES) {
            let lanes = simd.load(lanes);
            most = simd.max(simd.max(lanes, simd.mul(lanes, simd.splat(-1.0))), most);
        }
        let most = simd.greatest(most);
        let inverse = simd.splat(if most > 0.0 { 127.0 / most } else { 0.0 });
        let scale = most / 127.0;
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
        let mut sums = [[simd.splat_word(0); T]; G];
        macro_rules! eights {
            ($($eight:literal)*) => {
                $(if eights.contains(&$eight) {
                    let mut words = [[simd.splat_word(0); 2]; G];
                    for group in 0..G {
                        words[group] = bytes::<S, F>(simd, blocks[group], $eight);
                        if let Some(values) = F::VALUES {
                            // 128 more, which products of bytes or an offset take off.
                            let values = &values.map(|of| of.cast_unsigned() ^ 0x80);
                            let [first, second] = words[group];
                            words[group] = [simd.lookup(values, first), simd.lookup(values, second)];
                        }
                    }
                    for token in 0..T {
                        let [first, second] =
                            [0, 1].map(|of| u32::from_le_bytes(states[token].states.words[$eight * 2 + of]));
                        for group in 0..G {
                            let sum = sums[group][token];
                            sums[group][token] = simd.dot(sum, words[group], [first, second], width);
                        }
                    }
                })*
            };
        }
        eights!(0 1 2 3);
        let mut products = [[simd.splat(0.0); T]; G];
        for token in 0..T {
            let factor = simd.splat(states[token].scale);
            for group in 0..G {
                let mut sum = simd.finish(sums[group][token], width);
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

/// A whole number times -1, as a word.
#[expect(clippy::cast_possible_truncation, reason = "states of 8 bits have small sums")]
fn negative(sum: f32) -> u32 {
    (-sum as i32).cast_unsigned()
}

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
    macro_rules! columns {
        ($($column:literal)*) => {
            $(let mut weights = [simd.splat(0.0); G];
            for group in 0..G {
                weights[group] = if F::VALUES.is_some() {
                    signed_column(simd, words[group], $column)
                } else {
                    column::<S, F>(simd, words[group], $column)
                };
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
