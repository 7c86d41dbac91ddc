//! The texts of one tenant.

use std::collections::BTreeSet;
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

    /// Keeps about the latest two thirds of the tokens. O(tokens), and needs no additional memory.
    pub(crate) fn without_oldest(self) -> Self {
        let third = self.text.tokens().len().div_ceil(3);
        self.without(|document| (document.start as usize) < third)
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
        let (num_added, documents) = (self.num_added(), self.documents);
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
        let after = |document: &TextEntry| document.end as usize <= position;
        let document = self.documents.get(self.documents.partition_point(after))?;
        (document.start as usize <= position).then_some(document.group())
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
        self.text.num_bytes() + bytes_of(&self.documents) + self.by_hash.num_bytes()
    }
}

/// Returns the content hash of a text.
pub(crate) fn hash(tokens: &[u32]) -> u64 {
    xxh3_64(bytemuck::cast_slice(tokens))
}
