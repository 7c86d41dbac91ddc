//! REST against a trie of all continuations of the longest context suffix.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::draft::Session;
use specds::papers::rest::{RestConfig, RestSession};

use crate::{build, drafted, options, tempdir};

const CONTINUATION: usize = 5;

/// Returns each path of the trie with the fraction of continuations through it: the most frequent first,
/// then the shortest, then the lexicographically first.
fn expected<'a>(documents: &'a [Vec<u32>], context: &[u32]) -> Vec<(Vec<u32>, f32)> {
    let follows = |length: usize| -> Vec<&[u32]> {
        let suffix = &context[context.len() - length..];
        let ends_of = |text: &'a Vec<u32>| (0..=text.len()).map(move |start| &text[start..]);
        let texts = documents.iter().flat_map(ends_of);
        texts.filter_map(|text| text.strip_prefix(suffix)).collect()
    };
    let mut lengths = (1..=context.len()).rev().map(follows);
    let rests = lengths.find(|rests| !rests.is_empty()).unwrap_or_default();
    let mut counts = BTreeMap::<Vec<u32>, usize>::new();
    for rest in &rests {
        for depth in 1..=rest.len().min(CONTINUATION) {
            *counts.entry(rest[..depth].to_vec()).or_default() += 1;
        }
    }
    let mut paths: Vec<_> = counts.into_iter().collect();
    paths.sort_by_key(|(path, count)| (usize::MAX - count, path.len(), path.clone()));
    let share = |count: usize| count as f32 / rests.len() as f32;
    let shares = paths.into_iter().map(|(path, count)| (path, share(count)));
    shares.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn a_tree_of_rest_has_the_most_frequent_paths(
        documents in vec(vec(0..3_u32, 1..12), 1..8),
        context in vec(0..3_u32, 1..7),
        max_nodes in 1..20_usize,
    ) {
        let folder = tempdir().unwrap();
        let datastore = build(&folder.path().join("d"), options(3, 3), &documents).unwrap();
        let config = RestConfig { continuation: CONTINUATION, ..RestConfig::default() };
        let mut session = RestSession::new(Arc::new(datastore), config).unwrap();
        session.observe(&context, None).unwrap();
        let tree = drafted(&mut session, max_nodes);

        let (tokens, parents) = (tree.token_ids(), tree.parents());
        let path = |mut node: usize| {
            let mut path = vec![tokens[node]];
            while let Ok(parent) = usize::try_from(parents[node]) {
                path.insert(0, tokens[parent]);
                node = parent;
            }
            path
        };
        // A continuation also ends with the separator, which the expected paths leave out.
        let drafted: Vec<_> = (0..tree.len()).map(|node| (path(node), tree.probs()[node])).collect();
        let mut expected = expected(&documents, &context);
        expected.truncate(max_nodes);
        prop_assert_eq!(drafted, expected);
    }
}
