//! What followed this context before?

use std::collections::BinaryHeap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Instant;

use crate::base::error::{Error, Result};
use crate::base::even_sample::Stride;
use crate::base::threads::in_parallel;
use crate::build::checks::check_tokens;
use crate::fused::prior;
use crate::fused::weights::Weights;
use crate::lookup::continuations::Samples;
use crate::lookup::next_tokens::AllFollowers;
use crate::lookup::shard::Shard;
use crate::lookup::split::Splitter;
use crate::storage::manifest::{Manifest, ShardEntry};

/// A datastore: a tokenised corpus and the order of all its suffixes, mapped read-only.
///
/// It is built by a [`DatastoreBuilder`](crate::build::DatastoreBuilder), never changes, and can be shared
/// by threads (in an [`Arc`](std::sync::Arc)) and by processes (they map the same files).
///
/// Damaged files are found by [`open`](Self::open) as far as it looks, by [`verify`](Self::verify)
/// completely; missed damage can give a bad draft, nothing worse. The files must not be truncated
/// while they are mapped: as with every mapped file, the system then ends the process.
#[derive(Debug)]
pub struct Datastore {
    path: PathBuf,
    manifest: Manifest,
    shards: Vec<Shard>,
    prior: Option<Weights>,
    /// What is found of single tokens serves all that draft.
    followers: OnceLock<AllFollowers>,
}

/// Where the longest suffix of a context occurs in a datastore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Match {
    /// The length of that suffix in tokens; 0 where there is none.
    pub length: usize,
    ranges: Vec<Range<usize>>,
}

impl Match {
    /// How often it occurs.
    pub fn count(&self) -> u64 {
        self.ranges.iter().map(|range| range.len() as u64).sum()
    }

    /// The ranks of its occurrences in each shard.
    pub(crate) fn ranges(&self) -> &[Range<usize>] {
        &self.ranges
    }

    /// Whether only one shard has it, or none.
    pub(crate) fn is_in_one_shard(&self) -> bool {
        self.ranges.iter().filter(|range| !range.is_empty()).count() < 2
    }
}

/// A document of the corpus.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredDocument {
    /// How many documents come before it.
    pub index: u64,
    /// How many tokens come before it, separators included.
    pub start: u64,
    /// Its tokens, without the separator after it.
    pub tokens: Vec<u32>,
}

impl Datastore {
    /// Opens the datastore at `path`. Reads headers and small tables, not the corpus: O(vocabulary)
    /// a shard, whatever the number of tokens.
    ///
    /// # Errors
    ///
    /// [`Error::NotADatastore`], [`Error::Version`], or one of the variants that say which file is
    /// missing, truncated, changed, corrupt or from elsewhere.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut manifest = Manifest::read(path)?;
        loop {
            let opened = Self::open_listed(path, &manifest, |shard| shard.folder(path));
            let complete = opened.and_then(|datastore| {
                Ok(Self {
                    prior: prior::read(path, &manifest)?,
                    ..datastore
                })
            });
            let Err(error) = complete else {
                return complete;
            };
            // While the files were opened, another process may have replaced them.
            let now = Manifest::read(path)?;
            if now.build_id == manifest.build_id {
                return Err(error);
            }
            manifest = now;
        }
    }

    /// Opens the shards that a manifest lists, wherever they lie, without a prior.
    pub(crate) fn open_listed(
        path: &Path,
        manifest: &Manifest,
        folder_of: impl Fn(&ShardEntry) -> PathBuf,
    ) -> Result<Self> {
        let shards = manifest.shards.iter();
        let opened = shards.map(|shard| Shard::open(&folder_of(shard), manifest, shard));
        Ok(Self {
            path: path.to_owned(),
            manifest: manifest.clone(),
            shards: opened.collect::<Result<_>>()?,
            prior: None,
            followers: OnceLock::new(),
        })
    }

    /// Checks every byte against its checksum, and every section against the tokens: what passes is
    /// exactly what a build of the same corpus gives, up to the prior, of which the bytes are
    /// checked when it is opened. O(n) time, 4 bytes of memory a token of the
    /// largest shard.
    ///
    /// # Errors
    ///
    /// [`Error::Checksum`] or [`Error::Corrupt`] with the first file that is damaged.
    pub fn verify(&self) -> Result<()> {
        self.shards.iter().try_for_each(Shard::verify)
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What fused drafters with this datastore start from, as far as nothing else is said: weights
    /// fitted to some of its documents when it was built. `None` where there are none, or another
    /// version of this crate has fitted them: then [`refit`](crate::build::merge::refit) fits them again.
    pub fn prior(&self) -> Option<&Weights> {
        self.prior.as_ref()
    }

    /// All tokens, separators included.
    pub fn num_tokens(&self) -> u64 {
        self.manifest.num_tokens
    }

    /// All documents.
    pub fn num_documents(&self) -> u64 {
        self.manifest.num_documents
    }

    /// Tokens are below this.
    pub fn vocab_size(&self) -> u32 {
        self.manifest.vocab_size
    }

    /// What follows each single token. O(vocabulary) when it is first asked for.
    pub(crate) fn followers(&self) -> &AllFollowers {
        self.followers.get_or_init(|| AllFollowers::new(self))
    }

    /// The token after each document: one of the vocabulary, or `vocab_size` itself.
    pub fn separator(&self) -> u32 {
        self.manifest.separator
    }

    /// The length of all its files.
    pub fn num_bytes(&self) -> u64 {
        self.manifest.num_bytes()
    }

    /// Finds the longest suffix of `context`, of `min_match` to `max_match` tokens, that occurs in
    /// a document. No match contains the separator: the context counts from its last separator on.
    ///
    /// What occurs, occurs with all that is shorter; so this takes O(log `max_match`) searches of
    /// O(log n) comparisons in each shard, and O(context) to check it.
    ///
    /// # Errors
    ///
    /// [`Error::TokenOutOfRange`] where the context has a token outside the vocabulary,
    /// [`Error::InvalidArgument`] where it is empty, and unless `1 <= min_match <= max_match`.
    pub fn lookup(&self, context: &[u32], max_match: usize, min_match: usize) -> Result<Match> {
        check_match_lengths(max_match, min_match)?;
        self.check_pattern("context", context)?;
        let document = context.rsplit(|&token| token == self.separator()).next();
        let context = document.unwrap_or_default();
        let mut found = Match::default();
        self.find_longest(context, max_match.min(context.len()), min_match, &mut found);
        Ok(found)
    }

    /// Looks up every context as [`lookup`](Self::lookup) does, with up to `num_threads` threads of the
    /// global pool, or all of them. The result is the same with any number.
    ///
    /// # Errors
    ///
    /// As [`lookup`](Self::lookup), for the first context that has one;
    /// [`Error::InvalidArgument`] where `num_threads` is 0.
    pub fn lookup_batch<C: AsRef<[u32]>>(
        &self,
        contexts: &[C],
        max_match: usize,
        min_match: usize,
        num_threads: Option<usize>,
    ) -> Result<Vec<Match>> {
        let size = batch_size(contexts.len(), num_threads)?;
        let mut contexts: Vec<&[u32]> = contexts.iter().map(AsRef::as_ref).collect();
        let found = in_parallel(&mut contexts, size, |context| {
            self.lookup(context, max_match, min_match)
        });
        found.into_iter().collect()
    }

    /// What followed the match in the corpus, up to `length` tokens each: a continuation ends with
    /// the separator, which is left out where it is not in the vocabulary.
    ///
    /// All of them where the match occurs up to `max_samples` times. Otherwise `max_samples` at an
    /// even stride through the match's occurrences in lexicographic order: of `n` occurrences, number
    /// `floor((2 i + 1) n / (2 max_samples))` for each `i`, the middle of each of `max_samples` equal
    /// parts. How the corpus is cut into shards makes no difference.
    ///
    /// O(samples · (`length` + log samples)); a match in k shards that is not taken whole costs
    /// O(samples · `length` · k log n).
    pub fn samples(&self, found: &Match, length: usize, max_samples: usize) -> Samples {
        let mut samples = Samples::default();
        self.read_samples(found, length, max_samples, &[], &mut samples);
        samples.sort();
        samples
    }

    /// The same into memory that is there, in the order of suffixes: what shares a beginning stands
    /// together, but a row that is the beginning of another one may stand after it. Where all
    /// occurrences are read, each row tells how many tokens before it are the last ones of `before`.
    pub(crate) fn read_samples(
        &self,
        found: &Match,
        length: usize,
        max_samples: usize,
        before: &[u32],
        samples: &mut Samples,
    ) {
        let stride = Stride::new(found.count(), max_samples as u64);
        if found.is_in_one_shard() || stride.num_samples() == found.count() {
            self.gather(found, length, stride, before, samples);
        } else {
            let mut splitter = Splitter::default();
            samples.expand(stride, splitter.nodes(self, found, stride, length));
            samples.sort();
        }
    }

    /// The `top_k` tokens that followed the match most often, with exact counts: count descending,
    /// then token ascending. At once where the match is a frequent n-gram with so many frequent
    /// continuations, in one shard; otherwise O(k log n) for each token that is met on the way, in k
    /// shards.
    pub fn continuations(&self, found: &Match, top_k: usize) -> Vec<(u32, u64)> {
        if let Some(top) = self.frequent_continuations(found, top_k) {
            return top;
        }
        let mut splitter = Splitter::default();
        let all = Stride::new(found.count(), u64::MAX);
        let nodes = splitter.nodes(self, found, all, 1);
        nodes
            .take(top_k)
            .map(|node| (node.token, node.count))
            .collect()
    }

    /// What the table of the only shard that has the match says of it.
    fn frequent_continuations(&self, found: &Match, top_k: usize) -> Option<Vec<(u32, u64)>> {
        let pairs = self.shards.iter().zip(&found.ranges);
        let mut shards = pairs.filter(|(_, ranks)| !ranks.is_empty());
        let (shard, ranks) = shards.next()?;
        match shards.next() {
            None => shard.top(ranks, found.length, top_k),
            Some(_) => None,
        }
    }

    /// How often `pattern` occurs within a document: never where it contains the separator.
    /// O(log n) comparisons in each shard.
    ///
    /// # Errors
    ///
    /// [`Error::TokenOutOfRange`] where the pattern has a token outside the vocabulary,
    /// [`Error::InvalidArgument`] where it is empty.
    pub fn count(&self, pattern: &[u32]) -> Result<u64> {
        self.check_pattern("pattern", pattern)?;
        if pattern.contains(&self.separator()) {
            return Ok(0);
        }
        let counts = self
            .shards
            .iter()
            .map(|shard| shard.find(pattern).len() as u64);
        Ok(counts.sum())
    }

    /// Where the match begins in the corpus: the positions of its first `limit` occurrences, in
    /// ascending order. A position counts the tokens before, separators included. O(occurrences) time,
    /// O(`limit`) memory.
    pub fn positions(&self, found: &Match, limit: usize) -> Vec<u64> {
        let mut all = Vec::new();
        let mut num_before = 0;
        for (shard, ranks) in self.shards.iter().zip(&found.ranges) {
            let positions = ranks.clone().map(|rank| shard.position(rank));
            let positions = positions.filter(|&position| position < shard.num_tokens());
            let firsts = smallest(positions, limit - all.len());
            all.extend(
                firsts
                    .into_iter()
                    .map(|position| num_before + position as u64),
            );
            num_before += shard.num_tokens() as u64;
        }
        all
    }

    /// The document that the token at `position` of the corpus belongs to; a separator belongs to the
    /// document before it. O(log documents) and the document's length.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] where the corpus is not that long.
    pub fn document(&self, position: u64) -> Result<StoredDocument> {
        let (mut num_documents, mut num_tokens) = (0, 0);
        for shard in &self.shards {
            let in_shard = usize::try_from(position - num_tokens).unwrap_or(usize::MAX);
            if in_shard < shard.num_tokens() {
                let (index, positions) = shard.document(in_shard);
                return Ok(StoredDocument {
                    index: num_documents + index as u64,
                    start: num_tokens + positions.start as u64,
                    tokens: shard.tokens(positions),
                });
            }
            num_documents += shard.num_documents() as u64;
            num_tokens += shard.num_tokens() as u64;
        }
        let reason = format!("must be below the number of tokens: {num_tokens}, not {position}");
        Err(Error::invalid("position", reason))
    }

    /// Reads the whole datastore into memory, as far as there is room, so that no lookup waits for
    /// the disk, and looks up what follows each single token, which every draft asks for: some 200
    /// bytes for each. O(n).
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the system refuses.
    pub fn warm(&self) -> Result<()> {
        self.shards.iter().try_for_each(Shard::warm)?;
        self.followers().fill(self);
        Ok(())
    }

    /// Whether what is read next is likely to wait for a disk, in any shard.
    pub(crate) fn is_cold(&self) -> bool {
        self.shards.iter().any(|shard| shard.warmth.is_cold())
    }

    /// Whether a session may see these tokens.
    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        check_tokens(tokens, self.vocab_size())
    }

    fn check_pattern(&self, name: &'static str, pattern: &[u32]) -> Result<()> {
        if pattern.is_empty() {
            let reason = "is empty: give at least one token";
            return Err(Error::invalid(name, reason));
        }
        self.check_tokens(pattern)
    }

    /// Finds the longest suffix of `context`, which contains no separator, of `min_match` to
    /// `max_match` tokens, not more than there are. The longest is tried first: it is the likeliest
    /// where the context follows the corpus.
    pub(crate) fn find_longest(
        &self,
        context: &[u32],
        max_match: usize,
        min_match: usize,
        found: &mut Match,
    ) {
        let suffix = |length| &context[context.len() - length..];
        // Where the last match was, the next one is likely to be: what is known to occur in one shard
        // spares the others their tries.
        let last = found.ranges.iter().position(|ranks| !ranks.is_empty());
        let first = last.unwrap_or(0);
        found.ranges.clear();
        found.ranges.resize(self.shards.len(), 0..0);
        let mut longest = min_match - 1;
        let mut longest_shard = None;
        let shards = self.shards.iter().enumerate();
        let shards = shards.clone().skip(first).chain(shards.take(first));
        for (index, shard) in shards.clone() {
            let mut limit = max_match;
            let mut length = match longest_shard {
                // Most shards do not even have that.
                Some(_) => longest,
                None if index == first => max_match,
                None => longest + 1,
            };
            while (min_match..=limit).contains(&length) {
                let ranks = shard.find(suffix(length));
                let is_longest = length == longest;
                if ranks.is_empty() {
                    limit = length - 1;
                } else {
                    found.ranges[index] = ranks;
                    if !is_longest {
                        longest = length;
                        longest_shard = Some(index);
                    }
                }
                let step = limit.saturating_sub(longest).div_ceil(2).max(1);
                length = longest + if is_longest { 1 } else { step };
            }
        }
        found.length = if longest_shard.is_some() { longest } else { 0 };
        // The shards after that one know already.
        let is_before = |(index, _): &(usize, _)| longest_shard.is_some_and(|last| last != *index);
        for (index, shard) in shards.take_while(is_before) {
            found.ranges[index] = shard.find(suffix(longest));
        }
    }

    /// Finds where `pattern`, which is not empty and contains no separator, occurs.
    pub(crate) fn find(&self, pattern: &[u32], found: &mut Match) {
        found.ranges.clear();
        let ranges = self.shards.iter().map(|shard| shard.find(pattern));
        found.ranges.extend(ranges);
        found.length = pattern.len();
    }

    /// Reads the samples of a match that is in one shard, or all of its occurrences.
    ///
    /// All positions come before all tokens, so that the processor waits for many at a time: nearly
    /// every read misses its caches.
    pub(crate) fn gather(
        &self,
        found: &Match,
        length: usize,
        stride: Stride,
        before: &[u32],
        samples: &mut Samples,
    ) {
        let Samples {
            tokens,
            rows,
            positions,
        } = samples;
        tokens.clear();
        rows.clear();
        let num_rows = usize::try_from(stride.num_samples()).unwrap_or(0);
        positions.reserve(num_rows);
        rows.reserve(num_rows);
        tokens.reserve(num_rows);
        let mut occurrences = stride.occurrences().peekable();
        let mut num_before = 0;
        for (shard, ranks) in self.shards.iter().zip(&found.ranges) {
            let started = Instant::now();
            positions.clear();
            let num_up_to = num_before + ranks.len() as u64;
            let is_cold = shard.warmth.is_cold();
            if is_cold {
                let here = stride.occurrences().skip_while(|&n| n < num_before);
                for occurrence in here.take_while(|&n| n < num_up_to) {
                    shard.fetch_position(ranks.start + index_in(occurrence, num_before));
                }
            }
            while let Some(occurrence) = occurrences.next_if(|&occurrence| occurrence < num_up_to) {
                positions.push(shard.position(ranks.start + index_in(occurrence, num_before)));
            }
            if is_cold {
                shard.fetch(positions, found.length, length);
            }
            shard.touch(positions, found.length);
            shard.warmth.note(started.elapsed(), positions.len());
            let row = |&position| shard.row(position, found.length, length, before, tokens);
            rows.extend(positions.iter().map(row));
            num_before = num_up_to;
        }
        if !found.is_in_one_shard() {
            samples.sort();
        }
    }
}

/// Which of a range's ranks is the occurrence of this number, after so many in the shards before.
fn index_in(occurrence: u64, num_before: u64) -> usize {
    usize::try_from(occurrence - num_before).expect("below a range's length")
}

/// The smallest `limit` values, ascending, in memory for so many.
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

/// How many of `count` tasks a thread takes at least, so that no more than `num_threads` have one.
pub(crate) fn batch_size(count: usize, num_threads: Option<usize>) -> Result<usize> {
    match num_threads {
        Some(0) => Err(Error::invalid("num_threads", "must be at least 1")),
        Some(num_threads) => Ok(count.div_ceil(num_threads).max(1)),
        None => Ok(1),
    }
}

/// Whether the bounds of a match's length are usable.
pub(crate) fn check_match_lengths(max_match: usize, min_match: usize) -> Result<()> {
    if min_match == 0 {
        return Err(Error::invalid("min_match", "must be at least 1"));
    }
    if min_match > max_match {
        let reason = format!("must be at least `min_match`: {min_match}, not {max_match}");
        return Err(Error::invalid("max_match", reason));
    }
    Ok(())
}
