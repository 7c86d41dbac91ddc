//! The texts of one tenant.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64;

use crate::memory::groups::GroupKey;
use crate::memory::indexed_tokens::IndexedTokens;
use crate::memory::keyless_table::{KeylessTable, bytes_of, reserve};
use crate::portable_math::saturating_u32;

/// The texts in the order of their arrival, in one indexed sequence.
#[derive(Debug, Default)]
pub(crate) struct TextLog {
    text: IndexedTokens,
    documents: Vec<TextEntry>,
    num_removed: u64,
    /// Index from content hash to document.
    by_hash: KeylessTable,
    /// The accepted draft tokens that came from each text, by its hash. While a snapshot is read, also of texts that
    /// follow.
    uses: BTreeMap<u64, Uses>,
}

/// Accepted draft tokens that came from a text.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Uses {
    /// Those of all processes, halved whenever texts are evicted.
    total: f32,
    /// Those that no snapshot has.
    new: f32,
}

/// The range of a text, which a boundary follows, and its keys.
#[derive(Debug)]
struct TextEntry {
    start: u32,
    end: u32,
    hash: u64,
    group_hash: u64,
    group_length: u32,
    /// The time when it was stored, in seconds since 1970 on the clock of the process that had the request.
    time: u32,
    /// True if a snapshot had the text.
    is_saved: bool,
}

impl TextEntry {
    fn range(&self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    fn group(&self) -> GroupKey {
        GroupKey { hash: self.group_hash, length: self.group_length }
    }
}

impl TextLog {
    pub(crate) fn text(&self) -> &IndexedTokens {
        &self.text
    }

    /// Returns each text with its hash, its group and its time, the oldest first.
    pub(crate) fn documents(&self) -> impl ExactSizeIterator<Item = (&[u32], u64, GroupKey, u32)> {
        let documents = self.documents.iter();
        documents.map(|it| (self.tokens(it), it.hash, it.group(), it.time))
    }

    /// Returns the time of the oldest text.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.documents.iter().map(|document| document.time).min()
    }

    /// Removes the texts from before a time. O(tokens).
    pub(crate) fn since_time(self, time: u32) -> Self {
        self.without(|document| document.time < time)
    }

    /// Returns the groups of the latest texts, the latest first.
    pub(crate) fn groups(&self) -> impl Iterator<Item = GroupKey> {
        let latest = self.documents.iter().rev().take(Self::MAX_GROUPS);
        latest.map(TextEntry::group)
    }

    /// Number of texts that were ever added.
    pub(crate) fn num_added(&self) -> u64 {
        self.num_removed + self.documents.len() as u64
    }

    pub(crate) fn num_removed(&self) -> u64 {
        self.num_removed
    }

    /// Returns the texts of a group that were added after the first `num_seen` texts, the latest first. Only the latest
    /// [`MAX_GROUPS`](Self::MAX_GROUPS) texts are searched.
    pub(crate) fn since(&self, num_seen: u64, group: GroupKey) -> impl Iterator<Item = &[u32]> {
        let num_new = self.num_added().saturating_sub(num_seen);
        let num_new = usize::try_from(num_new).unwrap_or(usize::MAX);
        let num_new = num_new.min(Self::MAX_GROUPS);
        let new = self.documents.iter().rev().take(num_new);
        let of_group = new.filter(move |document| document.group() == group);
        of_group.map(|document| self.tokens(document))
    }

    /// Number of tokens, without boundaries.
    pub(crate) fn num_tokens(&self) -> usize {
        self.text.tokens().len() - self.documents.len()
    }

    fn tokens(&self, document: &TextEntry) -> &[u32] {
        &self.text.tokens()[document.range()]
    }

    /// Upper bound of the bytes that a text takes in addition to its tokens, including spare capacity.
    pub(crate) const FIXED_BYTES: usize = 1408;

    /// Maximum number of latest texts whose groups a prompt is compared with.
    const MAX_GROUPS: usize = 1 << 14;

    /// Upper bound of the bytes of a text's uses, in a map whose nodes may be half full.
    const BYTES_PER_USE: usize = 48;

    /// Maximum number of occurrences among which the origin of an accepted token is searched for.
    const MAX_ORIGINS: usize = 64;

    /// Keeps about two thirds of the tokens: the latest third, and of the other texts those with most accepted tokens
    /// per token, the latest if none was. O(tokens).
    pub(crate) fn without_least_useful(mut self) -> Self {
        if self.documents.is_empty() {
            return Self::default();
        }
        let num_tokens = self.text.tokens().len();
        let third = num_tokens.div_ceil(3);
        let value = |document: &TextEntry| {
            let is_late = document.start as usize >= num_tokens - third;
            let used = self.uses.get(&document.hash).map_or(0.0, |uses| uses.total);
            if is_late { f32::INFINITY } else { used / document.range().len() as f32 }
        };
        let mut ranked: Vec<_> = self.documents.iter().map(|it| (value(it), it)).collect();
        ranked.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let mut num_removed = 0;
        let removed = ranked.into_iter().take_while(|(_, document)| {
            let is_removed = num_removed < third;
            num_removed += document.range().len() + 1;
            is_removed
        });
        let removed: BTreeSet<u32> = removed.map(|(_, document)| document.start).collect();
        self.uses.values_mut().for_each(|uses| uses.total /= 2.0);
        self.without(|document| removed.contains(&document.start))
    }

    /// Returns the texts, by their hashes, that the accepted draft tokens `run` of a request's tokens came from, and
    /// how many each: of all occurrences, the longest, then the latest.
    pub(crate) fn origins(&self, tokens: &[u32], run: Range<usize>) -> Vec<(u64, f32)> {
        let (mut origins, mut at) = (Vec::new(), run.start.max(1));
        let common = |pairs: &mut dyn Iterator<Item = (&u32, &u32)>| {
            pairs.take_while(|(in_text, token)| in_text == token).count()
        };
        while at < run.end {
            let (before, after) = tokens[..run.end].split_at(at);
            let places = self.text.of_pair(tokens[at - 1], tokens[at]).take(Self::MAX_ORIGINS);
            let longest = places.map(|place| {
                let (in_text, rest) = self.text.tokens().split_at(place);
                let lead = in_text.iter().rev().zip(before.iter().rev()).take(Self::MAX_ORIGINS);
                let length = common(&mut rest.iter().zip(after));
                (common(&mut lead.into_iter()) + length, length, place)
            });
            let longest = longest.max();
            if let Some((_, length, place)) = longest
                && let Some(document) = self.document_at(place)
            {
                origins.push((document.hash, length as f32));
            }
            at += longest.map_or(1, |(_, length, _)| length);
        }
        origins
    }

    /// Adds accepted tokens of the text with this hash, from a snapshot if they are saved.
    pub(crate) fn add_uses(&mut self, hash: u64, num_tokens: f32, is_saved: bool) {
        let uses = self.uses.entry(hash).or_default();
        uses.total += num_tokens;
        uses.new += if is_saved { 0.0 } else { num_tokens };
    }

    /// Returns the accepted tokens of each text that a snapshot of all texts has, or of one that joins others.
    pub(crate) fn uses(&self, is_whole: bool) -> impl Iterator<Item = (u64, f32)> {
        let number = move |uses: &Uses| if is_whole { uses.total } else { uses.new };
        let uses = self.uses.iter().map(move |(&hash, uses)| (hash, number(uses)));
        uses.filter(|&(_, number)| number > 0.0)
    }

    /// Notes that a snapshot has all uses.
    pub(crate) fn mark_uses_saved(&mut self) {
        self.uses.values_mut().for_each(|uses| uses.new = 0.0);
    }

    /// Drops the uses of texts that are not here.
    pub(crate) fn retain_uses(&mut self) {
        let mut uses = std::mem::take(&mut self.uses);
        uses.retain(|&hash, _| self.of_hash(hash).is_some());
        self.uses = uses;
    }

    /// Removes the texts with these hashes. O(tokens).
    pub(crate) fn without_hashes(self, hashes: &BTreeSet<u64>) -> Self {
        self.without(|document| hashes.contains(&document.hash))
    }

    /// Removes the texts that a snapshot had. O(tokens).
    pub(crate) fn without_saved(self) -> Self {
        self.without(|document| document.is_saved)
    }

    /// Notes that a snapshot has the last text with this hash.
    pub(crate) fn mark_saved(&mut self, hash: u64) {
        let documents = &mut self.documents;
        let found = self.by_hash.get(hash, |number| documents[number as usize].hash);
        if let Some(number) = found {
            documents[number as usize].is_saved = true;
        }
    }

    fn without(self, is_removed: impl Fn(&TextEntry) -> bool) -> Self {
        let (num_added, documents, mut uses) = (self.num_added(), self.documents, self.uses);
        let tokens = self.text.into_tokens();
        let is_kept = |document: &&TextEntry| !is_removed(document);
        let num_tokens = |document: &TextEntry| document.range().len() + 1;
        let mut kept = TextLog::default();
        // Reserved in one step, because growth leaves gaps in the heap.
        let sizes = documents.iter().filter(is_kept).map(num_tokens);
        kept.text.reserve(sizes.sum());
        for document in documents.iter().filter(is_kept) {
            let tokens = &tokens[document.range()];
            kept.append(tokens, document.group(), document.time, document.is_saved);
        }
        for document in documents.iter().filter(|document| !is_kept(document)) {
            uses.remove(&document.hash);
        }
        kept.uses = uses;
        kept.num_removed = num_added - kept.documents.len() as u64;
        kept
    }

    /// Returns the tokens of the last text with this hash.
    pub(crate) fn of_hash(&self, hash: u64) -> Option<&[u32]> {
        let document = |number: u32| &self.documents[number as usize];
        let found = self.by_hash.get(hash, |number| document(number).hash);
        found.map(|number| self.tokens(document(number)))
    }

    pub(crate) fn hashes(&self) -> Vec<u64> {
        let documents = self.documents.iter();
        documents.map(|document| document.hash).collect()
    }

    /// Returns the group of the text at a position, or `None` at a boundary.
    pub(crate) fn group_at(&self, position: usize) -> Option<GroupKey> {
        self.document_at(position).map(TextEntry::group)
    }

    fn document_at(&self, position: usize) -> Option<&TextEntry> {
        let after = |document: &TextEntry| document.end as usize <= position;
        let document = self.documents.get(self.documents.partition_point(after))?;
        (document.start as usize <= position).then_some(document)
    }

    pub(crate) fn append(&mut self, tokens: &[u32], group: GroupKey, time: u32, is_saved: bool) {
        self.text.extend(tokens);
        let documents = &mut self.documents;
        let number = saturating_u32(documents.len());
        reserve(documents, 1);
        documents.push(TextEntry {
            start: documents.last().map_or(0, |document| document.end + 1),
            end: saturating_u32(self.text.tokens().len()),
            hash: hash(tokens),
            group_hash: group.hash,
            group_length: group.length,
            time,
            is_saved,
        });
        self.text.extend(&[IndexedTokens::BOUNDARY]);
        self.by_hash.replace(number, |number| documents[number as usize].hash);
    }

    pub(crate) fn num_bytes(&self) -> usize {
        let of_uses = Self::BYTES_PER_USE * self.uses.len();
        self.text.num_bytes() + bytes_of(&self.documents) + self.by_hash.num_bytes() + of_uses
    }
}

/// Returns the content hash of a text.
pub(crate) fn hash(tokens: &[u32]) -> u64 {
    xxh3_64(bytemuck::cast_slice(tokens))
}
