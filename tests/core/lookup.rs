//! Lookups where keys decide, and of what does not fit. All answers are held against scans by
//! `tests/datastore/test_queries.py`.

use specds::build::DatastoreOptions;
use specds::lookup::Match;

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
