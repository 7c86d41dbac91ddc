//! Small corpora in which everything collides.

use proptest::collection::vec;
use proptest::prelude::*;
use specds::build::DatastoreOptions;
use specds::draft::TokenTree;

use crate::options;

#[derive(Debug, Clone)]
pub(crate) struct Corpus {
    pub(crate) vocab_size: u32,
    pub(crate) separator: u32,
    pub(crate) max_shard_tokens: u64,
    pub(crate) documents: Vec<Vec<u32>>,
}

impl Corpus {
    pub(crate) fn options(&self) -> DatastoreOptions {
        let max_shard_tokens = self.max_shard_tokens;
        DatastoreOptions {
            max_shard_tokens,
            ..options(self.vocab_size, self.separator)
        }
    }
}

/// Small corpora of four tokens, so that everything collides: 16-bit and 24-bit tokens, a separator
/// that documents contain or that is outside the vocabulary, one shard or many.
pub(crate) fn corpora() -> impl Strategy<Value = Corpus> {
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
            |((vocab_size, separator), max_shard_tokens, documents)| Corpus {
                vocab_size,
                separator,
                max_shard_tokens,
                documents: documents
                    .iter()
                    .map(|document| shift(document, vocab_size))
                    .collect(),
            },
        )
        .prop_filter("some tokens", |corpus| {
            !corpus.documents.concat().is_empty()
        })
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
