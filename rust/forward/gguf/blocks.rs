//! The types of GGUF's blocks, and plain code that reads a block.

use crate::simd::vector::f16;

/// A type of weights. A block is some weights of a row, with one scale or some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
}

/// Number in GGUF, weights and bytes of a block.
const TYPES: [(BlockType, u32, usize, usize); 11] = [
    (BlockType::F32, 0, 1, 4),
    (BlockType::F16, 1, 1, 2),
    (BlockType::Q4_0, 2, 32, 18),
    (BlockType::Q4_1, 3, 32, 20),
    (BlockType::Q5_0, 6, 32, 22),
    (BlockType::Q5_1, 7, 32, 24),
    (BlockType::Q8_0, 8, 32, 34),
    (BlockType::Q4K, 12, 256, 144),
    (BlockType::Q5K, 13, 256, 176),
    (BlockType::Q6K, 14, 256, 210),
    (BlockType::BF16, 30, 1, 2),
];

/// Numbers and names of types that are refused.
const REFUSED: &str = "10 Q2_K,11 Q3_K,16 IQ2_XXS,17 IQ2_XS,18 IQ3_XXS,19 IQ1_S,20 IQ4_NL,21 IQ3_S,22 IQ2_S,\
    23 IQ4_XS,28 F64,29 IQ1_M,34 TQ1_0,35 TQ2_0,39 MXFP4,40 NVFP4";

impl BlockType {
    pub fn from_number(number: u32) -> Option<Self> {
        TYPES.iter().find(|row| row.1 == number).map(|row| row.0)
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

    fn row(self) -> &'static (Self, u32, usize, usize) {
        let place = TYPES.iter().position(|row| row.0 == self);
        &TYPES[place.expect("each type has a row")]
    }

    /// Writes the weights of whole blocks as numbers, one after the other.
    pub fn dequantize(self, bytes: &[u8], weights: &mut [f32]) {
        let blocks = bytes.chunks_exact(self.block_bytes());
        for (block, weights) in blocks.zip(weights.chunks_exact_mut(self.block_size())) {
            for (place, weight) in weights.iter_mut().enumerate() {
                *weight = self.weight(block, place);
            }
        }
    }

    fn weight(self, block: &[u8], place: usize) -> f32 {
        let half = |start: usize| f16([block[start], block[start + 1]]);
        let number = self.number(block, place);
        match self {
            Self::F32 => f32::from_le_bytes([block[0], block[1], block[2], block[3]]),
            Self::F16 => half(0),
            Self::BF16 => f32::from_bits(u32::from_le_bytes([0, 0, block[0], block[1]])),
            Self::Q4_0 => half(0) * (f32::from(number) - 8.0),
            Self::Q5_0 => half(0) * (f32::from(number) - 16.0),
            Self::Q8_0 => half(0) * (f32::from(number) - 128.0),
            Self::Q4_1 | Self::Q5_1 => half(0) * f32::from(number) + half(2),
            Self::Q4K | Self::Q5K => {
                let (scale, minimum) = scale_and_minimum(block, place / 32);
                half(0) * f32::from(scale) * f32::from(number) - half(2) * f32::from(minimum)
            }
            Self::Q6K => {
                let scale = block[192 + place / 16].cast_signed();
                half(208) * f32::from(scale) * (f32::from(number) - 32.0)
            }
        }
    }

    /// The number of a weight as it is stored; that of `Q8_0` is 128 more, so that none is negative.
    pub(crate) fn number(self, block: &[u8], place: usize) -> u8 {
        // The lower half of the first bytes of a block comes first, then the upper half.
        let nibble = |start: usize, place: usize, length: usize| {
            let byte = block[start + place / (2 * length) * length + place % length];
            if place % (2 * length) < length { byte & 15 } else { byte >> 4 }
        };
        let bit = |start: usize| (block[start + place / 8] >> (place % 8) & 1) << 4;
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 0,
            Self::Q4_0 => nibble(2, place, 16),
            Self::Q4_1 => nibble(4, place, 16),
            Self::Q5_0 => nibble(6, place, 16) | bit(2),
            Self::Q5_1 => nibble(8, place, 16) | bit(4),
            Self::Q8_0 => block[2 + place] ^ 0x80,
            Self::Q4K => nibble(16, place, 32),
            Self::Q5K => nibble(48, place, 32) | (block[16 + place % 32] >> (place / 32) & 1) << 4,
            Self::Q6K => {
                let (part, column) = (place / 128, place % 128);
                let high = block[128 + part * 32 + column % 32] >> (column / 32 * 2) & 3;
                nibble(0, place, 64) | high << 4
            }
        }
    }
}

/// The six bits of the scale and of the minimum of 32 weights of `Q4_K` or `Q5_K`.
pub(crate) fn scale_and_minimum(block: &[u8], part: usize) -> (u8, u8) {
    let packed = &block[4..16];
    if part < 4 {
        return (packed[part] & 63, packed[part + 4] & 63);
    }
    let low = packed[part + 4];
    (low & 15 | packed[part - 4] >> 6 << 4, low >> 4 | packed[part] >> 6 << 4)
}
