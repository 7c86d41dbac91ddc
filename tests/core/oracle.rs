//! The answers by definition: scans over documents, so simple that they are unlikely to be wrong.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use specds::build::DatastoreOptions;
use specds::draft::TokenTree;

use crate::options;

#[derive(Debug, Clone)]
pub(crate) struct Oracle {
    pub(crate) vocab_size: u32,
    pub(crate) separator: u32,
    pub(crate) max_shard_tokens: u64,
    pub(crate) documents: Vec<Vec<u32>>,
}

impl Oracle {
    pub(crate) fn options(&self) -> DatastoreOptions {
        let max_shard_tokens = self.max_shard_tokens;
        DatastoreOptions {
            max_shard_tokens,
            ..options(self.vocab_size, self.separator)
        }
    }

    /// The tokens of each shard.
    pub(crate) fn shards(&self) -> Vec<Vec<u32>> {
        self.texts().iter().map(|shard| shard.concat()).collect()
    }

    /// The documents of each shard that have tokens, each with its separator.
    fn texts(&self) -> Vec<Vec<Vec<u32>>> {
        let limit = usize::try_from(self.max_shard_tokens).unwrap();
        let mut shards: Vec<Vec<Vec<u32>>> = Vec::new();
        for document in &self.documents {
            let text = [document, &[self.separator][..]].concat();
            match shards.last_mut() {
                _ if document.is_empty() => {}
                Some(shard) if shard.concat().len() + text.len() <= limit => shard.push(text),
                _ => shards.push(vec![text]),
            }
        }
        shards
    }

    pub(crate) fn num_tokens(&self) -> usize {
        self.shards().concat().len()
    }

    /// What follows each occurrence of `pattern` up to the end of its document, one shard after the
    /// other, in each in the order of suffixes.
    fn rests(&self, pattern: &[u32]) -> Vec<Vec<u32>> {
        let mut rests = Vec::new();
        for shard in self.texts() {
            let first = rests.len();
            for document in shard {
                let starts = 0..document.len();
                let suffixes = starts.filter_map(|start| document[start..].strip_prefix(pattern));
                rests.extend(suffixes.map(<[u32]>::to_vec));
            }
            rests[first..].sort();
        }
        rests
    }

    /// The longest suffix of the context that occurs, empty where none does; and how often.
    pub(crate) fn lookup(&self, context: &[u32], max: usize, min: usize) -> (Vec<u32>, u64) {
        for length in (min..=max.min(context.len())).rev() {
            let pattern = &context[context.len() - length..];
            let count = self.rests(pattern).len() as u64;
            if !pattern.contains(&self.separator) && count > 0 {
                return (pattern.to_vec(), count);
            }
        }
        (Vec::new(), 0)
    }

    pub(crate) fn samples(
        &self,
        pattern: &[u32],
        length: usize,
        max_samples: usize,
    ) -> Vec<Vec<u32>> {
        let rests = if pattern.is_empty() {
            Vec::new()
        } else {
            self.rests(pattern)
        };
        let samples = rests.len().min(max_samples);
        let sampled = (0..samples).map(|i| &rests[(2 * i + 1) * rests.len() / (2 * samples)]);
        let mut continuations: Vec<_> = sampled.map(|rest| self.document(rest, length)).collect();
        continuations.sort();
        continuations
    }

    /// The first `length` tokens of `rest` up to the separator, and it too if it is a token.
    fn document(&self, rest: &[u32], length: usize) -> Vec<u32> {
        let is_separator = |&token: &u32| token == self.separator;
        let end = rest.iter().position(is_separator).unwrap();
        let end = if self.separator < self.vocab_size {
            end + 1
        } else {
            end
        };
        rest[..end.min(length)].to_vec()
    }

    pub(crate) fn continuations(&self, pattern: &[u32], top_k: usize) -> Vec<(u32, u64)> {
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        for continuation in self.samples(pattern, 1, usize::MAX) {
            if let Some(&token) = continuation.first() {
                *counts.entry(token).or_default() += 1;
            }
        }
        let mut counts: Vec<_> = counts.into_iter().collect();
        counts.sort_by_key(|&(token, count)| (u64::MAX - count, token));
        counts.truncate(top_k);
        counts
    }
}

/// The most frequent beginnings of the continuations: count descending, shorter ones first, then in
/// lexicographic order.
pub(crate) fn naive_draft(continuations: &[Vec<u32>], max_nodes: usize) -> Parts {
    let mut counts: BTreeMap<&[u32], usize> = BTreeMap::new();
    for continuation in continuations {
        for length in 1..=continuation.len() {
            *counts.entry(&continuation[..length]).or_default() += 1;
        }
    }
    let mut paths: Vec<_> = counts.into_iter().collect();
    paths.sort_by_key(|&(path, count)| (usize::MAX - count, path.len(), path));
    paths.truncate(max_nodes);
    let parent = |path: &[u32]| {
        let parent = paths
            .iter()
            .position(|(other, _)| *other == &path[..path.len() - 1]);
        assert!(
            path.len() == 1 || parent.is_some(),
            "a node without its parent"
        );
        parent.map_or(-1, |parent| i32::try_from(parent).unwrap())
    };
    let token_ids = paths
        .iter()
        .map(|(path, _)| *path.last().unwrap())
        .collect();
    let parents = paths.iter().map(|(path, _)| parent(path)).collect();
    let num_continuations = continuations.len() as f32;
    let probs = paths
        .iter()
        .map(|&(_, count)| count as f32 / num_continuations)
        .collect();
    (token_ids, parents, probs)
}

/// A tree as [`naive_draft`] gives it.
pub(crate) fn parts(tree: &TokenTree) -> Parts {
    let (parents, probs) = (tree.parents().to_vec(), tree.probs().to_vec());
    (tree.token_ids().to_vec(), parents, probs)
}

/// Tokens, parents, probabilities.
type Parts = (Vec<u32>, Vec<i32>, Vec<f32>);

/// Small corpora of four tokens, so that everything collides: 16-bit and 24-bit tokens, a separator
/// that documents contain or that is outside the vocabulary, one shard or many.
pub(crate) fn corpora() -> impl Strategy<Value = Oracle> {
    let vocabularies = prop_oneof![
        3 => Just((4, 3)),
        3 => Just((4, 4)),
        1 => Just((65_536, 65_535)),
        1 => Just((65_536, 65_536)),
        1 => Just((70_000, 0)),
    ];
    let shards = prop_oneof![Just(13), Just(20), Just(1000)];
    let documents = vec(vec(0_u32..4, 0..13), 1..8);
    (vocabularies, shards, documents)
        .prop_map(
            |((vocab_size, separator), max_shard_tokens, documents)| Oracle {
                vocab_size,
                separator,
                max_shard_tokens,
                documents: documents
                    .iter()
                    .map(|document| shift(document, vocab_size))
                    .collect(),
            },
        )
        .prop_filter("some tokens", |oracle| oracle.num_tokens() > 0)
}

/// Moves the tokens 0 to 3 to the end of the vocabulary, but 0 stays.
pub(crate) fn shift(tokens: &[u32], vocab_size: u32) -> Vec<u32> {
    tokens
        .iter()
        .map(|&token| {
            if token == 0 {
                0
            } else {
                vocab_size - 4 + token
            }
        })
        .collect()
}

/// The tokens of each node's path.
pub(crate) fn paths(tree: &TokenTree) -> Vec<Vec<u32>> {
    let mut paths: Vec<Vec<u32>> = Vec::new();
    for (&token, &parent) in tree.token_ids().iter().zip(tree.parents()) {
        let mut path = usize::try_from(parent).map_or(Vec::new(), |parent| paths[parent].clone());
        path.push(token);
        paths.push(path);
    }
    paths
}
