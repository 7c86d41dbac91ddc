//! Packing: the blocks of some rows become units, a whole block at a time.
//!
//! Loops run over groups of rows, units along the columns, and lanes. A word of a block has the same bits of the same
//! columns in each lane, so that a block becomes its words, and the words of all lanes are written side by side.

use super::packed::PackedMatrix;
use crate::gguf::blocks::{BlockType, iq4xs_scales, mxfp4_scale, numbers, q3k_scales, q4k_scales};
use crate::simd::vector::{Job, Simd};

/// The most words of a block: those of `Q6_K`.
const MAX_WORDS: usize = 52;

/// Writes groups of rows, one after the other.
pub(crate) struct Interleave<'a> {
    /// The matrix, by whose format blocks are packed.
    pub(crate) matrix: &'a PackedMatrix,
    /// The bytes of each row, as many as the groups have.
    pub(crate) rows: &'a [&'a [u8]],
    /// The packed bytes of the groups.
    pub(crate) groups: &'a mut [u8],
}

/// A block of a lane, before its words are written between those of others.
#[derive(Clone, Copy)]
struct Unit {
    /// The 16-bit numbers that it begins with.
    halves: [[u8; 2]; 2],
    /// The words of scales, and then of numbers.
    words: [u32; MAX_WORDS],
}

impl Job for Interleave<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { matrix, rows, groups } = self;
        let PackedMatrix { kind, bits, scales, .. } = *matrix;
        let source = kind.block_bytes();
        let (num_halves, unit_bytes) = (scales.halves(), scales.unit_bytes(bits) * S::LANES);
        let mut units = [Unit { halves: [[0; 2]; 2], words: [0; MAX_WORDS] }; 16];
        let groups = groups.chunks_exact_mut(matrix.group_bytes().max(1));
        for (rows, group) in rows.chunks_exact(S::LANES).zip(groups) {
            for (index, unit) in group.chunks_exact_mut(unit_bytes).enumerate() {
                for lane in 0..S::LANES {
                    let block = &rows[lane][index * source..][..source];
                    read(kind, bits, block, &mut units[lane]);
                }
                let (halves, words) = unit.split_at_mut(2 * num_halves * S::LANES);
                let halves = halves.as_chunks_mut::<2>().0.chunks_exact_mut(S::LANES);
                for (half, lanes) in halves.enumerate() {
                    for lane in 0..S::LANES {
                        lanes[lane] = units[lane].halves[half];
                    }
                }
                let words = words.as_chunks_mut::<4>().0.chunks_exact_mut(S::LANES);
                for (word, lanes) in words.enumerate().take(MAX_WORDS) {
                    for lane in 0..S::LANES {
                        lanes[lane] = units[lane].words[word].to_le_bytes();
                    }
                }
            }
        }
    }
}

/// Reads a block of the file.
#[inline(always)]
fn read(kind: BlockType, bits: u32, block: &[u8], unit: &mut Unit) {
    let half = |start: usize| [block[start], block[start + 1]];
    match kind {
        BlockType::Q6K => {
            unit.halves[0] = half(208);
            for (word, scales) in block[192..208].as_chunks().0.iter().enumerate() {
                unit.words[word] = u32::from_le_bytes(*scales) ^ 0x8080_8080;
            }
            parts(kind, bits, block, &mut unit.words[4..], 8);
        }
        BlockType::Q2K => {
            unit.halves = [half(80), half(82)];
            for (word, scales) in block[..16].as_chunks().0.iter().enumerate() {
                unit.words[word] = u32::from_le_bytes(*scales);
            }
            parts(kind, bits, block, &mut unit.words[4..], 8);
        }
        BlockType::Q3K => {
            unit.halves[0] = half(108);
            unit.words[..4].copy_from_slice(&q3k_scales(block));
            parts(kind, bits, block, &mut unit.words[4..], 8);
        }
        BlockType::Iq4Xs => {
            unit.halves[0] = half(0);
            unit.words[..2].copy_from_slice(&iq4xs_scales(block));
            parts(kind, bits, block, &mut unit.words[2..], 8);
        }
        BlockType::Mxfp4 => {
            unit.halves[0] = mxfp4_scale(block[0]);
            parts(kind, bits, block, &mut unit.words, 1);
        }
        BlockType::Q4K | BlockType::Q5K => {
            unit.halves = [half(0), half(2)];
            unit.words[..4].copy_from_slice(&q4k_scales(block));
            parts(kind, bits, block, &mut unit.words[4..], 8);
        }
        _ => {
            unit.halves = [half(0), half(2)];
            parts(kind, bits, block, &mut unit.words, 1);
        }
    }
}

/// Reads some times 32 columns.
#[inline(always)]
fn parts(kind: BlockType, bits: u32, block: &[u8], words: &mut [u32], number: usize) {
    for (part, words) in words.chunks_exact_mut(bits as usize).enumerate().take(number) {
        let numbers = numbers(kind, block, part);
        match bits {
            2 => planes::<2>(&numbers, words),
            3 => planes::<3>(&numbers, words),
            4 => planes::<4>(&numbers, words),
            5 => planes::<5>(&numbers, words),
            6 => planes::<6>(&numbers, words),
            _ => planes::<8>(&numbers, words),
        }
    }
}

/// Writes 32 numbers of some bits as planes of bits.
#[inline(always)]
fn planes<const BITS: usize>(numbers: &[u8; 32], words: &mut [u32]) {
    let four: &[[u8; 4]] = numbers.as_chunks().0;
    if BITS == 8 {
        for (word, four) in words.iter_mut().zip(four) {
            *word = u32::from_le_bytes(*four);
        }
        return;
    }
    if BITS < 4 {
        words[..BITS].fill(0);
        for (index, four) in four.iter().enumerate() {
            let four = u32::from_le_bytes(*four);
            words[index / 4] |= (four & 0x0303_0303) << (2 * (index % 4));
            if BITS == 3 {
                words[2] |= (four >> 2 & 0x0101_0101) << index;
            }
        }
        return;
    }
    let Some((low, high)) = words[..BITS].split_at_mut_checked(4) else { return };
    high.fill(0);
    for (eight, low) in low.iter_mut().enumerate() {
        let first = u32::from_le_bytes(four[2 * eight]);
        let second = u32::from_le_bytes(four[2 * eight + 1]);
        *low = first & 0x0f0f_0f0f | (second & 0x0f0f_0f0f) << 4;
        if BITS > 4 {
            // The fifth bits are in one word, the fifth and sixth ones in two.
            let (bits, per_word) = (BITS - 4, 4 / (BITS - 4));
            let above = first >> 4 & 0x0f0f_0f0f | second & 0xf0f0_f0f0;
            high[eight / per_word] |= above << (bits * (eight % per_word));
        }
    }
}
