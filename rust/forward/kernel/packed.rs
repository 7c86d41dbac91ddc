//! The blocks of the file, with some rows interleaved: a lane of a vector is a row.
//!
//! Nothing has to be added up across lanes, and a scale is applied once for all weights of a block. A unit is
//! the blocks of one column of blocks, for as many rows as a vector has lanes:
//!
//! ```text
//! unit   := scale* block*             the scales of all rows, then 32 columns at a time
//! block  := plane of 2, 4 or 8 bits, then of 1 or 2 bits
//! ```
//!
//! Eight columns of 4 bits are a word of each lane: column `c` of the first four is in the lower half of byte
//! `c`, of the others in the upper half of byte `c - 4`. The fifth and sixth bits are in words of their own,
//! which are shifted to their place above four bits. Sixteen columns of 2 bits are a word: column `c` is in byte
//! `c % 4`, the first four in its lowest bits.

use std::sync::{Arc, OnceLock};

use crate::gguf::blocks::BlockType;
use crate::gguf::bytes::Bytes;

/// The layout of the scales of a unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scales {
    /// A float16; the numbers have this zero point.
    Half(f32),
    /// A bfloat16.
    UpperHalf,
    /// Two float16: the scale and the minimum.
    HalfAndMinimum,
    /// Two float16, then words: a scale and a minimum of 6 bits for each 32 weights.
    KBlock,
    /// Two float16, then words: a scale and a minimum of 4 bits in a byte for each 16 weights.
    Sixteenths,
    /// A float16, then words: a signed scale, plus 128, for each part of a block; the numbers have this zero point.
    SignedParts(f32),
}

/// Rows of weights in interleaved blocks, or floats where they lie; copies share their bytes.
#[derive(Debug, Clone)]
pub(crate) struct PackedMatrix {
    /// The type of the blocks in the file.
    pub(crate) kind: BlockType,
    /// The bits of a number: 2 to 6 or 8, and 0 for floats.
    pub(crate) bits: u32,
    /// The layout of the scales of a unit.
    pub(crate) scales: Scales,
    /// The rows of a group, which is not divided: as many as a vector has lanes, and 1 for floats.
    pub(crate) lanes: usize,
    /// The number of outputs.
    pub(crate) rows: usize,
    /// The number of inputs.
    pub(crate) columns: usize,
    /// The packed bytes, which are set when all weights are packed.
    packed: Arc<OnceLock<Bytes>>,
}

impl Scales {
    /// The 16-bit numbers that a unit begins with, for each row.
    pub(crate) const fn halves(self) -> usize {
        match self {
            Self::Half(_) | Self::UpperHalf | Self::SignedParts(_) => 1,
            Self::HalfAndMinimum | Self::KBlock | Self::Sixteenths => 2,
        }
    }

    /// The 32-bit words that follow them, for each row.
    pub(crate) const fn words(self, bits: u32) -> usize {
        match self {
            Self::Half(_) | Self::UpperHalf | Self::HalfAndMinimum => 0,
            Self::KBlock | Self::Sixteenths => 4,
            Self::SignedParts(_) => 2 * parts(bits),
        }
    }

    /// The bytes of the scales of a unit, for each row.
    pub(crate) const fn bytes(self, bits: u32) -> usize {
        2 * self.halves() + 4 * self.words(bits)
    }

    /// The number of blocks of 32 columns of a unit.
    pub(crate) const fn blocks(self) -> usize {
        match self {
            Self::KBlock | Self::Sixteenths | Self::SignedParts(_) => 8,
            _ => 1,
        }
    }

    /// The bytes of a unit, for each row.
    pub(crate) const fn unit_bytes(self, bits: u32) -> usize {
        self.bytes(bits) + self.blocks() * block_bytes(bits)
    }
}

/// The bytes of 32 columns of a row.
pub(crate) const fn block_bytes(bits: u32) -> usize {
    4 * bits as usize
}

/// The parts of 32 columns that have a scale each.
pub(crate) const fn parts(bits: u32) -> usize {
    if matches!(bits, 2 | 3 | 6) { 2 } else { 1 }
}

/// A type of blocks that there are kernels for, known when these are compiled.
pub(crate) trait BlockKind {
    /// The type in the file.
    const KIND: BlockType;
    /// The bits of a number.
    const BITS: u32 = packed_format(Self::KIND).0;
    /// The layout of the scales of a unit.
    const SCALES: Scales = packed_format(Self::KIND).1;
    /// The values of numbers of 4 bits.
    const VALUES: Option<&'static [i8; 16]> = Self::KIND.values();
}

/// Implements [`BlockKind`] by a type for each name.
macro_rules! kinds {
    ($($kind:ident),*) => {
        $(/// The type of this name.
        pub(crate) struct $kind;

        impl BlockKind for $kind {
            const KIND: BlockType = BlockType::$kind;
        })*
    };
}
kinds!(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Nl, Iq4Xs, Mxfp4);

/// The bits of a number and the scales of a unit that blocks are packed in.
const fn packed_format(kind: BlockType) -> (u32, Scales) {
    match kind {
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => (0, Scales::Half(0.0)),
        BlockType::Q4_0 => (4, Scales::Half(8.0)),
        BlockType::Q4_1 => (4, Scales::HalfAndMinimum),
        BlockType::Q5_0 => (5, Scales::Half(16.0)),
        BlockType::Q5_1 => (5, Scales::HalfAndMinimum),
        BlockType::Q8_0 => (8, Scales::Half(128.0)),
        BlockType::Q4K => (4, Scales::KBlock),
        BlockType::Q5K => (5, Scales::KBlock),
        BlockType::Q6K => (6, Scales::SignedParts(32.0)),
        BlockType::Q2K => (2, Scales::Sixteenths),
        BlockType::Q3K => (3, Scales::SignedParts(4.0)),
        // Values of 8 bits, plus 128 where they have no sign.
        BlockType::Iq4Nl => (4, Scales::Half(128.0)),
        BlockType::Iq4Xs => (4, Scales::SignedParts(128.0)),
        BlockType::Mxfp4 => (4, Scales::UpperHalf),
    }
}

impl PackedMatrix {
    /// Rows whose bytes are set later.
    pub(crate) fn new(kind: BlockType, rows: usize, columns: usize, lanes: usize) -> Self {
        let (bits, scales) = packed_format(kind);
        let lanes = if bits == 0 { 1 } else { lanes };
        Self { kind, bits, scales, lanes, rows, columns, packed: Arc::default() }
    }

    /// Sets the packed bytes of all copies; they can be set once.
    pub(crate) fn set(&self, bytes: Bytes) {
        let _ = self.packed.set(bytes); // an error says that they are set
    }

    /// All groups, one after the other; empty until they are set.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.packed.get().map_or(&[], |bytes| bytes)
    }

    /// The number of groups of rows; the last one is filled up with zeros.
    pub(crate) fn num_groups(&self) -> usize {
        self.rows.div_ceil(self.lanes)
    }

    /// The bytes of as many rows as there are lanes; of floats, of a row.
    pub(crate) fn group_bytes(&self) -> usize {
        let units = self.columns / self.kind.block_size();
        match self.bits {
            0 => units * self.kind.block_bytes(),
            bits => units * self.lanes * self.scales.unit_bytes(bits),
        }
    }
}

/// The first bit in a word of each of the eight columns of 4 bits that it holds.
pub(crate) const fn nibble(column: usize) -> u32 {
    [0, 8, 16, 24, 4, 12, 20, 28][column]
}
