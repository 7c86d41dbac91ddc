//! The states of tokens, as kernels take them: tile after tile, and in a tile block after block.

use super::planes::shift;
use crate::simd::{Instructions, Job, Simd};
use crate::weights::{Packed, Plane};

/// The number of tokens whose sums fit in the registers.
pub(crate) const MOST_TOKENS: usize = 9;

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
    pub(crate) states: [u32; 8],
    pub(crate) scale: f32,
    /// As those of [`FloatBlock`].
    pub(crate) sums: [f32; 3],
    pub(crate) whole_sums: [i32; 3],
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
    fn of(plane: Plane, activations: Activations) -> Self {
        match (plane, activations) {
            (Plane::F16 | Plane::BF16 | Plane::F32, _) => Self::Raw,
            (_, Activations::Int8) => Self::Rounded,
            (Plane::Bits4, _) => Self::Nibbles,
            _ => Self::Bytes,
        }
    }
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
        let form = Form::of(weights.plane, activations);
        if self.form != Some(form) {
            self.form = Some(form);
            self.num_tokens = states.len() / weights.columns;
            with.run(Fill { to: self, from: states, columns: weights.columns, plane: weights.plane });
        }
    }

    pub(crate) fn is_rounded(&self) -> bool {
        self.form == Some(Form::Rounded)
    }

    /// The first token and the number of tokens of each tile.
    pub(crate) fn tiles(&self) -> impl Iterator<Item = (usize, usize)> {
        let number = self.num_tokens.div_ceil(MOST_TOKENS);
        let mut start = 0;
        (0..number).map(move |tile| {
            let size = (self.num_tokens - start).div_ceil(number - tile);
            start += size;
            (start - size, size)
        })
    }
}

struct Fill<'a> {
    to: &'a mut States,
    from: &'a [f32],
    columns: usize,
    plane: Plane,
}

impl Job for Fill<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let num_blocks = self.columns / 32;
        let number = num_blocks * self.to.num_tokens;
        let is_rounded = self.to.is_rounded();
        let factors: [f32; 32] = std::array::from_fn(|column| {
            f32::from_bits((127 - shift(self.plane, column % 8)) << 23) // 2 to the power of -shift
        });
        if is_rounded {
            self.to.bytes.resize(number, ByteBlock::default());
        } else {
            self.to.floats.resize(number, FloatBlock::default());
        }
        let tiles: Vec<_> = self.to.tiles().collect();
        for (start, size) in tiles {
            for token in 0..size {
                let states = &self.from[(start + token) * self.columns..][..self.columns];
                for (block, states) in states.as_chunks().0.iter().enumerate() {
                    let place = start * num_blocks + block * size + token;
                    if is_rounded {
                        self.to.bytes[place] = rounded(states);
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
        let mut lanes: [f32; 8] = std::array::from_fn(|lane| states[start + lane] + states[start + 8 + lane]);
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
fn rounded(states: &[f32; 32]) -> ByteBlock {
    /// Added to a number it leaves the nearest whole number in the lowest bits.
    const MAGIC: f32 = 12_582_912.0;
    let mut most = [0_f32; 8];
    for (place, state) in states.iter().enumerate() {
        let size = state.abs();
        let of = &mut most[place % 8];
        *of = if size > *of { size } else { *of };
    }
    let most = most.into_iter().fold(0.0, f32::max);
    let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
    let whole: [i32; 32] = std::array::from_fn(|place| {
        (states[place] * inverse + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()).cast_signed()
    });
    let first: i32 = whole[..16].iter().sum();
    let last: i32 = whole[16..].iter().sum();
    let (scale, whole_sums) = (most / 127.0, [first + last, first, last]);
    ByteBlock {
        states: std::array::from_fn(|word| {
            let byte = |place: usize| whole[4 * word + place].to_le_bytes()[0];
            u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
        }),
        scale,
        sums: whole_sums.map(|sum| sum as f32 * scale),
        whole_sums,
    }
}
