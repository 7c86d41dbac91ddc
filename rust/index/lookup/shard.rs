//! Mapped sections of a shard, and binary search in them.

use std::hint::black_box;
use std::iter;
use std::ops::{BitXor, Range};
use std::path::Path;
use std::time::Instant;

use crate::base::error::Result;
use crate::base::search::{gallop, partition};
use crate::lookup::disk_latency::DiskLatency;
use crate::lookup::samples::SampleRow;
use crate::storage::manifest::{Manifest, ShardEntry, ShardManifest};
use crate::storage::section::{KEY_LEN, KEY_STRIDE, Section, SectionKind};
use crate::storage::sources::Sources;
use crate::storage::token_array::Tokens;
use crate::suffixes::suffix_array::{self, Suffixes};

#[derive(Debug)]
pub(crate) struct Shard {
    tokens: Tokens,
    suffixes: Suffixes,
    firsts: Section,
    keys: Tokens,
    documents: Section,
    sources: Option<Section>,
    pub(crate) vocab_size: u32,
    separator: u32,
    pub(crate) disk_latency: DiskLatency,
}

impl Shard {
    /// Maps the sections and checks their lengths. O(vocabulary).
    pub(crate) fn open(folder: &Path, manifest: &Manifest, entry: &ShardEntry) -> Result<Self> {
        let sections = ShardManifest::read(folder, manifest, entry)?;
        let open = |kind| sections.open(folder, kind);
        let width = sections.token_width();
        let tokens = Tokens::new(open(SectionKind::Tokens)?, width);
        let suffixes = Suffixes::new(open(SectionKind::Suffixes)?, tokens.len());
        let shard = Self {
            tokens,
            suffixes,
            firsts: open(SectionKind::Firsts)?,
            keys: Tokens::new(open(SectionKind::Keys)?, width),
            documents: open(SectionKind::Documents)?,
            sources: sections.open_sources(folder)?,
            vocab_size: sections.vocab_size,
            separator: sections.separator,
            disk_latency: DiskLatency::default(),
        };
        shard.check_firsts()?;
        shard.advise_random(true)?;
        Ok(shard)
    }

    fn check_firsts(&self) -> Result<()> {
        let firsts = self.firsts.numbers::<u32>();
        let is_all = |&last: &u32| last as usize == self.suffixes.len();
        if firsts.last().is_some_and(is_all) && firsts.is_sorted() {
            return Ok(());
        }
        let reason = "its numbers do not ascend to the number of suffixes";
        Err(self.firsts.corrupt(reason))
    }

    fn advise_random(&self, is_random: bool) -> Result<()> {
        self.tokens.section.advise_random(is_random)?;
        self.suffixes.section.advise_random(is_random)
    }

    /// Checks every byte against its checksum, and every section against the tokens. O(n) time, 4 bytes a
    /// token.
    pub(crate) fn verify(&self) -> Result<()> {
        self.verify_checksums()?;
        self.sequentially(Self::verify_contents)
    }

    /// Checks every byte against its checksum. O(n).
    pub(crate) fn verify_checksums(&self) -> Result<()> {
        self.sequentially(|shard| shard.sections().try_for_each(Section::verify))
    }

    /// Reads all sections into memory, as far as there is room. O(n).
    pub(crate) fn warm(&self) -> Result<()> {
        self.sequentially(|shard| {
            shard.sections().for_each(Section::warm);
            Ok(())
        })
    }

    fn sequentially(&self, read: impl FnOnce(&Self) -> Result<()>) -> Result<()> {
        self.advise_random(false)?;
        let result = read(self);
        self.advise_random(true)?;
        result
    }

    fn sections(&self) -> impl Iterator<Item = &Section> {
        let (tokens, suffixes) = (&self.tokens.section, &self.suffixes.section);
        let sections = [tokens, suffixes, &self.firsts, &self.keys.section, &self.documents];
        sections.into_iter().chain(&self.sources)
    }

    fn verify_contents(&self) -> Result<()> {
        suffix_array::verify(&self.suffixes, &self.tokens)?;
        let firsts = suffix_array::firsts(&self.tokens, self.vocab_size)?;
        if self.firsts.numbers::<u32>() != firsts {
            let reason = "its numbers are not those of the tokens";
            return Err(self.firsts.corrupt(reason));
        }
        if self.keys.section.payload() != suffix_array::keys(&self.suffixes, &self.tokens) {
            let reason = "its keys are not those of the suffixes";
            return Err(self.keys.section.corrupt(reason));
        }
        let ends = self.document_ends();
        let last = |&end: &u64| self.tokens.get(usize::try_from(end).ok()?.checked_sub(1)?);
        let are_ends = ends.iter().all(|end| last(end) == Some(self.separator));
        let is_whole = ends.last() == Some(&(self.tokens.len() as u64));
        if !(are_ends && is_whole && ends.is_sorted_by(|before, after| before < after)) {
            let reason = "its documents are not those of the tokens";
            return Err(self.documents.corrupt(reason));
        }
        let Some(names) = &self.sources else {
            return Ok(());
        };
        let mut sources = Sources::default();
        let num_read = iter::from_fn(|| sources.advance(names.payload()).then_some(())).count();
        if (num_read, sources.num_read) == (ends.len(), names.payload().len()) {
            return Ok(());
        }
        Err(names.corrupt("its names are not those of the documents"))
    }

    /// Returns the name of the place that a document came from, empty if it has none. O(documents).
    pub(crate) fn source(&self, index: usize) -> String {
        let mut sources = Sources::default();
        let names = self.sources.as_ref().map_or(&[][..], Section::payload);
        let is_read = (0..=index).all(|_| sources.advance(names));
        if is_read { String::from_utf8_lossy(&sources.name).into_owned() } else { String::new() }
    }

    /// Returns the ranks of the suffixes that begin with `pattern`, which must not be empty or have a separator.
    /// O(log n) comparisons, most of them with keys.
    pub(crate) fn find(&self, pattern: &[u32]) -> Range<usize> {
        let (lower, upper) = self.bounds_by_keys(pattern);
        self.bounds(lower, upper, pattern)
    }

    /// Returns whether `pattern` occurs, in half the time of [`find`](Self::find).
    pub(crate) fn contains(&self, pattern: &[u32]) -> bool {
        let (lower, upper) = self.bounds_by_keys(pattern);
        if lower.end < upper.start {
            return true; // a key between the bounds equals the pattern
        }
        let end = upper.end;
        let rank = self.bounds(lower, end..end, pattern).start;
        rank < end && self.tokens.compare(self.position(rank), pattern).is_eq()
    }

    /// Returns bounds of the start and of the end of the range of `pattern`, from the keys alone.
    fn bounds_by_keys(&self, pattern: &[u32]) -> (Range<usize>, Range<usize>) {
        let first = pattern[0] as usize;
        let (start, end) = (self.num_below(first), self.num_below(first + 1));
        if pattern.len() == 1 || start >= end {
            return (start..start, end..end);
        }
        // Every suffix has a separator and no pattern does, so a comparison ends before the padding of a key.
        // Keys therefore sort as their suffixes.
        let prefix = &pattern[..pattern.len().min(KEY_LEN)];
        let key = |index: usize| self.keys.compare(index * KEY_LEN, prefix);
        let keys = start.div_ceil(KEY_STRIDE)..end.div_ceil(KEY_STRIDE);
        if self.disk_latency.is_cold() {
            self.keys.will_need(keys.start * KEY_LEN, keys.len() * KEY_LEN);
        }
        let below = partition(keys.clone(), |index| key(index).is_lt());
        let above = gallop(below..keys.end, |index| key(index).is_eq());

        let (start, end) = (rank_after(below).max(start), (above * KEY_STRIDE).min(end));
        if self.disk_latency.is_cold() {
            self.suffixes.will_need(start..end.min(start + 2 * KEY_STRIDE));
            self.suffixes.will_need(end.saturating_sub(KEY_STRIDE).max(start)..end);
        }
        if pattern.len() > KEY_LEN {
            (start..end, start..end)
        } else {
            // Keys that equal the pattern belong to suffixes in the range.
            let (most, least) = ((below * KEY_STRIDE).min(end), rank_after(above).max(start));
            (start..most, least..end)
        }
    }

    /// Returns the ranks of the suffixes that begin with `pattern`. The range starts in `lower` and ends in
    /// `upper`.
    ///
    /// Each round splits both ranges in eight, not in two: nearly every read misses the caches, and the misses
    /// of one round overlap.
    fn bounds(
        &self,
        mut lower: Range<usize>,
        mut upper: Range<usize>,
        pattern: &[u32],
    ) -> Range<usize> {
        const WAYS: usize = 8;
        let step = |ranks: &Range<usize>| ranks.len().div_ceil(WAYS).max(1);
        let narrow = |ranks: &mut Range<usize>, num_before| {
            let step = step(ranks);
            ranks.start += step * num_before;
            ranks.end = ranks.end.min(ranks.start + step - 1);
        };
        while !lower.is_empty() || !upper.is_empty() {
            let lasts = |ranks: &Range<usize>| {
                let step = step(ranks);
                (ranks.start + step - 1..ranks.end).step_by(step)
            };
            let (mut positions, num_lower) = ([0; 2 * WAYS], lasts(&lower).len());
            let mut num_positions = 0;
            for (position, last) in positions.iter_mut().zip(lasts(&lower).chain(lasts(&upper))) {
                *position = self.position(last);
                num_positions += 1;
            }
            let positions = &positions[..num_positions];
            if self.disk_latency.is_cold() {
                self.fetch(positions, 0, pattern.len());
                let started = Instant::now();
                self.touch(positions, 0, pattern.len());
                self.disk_latency.note(started.elapsed(), positions.len());
            }
            self.touch(positions, 0, pattern.len());
            let (of_lower, of_upper) = positions.split_at(num_lower);
            let compare = |position: &&usize| self.tokens.compare(**position, pattern);
            let num_below = of_lower.iter().filter(|position| compare(position).is_lt());
            let num_not_above = of_upper.iter().filter(|position| compare(position).is_le());
            let (num_below, num_not_above) = (num_below.count(), num_not_above.count());
            narrow(&mut lower, num_below);
            narrow(&mut upper, num_not_above);
        }
        lower.start..upper.start.max(lower.start)
    }

    /// Requests the pages of `length` tokens at `offset` after each position.
    pub(crate) fn fetch(&self, positions: &[usize], offset: usize, length: usize) {
        for position in positions {
            self.tokens.will_need(position.saturating_add(offset), length);
        }
    }

    /// Brings the first and the last of `length` tokens at `offset` after each position into the cache, with the
    /// cache lines that hold them. Reads without dependent work overlap better.
    pub(crate) fn touch(&self, positions: &[usize], offset: usize, length: usize) {
        let ends = [offset, offset.saturating_add(length.saturating_sub(1))];
        let ends = positions
            .iter()
            .flat_map(|position| ends.map(|offset| self.token_at(position.saturating_add(offset))));
        black_box(ends.fold(0, BitXor::bitxor));
    }

    /// Requests the page that holds the position of the suffix of this rank.
    pub(crate) fn fetch_position(&self, rank: usize) {
        self.suffixes.will_need(rank..rank.saturating_add(1));
    }

    fn num_below(&self, token: usize) -> usize {
        let below = self.firsts.numbers::<u32>().get(token);
        below.map_or(self.suffixes.len(), |&below| below as usize)
    }

    /// Returns the position of the suffix of this rank. It may be past the end if the file is damaged.
    pub(crate) fn position(&self, rank: usize) -> usize {
        self.suffixes.get(rank).unwrap_or(usize::MAX)
    }

    pub(crate) fn num_tokens(&self) -> usize {
        self.tokens.len()
    }

    pub(crate) fn num_documents(&self) -> usize {
        self.document_ends().len()
    }

    /// Returns the index of the document that contains `position`, and the range of its tokens without the
    /// separator. O(log documents).
    pub(crate) fn document(&self, position: usize) -> (usize, Range<usize>) {
        let is_before = |index| self.document_end(index).is_some_and(|end| end <= position);
        let index = partition(0..self.num_documents(), is_before);
        (index, self.document_range(index))
    }

    /// Returns the range of a document's tokens without the separator.
    pub(crate) fn document_range(&self, index: usize) -> Range<usize> {
        let before = index.checked_sub(1);
        let start = before.and_then(|before| self.document_end(before));
        let start = start.unwrap_or(0);
        let end = self.document_end(index).unwrap_or(start).saturating_sub(1);
        start..end.max(start)
    }

    fn document_end(&self, index: usize) -> Option<usize> {
        let end = usize::try_from(*self.document_ends().get(index)?).ok()?;
        Some(end.min(self.tokens.len()))
    }

    fn document_ends(&self) -> &[u64] {
        self.documents.numbers()
    }

    pub(crate) fn tokens(&self, positions: Range<usize>) -> Vec<u32> {
        let mut tokens = Vec::new();
        self.tokens.extend(positions.start, positions.len(), &mut tokens);
        tokens
    }

    /// Appends up to `length` tokens from `position` on, and returns how many of them continue the document: those
    /// up to the separator, which is included if it is in the vocabulary.
    pub(crate) fn continuation(
        &self,
        position: usize,
        length: usize,
        continuation: &mut Vec<u32>,
    ) -> usize {
        let start = continuation.len();
        self.tokens.extend(position, length, continuation);
        let tokens = &continuation[start..];
        let is_last = |&token: &u32| token == self.separator || token >= self.vocab_size;
        // Most continuations have no separator, and a fold is vectorized.
        if !tokens.iter().fold(false, |has, token| has | is_last(token)) {
            return tokens.len();
        }
        match tokens.iter().position(is_last) {
            Some(last) => last + usize::from(tokens[last] < self.vocab_size),
            None => tokens.len(),
        }
    }

    /// Appends up to `length` tokens after a match of `depth` tokens at `position`. The overlap of the row is the
    /// number of tokens before the match that equal the last tokens of `before`.
    pub(crate) fn row(
        &self,
        position: usize,
        depth: usize,
        length: usize,
        before: &[u32],
        tokens: &mut Vec<u32>,
    ) -> SampleRow {
        let (start, end) = (tokens.len(), position.saturating_add(depth));
        let end = start + self.continuation(end, length, tokens);
        let positions = (0..position).rev().zip(before.iter().rev());
        let is_same = |(position, token): &(usize, &u32)| self.token_at(*position) == **token;
        SampleRow { tokens: start..end, context_overlap: positions.take_while(is_same).count() }
    }

    /// Returns the tokens after the first `depth` tokens of the suffixes `ranks`, which share these, ascending and
    /// with their counts. O(log count) for each token.
    pub(crate) fn next_tokens(
        &self,
        ranks: Range<usize>,
        depth: usize,
    ) -> impl Iterator<Item = (u32, u64)> {
        let Range { mut start, end } = ranks;
        let token = move |rank| self.token_at(self.position(rank).saturating_add(depth));
        iter::from_fn(move || {
            let next = (start < end).then(|| token(start))?;
            let first = start;
            start = gallop(start..end, |rank| token(rank) == next);
            Some((next, (start - first) as u64))
        })
    }

    /// Counts `token` after the first `depth` tokens of the suffixes `ranks`, which share these. O(log count).
    pub(crate) fn count_next(&self, ranks: Range<usize>, depth: usize, token: u32) -> usize {
        let next = |rank| self.token_at(self.position(rank).saturating_add(depth));
        let start = partition(ranks.clone(), |rank| next(rank) < token);
        gallop(start..ranks.end, |rank| next(rank) == token) - start
    }

    /// Returns the token at `position`, or `u32::MAX` past the end, which only a damaged file refers to.
    pub(crate) fn token_at(&self, position: usize) -> u32 {
        self.tokens.get(position).unwrap_or(u32::MAX)
    }
}

fn rank_after(index: usize) -> usize {
    index.checked_sub(1).map_or(0, |before| before * KEY_STRIDE + 1)
}
