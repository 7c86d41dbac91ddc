//! Linear layer of a few tokens: results and rejected sizes.

use specds::linear::{LayerWeights, is_fast, product};

use crate::random::Random;

fn numbers(random: &mut Random, number: usize) -> Vec<f32> {
    (0..number).map(|_| (random.below(2001) as f32 - 1000.0) / 1000.0).collect()
}

/// Returns the sums in 64 bits, each with the sum of the absolute terms.
fn exact(weights: &[f32], states: &[f32], size: usize) -> Vec<(f64, f64)> {
    let dot = |row: &[f32], token: &[f32]| {
        let terms = row.iter().zip(token).map(|(a, b)| f64::from(*a) * f64::from(*b));
        let terms: Vec<f64> = terms.collect();
        (terms.iter().sum(), terms.iter().map(|term| term.abs()).sum())
    };
    let of_token = |token| weights.chunks(size).map(move |row| dot(row, token));
    states.chunks(size).flat_map(of_token).collect()
}

fn upper_half(number: f32) -> u16 {
    (number.to_bits() >> 16) as u16
}

fn of_both(weights: &[f32], states: &[f32], size: usize, num_threads: usize) -> [Vec<f32>; 2] {
    let halves: Vec<_> = weights.iter().map(|&weight| upper_half(weight)).collect();
    let length = weights.len() / size * (states.len() / size);
    [LayerWeights::F32(weights), LayerWeights::BF16(&halves)].map(|weights| {
        let mut outputs = vec![f32::NAN; length];
        product(weights, states, size, num_threads, &mut outputs).unwrap();
        outputs
    })
}

#[test]
fn products_equal_64_bit_sums_for_any_shape_and_thread_count() {
    if !is_fast() {
        return;
    }
    let random = &mut Random(7);
    let small = [(1, 16, 24), (2, 32, 5), (7, 48, 6), (11, 80, 11)];
    let divided_among_threads = (4099, 64, 1);
    let shapes = small.into_iter().chain([(0, 16, 2), divided_among_threads]);
    for (num_rows, size, num_tokens) in shapes {
        let weights = numbers(random, num_rows * size);
        let states = numbers(random, num_tokens * size);
        let found = of_both(&weights, &states, size, 1);
        assert_eq!(found, of_both(&weights, &states, size, 3));
        let round = |weight: &f32| f32::from_bits(u32::from(upper_half(*weight)) << 16);
        let rounded = weights.iter().map(round).collect();
        for (found, weights) in found.iter().zip([&weights, &rounded]) {
            let expected = exact(weights, &states, size);
            assert_eq!(found.len(), expected.len());
            for (found, (sum, sizes)) in found.iter().zip(expected) {
                let error = (f64::from(*found) - sum).abs();
                assert!(error <= sizes * 1e-6, "{found} {sum}");
            }
        }
    }
}

#[test]
fn products_do_not_depend_on_other_tokens() {
    if !is_fast() {
        return;
    }
    let random = &mut Random(8);
    let (size, num_rows) = (96, 10);
    let (weights, states) = (numbers(random, num_rows * size), numbers(random, 9 * size));
    let [all, halves] = of_both(&weights, &states, size, 1);
    for (token, states) in states.chunks(size).enumerate() {
        let place = token * num_rows..(token + 1) * num_rows;
        let alone = of_both(&weights, states, size, 1);
        assert_eq!(alone, [&all[place.clone()], &halves[place]]);
    }
}

#[test]
fn mismatched_sizes_are_rejected() {
    let numbers = [0.0; 64];
    for (num_weights, num_states, size, num_outputs) in [
        (64, 32, 0, 2),
        (64, 32, 8, 32),
        (63, 32, 32, 1),
        (64, 0, 32, 0),
        (64, 33, 32, 2),
        (64, 32, 32, 3),
    ] {
        let weights = LayerWeights::F32(&numbers[..num_weights]);
        let mut outputs = vec![0.0; num_outputs];
        assert!(product(weights, &numbers[..num_states], size, 1, &mut outputs).is_err());
    }
}
