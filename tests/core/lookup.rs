//! Lookup, continuations and counts.

use proptest::collection::vec;
use proptest::prelude::*;
use specds::Error;
use specds::build::DatastoreOptions;
use specds::lookup::Match;

use crate::oracle::{corpora, shift};
use crate::{built, options, refusal};

#[test]
fn unusable_match_lengths_are_refused() {
    let datastore = built(options(4, 4), &[vec![1, 2]]);
    for (max_match, min_match, argument) in [(4, 0, "min"), (0, 1, "max"), (2, 3, "max")] {
        let refused = refusal(datastore.lookup(&[1], max_match, min_match));
        assert!(refused.starts_with(&format!("`{argument}_match`")));
    }
    assert!(refusal(datastore.lookup(&[], 4, 1)).starts_with("`context`"));
}

#[test]
fn a_match_of_another_datastore_is_answered_without_panic() {
    let large = built(options(4, 4), &[vec![1; 50]]);
    let small = built(options(4, 4), &[vec![1]]);
    let found = large.lookup(&[1], 16, 1).unwrap();
    assert!(small.continuations(&found, 10).len() <= 1);
    assert!(small.continuations(&Match::default(), 10).is_empty());
}

/// Long enough for many keys, with so few different patterns that all of them meet keys.
#[test]
fn every_short_pattern_is_counted_where_keys_decide() {
    let mut state = 1_u32;
    let random = move |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 31
    };
    let texts: [Vec<u32>; 3] = [
        (0..6000).map(random).collect(),
        (0..6000).map(|i| u32::from(i % 700 == 0)).collect(),
        (0..6000).map(|i| i % 5 % 2).collect(),
    ];
    let cut = |text: &Vec<u32>| text.chunks(900).map(<[u32]>::to_vec).collect();
    let mut corpora: Vec<Vec<Vec<u32>>> = texts.iter().map(cut).collect();
    // Suffixes of one beginning end, and those of another begin, where a key is.
    corpora.push([vec![vec![0, 0]; 256], vec![vec![0, 1]; 256]].concat());
    for documents in corpora {
        let ended = documents
            .iter()
            .map(|document| [document, &[3][..]].concat());
        let ended: Vec<_> = ended.collect();
        let options = DatastoreOptions {
            max_shard_tokens: 4000,
            ..options(4, 3)
        };
        let datastore = built(options, &documents);
        datastore.verify().unwrap();
        for length in 1..8 {
            for bits in 0..1_u32 << length {
                let pattern: Vec<_> = (0..length).map(|bit| bits >> bit & 1).collect();
                let mut counts = [0; 4];
                for window in ended.iter().flat_map(|text| text.windows(length + 1)) {
                    counts[window[length] as usize] += u64::from(window[..length] == pattern);
                }
                let found = datastore.lookup(&pattern, length, length).unwrap();
                assert_eq!(found.count(), counts.iter().sum::<u64>(), "{pattern:?}");
                let mut expected: Vec<_> = (0..).zip(counts).filter(|next| next.1 > 0).collect();
                expected.sort_by_key(|&(token, count)| (u64::MAX - count, token));
                assert_eq!(datastore.continuations(&found, 4), expected, "{pattern:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn every_answer_equals_the_oracle(
        oracle in corpora(),
        contexts in vec(vec(0_u32..4, 1..8), 12),
        max_match in 1_usize..7,
        min_match in 1_usize..4,
        top_k in 0_usize..5,
    ) {
        let datastore = built(oracle.options(), &oracle.documents);
        datastore.verify().unwrap();
        prop_assert_eq!(datastore.manifest().shards.len(), oracle.shards().len());
        prop_assert_eq!(datastore.num_tokens(), oracle.num_tokens() as u64);
        let max_match = max_match.max(min_match);
        for context in contexts {
            let context = shift(&context, oracle.vocab_size);
            let (pattern, count) = oracle.lookup(&context, max_match, min_match);
            let found = datastore.lookup(&context, max_match, min_match).unwrap();
            prop_assert_eq!((found.length, found.count()), (pattern.len(), count));
            prop_assert_eq!(datastore.continuations(&found, top_k), oracle.continuations(&pattern, top_k));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_is_counted_and_found_in_the_corpus_equals_a_scan(
        oracle in corpora(),
        patterns in vec(vec(0_u32..4, 1..4), 8),
        limit in 0_usize..6,
    ) {
        let datastore = built(oracle.options(), &oracle.documents);
        datastore.warm().unwrap();
        let text = oracle.shards().concat();
        for pattern in patterns {
            let pattern = shift(&pattern, oracle.vocab_size);
            let is_whole = !pattern.contains(&oracle.separator);
            let windows = (0..).zip(text.windows(pattern.len()));
            let positions: Vec<u64> = windows
                .filter(|(_, window)| is_whole && *window == pattern)
                .map(|(position, _)| position)
                .collect();
            prop_assert_eq!(datastore.find(&pattern).unwrap().count(), positions.len() as u64);
            let found = datastore.lookup(&pattern, pattern.len(), pattern.len()).unwrap();
            let firsts = &positions[..limit.min(positions.len())];
            prop_assert_eq!(datastore.positions(&found, limit), firsts);
            prop_assert_eq!(datastore.positions(&found, usize::MAX), positions);
        }
    }

    #[test]
    fn every_position_is_in_its_document(oracle in corpora()) {
        let datastore = built(oracle.options(), &oracle.documents);
        let documents = oracle.documents.iter().filter(|document| !document.is_empty());
        let mut position = 0;
        for (index, document) in (0..).zip(documents) {
            let start = position;
            for _ in 0..=document.len() {
                let found = datastore.document_at(position).unwrap();
                prop_assert_eq!((found.index, found.start), (index, start));
                prop_assert_eq!(&found.tokens, document);
                position += 1;
            }
        }
        for position in [position, u64::MAX] {
            let error = datastore.document_at(position).unwrap_err();
            let is_named = matches!(error, Error::InvalidArgument { name: "position", .. });
            prop_assert!(is_named);
        }
    }
}
