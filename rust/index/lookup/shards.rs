//! Searches over all shards of a datastore.

use std::path::Path;
use std::time::Instant;

use crate::base::error::Result;
use crate::base::even_sample::EvenSample;
use crate::base::search::gallop;
use crate::lookup::matches::Match;
use crate::lookup::samples::Samples;
use crate::lookup::shard::Shard;
use crate::storage::manifest::Manifest;

/// The shards of a datastore, in the order of their documents.
#[derive(Debug)]
pub(crate) struct Shards {
    list: Vec<Shard>,
    pub(crate) vocab_size: u32,
    separator: u32,
}

/// The part of the corpus before a shard.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before {
    pub(crate) num_documents: u64,
    /// Number of tokens of these documents, separators included.
    pub(crate) num_tokens: u64,
}

/// A document of the corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDocument {
    pub index: u64,
    /// Number of tokens before the document, separators included.
    pub start: u64,
    /// The tokens of the document without the separator.
    pub tokens: Vec<u32>,
}

impl Shards {
    pub(crate) fn open(path: &Path, manifest: &Manifest) -> Result<Self> {
        let entries = manifest.shards.iter();
        let opened = entries.map(|entry| Shard::open(&entry.folder(path), manifest, entry));
        Ok(Self {
            list: opened.collect::<Result<_>>()?,
            vocab_size: manifest.vocab_size,
            separator: manifest.separator,
        })
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Shard> {
        self.list.iter()
    }

    pub(crate) fn with_starts(&self) -> impl Iterator<Item = (Before, &Shard)> {
        self.iter().scan(Before::default(), |next, shard| {
            let before = *next;
            next.num_documents += shard.num_documents() as u64;
            next.num_tokens += shard.num_tokens() as u64;
            Some((before, shard))
        })
    }

    /// Finds the longest suffix of `context` that has `min_match` to `max_match` tokens. The context has no
    /// separators and at least `max_match` tokens. Long suffixes are tried first, because the last match often
    /// continues.
    pub(crate) fn find_longest(
        &self,
        context: &[u32],
        max_match: usize,
        min_match: usize,
        found: &mut Match,
    ) {
        let suffix = |length| &context[context.len() - length..];
        // The shard of the last match is searched first: a long match in it saves searches in the others.
        let last = found.ranges.iter().position(|ranks| !ranks.is_empty());
        let first = last.unwrap_or(0);
        *found = Match::default();
        found.ranges.resize(self.list.len(), 0..0);
        let mut longest = min_match - 1;
        if let Some(first) = self.list.get(first) {
            let lacks = |shorter: usize| !first.contains(suffix(max_match - shorter));
            let num_lengths = (max_match + 1).saturating_sub(min_match);
            longest = max_match - gallop(0..num_lengths, lacks);
        }
        let shards = self.iter().enumerate();
        for (index, shard) in shards.clone().skip(first).chain(shards.take(first)) {
            if longest >= min_match {
                found.ranges[index] = shard.find(suffix(longest));
                if index == first || found.ranges[index].is_empty() {
                    continue;
                }
            }
            let has = |length: usize| shard.contains(suffix(length));
            let longer = gallop(longest + 1..max_match + 1, has) - 1;
            if longer > longest {
                longest = longer;
                found.ranges.fill(0..0);
                found.ranges[index] = shard.find(suffix(longest));
            }
        }
        if longest >= min_match {
            found.length = longest;
        }
    }

    /// Finds the occurrences of `pattern` within documents; an empty one occurs everywhere.
    pub(crate) fn find(&self, pattern: &[u32], found: &mut Match) {
        found.ranges.clear();
        found.length = pattern.len();
        if pattern.is_empty() {
            let everywhere = self.iter().map(|shard| 0..shard.num_tokens());
            found.ranges.extend(everywhere);
        } else if !pattern.contains(&self.separator) {
            let ranges = self.iter().map(|shard| shard.find(pattern));
            found.ranges.extend(ranges);
        }
    }

    /// Reads at most `length` tokens after each of an [`EvenSample`] of `max_samples` occurrences. A row ends with
    /// the separator, or before it if it is not in the vocabulary. Rows with a common prefix are adjacent.
    ///
    /// The sample covers the shards in proportion to their occurrences. Positions are read before tokens: nearly
    /// every read misses the caches, and the misses overlap.
    pub(crate) fn read_samples(
        &self,
        found: &Match,
        length: usize,
        max_samples: usize,
        before: &[u32],
        samples: &mut Samples,
    ) {
        let sample = EvenSample::new(found.count(), max_samples as u64);
        let Samples { tokens, rows, positions } = samples;
        tokens.clear();
        rows.clear();
        let num_rows = usize::try_from(sample.num_samples).unwrap_or(0);
        positions.reserve(num_rows);
        rows.reserve(num_rows);
        tokens.reserve(num_rows);
        let mut occurrences = sample.occurrences().peekable();
        let mut num_before = 0;
        for (shard, ranks) in self.iter().zip(&found.ranges) {
            let started = Instant::now();
            positions.clear();
            let num_up_to = num_before + ranks.len() as u64;
            let is_cold = shard.disk_latency.is_cold();
            if is_cold {
                let here = sample.occurrences().skip_while(|&n| n < num_before);
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
            shard.touch(positions, found.length, length);
            shard.disk_latency.note(started.elapsed(), positions.len());
            let row = |&position| shard.row(position, found.length, length, before, tokens);
            rows.extend(positions.iter().map(row));
            num_before = num_up_to;
        }
        if !found.is_in_one_shard() {
            samples.sort();
        }
    }
}

/// Returns the index of an occurrence within its shard, if the shards before have `num_before` of them.
fn index_in(occurrence: u64, num_before: u64) -> usize {
    usize::try_from(occurrence - num_before).expect("below a range's length")
}
