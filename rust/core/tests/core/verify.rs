//! Tests of top-k and of multinomial draws.

use proptest::collection::vec;
use proptest::prelude::*;
use specds_core::verify::{multinomial, top_k};

proptest! {
    #[test]
    fn top_k_equals_the_prefix_of_a_stable_sort(
        scores in vec((0_i8..60).prop_map(f32::from), 0..300),
        k in 0_usize..12,
    ) {
        let mut places: Vec<u32> = (0..).take(scores.len()).collect();
        places.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
        places.truncate(k);
        prop_assert_eq!(top_k(&scores, k), places);
    }
}

#[test]
fn masked_scores_and_nan_come_last() {
    let masked = f32::NEG_INFINITY;
    assert_eq!(top_k(&[masked, 1.0, masked, 2.0], 3), [3, 1, 0]);
    assert_eq!(top_k(&[f32::NAN, 1.0, f32::NAN, 2.0], 2), [3, 1]);
    assert_eq!(top_k(&[f32::NAN, f32::NAN], 2), [0, 1]);
}

/// The Python tests of acceptance compare all other draws with `torch.multinomial`.
#[test]
fn ties_and_impossible_draws_return_none() {
    assert_eq!(multinomial(&[0.5, 0.5], &[0.25, 0.25]), None);
    assert_eq!(multinomial(&[0.5, 0.500_000_1], &[0.25, 0.25]), None);
    assert_eq!(multinomial(&[0.5, 0.51], &[0.25, 0.25]), Some(1));
    assert_eq!(multinomial(&[0.0, 0.0], &[0.25, 0.75]), None);
    assert_eq!(multinomial(&[], &[]), None);
    assert_eq!(multinomial(&[f32::NAN], &[0.5]), None);
    assert_eq!(multinomial(&[0.5, f32::INFINITY], &[0.5, 0.5]), None);
    assert_eq!(multinomial(&[0.5, 0.5], &[0.5, 0.0]), None);
    assert_eq!(multinomial(&[0.0, 0.0, 0.3], &[0.0, 0.25, 0.75]), Some(2));
}
