//! The blocks of the file, with some rows interleaved: a lane of a vector is a row.
//!
//! Nothing has to be added up across lanes, and a scale is applied once for all weights of a block. A unit is
//! the blocks of one column of blocks, for as many rows as a vector has lanes:
//!
//! ```text
//! unit   := scale* block*             the scales of all rows, then 32 columns at a time
//! block  := plane of 4, 8, 16 or 32 bits, then of 1 or 2 bits
//! ```
//!
//! Eight columns of 4 bits are a word of each lane: column `c` of the first four is in the lower half of byte
//! `c`, of the others in the upper half of byte `c - 4`. The fifth and sixth bits are in words of their own,
//! which are shifted to their place above four bits.

use std::sync::Arc;

use memmap2::MmapMut;

use crate::error::Result;
use crate::gguf::blocks::{BlockType, scale_and_minimum};
use crate::gguf::bytes::{Bytes, zeros};
use crate::gguf::file::Tensor;

/// The least bytes to release at once.
const RELEASED: usize = 1 << 20;

/// The scales of a unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scales {
    /// A half; the numbers are this much above zero.
    Half(f32),
    /// Two halves: the scale and the minimum.
    HalfAndMinimum,
    /// Two halves, then words: a scale and a minimum of 6 bits for each 32 weights.
    Super,
    /// A half, then words: a signed scale, plus 128, for each 16 weights.
    Signed,
}

/// Rows of weights in interleaved blocks, or floats where they lie.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) kind: BlockType,
    /// The bits of a number are 4, 5, 6 or 8, those of floats 0.
    pub(crate) bits: u32,
    pub(crate) scales: Scales,
    /// A group has this many rows, and is not divided.
    pub(crate) lanes: usize,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Empty until [`Arena::settle`] assigns them.
    pub(crate) bytes: Bytes,
}

/// The memory of packed weights, side by side in the order of packing.
///
/// A pass in this order reads faster: pages are few, and what is fetched ahead of the end of a matrix is the next.
#[derive(Debug)]
pub(crate) struct Arena {
    /// A map takes as long as the product of a small matrix: there is none without packed rows.
    map: Option<MmapMut>,
    /// The start of the first matrix and the ends of all.
    ends: Vec<usize>,
}

impl Arena {
    pub(crate) fn new(number: usize) -> Result<Self> {
        let map = (number > 0).then(|| zeros(number, "the weights")).transpose()?;
        Ok(Self { map, ends: vec![0] })
    }

    /// Hands the memory to the matrices, in the order of packing, and returns their bytes.
    pub(crate) fn settle<'a>(self, weights: impl Iterator<Item = &'a mut Packed>) -> usize {
        let Some(map) = self.map.map(Arc::new) else {
            return 0;
        };
        for (packed, ends) in weights.filter(|of| of.bits > 0).zip(self.ends.windows(2)) {
            packed.bytes = Bytes::part(&map, ends[0]..ends[1]).expect("a part of the map");
        }
        self.ends[self.ends.len() - 1]
    }
}

impl Scales {
    /// The bytes of the scales of a unit, for each row.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::Half(_) => 2,
            Self::HalfAndMinimum => 4,
            Self::Super => 20,
            Self::Signed => 18,
        }
    }

    /// The number of blocks of 32 columns of a unit.
    pub(crate) const fn blocks(self) -> usize {
        match self {
            Self::Super | Self::Signed => 8,
            _ => 1,
        }
    }

    /// The bytes of a unit, for each row.
    pub(crate) const fn unit_bytes(self, bits: u32) -> usize {
        self.bytes() + self.blocks() * block_bytes(bits)
    }
}

/// The bytes of 32 columns of a row.
pub(crate) const fn block_bytes(bits: u32) -> usize {
    4 * bits as usize
}

/// The bits and the scales that blocks are packed in.
const fn form(kind: BlockType) -> (u32, Scales) {
    match kind {
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => (0, Scales::Half(0.0)),
        BlockType::Q4_0 => (4, Scales::Half(8.0)),
        BlockType::Q4_1 => (4, Scales::HalfAndMinimum),
        BlockType::Q5_0 => (5, Scales::Half(16.0)),
        BlockType::Q5_1 => (5, Scales::HalfAndMinimum),
        BlockType::Q8_0 => (8, Scales::Half(128.0)),
        BlockType::Q4K => (4, Scales::Super),
        BlockType::Q5K => (5, Scales::Super),
        BlockType::Q6K => (6, Scales::Signed),
    }
}

impl Packed {
    /// The bytes that a matrix takes in an arena.
    pub(crate) fn size(of: &Tensor, lanes: usize) -> usize {
        let (bits, scales) = form(of.kind);
        let units = of.rows.div_ceil(lanes) * (of.columns / of.kind.block_size());
        if bits == 0 { 0 } else { units * lanes * scales.unit_bytes(bits) }
    }

    /// Interleaves rows of whole blocks in an arena; the last rows are filled up with zeros.
    ///
    /// `release` is called with bytes that are not read again, so that no file is in memory twice.
    pub(crate) fn new(
        of: &Tensor,
        lanes: usize,
        arena: &mut Arena,
        release: impl Fn(&[u8]),
    ) -> Self {
        let &Tensor { kind, rows, columns, ref bytes } = of;
        let (bits, scales) = form(kind);
        if bits == 0 {
            return Self { kind, bits, scales, lanes: 1, rows, columns, bytes: bytes.clone() };
        }
        let (width, source) = (kind.block_size(), kind.block_bytes());
        let row_bytes = columns / width * source;
        let zeros = vec![0; source];
        let mut end = arena.ends[arena.ends.len() - 1];
        let mut group = Vec::new();
        let mut released = 0;
        for first in (0..rows).step_by(lanes) {
            let read = first * row_bytes;
            if read - released >= RELEASED {
                release(&bytes[released..read]);
                released = read;
            }
            group.clear();
            for place in 0..columns / width {
                let of_lane = |lane: usize| match first + lane {
                    row if row < rows => &bytes[row * row_bytes + place * source..][..source],
                    _ => &zeros,
                };
                let blocks: Vec<&[u8]> = (0..lanes).map(of_lane).collect();
                put_scales(&mut group, scales, &blocks);
                for start in (0..width).step_by(32) {
                    put_block(&mut group, kind, bits, &blocks, start);
                }
            }
            if let Some(map) = &mut arena.map {
                map[end..end + group.len()].copy_from_slice(&group);
            }
            end += group.len();
        }
        arena.ends.push(end);
        release(&bytes[released..]);
        Self { kind, bits, scales, lanes, rows, columns, bytes: Bytes::new([]) }
    }

    /// The bytes of as many rows as there are lanes.
    pub(crate) fn group_bytes(&self) -> usize {
        self.bytes.len() / self.rows.div_ceil(self.lanes).max(1)
    }
}

fn put_scales(packed: &mut Vec<u8>, scales: Scales, blocks: &[&[u8]]) {
    let mut put = |start: usize| blocks.iter().for_each(|of| packed.extend(&of[start..start + 2]));
    match scales {
        Scales::Half(_) => put(0),
        Scales::HalfAndMinimum => [0, 2].into_iter().for_each(put),
        Scales::Super => {
            [0, 2].into_iter().for_each(put);
            let four =
                |of, part: usize| [0, 1, 2, 3].map(|next| scale_and_minimum(of, part + next));
            let parts = |part| blocks.iter().flat_map(move |of| four(of, part));
            packed.extend([0, 4].into_iter().flat_map(parts).map(|both| both.0));
            packed.extend([0, 4].into_iter().flat_map(parts).map(|both| both.1));
        }
        Scales::Signed => {
            put(208);
            for part in (192..208).step_by(4) {
                let four = |of: &&[u8]| [0, 1, 2, 3].map(|next| of[part + next] ^ 0x80);
                packed.extend(blocks.iter().flat_map(four));
            }
        }
    }
}

/// Writes 32 columns of each lane.
fn put_block(packed: &mut Vec<u8>, kind: BlockType, bits: u32, blocks: &[&[u8]], start: usize) {
    let number = |block: &[u8], column: usize| u32::from(kind.number(block, start + column));
    if bits == 8 {
        for word in (0..32).step_by(4) {
            let bytes = |block: &&[u8]| -> [u8; 4] {
                std::array::from_fn(|byte| kind.number(block, start + word + byte))
            };
            packed.extend(blocks.iter().flat_map(bytes));
        }
        return;
    }
    for eight in (0..32).step_by(8) {
        packed.extend(blocks.iter().flat_map(|block| {
            let low =
                |word, column: usize| word | (number(block, eight + column) & 15) << nibble(column);
            (0..8).fold(0_u32, low).to_le_bytes()
        }));
    }
    let bits = bits as usize - 4;
    let per_word = 32 / bits.max(1);
    for word in (0..32).step_by(per_word).take(bits) {
        packed.extend(blocks.iter().flat_map(|block| {
            let high = |all, column: usize| {
                let (eight, column) = (column / 8, column % 8);
                let shift = nibble(column) as usize + bits * (eight % (per_word / 8));
                all | number(block, word + eight * 8 + column) >> 4 << shift
            };
            (0..per_word).fold(0_u32, high).to_le_bytes()
        }));
    }
}

/// The place of the bits of a column among eight.
pub(crate) const fn nibble(column: usize) -> u32 {
    [0, 8, 16, 24, 4, 12, 20, 28][column]
}
