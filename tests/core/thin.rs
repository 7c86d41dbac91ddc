//! Indexes that keep only some suffixes.

use proptest::collection::vec;
use proptest::prelude::*;
use specds::datastore::DatastoreOptions;

use crate::oracle::{Oracle, corpora, shift};
use crate::{build, options, tempdir};

/// The suffixes of each shard that are kept.
fn kept(oracle: &Oracle, stride: usize, max_duplicates: usize) -> Vec<Vec<u32>> {
    let prefix = |suffix: &[u32]| {
        let end = suffix.iter().position(|&token| token == oracle.separator);
        suffix[..32.min(end.unwrap() + 1)].to_vec()
    };
    let mut kept = Vec::new();
    for shard in oracle.shards() {
        let starts = (0..shard.len()).step_by(stride);
        let mut suffixes: Vec<_> = starts.map(|start| shard[start..].to_vec()).collect();
        suffixes.sort();
        for duplicates in suffixes.chunk_by(|a, b| prefix(a) == prefix(b)) {
            let fits = |stride: &usize| duplicates.len().div_ceil(*stride) <= max_duplicates;
            let strides = (0..).map(|power| 1 << power);
            let stride = strides
                .into_iter()
                .find(|stride| max_duplicates == 0 || fits(stride));
            kept.extend(duplicates.iter().step_by(stride.unwrap()).cloned());
        }
    }
    kept
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_is_kept_is_found_and_counted(
        oracle in corpora(),
        patterns in vec(vec(0_u32..4, 1..6), 12),
        position_stride in 1_u32..4,
        max_duplicates in 0_u32..4,
    ) {
        let folder = tempdir().unwrap();
        let thinned = DatastoreOptions { position_stride, max_duplicates, ..oracle.options() };
        let datastore = build(&folder.path().join("d"), thinned, &oracle.documents).unwrap();
        datastore.verify().unwrap();
        let kept = kept(&oracle, position_stride as usize, max_duplicates as usize);
        for pattern in patterns {
            let pattern = shift(&pattern, oracle.vocab_size);
            let length = pattern.len();
            let found = datastore.lookup(&pattern, length, length).unwrap();
            let is_found = |suffix: &&Vec<u32>| suffix.starts_with(&pattern);
            let count = match pattern.contains(&oracle.separator) {
                true => 0,
                false => kept.iter().filter(is_found).count() as u64,
            };
            prop_assert_eq!(found.count(), count);
        }
    }
}

#[test]
fn thinner_indexes_are_smaller() {
    let folder = tempdir().unwrap();
    let documents: Vec<Vec<u32>> = (0..40)
        .map(|i| (0..999).map(|j| j % (60 + i % 2)).collect())
        .collect();
    let mut sizes = Vec::new();
    for (name, position_stride, max_duplicates) in [
        ("all", 1, 0),
        ("half", 2, 0),
        ("third", 3, 0),
        ("few", 1, 4),
    ] {
        let options = DatastoreOptions {
            position_stride,
            max_duplicates,
            ..options(100, 99)
        };
        let datastore = build(&folder.path().join(name), options, &documents).unwrap();
        sizes.push(datastore.num_bytes());
    }
    // 40,000 positions of 16 bits, 20,000 of 15, 13,334 of 14; a file of keys each.
    let bytes = |count: u64, bits: u64| (count * bits).div_ceil(8) + count.div_ceil(256) * 8;
    let all = sizes[0] - bytes(40_000, 16);
    assert!(sizes[1].abs_diff(all + bytes(20_000, 15)) < 16);
    assert!(sizes[2].abs_diff(all + bytes(13_334, 14)) < 16);
    // 121 words at two beginnings each, and what leads to the ends of documents.
    assert!(sizes[3] < all + bytes(40 * 32 + 121 * 4, 16));
}
