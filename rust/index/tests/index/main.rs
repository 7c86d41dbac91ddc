//! Lookups, counts and samples of small corpora, against scans of the documents.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use specds_index::{Datastore, DatastoreBuilder, DatastoreOptions};

/// A vocabulary so small that most sequences repeat.
const VOCAB_SIZE: u32 = 3;
/// Beyond every document and context.
const MAX_MATCH: usize = 40;

fn build(documents: &[Vec<u32>], max_shard_tokens: u64) -> Datastore {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("datastore");
    let options = DatastoreOptions {
        max_shard_tokens: Some(max_shard_tokens),
        ..DatastoreOptions::new(VOCAB_SIZE, VOCAB_SIZE)
    };
    let mut builder = DatastoreBuilder::create(path, options).unwrap();
    for document in documents {
        builder.add_document(document).unwrap();
    }
    builder.finish().unwrap()
}

/// Returns the continuation of each occurrence of `pattern`, in the order of the corpus.
fn continuations<'a>(documents: &'a [Vec<u32>], pattern: &[u32]) -> Vec<&'a [u32]> {
    let starts = documents.iter().flat_map(|document| {
        let starts = 0..=document.len();
        starts.map(move |start| &document[start..])
    });
    starts.filter_map(|text| text.strip_prefix(pattern)).collect()
}

fn check(documents: &[Vec<u32>], datastore: &Datastore, context: &[u32]) {
    for length in 1..=context.len() {
        let pattern = &context[..length];
        let expected = continuations(documents, pattern);
        let found = datastore.find(pattern).unwrap();
        assert_eq!(found.count(), expected.len() as u64, "{pattern:?}");

        let mut counts = BTreeMap::<u32, u64>::new();
        for next in expected.iter().filter_map(|text| text.first()) {
            *counts.entry(*next).or_default() += 1;
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(_, count)| u64::MAX - count);
        assert_eq!(datastore.continuations(&found, 10), counts, "{pattern:?}");

        let samples = datastore.sample(&found, 4, 1000);
        let mut rows: Vec<_> = samples.iter().collect();
        rows.sort_unstable();
        let heads = expected.iter().map(|text| &text[..text.len().min(4)]);
        let mut heads: Vec<_> = heads.collect();
        heads.sort_unstable();
        assert_eq!(rows, heads, "{pattern:?}");
        let few = datastore.sample(&found, 4, 2);
        assert_eq!(few.len(), expected.len().min(2));
        let is_sampled = |row| samples.iter().any(|other| other == row);
        assert!(few.iter().all(is_sampled));
    }
}

/// Returns the length of the longest suffix of the context that occurs.
fn longest(documents: &[Vec<u32>], context: &[u32]) -> usize {
    let mut lengths = (1..=context.len()).rev();
    let occurs = |length| !continuations(documents, &context[context.len() - length..]).is_empty();
    lengths.find(|&length| occurs(length)).unwrap_or(0)
}

fn documents() -> impl Strategy<Value = Vec<Vec<u32>>> {
    vec(vec(0..VOCAB_SIZE, 1..12), 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn answers_equal_a_scan(
        documents in documents(),
        context in vec(0..VOCAB_SIZE, 1..9),
        max_shard_tokens in 13..80_u64,
    ) {
        let datastore = build(&documents, max_shard_tokens);
        datastore.verify().unwrap();
        check(&documents, &datastore, &context);
        let found = datastore.lookup(&context, MAX_MATCH, 1).unwrap();
        prop_assert_eq!(found.length, longest(&documents, &context));
    }

    #[test]
    fn n_grams_are_sorted_and_their_counts_equal_a_scan(
        documents in documents(),
        order in 1..5_usize,
        max_shard_tokens in 13..80_u64,
    ) {
        let mut expected = BTreeMap::<Vec<u32>, u64>::new();
        for ngram in documents.iter().flat_map(|document| document.windows(order)) {
            *expected.entry(ngram.to_vec()).or_default() += 1;
        }
        let mut ngrams = Vec::new();
        let datastore = build(&documents, max_shard_tokens);
        datastore.visit_ngrams(order, |ngram, count| {
            ngrams.push((ngram.to_vec(), count));
            Ok(())
        }).unwrap();
        prop_assert_eq!(ngrams, expected.into_iter().collect::<Vec<_>>());
    }
}

#[test]
#[should_panic(expected = "assertion `left == right` failed")]
fn wrong_answer_is_found() {
    let documents = [vec![0, 1, 2]];
    check(&documents, &build(&[vec![0, 1, 1]], 80), &[0, 1]);
}
