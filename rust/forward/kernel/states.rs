//! The states of tokens, as kernels take them: tile after tile, and in a tile block after block.

use super::planes::shift;
use crate::simd::{Instructions, Job, Simd};
use crate::weights::Plane;

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
pub(crate) struct FloatBlock {
    /// Times a power of two that [`shift`] takes off.
    pub(crate) states: [f32; 32],
    /// The sums of all 32 states, and of the first and the last 16.
    pub(crate) sums: [f32; 3],
}

/// 32 rounded states of a token.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ByteBlock {
    /// Four in each word.
    pub(crate) states: [[u8; 4]; 8],
    pub(crate) scale: f32,
    /// The sums of [`FloatBlock`].
    pub(crate) sums: [f32; 3],
}

#[derive(Debug, Default)]
pub(crate) struct States {
    pub(crate) floats: Vec<FloatBlock>,
    pub(crate) bytes: Vec<ByteBlock>,
    pub(crate) num_tokens: usize,
    form: Option<Form>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Raw,
    Nibbles,
    Bytes,
    Rounded,
}

impl Form {
    fn of(plane: Option<Plane>, activations: Activations) -> Self {
        match (plane, activations) {
            (None, _) => Self::Raw,
            (_, Activations::Int8) => Self::Rounded,
            (Some(Plane::Bits4), _) => Self::Nibbles,
            _ => Self::Bytes,
        }
    }
}

impl States {
    /// Begins with the states of other tokens.
    pub(crate) fn clear(&mut self) {
        self.form = None;
    }

    /// Brings the states, row after row, into the form that weights of a plane need, or floats.
    pub(crate) fn fill(
        &mut self,
        with: Instructions,
        states: &[f32],
        columns: usize,
        plane: Option<Plane>,
        activations: Activations,
    ) {
        let form = Form::of(plane, activations);
        if self.form != Some(form) {
            self.form = Some(form);
            self.num_tokens = states.len() / columns;
            with.run(Fill { to: self, from: states, columns, plane });
        }
    }

    pub(crate) fn is_rounded(&self) -> bool {
        self.form == Some(Form::Rounded)
    }

    /// All tiles; only the last one can be filled up.
    pub(crate) fn spans(&self) -> impl Iterator<Item = Span> {
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
    plane: Option<Plane>,
}

impl Job for Fill<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let num_blocks = self.columns / 32;
        let spans: Vec<_> = self.to.spans().collect();
        let number = spans.last().map_or(0, |span| (span.start + span.size) * num_blocks);
        let is_rounded = self.to.is_rounded();
        let factors: [f32; 32] = std::array::from_fn(|column| {
            let shift = self.plane.map_or(0, |plane| shift(plane, column % 8));
            f32::from_bits((127 - shift) << 23) // 2 to the power of -shift
        });
        if is_rounded {
            self.to.bytes.resize(number, ByteBlock::default());
        } else {
            self.to.floats.resize(number, FloatBlock::default());
        }
        for Span { start, num_tokens, size } in spans {
            for token in num_tokens..size {
                for place in (start * num_blocks + token..(start + size) * num_blocks).step_by(size)
                {
                    if is_rounded {
                        self.to.bytes[place] = ByteBlock::default();
                    } else {
                        self.to.floats[place] = FloatBlock::default();
                    }
                }
            }
            for token in 0..num_tokens {
                let states = &self.from[(start + token) * self.columns..][..self.columns];
                for (block, states) in states.as_chunks().0.iter().enumerate() {
                    let place = start * num_blocks + block * size + token;
                    if is_rounded {
                        self.to.bytes[place] = rounded(simd, states);
                    } else {
                        let of = &mut self.to.floats[place];
                        of.sums = sums(states);
                        of.states = std::array::from_fn(|column| states[column] * factors[column]);
                    }
                }
            }
        }
    }
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

#[inline(always)]
fn rounded<S: Simd>(simd: S, states: &[f32; 32]) -> ByteBlock {
    let mut most = simd.splat(0.0);
    for lanes in states.chunks_exact(S::LANES) {
        let lanes = simd.load(lanes);
        most = simd.max(simd.max(lanes, simd.mul(lanes, simd.splat(-1.0))), most);
    }
    let most = simd.greatest(most);
    let inverse = simd.splat(if most > 0.0 { 127.0 / most } else { 0.0 });
    let scale = most / 127.0;
    let mut block = ByteBlock { scale, ..ByteBlock::default() };
    for half in 0..2 {
        // Whole numbers, so that their sum is exact in any order.
        let mut sum = simd.splat(0.0);
        for start in (16 * half..16 * half + 16).step_by(S::LANES) {
            let whole = simd.round(simd.mul(simd.load(&states[start..]), inverse));
            simd.store_bytes(whole, &mut block.states.as_flattened_mut()[start..]);
            sum = simd.add(sum, simd.floats(whole));
        }
        block.sums[1 + half] = simd.sum(sum);
    }
    let [_, first, last] = block.sums;
    block.sums = [first + last, first, last].map(|sum| sum * scale);
    block
}
