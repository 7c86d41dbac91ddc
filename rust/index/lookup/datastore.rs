//! Public interface of a datastore.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::base::checks::{check_match_lengths, check_tokens};
use crate::base::error::{Error, Result};
use crate::base::threads::in_parallel;
use crate::lookup::matches::Match;
use crate::lookup::next_tokens::{AllNextTokens, NextTokens};
use crate::lookup::samples::Samples;
use crate::lookup::shard::Shard;
use crate::lookup::shards::{Before, Shards, StoredDocument};
use crate::storage::manifest::Manifest;

const MIN_IN_PARALLEL: usize = 64;

/// A tokenized corpus and its suffix array, mapped read-only.
///
/// It never changes; threads and processes share it. [`open`](Self::open) checks headers, and only
/// [`verify`](Self::verify) checks every byte: undetected damage gives wrong answers, never a crash. Do not truncate
/// mapped files: the operating system would kill the process.
#[derive(Debug)]
pub struct Datastore {
    path: PathBuf,
    manifest: Manifest,
    pub(crate) shards: Shards,
    /// Created at the first use, then shared by all drafters of this datastore.
    next_tokens: OnceLock<AllNextTokens>,
}

impl Datastore {
    /// Opens a datastore. Reads headers and small tables, not the corpus: O(vocabulary) a shard.
    ///
    /// # Errors
    /// [`Error::NotADatastore`], [`Error::Version`], or an error that names the damaged file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut manifest = Manifest::read(path)?;
        loop {
            let error = match Shards::open(path, &manifest) {
                Ok(shards) => {
                    return Ok(Self {
                        path: path.to_owned(),
                        manifest,
                        shards,
                        next_tokens: OnceLock::new(),
                    });
                }
                Err(error) => error,
            };
            // Another process may have replaced the files since the manifest was read.
            let now = Manifest::read(path)?;
            if now.build_id == manifest.build_id {
                return Err(error);
            }
            manifest = now;
        }
    }

    /// Opens the datastore that has replaced this one at its path, if there is one.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    pub fn newer(&self) -> Result<Option<Self>> {
        if Manifest::read(&self.path)?.build_id == self.manifest.build_id {
            return Ok(None);
        }
        Self::open(&self.path).map(Some)
    }

    /// Checks every byte against its checksum, and every section against the tokens. O(n) time, 4 bytes of
    /// memory a token of the largest shard.
    ///
    /// # Errors
    /// An error that names the first damaged file.
    pub fn verify(&self) -> Result<()> {
        self.shards.iter().try_for_each(Shard::verify)
    }

    /// Checks every byte against its checksum, which finds damage but not forgery. O(n).
    ///
    /// # Errors
    /// [`Error::Checksum`] with the first damaged file.
    pub fn verify_checksums(&self) -> Result<()> {
        self.shards.iter().try_for_each(Shard::verify_checksums)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Number of tokens of all documents, separators included.
    pub fn num_tokens(&self) -> u64 {
        self.manifest.num_tokens
    }

    pub fn num_documents(&self) -> u64 {
        self.manifest.num_documents
    }

    pub fn vocab_size(&self) -> u32 {
        self.manifest.vocab_size
    }

    /// Returns the most frequent tokens after a token in a sample of its occurrences, or `None` if it is not in the
    /// vocabulary. The result is cached.
    pub fn next_tokens(&self, token: u32) -> Option<&NextTokens> {
        self.all_next_tokens().of(&self.shards, token)
    }

    /// Returns half the binary logarithm of the frequency of each token of the vocabulary. O(vocabulary) at the
    /// first call.
    pub fn log_frequencies(&self) -> &[u8] {
        &self.all_next_tokens().frequencies
    }

    fn all_next_tokens(&self) -> &AllNextTokens {
        self.next_tokens.get_or_init(|| AllNextTokens::new(&self.shards))
    }

    /// The token that ends each document: one of the vocabulary, or `vocab_size` itself.
    pub fn separator(&self) -> u32 {
        self.manifest.separator
    }

    pub fn num_bytes(&self) -> u64 {
        self.manifest.num_bytes()
    }

    /// Finds the longest suffix of `context`, of `min_match` to `max_match` tokens, that occurs in a
    /// document. Only tokens after the last separator of the context are matched.
    /// O(log `max_match` · log n) a shard.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the context is empty or the lengths are not in order, and
    /// [`Error::TokenOutOfRange`].
    pub fn lookup(&self, context: &[u32], max_match: usize, min_match: usize) -> Result<Match> {
        check_match_lengths(max_match, min_match)?;
        if context.is_empty() {
            let reason = "is empty: give at least one token";
            return Err(Error::invalid("context", reason));
        }
        self.check_tokens(context)?;
        let document = context.rsplit(|&token| token == self.separator()).next();
        let context = document.unwrap_or_default();
        let mut found = Match::default();
        self.shards.find_longest(context, max_match.min(context.len()), min_match, &mut found);
        Ok(found)
    }

    /// Returns the `top_k` most frequent tokens after a match and their exact counts: count descending, then token
    /// ascending. O(log n) for each token in each shard.
    pub fn continuations(&self, found: &Match, top_k: usize) -> Vec<(u32, u64)> {
        let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
        for (token, count) in self.next_tokens_of(found) {
            *counts.entry(token).or_default() += count;
        }
        let is_token = |&(token, _): &(u32, u64)| token < self.vocab_size();
        let mut counts: Vec<_> = counts.into_iter().filter(is_token).collect();
        counts.sort_by_key(|&(_, count)| Reverse(count));
        counts.truncate(top_k);
        counts
    }

    /// Finds the occurrences of `pattern` within documents. An empty pattern occurs everywhere, one with the
    /// separator nowhere. O(log n) comparisons in each shard.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`] if a token is not in the vocabulary.
    pub fn find(&self, pattern: &[u32]) -> Result<Match> {
        self.check_tokens(pattern)?;
        let mut found = Match::default();
        self.find_into(pattern, &mut found);
        if found.count() == 0 {
            found = Match::default();
        }
        Ok(found)
    }

    /// Does the same as [`find`](Self::find) without checks and allocations, for callers that search at each step.
    pub fn find_into(&self, pattern: &[u32], found: &mut Match) {
        self.shards.find(pattern, found);
    }

    /// Does the same as [`lookup`](Self::lookup) without checks and allocations, for callers that search at each
    /// step. The context must have no separators. The previous result in `found` is a hint for the search.
    pub fn lookup_into(
        &self,
        context: &[u32],
        max_match: usize,
        min_match: usize,
        found: &mut Match,
    ) {
        let max_match = max_match.min(context.len());
        self.shards.find_longest(context, max_match, min_match.max(1), found);
    }

    /// Returns continuations of a match: at most `length` tokens after each of an even sample of `max_samples`
    /// occurrences. A continuation ends with the separator of its document. O(`max_samples` · `length`).
    pub fn sample(&self, found: &Match, length: usize, max_samples: usize) -> Samples {
        let mut samples = Samples::default();
        self.sample_into(found, length, max_samples, &[], &mut samples);
        samples
    }

    /// Does the same as [`sample`](Self::sample) without allocations, and also counts for each occurrence how many
    /// tokens before it equal the last tokens of `before`.
    pub fn sample_into(
        &self,
        found: &Match,
        length: usize,
        max_samples: usize,
        before: &[u32],
        samples: &mut Samples,
    ) {
        self.shards.read_samples(found, length, max_samples, before, samples);
    }

    /// Finds many patterns in parallel.
    ///
    /// # Errors
    /// The error of [`find`](Self::find) for the first pattern that it rejects.
    pub fn find_batch(&self, patterns: &[Vec<u32>]) -> Result<Vec<Match>> {
        let mut patterns: Vec<&[u32]> = patterns.iter().map(Vec::as_slice).collect();
        let found = in_parallel(&mut patterns, MIN_IN_PARALLEL, |pattern| self.find(pattern));
        found.into_iter().collect()
    }

    /// Counts each token of the vocabulary after each match. Returns `vocab_size` counts for each match.
    pub fn count_next_batch(&self, found: &[Match]) -> Vec<u64> {
        let width = self.vocab_size() as usize;
        let mut counts = vec![0; found.len() * width];
        let mut rows: Vec<_> = found.iter().zip(counts.chunks_exact_mut(width)).collect();
        in_parallel(&mut rows, 1, |(found, row)| {
            for (token, count) in self.next_tokens_of(found) {
                if let Some(place) = row.get_mut(token as usize) {
                    *place += count;
                }
            }
        });
        counts
    }

    /// Returns the tokens after a match with their counts, shard by shard and ascending in each.
    fn next_tokens_of(&self, found: &Match) -> impl Iterator<Item = (u32, u64)> {
        let shards = self.shards.iter().zip(&found.ranges);
        let length = found.length;
        shards.flat_map(move |(shard, ranks)| shard.next_tokens(ranks.clone(), length))
    }

    /// Returns the positions of the first `limit` occurrences of a match, ascending. A position is the number of
    /// tokens before it, separators included. O(occurrences) time, O(`limit`) memory.
    pub fn positions(&self, found: &Match, limit: usize) -> Vec<u64> {
        let mut all = Vec::new();
        for ((before, shard), ranks) in self.shards.with_starts().zip(&found.ranges) {
            let positions = ranks.clone().map(|rank| shard.position(rank));
            let positions = positions.filter(|&position| position < shard.num_tokens());
            let firsts = smallest(positions, limit - all.len()).into_iter();
            all.extend(firsts.map(|position| before.num_tokens + position as u64));
        }
        all
    }

    /// Returns the document that contains `position`; a separator belongs to the document before it.
    /// O(log documents + length of the document).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the position is not below the number of tokens.
    pub fn document_at(&self, position: u64) -> Result<StoredDocument> {
        let in_shard = |(before, shard): (Before, &Shard)| {
            let position = usize::try_from(position.checked_sub(before.num_tokens)?).ok()?;
            (position < shard.num_tokens()).then(|| shard.document(position).0)
        };
        self.find_document(in_shard)
            .ok_or_else(|| below("position", "tokens", self.num_tokens(), position))
    }

    /// Returns the document of this index. O(shards + length of the document).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the index is not below the number of documents.
    pub fn document(&self, index: u64) -> Result<StoredDocument> {
        let in_shard = |(before, shard): (Before, &Shard)| {
            let index = usize::try_from(index.checked_sub(before.num_documents)?).ok()?;
            (index < shard.num_documents()).then_some(index)
        };
        self.find_document(in_shard)
            .ok_or_else(|| below("index", "documents", self.num_documents(), index))
    }

    /// Returns the name of the place that a document came from, such as a file or a row; empty if it has none.
    /// O(documents of a shard).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the index is not below the number of documents.
    pub fn source(&self, index: u64) -> Result<String> {
        let mut shards = self.shards.with_starts();
        let found = shards.find_map(|(before, shard)| {
            let index = usize::try_from(index.checked_sub(before.num_documents)?).ok()?;
            (index < shard.num_documents()).then(|| shard.source(index))
        });
        found.ok_or_else(|| below("index", "documents", self.num_documents(), index))
    }

    /// Reads the document for which `in_shard` returns an index within a shard.
    fn find_document(
        &self,
        in_shard: impl Fn((Before, &Shard)) -> Option<usize>,
    ) -> Option<StoredDocument> {
        self.shards.with_starts().find_map(|(before, shard)| {
            let index = in_shard((before, shard))?;
            let positions = shard.document_range(index);
            Some(StoredDocument {
                index: before.num_documents + index as u64,
                start: before.num_tokens + positions.start as u64,
                tokens: shard.tokens(positions),
            })
        })
    }

    /// Reads the whole datastore into memory, as far as there is room. O(n).
    ///
    /// With `next_tokens`, it also caches the [`next_tokens`](Self::next_tokens) of all tokens,
    /// about 200 bytes each, which takes most of the time.
    ///
    /// # Errors
    /// An I/O error if a file cannot be read.
    pub fn warm(&self, next_tokens: bool) -> Result<()> {
        self.shards.iter().try_for_each(Shard::warm)?;
        if next_tokens {
            self.all_next_tokens().fill(&self.shards);
        }
        Ok(())
    }

    /// Checks that all tokens are in the vocabulary; the error names the first that is not.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`] with the first such token.
    pub fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        check_tokens(tokens, self.vocab_size())
    }
}

fn below(name: &'static str, what: &str, number: u64, given: u64) -> Error {
    let reason = format!("must be below the number of {what}: {number}, not {given}");
    Error::invalid(name, reason)
}

/// Returns the `limit` smallest values, ascending, in O(`limit`) memory.
fn smallest(values: impl Iterator<Item = usize>, limit: usize) -> Vec<usize> {
    let mut smallest = BinaryHeap::new();
    for value in values {
        if smallest.len() < limit {
            smallest.push(value);
        } else if let Some(mut largest) = smallest.peek_mut()
            && value < *largest
        {
            *largest = value;
        }
    }
    smallest.into_sorted_vec()
}
