//! Where do the shards of a datastore, as one, have a pattern, and what follows it there?

use std::path::Path;
use std::time::Instant;

use crate::base::error::Result;
use crate::base::even_sample::EvenSample;
use crate::base::search::gallop;
use crate::lookup::continuations::Samples;
use crate::lookup::matches::Match;
use crate::lookup::shard::Shard;
use crate::storage::manifest::Manifest;

/// The shards of a datastore, in the order of their documents.
#[derive(Debug)]
pub(crate) struct Shards {
    list: Vec<Shard>,
    vocab_size: u32,
    separator: u32,
}

/// What comes before a shard in the corpus.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before {
    pub(crate) num_documents: u64,
    /// Separators included.
    pub(crate) num_tokens: u64,
}

/// A document of the corpus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredDocument {
    /// How many documents come before it.
    pub index: u64,
    /// How many tokens come before it, separators included.
    pub start: u64,
    /// Its tokens, without the separator after it.
    pub tokens: Vec<u32>,
}

impl Shards {
    /// Maps the shards that the manifest of the datastore at `path` lists.
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

    /// Each shard with what comes before it.
    pub(crate) fn with_starts(&self) -> impl Iterator<Item = (Before, &Shard)> {
        self.iter().scan(Before::default(), |next, shard| {
            let before = *next;
            next.num_documents += shard.num_documents() as u64;
            next.num_tokens += shard.num_tokens() as u64;
            Some((before, shard))
        })
    }

    /// Tokens are below this.
    pub(crate) fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// The token after each document.
    pub(crate) fn separator(&self) -> u32 {
        self.separator
    }

    /// Whether what is read next is likely to wait for a disk, in any shard.
    pub(crate) fn is_cold(&self) -> bool {
        self.iter().any(|shard| shard.disk_latency.is_cold())
    }

    /// How often `pattern`, which is not empty, occurs within a document: never where it contains the
    /// separator.
    pub(crate) fn count(&self, pattern: &[u32]) -> u64 {
        if pattern.contains(&self.separator) {
            return 0;
        }
        let counts = self.iter().map(|shard| shard.find(pattern).len() as u64);
        counts.sum()
    }

    /// Finds the longest suffix of `context`, which contains no separator, of `min_match` to `max_match`
    /// tokens, at most its own length.
    pub(crate) fn find_longest(
        &self,
        context: &[u32],
        max_match: usize,
        min_match: usize,
        found: &mut Match,
    ) {
        let suffix = |length| &context[context.len() - length..];
        // The shard of the last match comes first: a long match there spares the others their tries.
        let last = found.ranges.iter().position(|ranks| !ranks.is_empty());
        let (before, after) = self.list.split_at(last.unwrap_or(0));
        let mut shards = after.iter().chain(before);
        let mut longest = min_match - 1;
        if let Some(first) = shards.next() {
            let lacks = |shorter: usize| !first.contains(suffix(max_match - shorter));
            let mut shorter = 0..(max_match + 1).saturating_sub(min_match);
            // All but one token occurs most often: half of all matches are one of these two.
            if shorter.len() > 1 && lacks(1) {
                shorter.start = 2;
            } else {
                shorter.end = shorter.end.min(1);
            }
            longest = max_match - gallop(shorter, lacks);
        }
        for shard in shards {
            let has = |length: usize| shard.contains(suffix(length));
            longest = gallop(longest + 1..max_match + 1, has) - 1;
        }
        if longest < min_match {
            *found = Match::default();
        } else {
            self.find(suffix(longest), found);
        }
    }

    /// Finds where `pattern`, which is not empty and contains no separator, occurs.
    pub(crate) fn find(&self, pattern: &[u32], found: &mut Match) {
        found.ranges.clear();
        let ranges = self.iter().map(|shard| shard.find(pattern));
        found.ranges.extend(ranges);
        found.length = pattern.len();
    }

    /// Reads what followed the match at an [`EvenSample`] of `max_samples` occurrences, up to `length`
    /// tokens each, into `samples`. A row ends with the separator, or before one that is no token.
    ///
    /// The sample goes through the shards in order, so each has its share. Rows that share a beginning
    /// stand together. Each row tells how many tokens before the match equal the last ones of `before`.
    ///
    /// Positions are read before tokens: nearly every read misses the caches, and so they overlap.
    pub(crate) fn read_samples(
        &self,
        found: &Match,
        length: usize,
        max_samples: usize,
        before: &[u32],
        samples: &mut Samples,
    ) {
        let sample = EvenSample::new(found.count(), max_samples as u64);
        let Samples {
            tokens,
            rows,
            positions,
        } = samples;
        tokens.clear();
        rows.clear();
        let num_rows = usize::try_from(sample.num_samples()).unwrap_or(0);
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

/// Which rank of a shard's range is occurrence number `occurrence`, where the shards before have
/// `num_before` occurrences.
fn index_in(occurrence: u64, num_before: u64) -> usize {
    usize::try_from(occurrence - num_before).expect("below a range's length")
}
