//! How often does a short pattern occur, and what follows it most, without a search?

use std::ops::Range;

use crate::base::portable_math::saturating_u32;
use crate::base::search::{gallop, partition};
use crate::index::suffix_array::Suffixes;
use crate::storage::section::{KEY_LEN, KEY_STRIDE, Section};
use crate::storage::token_array::Tokens;

/// N-grams that occur at least this often are listed: each has a rank at every such stride.
/// On 61 M tokens of chat, these are 88 thousand, 0.023 bytes a token.
const MIN_COUNT: usize = KEY_STRIDE;

/// The most tokens of an n-gram.
const MAX_LEN: usize = KEY_LEN;

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
/// O(n / [`MIN_COUNT`] · log [`MIN_COUNT`]).
pub(crate) fn ngrams(suffixes: &Suffixes, tokens: &Tokens, separator: u32) -> Vec<u8> {
    let mut records = Vec::new();
    let root = Record {
        token: 0,
        start: 0,
        count: saturating_u32(suffixes.len()),
        first_child: 1,
    };
    let mut level = vec![root];
    let mut num_records = 1;
    for depth in 0..MAX_LEN {
        let token = |rank| tokens.get(suffixes.get(rank)? + depth);
        let mut children = Vec::new();
        for parent in level {
            let first_child = saturating_u32(num_records + children.len());
            let record = Record {
                first_child,
                ..parent
            };
            record.encode(&mut records);
            if depth == 0 || parent.token != separator {
                find_children(&parent, token, &mut children);
            }
        }
        if depth == 0 {
            children.retain(|child: &Record| child.token != separator);
        }
        num_records += children.len();
        level = children;
    }
    let first_child = saturating_u32(num_records);
    for leaf in level.into_iter().chain([root]) {
        let record = Record {
            first_child,
            ..leaf
        };
        record.encode(&mut records);
    }
    records
}

/// Appends the frequent children of `parent`, given the token that follows its n-gram in the suffix of
/// a rank.
fn find_children(
    parent: &Record,
    token: impl Fn(usize) -> Option<u32>,
    children: &mut Vec<Record>,
) {
    let Range { mut start, end } = parent.ranks();
    // A child that is frequent has a rank at every stride, and one half a stride before or after it.
    while let Some(sample) = Some(start.next_multiple_of(MIN_COUNT)).filter(|&rank| rank < end) {
        let next = token(sample);
        let half = MIN_COUNT / 2;
        let is_child = |rank: usize| (start..end).contains(&rank) && token(rank) == next;
        if !is_child(sample.wrapping_sub(half)) && !is_child(sample + half) {
            start = sample + 1;
            continue;
        }
        let first = partition(start..sample, |rank| token(rank) < next);
        start = gallop(sample + 1..end, |rank| token(rank) == next);
        if let Some(token) = next.filter(|_| start - first >= MIN_COUNT) {
            children.push(Record {
                token,
                start: saturating_u32(first),
                count: saturating_u32(start - first),
                first_child: 0,
            });
        }
    }
}
