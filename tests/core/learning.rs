//! What fused drafters learn from what is accepted, and how soon.

#![expect(clippy::cast_precision_loss, reason = "numbers of steps are small")]

use std::sync::Arc;

use specds::draft::{Session, Source};
use specds::fused::{FusedConfig, FusedDrafter, Weights, fit};
use specds::lookup::Datastore;

use crate::fused::{alone, build_one, drafter, memory, num_accepted, replay, start};
use crate::random::Random;
use crate::{drafted, refusal};

#[test]
fn a_drafter_learns_and_a_drafter_that_does_not_stays_as_it_is() {
    let mut random = Random(2);
    let phrases: Vec<_> = (0..6).map(|_| random.tokens(6, 0, 30)).collect();
    let text = random.phrases(&phrases, 300);
    for learns in [true, false] {
        let config = FusedConfig {
            learns,
            ..FusedConfig::default()
        };
        let drafter = drafter(None, None, config);
        replay(&mut start(&drafter, &text[..100]), &text[100..], 16);
        assert_eq!(drafter.weights("") != Weights::default(), learns);
        assert!(drafter.accepted()[Source::Context as usize] > 50);
    }
}

#[test]
fn when_the_useful_source_changes_midway_the_new_one_is_trusted_within_some_tens_of_tokens() {
    let mut random = Random(3);
    // Both know how every pair of tokens goes on, and each is wrong in the other's domain.
    let stored: Vec<_> = (0..40).map(|_| random.tokens(12, 0, 12)).collect();
    let datastore = build_one(&vec![random.phrases(&stored, 4000); 4], 64);
    let remembered: Vec<_> = (0..40).map(|_| random.tokens(12, 0, 12)).collect();
    let memory = memory(64);
    memory
        .insert("", &random.phrases(&remembered, 4000))
        .unwrap();
    let text = [
        random.phrases(&stored, 600),
        random.phrases(&remembered, 600),
        random.phrases(&stored, 600),
    ]
    .concat();
    let config = FusedConfig {
        context: false,
        ..FusedConfig::default()
    };
    let drafter = drafter(Some(&datastore), Some(&memory), config);
    let steps = replay(&mut start(&drafter, &text[..20]), &text[20..], 8);
    let speed = |from: usize, to: usize| {
        let steps = steps
            .iter()
            .filter(|(begin, ..)| (from..to).contains(begin));
        let emitted: Vec<_> = steps.map(|&(_, emitted, _)| emitted as f32).collect();
        emitted.iter().sum::<f32>() / emitted.len() as f32
    };
    for change in [580, 1180] {
        let settled = speed(change + 300, change + 580);
        let soon = speed(change + 50, change + 250);
        assert!(
            soon > 0.85 * settled,
            "{soon} soon after {change}, {settled} later"
        );
    }
}

#[test]
fn a_datastore_that_does_not_fit_the_text_costs_next_to_nothing() {
    let mut random = Random(4);
    let useless = build_one(&vec![random.tokens(20_000, 0, 40); 3], 64);
    let phrases: Vec<_> = (0..60).map(|_| random.tokens(8, 0, 40)).collect();
    let text = random.phrases(&phrases, 12_000);
    let num_steps = |datastore: Option<&Arc<Datastore>>| {
        let drafter = drafter(datastore, None, FusedConfig::default());
        replay(&mut start(&drafter, &text[..10]), &text[10..], 16).len() as f32
    };
    let (with, without) = (num_steps(Some(&useless)), num_steps(None));
    assert!(
        with < 1.01 * without,
        "{with} steps with it, {without} without"
    );
}

#[test]
fn the_expected_acceptance_length_is_what_comes_also_where_few_nodes_are_verified() {
    let mut random = Random(5);
    let phrases: Vec<_> = (0..50).map(|_| random.tokens(6, 0, 30)).collect();
    let text = random.phrases(&phrases, 12_000);
    for (verified, tolerance) in [([16; 3], 0.03), ([0, 1, 4], 0.1)] {
        let mut session = start(&alone(), &text[..10]);
        let (mut begin, mut expected, mut came) = (10, 0.0, 0.0);
        while begin < text.len() {
            let (tree, rest) = (drafted(&mut session, 16), &text[begin..]);
            let num_verified = verified[begin % 3];
            let emitted = num_accepted(&tree.prefix(num_verified), rest) + 1;
            let emitted = emitted.min(rest.len());
            let observed = session.observe(&rest[..emitted], Some(num_verified));
            observed.unwrap();
            if begin > text.len() / 3 {
                expected += 1.0 + tree.probs().iter().sum::<f32>();
                came += num_accepted(&tree, rest) as f32 + 1.0;
            }
            begin += emitted;
        }
        let ratio: f32 = expected / came;
        assert!((ratio - 1.0).abs() < tolerance, "{ratio}");
    }
}

#[test]
fn a_bonus_token_that_was_drafted_and_not_verified_is_not_accepted() {
    let drafter = alone();
    let mut session = start(&drafter, &[1, 2, 3, 1, 2]);
    assert_eq!(drafted(&mut session, 2).token_ids(), [3, 1]);
    session.observe(&[3, 1], Some(1)).unwrap();
    assert_eq!(drafter.accepted().iter().sum::<u64>(), 1);
}

#[test]
fn fitted_weights_draft_better_from_the_start() {
    let mut random = Random(6);
    // What is stored says nothing: only a drafter that was shown so does not draft it.
    let datastore = build_one(&[random.tokens(20_000, 0, 20)], 64);
    let mut text = |length| {
        let phrases: Vec<_> = (0..10).map(|_| random.tokens(6, 0, 20)).collect();
        random.phrases(&phrases, length)
    };
    let held_out: Vec<_> = (0..10).map(|_| text(300)).collect();
    let texts: Vec<_> = (0..10).map(|_| text(300)).collect();
    let fitted = fit(Some(Arc::clone(&datastore)), &held_out, Weights::default()).unwrap();
    let num_steps = |weights: &Weights| {
        let num_steps = texts.iter().map(|text| {
            let (config, weights) = (FusedConfig::default(), weights.clone());
            let drafter = FusedDrafter::new(Some(Arc::clone(&datastore)), None, config, weights);
            replay(
                &mut start(&Arc::new(drafter.unwrap()), &text[..2]),
                &text[2..],
                8,
            )
            .len()
        });
        num_steps.sum::<usize>()
    };
    let (fitted, default) = (num_steps(&fitted), num_steps(&Weights::default()));
    assert!(
        fitted * 50 < default * 49,
        "{fitted} steps, {default} by default"
    );
}

#[test]
fn weights_come_back_from_their_bytes_and_no_others_do() {
    let drafter = alone();
    replay(&mut start(&drafter, &[1, 2, 1, 2]), &[1, 2, 1, 2, 3, 1], 8);
    let weights = drafter.weights("");
    let bytes = weights.to_bytes();
    assert_eq!(Weights::from_bytes(&bytes).unwrap(), weights);
    let mut changed: Vec<Vec<u8>> = Vec::new();
    for length in [0, 7, 8, 15, bytes.len() - 8, bytes.len() - 1] {
        changed.push(bytes[..length].to_vec());
    }
    changed.push([&bytes[..], &[0]].concat());
    for index in [0, 7, 8, 1000, bytes.len() - 9, bytes.len() - 1] {
        let mut one = bytes.clone();
        one[index] ^= 64;
        changed.push(one);
    }
    for bytes in changed {
        assert!(refusal(Weights::from_bytes(&bytes)).starts_with("`weights`"));
    }
}
