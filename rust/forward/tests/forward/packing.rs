//! Packed bytes of each type of weights, against plain code that packs a weight at a time.

use proptest::prelude::*;
use specds_forward::Instructions;
use specds_forward::gguf::{BlockType, Bytes, Tensor};
use specds_forward::model::LinearLayer;

/// A type, the bits of its planes, and the places of the halves that its units begin with.
const TYPES: [(BlockType, usize, &[usize]); 13] = [
    (BlockType::Q4_0, 4, &[0]),
    (BlockType::Q4_1, 4, &[0, 2]),
    (BlockType::Q5_0, 5, &[0]),
    (BlockType::Q5_1, 5, &[0, 2]),
    (BlockType::Q8_0, 8, &[0]),
    (BlockType::Q4K, 4, &[0, 2]),
    (BlockType::Q5K, 5, &[0, 2]),
    (BlockType::Q6K, 6, &[208]),
    (BlockType::Q2K, 2, &[80, 82]),
    (BlockType::Q3K, 3, &[108]),
    (BlockType::Iq4Nl, 4, &[0]),
    (BlockType::Iq4Xs, 4, &[0]),
    (BlockType::Mxfp4, 4, &[]),
];

/// The number of a weight as it is stored; that of `Q8_0` is 128 more, so that none is negative.
fn number(kind: BlockType, block: &[u8], place: usize) -> u8 {
    // The lower half of the first bytes of a block comes first, then the upper half.
    let nibble = |start: usize, place: usize, length: usize| {
        let byte = block[start + place / (2 * length) * length + place % length];
        if place % (2 * length) < length { byte & 15 } else { byte >> 4 }
    };
    let bit = |start: usize| (block[start + place / 8] >> (place % 8) & 1) << 4;
    match kind {
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => 0,
        BlockType::Q4_0 => nibble(2, place, 16),
        BlockType::Q4_1 => nibble(4, place, 16),
        BlockType::Q5_0 => nibble(6, place, 16) | bit(2),
        BlockType::Q5_1 => nibble(8, place, 16) | bit(4),
        BlockType::Q8_0 => block[2 + place] ^ 0x80,
        BlockType::Iq4Nl => nibble(2, place, 16),
        BlockType::Mxfp4 => nibble(1, place, 16),
        BlockType::Iq4Xs => nibble(8, place, 16),
        BlockType::Q2K | BlockType::Q3K => {
            let start = if kind == BlockType::Q2K { 16 } else { 32 };
            let (part, column) = (place / 128, place % 128);
            let low = block[start + part * 32 + column % 32] >> (column / 32 * 2) & 3;
            let high =
                if kind == BlockType::Q2K { 0 } else { block[place % 32] >> (place / 32) & 1 };
            low | high << 2
        }
        BlockType::Q4K => nibble(16, place, 32),
        BlockType::Q5K => nibble(48, place, 32) | (block[16 + place % 32] >> (place / 32) & 1) << 4,
        BlockType::Q6K => {
            let (part, column) = (place / 128, place % 128);
            let high = block[128 + part * 32 + column % 32] >> (column / 32 * 2) & 3;
            nibble(0, place, 64) | high << 4
        }
    }
}

/// The bytes of scales after the halves, four for each word.
fn scales(kind: BlockType, block: &[u8]) -> Vec<u8> {
    let packed = |part: usize| {
        let packed = &block[4..16];
        if part < 4 {
            return (packed[part] & 63, packed[part + 4] & 63);
        }
        let low = packed[part + 4];
        (low & 15 | packed[part - 4] >> 6 << 4, low >> 4 | packed[part] >> 6 << 4)
    };
    match kind {
        BlockType::Q4K | BlockType::Q5K => {
            let scales = (0..8).map(|part| packed(part).0);
            scales.chain((0..8).map(|part| packed(part).1)).collect()
        }
        BlockType::Q6K => block[192..208].iter().map(|scale| scale ^ 0x80).collect(),
        BlockType::Q2K => block[..16].to_vec(),
        BlockType::Q3K => {
            let scale = |of: usize| {
                let low = block[96 + of % 8] >> (of / 8 * 4) & 15;
                let high = block[104 + of % 4] >> (of / 4 * 2) & 3;
                (low | high << 4) + 96
            };
            (0..16).map(scale).collect()
        }
        BlockType::Iq4Xs => {
            let high = u16::from_le_bytes([block[2], block[3]]);
            let scale = |of: usize| {
                let low = block[4 + of / 2] >> (of % 2 * 4) & 15;
                (low | u8::try_from(high >> (of * 2) & 3).unwrap() << 4) + 96
            };
            (0..8).map(scale).collect()
        }
        _ => Vec::new(),
    }
}

/// The words of 32 columns.
fn words(kind: BlockType, bits: usize, block: &[u8], start: usize) -> Vec<u32> {
    let number = |column: usize| u32::from(number(kind, block, start + column));
    let place = |column: usize| [0, 8, 16, 24, 4, 12, 20, 28][column % 8];
    let mut words = vec![0; bits];
    for column in 0..32 {
        if bits < 4 {
            words[column / 16] |= (number(column) & 3) << (8 * (column % 4) + column % 16 / 4 * 2);
            if bits == 3 {
                words[2] |= number(column) >> 2 << (8 * (column % 4) + column / 4);
            }
            continue;
        }
        if bits == 8 {
            words[column / 4] |= number(column) << (8 * (column % 4));
            continue;
        }
        words[column / 8] |= (number(column) & 15) << place(column);
        if bits > 4 {
            let (high, per_word) = (bits - 4, 4 / (bits - 4));
            let shift = place(column) + high * (column / 8 % per_word);
            words[4 + column / 8 / per_word] |= number(column) >> 4 << shift;
        }
    }
    words
}

/// All units of some rows, whose last group is filled up with zeros.
fn packed(of: (BlockType, usize, &[usize]), rows: &[&[u8]], lanes: usize) -> Vec<u8> {
    let (kind, bits, halves) = of;
    let zeros = vec![0; rows[0].len()];
    let mut packed = Vec::new();
    for group in rows.chunks(lanes) {
        let row = |lane: usize| group.get(lane).map_or(zeros.as_slice(), |row| row);
        for place in (0..zeros.len()).step_by(kind.block_bytes()) {
            let blocks: Vec<&[u8]> =
                (0..lanes).map(|lane| &row(lane)[place..][..kind.block_bytes()]).collect();
            for &half in halves {
                packed.extend(blocks.iter().flat_map(|block| &block[half..half + 2]));
            }
            if kind == BlockType::Mxfp4 {
                // The upper half of a power of two.
                let scale = |of: &&[u8]| (f32::from(of[0]) - 128.0).exp2().to_bits() >> 16;
                packed.extend(
                    blocks.iter().flat_map(|of| scale(of).to_le_bytes().into_iter().take(2)),
                );
            }
            let scales: Vec<Vec<u8>> = blocks.iter().map(|block| scales(kind, block)).collect();
            for word in (0..scales[0].len()).step_by(4) {
                packed.extend(scales.iter().flat_map(|of| &of[word..word + 4]));
            }
            for start in (0..kind.block_size()).step_by(32) {
                let words: Vec<_> =
                    blocks.iter().map(|block| words(kind, bits, block, start)).collect();
                for word in 0..bits {
                    packed.extend(words.iter().flat_map(|of| of[word].to_le_bytes()));
                }
            }
        }
    }
    packed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 32 } else { 200 }))]

    #[test]
    fn packed_bytes_are_those_of_plain_code(
        of in 0..TYPES.len(),
        num_rows in 1..70_usize,
        num_blocks in 1..5_usize,
        seed: u64,
    ) {
        let kind = TYPES[of].0;
        let columns = num_blocks * kind.block_size();
        let row_bytes = num_blocks * kind.block_bytes();
        let mut state = seed | 1;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.to_be_bytes()[0]
        };
        let bytes: Vec<u8> = (0..row_bytes * num_rows).map(|_| byte()).collect();
        let rows: Vec<&[u8]> = bytes.chunks_exact(row_bytes).collect();
        for instructions in Instructions::available() {
            let tensor =
                Tensor { kind, rows: num_rows, columns, bytes: Bytes::new(bytes.clone()) };
            let layer = LinearLayer::of(tensor, instructions).unwrap();
            let lanes = if instructions.name() == "avx512" { 16 } else { 8 };
            let found: Vec<&[u8]> = layer.packed().collect();
            prop_assert!(found == [packed(TYPES[of], &rows, lanes)], "{:?} {}", kind, lanes);
        }
    }
}
