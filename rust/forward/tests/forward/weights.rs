//! Products of each type of weights, against plain code.

use proptest::prelude::*;
use specds_forward::gguf::{BlockType, Bytes, Tensor};
use specds_forward::model::LinearLayer;
use specds_forward::{Activations, Instructions};

/// A type, the places of the halves of a block, and the sum of the weights of one block, plain and by place, as
/// gguf-py 0.19.0 reads them.
const TYPES: [(BlockType, &[usize], f64, f64); 16] = [
    (BlockType::F32, &[], 2.767_334_145_096_703e35, 2.767_334_145_096_703e35),
    (BlockType::F16, &[], 0.126_342_773_437_5, 0.126_342_773_437_5),
    (BlockType::BF16, &[], 5.056_790_541_857_481e-10, 5.056_790_541_857_481e-10),
    (BlockType::Q4_0, &[0], -1.3125, -32.375),
    (BlockType::Q4_1, &[0, 2], 17.8125, 290.1875),
    (BlockType::Q5_0, &[0], 0.9375, 7.0),
    (BlockType::Q5_1, &[0, 2], 34.0625, 535.0625),
    (BlockType::Q8_0, &[0], -11.0, -505.0),
    (BlockType::Q4K, &[0, 2], 3006.5, 428_704.5),
    (BlockType::Q5K, &[0, 2], 6867.5, 957_117.5),
    (BlockType::Q6K, &[208], 288.25, 49_026.25),
    (BlockType::Q2K, &[80, 82], 49.9375, 4350.25),
    (BlockType::Q3K, &[108], 59.875, 11_071.562_5),
    (BlockType::Iq4Nl, &[0], -16.0625, -432.4375),
    (BlockType::Iq4Xs, &[0], -687.8125, -130_695.875),
    (BlockType::Mxfp4, &[], 0.390_625, 9.968_75),
];

/// True if portable code rounds a product before it is added.
const ROUNDS_TWICE: bool = cfg!(not(any(target_feature = "fma", target_arch = "aarch64")));

/// Rows of blocks of any bytes, but for halves of this exponent, which are 1/16 to 1/4.
fn rows(kind: BlockType, halves: &[usize], columns: usize, number: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut byte = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    let size = kind.row_bytes(columns).unwrap() * number;
    let mut bytes: Vec<u8> = (0..size).map(|_| byte()).collect();
    for block in bytes.chunks_exact_mut(kind.block_bytes()) {
        match kind {
            BlockType::F32 => block[3] = 0x3d,
            BlockType::F16 => block[1] = 0x2c | block[1] & 0x83,
            BlockType::BF16 => block[1] = 0x3d | block[1] & 0x80,
            BlockType::Mxfp4 => block[0] = 0x78 | block[0] & 3,
            _ => halves.iter().for_each(|&half| block[half + 1] = 0x2c | block[half + 1] & 3),
        }
    }
    bytes
}

#[test]
fn weights_are_those_of_gguf_py() {
    for (kind, halves, sum, by_place) in TYPES {
        let mut block: Vec<u8> = (0..kind.block_bytes())
            .map(|place| u8::try_from((place * 37 + 11) % 256).unwrap())
            .collect();
        for &half in halves {
            block[half..half + 2]
                .copy_from_slice(&[0, if matches!(half, 2 | 82) { 0x2d } else { 0x2c }]);
        }
        if kind == BlockType::Mxfp4 {
            block[0] = 0x7a;
        }
        let mut weights = vec![0.0; kind.block_size()];
        kind.dequantize(&block, &mut weights);
        let found: f64 = weights.iter().copied().map(f64::from).sum();
        let found_by_place: f64 = weights
            .iter()
            .zip(1..)
            .map(|(&weight, place)| f64::from(weight) * f64::from(place))
            .sum();
        assert!((found - sum).abs() <= 1e-6 * sum.abs(), "{kind:?}: {found} {sum}");
        assert!((found_by_place - by_place).abs() <= 1e-6 * by_place.abs(), "{kind:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 24 } else { 200 }))]

    #[test]
    fn product_is_that_of_plain_code(
        of in 0..TYPES.len(),
        num_rows in 1..40_usize,
        num_blocks in 1..4_usize,
        num_tokens in 1..24_usize,
        num_threads in 1..4_usize,
        seed: u64,
    ) {
        let (kind, halves, ..) = TYPES[of];
        let columns = num_blocks * kind.block_size().max(32);
        let bytes = rows(kind, halves, columns, num_rows, seed);
        let mut weights = vec![0.0; num_rows * columns];
        kind.dequantize(&bytes, &mut weights);
        let state = |place: usize| ((place as f32 * 0.37 + seed as f32 % 7.0).sin() * 2.0).powi(3);
        let states: Vec<f32> = (0..num_tokens * columns).map(state).collect();
        // The order of a sum does not depend on the number of lanes where a lane is a row.
        let is_packed = kind.block_size() > 1;
        let mut of_best = [None, None];
        for instructions in Instructions::available() {
            let bytes = Bytes::new(bytes.clone());
            let matrix = Tensor { kind, rows: num_rows, columns, bytes };
            let matrix = LinearLayer::of(matrix, instructions).unwrap();
            for (activations, best) in [Activations::Float32, Activations::Int8].into_iter().zip(&mut of_best) {
                let outputs = matrix.product(&states, activations, num_threads).unwrap();
                let best: &Vec<f32> = best.get_or_insert_with(|| outputs.clone());
                for (token, states) in states.chunks_exact(columns).enumerate() {
                    let alone = matrix.product(states, activations, 1).unwrap();
                    prop_assert_eq!(&alone, &outputs[token * num_rows..][..num_rows]);
                    let rows = alone.iter().zip(&best[token * num_rows..]);
                    for ((output, best), weights) in rows.zip(weights.chunks_exact(columns)) {
                        let terms = || weights.iter().zip(states).map(|(a, b)| f64::from(a * b));
                        let (exact, size): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
                        let tolerance = if activations == Activations::Int8 { 2e-2 } else { 2e-5 };
                        let error = (f64::from(*output) - exact).abs();
                        prop_assert!(error <= tolerance * size, "{:?} {} {}", kind, error, size);
                        let tolerance = if ROUNDS_TWICE && instructions.name() == "portable" { 1e-6 } else { 0.0 };
                        let difference = f64::from(output - best).abs();
                        prop_assert!(!is_packed || difference <= tolerance * size, "{:?} {}", kind, instructions.name());
                    }
                }
            }
        }
    }
}

/// Rows as wide as the widest layers of models of 7 billion weights: a group of them is larger than a chunk.
#[test]
fn wide_rows_are_multiplied() {
    const COLUMNS: usize = 79 * 256;
    let states: Vec<f32> = (0..10 * COLUMNS).map(|place| (place as f32 * 0.37).sin()).collect();
    for (kind, halves, ..) in TYPES {
        let bytes = rows(kind, halves, COLUMNS, 33, 7);
        let mut weights = vec![0.0; 33 * COLUMNS];
        kind.dequantize(&bytes, &mut weights);
        for instructions in Instructions::available() {
            let bytes = Bytes::new(bytes.clone());
            let matrix = Tensor { kind, rows: 33, columns: COLUMNS, bytes };
            let matrix = LinearLayer::of(matrix, instructions).unwrap();
            for activations in [Activations::Float32, Activations::Int8] {
                let outputs = matrix.product(&states, activations, 2).unwrap();
                for (place, output) in outputs.iter().enumerate() {
                    let (token, row) = (place / 33, place % 33);
                    let states = &states[token * COLUMNS..][..COLUMNS];
                    let weights = &weights[row * COLUMNS..][..COLUMNS];
                    let terms = || weights.iter().zip(states).map(|(a, b)| f64::from(a * b));
                    let (exact, size): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
                    let error = (f64::from(*output) - exact).abs();
                    assert!(
                        error <= 2e-2 * size,
                        "{kind:?} {} {error} {size}",
                        instructions.name()
                    );
                }
            }
        }
    }
}

#[test]
fn subnormal_numbers_count_as_zero_in_kernels_alone() {
    let smallest = f32::from_bits(1);
    let bytes = Bytes::new([1.0_f32; 32].map(f32::to_le_bytes).concat());
    for instructions in Instructions::available() {
        let matrix = Tensor { kind: BlockType::F32, rows: 1, columns: 32, bytes: bytes.clone() };
        let matrix = LinearLayer::of(matrix, instructions).unwrap();
        let output = matrix.product(&[smallest; 32], Activations::Float32, 1).unwrap();
        if cfg!(target_arch = "x86_64") {
            assert_eq!(output, [0.0], "{}", instructions.name());
        }
        assert!(std::hint::black_box(smallest) * 2.0 > 0.0, "the caller's numbers are as before");
    }
}

#[test]
fn parts_of_blocks_and_of_tokens_are_refused() {
    let isa = Instructions::available()[0];
    for (kind, bytes, columns) in [
        (BlockType::Q4_0, 18, 16),
        (BlockType::Q4_0, 17, 32),
        (BlockType::F32, 64, 16),
        (BlockType::F32, 0, 0),
    ] {
        let bytes = Bytes::new(vec![0; bytes]);
        assert!(LinearLayer::of(Tensor { kind, rows: 1, columns, bytes }, isa).is_err());
    }
    let matrix = Tensor { kind: BlockType::Q4_0, rows: 2, columns: 32, bytes: Bytes::new([0; 36]) };
    let matrix = LinearLayer::of(matrix, isa).unwrap();
    assert!(matrix.product(&[0.0; 40], Activations::Float32, 1).is_err());
    let empty = Tensor { kind: BlockType::F32, rows: 0, columns: 32, bytes: Bytes::new([]) };
    let empty = LinearLayer::of(empty, isa).unwrap();
    assert_eq!(empty.product(&[0.0; 64], Activations::Float32, 1).unwrap(), []);
    assert_eq!(matrix.product(&[0.0; 32], Activations::Float32, 9).unwrap(), [0.0; 2]);
}
