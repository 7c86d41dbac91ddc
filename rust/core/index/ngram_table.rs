//! How often does a short pattern occur, and what follows it most, without a search?

use std::cmp::Reverse;
use std::ops::Range;

use crate::index::suffix_array::Suffixes;
use crate::storage::section::{KEY_LEN, KEY_STRIDE, Section};
use crate::storage::token_array::Tokens;

/// N-grams that occur at least this often are listed: each has a key in its range, so keys show all of them.
/// On 61 M tokens of chat, these are 88 thousand, 0.023 bytes a token.
pub(crate) const MIN_COUNT: usize = KEY_STRIDE;

/// The most tokens of an n-gram.
pub(crate) const MAX_LEN: usize = KEY_LEN;

/// The bytes of a stored n-gram.
const RECORD_LEN: usize = 16;

/// The trie of the frequent n-grams, each with the ranks of its suffixes.
///
/// Records of four numbers of 32 bits: last token, first rank, number of suffixes, and the index of
/// the first child, whose siblings follow by token up to the first child of the next record. The
/// root is the first record, then come n-grams of one token, of two … and a record without meaning
/// but for the end of the children before it.
#[derive(Debug)]
pub(crate) struct Ngrams {
    section: Section,
}

/// A frequent n-gram.
#[derive(Debug)]
pub(crate) struct Ngram {
    pub(crate) ranks: Range<usize>,
    /// The tokens that follow it at least [`MIN_COUNT`] times, the separator included, with exact
    /// counts: count descending, then token ascending.
    pub(crate) top: Vec<(u32, u64)>,
    /// Whether no other token follows it.
    pub(crate) is_complete: bool,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    token: u32,
    start: u32,
    count: u32,
    first_child: u32,
}

impl Record {
    fn encode(self, bytes: &mut Vec<u8>) {
        for number in [self.token, self.start, self.count, self.first_child] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn decode(bytes: &[u8; RECORD_LEN]) -> Self {
        let (numbers, _) = bytes.as_chunks();
        let number = |index: usize| u32::from_le_bytes(numbers[index]);
        Self {
            token: number(0),
            start: number(1),
            count: number(2),
            first_child: number(3),
        }
    }

    fn ranks(&self) -> Range<usize> {
        let start = self.start as usize;
        start..start.saturating_add(self.count as usize)
    }
}

impl Ngrams {
    pub(crate) fn new(section: Section) -> Self {
        Self { section }
    }

    pub(crate) fn section(&self) -> &Section {
        &self.section
    }

    /// The ranks of the suffixes that begin with `pattern`, where that is a frequent n-gram.
    pub(crate) fn ranks(&self, pattern: &[u32]) -> Option<Range<usize>> {
        Some(self.get(self.index(pattern)?)?.ranks())
    }

    /// What is known of `pattern`, where it is a frequent n-gram that can have children.
    pub(crate) fn find(&self, pattern: &[u32]) -> Option<Ngram> {
        if pattern.len() >= MAX_LEN {
            return None;
        }
        let index = self.index(pattern)?;
        let children = self.children(index)?.iter().map(Record::decode);
        let mut top: Vec<_> = children
            .map(|child| (child.token, u64::from(child.count)))
            .collect();
        top.sort_unstable_by_key(|&(token, count)| (Reverse(count), token));
        let ranks = self.get(index)?.ranks();
        let num_listed: u64 = top.iter().map(|&(_, count)| count).sum();
        Some(Ngram {
            is_complete: num_listed == ranks.len() as u64,
            ranks,
            top,
        })
    }

    fn index(&self, pattern: &[u32]) -> Option<usize> {
        let mut index = 0;
        for token in pattern {
            let children = self.children(index)?;
            let child = children
                .binary_search_by_key(token, |child| Record::decode(child).token)
                .ok()?;
            index = self.get(index)?.first_child as usize + child;
        }
        Some(index)
    }

    fn records(&self) -> &[[u8; RECORD_LEN]] {
        self.section.payload().as_chunks().0
    }

    fn get(&self, index: usize) -> Option<Record> {
        self.records().get(index).map(Record::decode)
    }

    fn children(&self, index: usize) -> Option<&[[u8; RECORD_LEN]]> {
        let (start, end) = (
            self.get(index)?.first_child,
            self.get(index + 1)?.first_child,
        );
        self.records().get(start as usize..end as usize)
    }
}

/// The records of the frequent n-grams, as they are stored. No n-gram goes on after a separator.
///
/// O(n / [`KEY_STRIDE`]): n-grams are read from the keys, and what shares no key with its neighbours
/// is looked at on both sides before its bounds are searched for.
pub(crate) fn ngrams(
    suffixes: &Suffixes,
    tokens: &Tokens,
    keys: &Tokens,
    separator: u32,
) -> Vec<u8> {
    let finder = Finder {
        suffixes,
        tokens,
        keys,
    };
    let mut records = Vec::new();
    let root = Record {
        token: 0,
        start: 0,
        count: small(suffixes.len()),
        first_child: 1,
    };
    let mut level = vec![root];
    let mut num_records = 1;
    for depth in 0..MAX_LEN {
        let mut children = Vec::new();
        for parent in level {
            let first_child = small(num_records + children.len());
            Record {
                first_child,
                ..parent
            }
            .encode(&mut records);
            if depth == 0 || parent.token != separator {
                finder.find_children(&parent, depth, &mut children);
            }
        }
        if depth == 0 {
            children.retain(|child: &Record| child.token != separator);
        }
        num_records += children.len();
        level = children;
    }
    let end = small(num_records);
    for leaf in level.into_iter().chain([root]) {
        Record {
            first_child: end,
            ..leaf
        }
        .encode(&mut records);
    }
    records
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("a shard has less than 2^31 tokens")
}

struct Finder<'a> {
    suffixes: &'a Suffixes,
    tokens: &'a Tokens,
    keys: &'a Tokens,
}

impl Finder<'_> {
    /// Appends those of `parent`, whose n-gram has `depth` tokens.
    fn find_children(&self, parent: &Record, depth: usize, children: &mut Vec<Record>) {
        let ranks = parent.ranks();
        let mut samples = ranks.start.div_ceil(KEY_STRIDE)..ranks.end.div_ceil(KEY_STRIDE);
        while let Some(first) = samples.next() {
            let token = self.keys.get(first * KEY_LEN + depth);
            let is_same = |sample: &usize| self.keys.get(sample * KEY_LEN + depth) == token;
            let mut last = first;
            while samples.start < samples.end && is_same(&samples.start) {
                last = samples.start;
                samples.start += 1;
            }
            if let Some(token) = token {
                let found = first * KEY_STRIDE..last * KEY_STRIDE + 1;
                children.extend(self.child(&ranks, depth, token, found));
            }
        }
    }

    /// The suffixes of `ranks` that `token` follows after `depth` tokens, if at least [`MIN_COUNT`]; the
    /// ranks `found` are of them, and those a stride further are not.
    fn child(
        &self,
        ranks: &Range<usize>,
        depth: usize,
        token: u32,
        found: Range<usize>,
    ) -> Option<Record> {
        let has_token = |rank: usize| {
            let position = self.suffixes.get(rank)?;
            (self.tokens.get(position + depth)? == token).then_some(())
        };
        let is_in = |rank: Option<usize>| {
            rank.filter(|rank| ranks.contains(rank))
                .and_then(has_token)
                .is_some()
        };
        let middle = KEY_STRIDE / 2;
        if found.len() == 1
            && !is_in(found.start.checked_sub(middle))
            && !is_in(Some(found.start + middle))
        {
            return None;
        }
        let (mut start, mut low) = (
            found.start,
            (found.start + 1)
                .saturating_sub(KEY_STRIDE)
                .max(ranks.start),
        );
        while low < start {
            let rank = low + (start - low) / 2;
            if is_in(Some(rank)) {
                start = rank;
            } else {
                low = rank + 1;
            }
        }
        let (mut end, mut high) = (found.end, (found.end - 1 + KEY_STRIDE).min(ranks.end));
        while end < high {
            let rank = end + (high - end) / 2;
            if is_in(Some(rank)) {
                end = rank + 1;
            } else {
                high = rank;
            }
        }
        (end - start >= MIN_COUNT).then_some(Record {
            token,
            start: small(start),
            count: small(end - start),
            first_child: 0,
        })
    }
}
