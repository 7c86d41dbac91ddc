//! The types of GGUF's blocks, and plain code that reads a block.

#![allow(clippy::needless_range_loop)] // as in kernels: loops that are vectorized

use crate::simd::vector::f16;

/// A type of weights. A block is some weights of a row, with one scale or some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names of GGUF
pub enum BlockType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Iq4Xs,
    Mxfp4,
}

/// Number in GGUF, weights and bytes of a block.
const TYPES: [(BlockType, u32, usize, usize); 16] = [
    (BlockType::F32, 0, 1, 4),
    (BlockType::F16, 1, 1, 2),
    (BlockType::Q4_0, 2, 32, 18),
    (BlockType::Q4_1, 3, 32, 20),
    (BlockType::Q5_0, 6, 32, 22),
    (BlockType::Q5_1, 7, 32, 24),
    (BlockType::Q8_0, 8, 32, 34),
    (BlockType::Q2K, 10, 256, 84),
    (BlockType::Q3K, 11, 256, 110),
    (BlockType::Q4K, 12, 256, 144),
    (BlockType::Q5K, 13, 256, 176),
    (BlockType::Q6K, 14, 256, 210),
    (BlockType::Iq4Nl, 20, 32, 18),
    (BlockType::Iq4Xs, 23, 256, 136),
    (BlockType::BF16, 30, 1, 2),
    (BlockType::Mxfp4, 39, 32, 17),
];

/// The values of the numbers of `IQ4_NL` and `IQ4_XS`.
pub(crate) const IQ4_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
/// Twice the values of the numbers of `MXFP4`: a sign, two bits of an exponent and one of a fraction.
pub(crate) const FP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Numbers and names of types that are refused.
const REFUSED: &str = "16 IQ2_XXS,17 IQ2_XS,18 IQ3_XXS,19 IQ1_S,21 IQ3_S,22 IQ2_S,\
    28 F64,29 IQ1_M,34 TQ1_0,35 TQ2_0,40 NVFP4";

impl BlockType {
    /// Returns the type of this number in GGUF, `None` for one that is not computed here.
    pub fn from_number(number: u32) -> Option<Self> {
        TYPES.iter().find(|row| row.1 == number).map(|row| row.0)
    }

    /// The number of the type in GGUF.
    pub(crate) fn number(self) -> u32 {
        self.row().1
    }

    /// Returns the name of a type that is refused, as its users know it.
    pub fn name_of(number: u32) -> String {
        let mut known = REFUSED.split(',').filter_map(|row| row.split_once(' '));
        known
            .find(|row| row.0.parse() == Ok(number))
            .map_or(number.to_string(), |row| row.1.to_owned())
    }

    /// The number of weights of a block.
    pub fn block_size(self) -> usize {
        self.row().2
    }

    /// The number of bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().3
    }

    /// The number of bytes of a row of weights, `None` where it ends within a block.
    pub fn row_bytes(self, columns: usize) -> Option<usize> {
        let blocks = columns.checked_div(self.block_size())?;
        columns.is_multiple_of(self.block_size()).then(|| blocks.checked_mul(self.block_bytes()))?
    }

    /// The values of its numbers, `None` if they are whole numbers from zero on.
    pub(crate) const fn values(self) -> Option<&'static [i8; 16]> {
        match self {
            Self::Iq4Nl | Self::Iq4Xs => Some(&IQ4_VALUES),
            Self::Mxfp4 => Some(&FP4_VALUES),
            _ => None,
        }
    }

    fn row(self) -> &'static (Self, u32, usize, usize) {
        let place = TYPES.iter().position(|row| row.0 == self);
        &TYPES[place.expect("each type has a row")]
    }

    /// Writes the weights of whole blocks as numbers, one after the other.
    pub fn dequantize(self, bytes: &[u8], weights: &mut [f32]) {
        let blocks = bytes.chunks_exact(self.block_bytes());
        let blocks = blocks.zip(weights.chunks_exact_mut(self.block_size()));
        match self {
            Self::F32 => blocks.for_each(|(block, weight)| {
                weight[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
            }),
            Self::F16 => blocks.for_each(|(block, weight)| weight[0] = f16([block[0], block[1]])),
            Self::BF16 => blocks.for_each(|(block, weight)| {
                weight[0] = f32::from_le_bytes([0, 0, block[0], block[1]]);
            }),
            _ => blocks.for_each(|(block, weights)| {
                for (part, weights) in weights.as_chunks_mut().0.iter_mut().enumerate() {
                    self.dequantize_part(block, part, weights);
                }
            }),
        }
    }

    fn dequantize_part(self, block: &[u8], part: usize, weights: &mut [f32; 32]) {
        let half = |start: usize| f16([block[start], block[start + 1]]);
        let numbers = numbers(self, block, part);
        let numbers = match self.values() {
            Some(values) => numbers.map(|number| f32::from(values[usize::from(number & 15)])),
            None => numbers.map(f32::from),
        };
        let mut write = |formula: fn(f32, f32, f32) -> f32, scale: f32, other: f32| {
            for (weight, number) in weights.iter_mut().zip(numbers) {
                *weight = formula(number, scale, other);
            }
        };
        match self {
            Self::F32 | Self::F16 | Self::BF16 => {}
            Self::Q4_0 => write(|number, scale, above| scale * (number - above), half(0), 8.0),
            Self::Q5_0 => write(|number, scale, above| scale * (number - above), half(0), 16.0),
            Self::Q8_0 => write(|number, scale, above| scale * (number - above), half(0), 128.0),
            Self::Q4_1 | Self::Q5_1 => {
                write(|number, scale, minimum| scale * number + minimum, half(0), half(2));
            }
            Self::Q4K | Self::Q5K => {
                let all = q4k_scales(block).map(u32::to_le_bytes);
                let [scale, minimum] = [0, 2].map(|word| f32::from(all[word + part / 4][part % 4]));
                let (scale, minimum) = (half(0) * scale, half(2) * minimum);
                write(|number, scale, minimum| scale * number - minimum, scale, minimum);
            }
            Self::Q2K => {
                for (place, (weight, number)) in weights.iter_mut().zip(numbers).enumerate() {
                    let both = block[2 * part + place / 16];
                    let [scale, minimum] = [both & 15, both >> 4].map(f32::from);
                    *weight = half(80) * scale * number - half(82) * minimum;
                }
            }
            Self::Q3K => {
                let scales = q3k_scales(block).map(u32::to_le_bytes);
                for (place, (weight, number)) in weights.iter_mut().zip(numbers).enumerate() {
                    let scale = scales.as_flattened()[2 * part + place / 16];
                    *weight = half(108) * (f32::from(scale) - 128.0) * (number - 4.0);
                }
            }
            Self::Iq4Nl => write(|value, scale, _| scale * value, half(0), 0.0),
            Self::Iq4Xs => {
                let scale = iq4xs_scales(block).map(u32::to_le_bytes)[part / 4][part % 4];
                let scale = half(0) * (f32::from(scale) - 128.0);
                write(|value, scale, _| scale * value, scale, 0.0);
            }
            Self::Mxfp4 => {
                let [low, high] = mxfp4_scale(block[0]);
                let scale = f32::from_le_bytes([0, 0, low, high]);
                write(|value, scale, _| scale * value, scale, 0.0);
            }
            Self::Q6K => {
                for (place, (weight, number)) in weights.iter_mut().zip(numbers).enumerate() {
                    let scale = block[192 + 2 * part + place / 16].cast_signed();
                    *weight = half(208) * f32::from(scale) * (number - 32.0);
                }
            }
        }
    }
}

/// The numbers of 32 weights as they are stored; those of `Q8_0` are 128 more, so that none is negative.
#[inline(always)]
pub(crate) fn numbers(kind: BlockType, block: &[u8], part: usize) -> [u8; 32] {
    match kind {
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => [0; 32],
        BlockType::Q4_0 => halves(block, 2),
        BlockType::Q4_1 => halves(block, 4),
        BlockType::Q5_0 => with_fifth_bits(halves(block, 6), block, 2),
        BlockType::Q5_1 => with_fifth_bits(halves(block, 8), block, 4),
        BlockType::Q8_0 => bytes(block, 2).map(|byte: u8| byte ^ 0x80),
        BlockType::Iq4Nl => halves(block, 2),
        BlockType::Iq4Xs => halves(block, 8 + 16 * part),
        BlockType::Mxfp4 => halves(block, 1),
        BlockType::Q2K => pairs(block, 16 + part / 4 * 32, part % 4),
        BlockType::Q3K => {
            let mut numbers = pairs(block, 32 + part / 4 * 32, part % 4);
            let high: [u8; 32] = bytes(block, 0);
            for place in 0..32 {
                numbers[place] |= (high[place] >> (part % 8) & 1) << 2;
            }
            numbers
        }
        BlockType::Q4K => nibbles(block, 16 + part / 2 * 32, part % 2),
        BlockType::Q5K => {
            let mut numbers = nibbles(block, 48 + part / 2 * 32, part % 2);
            let high: [u8; 32] = bytes(block, 16);
            for place in 0..32 {
                numbers[place] |= (high[place] >> (part % 8) & 1) << 4;
            }
            numbers
        }
        BlockType::Q6K => {
            let (half, quarter) = (part / 4, part % 4);
            let mut numbers = nibbles(block, half * 64 + quarter % 2 * 32, quarter / 2);
            let high: [u8; 32] = bytes(block, 128 + half * 32);
            for place in 0..32 {
                numbers[place] |= (high[place] >> (2 * quarter) & 3) << 4;
            }
            numbers
        }
    }
}

#[inline(always)]
fn bytes<const N: usize>(block: &[u8], start: usize) -> [u8; N] {
    *block[start..].first_chunk().expect("bytes of a block")
}

/// The lower or the upper half of each byte.
#[inline(always)]
fn nibbles(block: &[u8], start: usize, is_upper: usize) -> [u8; 32] {
    let shift = 4 * (is_upper % 2);
    bytes(block, start).map(|byte: u8| byte >> shift & 15)
}

/// Two bits of each byte.
#[inline(always)]
fn pairs(block: &[u8], start: usize, quarter: usize) -> [u8; 32] {
    let shift = 2 * (quarter % 4);
    bytes(block, start).map(|byte: u8| byte >> shift & 3)
}

/// The lower halves of 16 bytes, then the upper ones.
#[inline(always)]
fn halves(block: &[u8], start: usize) -> [u8; 32] {
    let bytes: [u8; 16] = bytes(block, start);
    let mut numbers = [0; 32];
    for place in 0..16 {
        numbers[place] = bytes[place] & 15;
        numbers[16 + place] = bytes[place] >> 4;
    }
    numbers
}

#[inline(always)]
fn with_fifth_bits(mut numbers: [u8; 32], block: &[u8], start: usize) -> [u8; 32] {
    let bits: [u8; 4] = bytes(block, start);
    for (eight, bits) in numbers.as_chunks_mut::<8>().0.iter_mut().zip(bits) {
        for (place, number) in eight.iter_mut().enumerate() {
            *number |= (bits >> place & 1) << 4;
        }
    }
    numbers
}

/// The eight scales of `Q4_K` and `Q5_K`, then the eight minimums, of six bits in a byte each.
#[inline(always)]
pub(crate) fn q4k_scales(block: &[u8]) -> [u32; 4] {
    let packed: [u8; 12] = bytes(block, 4);
    let [scales, minimums, rest] = [0, 4, 8].map(|start| u32::from_le_bytes(bytes(&packed, start)));
    let upper = |word: u32| word >> 2 & 0x3030_3030;
    [
        scales & 0x3f3f_3f3f,
        rest & 0x0f0f_0f0f | upper(scales),
        minimums & 0x3f3f_3f3f,
        rest >> 4 & 0x0f0f_0f0f | upper(minimums),
    ]
}

/// The sixteen scales of `Q3_K`, plus 128, in a byte each.
#[inline(always)]
pub(crate) fn q3k_scales(block: &[u8]) -> [u32; 4] {
    let packed: [u8; 12] = bytes(block, 96);
    let [first, second, rest] = [0, 4, 8].map(|start| u32::from_le_bytes(bytes(&packed, start)));
    let mut scales = [first, second, first >> 4, second >> 4];
    for (place, scale) in scales.iter_mut().enumerate() {
        // Six bits, of which 32 is zero.
        let high = (rest >> (2 * place) & 0x0303_0303) << 4;
        *scale = (*scale & 0x0f0f_0f0f | high) + 0x6060_6060;
    }
    scales
}

/// The eight scales of `IQ4_XS`, plus 128, in a byte each.
#[inline(always)]
pub(crate) fn iq4xs_scales(block: &[u8]) -> [u32; 2] {
    let high = u16::from_le_bytes(bytes(block, 2));
    let low = u32::from_le_bytes(bytes(block, 4));
    let mut scales = [0; 2];
    for part in 0..8 {
        let scale = low >> (4 * part) & 15 | u32::from(high >> (2 * part) & 3) << 4;
        scales[part / 4] |= (scale + 96) << (8 * (part % 4));
    }
    scales
}

/// The scale of half a value of `MXFP4`, a power of two, as the upper half of a float.
#[inline(always)]
pub(crate) fn mxfp4_scale(exponent: u8) -> [u8; 2] {
    let scale = match exponent {
        // Subnormal numbers.
        0 | 1 => 0x20 << exponent,
        _ => u16::from(exponent - 1) << 7,
    };
    scale.to_le_bytes()
}
