//! Indexes that keep only some suffixes.

use proptest::collection::vec;
use proptest::prelude::*;
use specds::build::DatastoreOptions;

use crate::files::read_all;
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
            let is_searched = !pattern.contains(&oracle.separator);
            let count = if is_searched { kept.iter().filter(is_found).count() } else { 0 };
            prop_assert_eq!(found.count(), count as u64);
        }
    }
}

#[test]
fn what_is_kept_takes_as_many_bits_as_it_needs() {
    let folder = tempdir().unwrap();
    let document = |i| (0..999_u32).map(|j| j % (60 + i % 2)).collect();
    let documents: Vec<Vec<u32>> = (0..40_u32).map(document).collect();
    let rows = [
        ("all", 1, 0, 40_000_usize, 16),
        ("half", 2, 0, 20_000, 15),
        ("third", 3, 0, 13_334, 14),
    ];
    for (name, position_stride, max_duplicates, count, bits) in rows {
        let options = DatastoreOptions {
            position_stride,
            max_duplicates,
            ..options(100, 99)
        };
        let path = folder.path().join(name);
        build(&path, options, &documents).unwrap().verify().unwrap();
        let files = read_all(&path);
        let suffixes = files
            .iter()
            .find(|(name, _)| name.ends_with("suffixes.bin"));
        let num_bytes = 4096 + (count * bits).div_ceil(8) + 8;
        assert_eq!(suffixes.unwrap().1.len(), num_bytes, "{name}");
    }
}

/// Of 40 equal documents of 50 different tokens, each suffix is there 40 times.
#[test]
fn of_many_duplicates_an_even_stride_is_kept() {
    let folder = tempdir().unwrap();
    let documents: Vec<Vec<u32>> = (0..40).map(|_| (0..50).collect()).collect();
    for (max_duplicates, count) in [(0, 40), (40, 40), (39, 20), (10, 10), (4, 3), (1, 1)] {
        let options = DatastoreOptions {
            max_duplicates,
            ..options(100, 99)
        };
        let path = folder.path().join(max_duplicates.to_string());
        let datastore = build(&path, options, &documents).unwrap();
        datastore.verify().unwrap();
        for pattern in [&[0][..], &[30, 31], &[49]] {
            assert_eq!(datastore.lookup(pattern, 16, 1).unwrap().count(), count);
        }
    }
}
