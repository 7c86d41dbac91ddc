//! How are suffixes sorted in half the memory that their order takes?
//!
//! With the ranks of the suffixes at a difference cover, any two suffixes are compared by their first
//! [`PERIOD`] tokens, or else by two ranks. So first the suffixes at the cover are ranked, 9 in 64,
//! and then all are sorted, one part of the order after the other: a part is as large as the memory,
//! its suffixes are gathered by a scan of the text, and the order goes to the disk while it arises.
//! The text is mapped and not counted.

use std::cmp::Ordering;
use std::ops::RangeInclusive;

use crate::base::error::Result;
use crate::base::threads::{self, in_parallel};
use crate::index::cover::{COVER, PERIOD, Places, Ranks};
use crate::index::entries::Entries;
use crate::index::suffix_array::zeros;
use crate::storage::token_array::{TokenWidth, Tokens};

/// The bits of a key: the position in the lower bits of an entry decides between equal keys.
const KEY_BITS: u32 = u128::BITS - POSITION_BITS;
const POSITION_BITS: u32 = u32::BITS;

/// Longer keys take longer to make than they save.
const MAX_KEY_LEN: usize = 8;

/// Groups up to this size are sorted by comparing suffixes, larger ones by their next keys.
const SMALL: usize = 4;

/// How many suffixes are sorted to see where parts should begin.
const MAX_SAMPLES: usize = 1 << 16;

/// More threads share the memory: parts are smaller, and the text is scanned more often.
const MAX_THREADS: usize = 8;

/// What an allocator may keep of the memory that ranking has freed: glibc's does not give back less.
const RETAINED: u64 = 32 << 20;

/// The positions that are handed on at a time.
const CHUNK: usize = 1 << 16;

/// The bytes of memory that [`sort`] must be given, beside the mapped text: 1.7 for the ranks of the
/// cover while they arise, later 0.6 for ranks and the rest for a part of the order.
pub(crate) fn memory(num_tokens: u64) -> u64 {
    num_tokens.saturating_mul(2).saturating_add(1 << 16)
}

/// Hands the positions of the suffixes in lexicographic order to `sink`, some at a time; a suffix
/// that ends first is the smaller one. O(n · period) in the worst case, and a scan of the text for
/// each part. Takes up to `max_memory` bytes, which is at least [`memory`].
///
/// Tokens are at most `vocab_size`; a text where they are not is sorted in some order.
pub(crate) fn sort(
    tokens: &Tokens,
    vocab_size: u32,
    max_memory: u64,
    sink: &mut dyn FnMut(&[u32]) -> Result<()>,
) -> Result<()> {
    let payload = tokens.section().payload();
    match tokens.width() {
        TokenWidth::Two => Text::new(payload.as_chunks::<2>().0, vocab_size).sort(max_memory, sink),
        TokenWidth::Three => {
            Text::new(payload.as_chunks::<3>().0, vocab_size).sort(max_memory, sink)
        }
    }
}

/// Tokens as they are stored, and how many of them make a key.
struct Text<'a, const WIDTH: usize> {
    tokens: &'a [[u8; WIDTH]],
    digit_bits: u32,
    key_len: usize,
}

impl<'a, const WIDTH: usize> Text<'a, WIDTH> {
    fn new(tokens: &'a [[u8; WIDTH]], vocab_size: u32) -> Self {
        let digit_bits = u32::BITS - vocab_size.saturating_add(1).leading_zeros();
        Self {
            tokens,
            digit_bits,
            key_len: ((KEY_BITS / digit_bits) as usize).min(MAX_KEY_LEN),
        }
    }

    fn sort(&self, max_memory: u64, sink: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()> {
        let ranks = self.ranks(max_memory)?;
        let sorter = Sorter {
            text: self,
            residues: u64::MAX,
            ties: Ties::Ranks(&ranks),
        };
        let kept = RETAINED.min(ranks.num_bytes());
        sorter.sort(max_memory.saturating_sub(ranks.num_bytes() + kept), sink)
    }

    /// Sorts the suffixes at the cover by their first tokens, names them, and ranks the names.
    fn ranks(&self, max_memory: u64) -> Result<Ranks> {
        let places = Places::new(self.len());
        let mut names: Vec<i32> = zeros(places.count())?;
        let num_bytes = (names.len() * size_of::<i32>()) as u64;
        let sorter = Sorter {
            text: self,
            residues: COVER.iter().fold(0, |all, residue| all | 1 << residue),
            ties: Ties::Positions,
        };
        // The empty suffix is not sorted and keeps the name 0.
        let mut name = 0;
        let mut last = self.len();
        sorter.sort(max_memory.saturating_sub(num_bytes), &mut |positions| {
            for position in positions.iter().map(|&position| position as usize) {
                name += i32::from(self.window(last) != self.window(position));
                names[places.place(position)] = name;
                last = position;
            }
            Ok(())
        })?;
        Ranks::new(names, places)
    }

    fn len(&self) -> usize {
        self.tokens.len()
    }

    /// A token as part of a key; 0 stands for the end, so that a suffix which ends is the smaller.
    fn digit(&self, index: usize) -> u32 {
        self.tokens.get(index).map_or(0, |&token| decode(token) + 1)
    }

    /// The first tokens of the suffix at `position`, as a number that orders as they do.
    fn key(&self, position: usize) -> u128 {
        let append = |key, digit: u32| key << self.digit_bits | u128::from(digit);
        let end = position + self.key_len;
        match self.tokens.get(position..end) {
            Some(tokens) => (tokens.iter()).fold(0, |key, &token| append(key, decode(token) + 1)),
            None => (position..end).fold(0, |key, index| append(key, self.digit(index))),
        }
    }

    /// Which of the [`PERIOD`] positions from `block` on have such a digit, one bit each.
    fn find(&self, block: usize, digits: &RangeInclusive<u32>) -> u64 {
        let tokens = &self.tokens[block..self.len().min(block + PERIOD)];
        let is_found = |token| digits.contains(&(decode(token) + 1));
        let bits = (0..).zip(tokens);
        bits.fold(0, |found, (bit, &token)| {
            found | u64::from(is_found(token)) << bit
        })
    }

    /// The tokens at `position` that are compared before ranks are.
    fn window(&self, position: usize) -> &'a [[u8; WIDTH]] {
        &self.tokens[position..self.len().min(position + PERIOD)]
    }
}

fn decode<const WIDTH: usize>(token: [u8; WIDTH]) -> u32 {
    let mut bytes = [0; 4];
    bytes[..WIDTH].copy_from_slice(&token);
    u32::from_le_bytes(bytes)
}

fn compare<const WIDTH: usize>(a: &[[u8; WIDTH]], b: &[[u8; WIDTH]]) -> Ordering {
    if a == b {
        return Ordering::Equal;
    }
    a.iter()
        .map(|&a| decode(a))
        .cmp(b.iter().map(|&b| decode(b)))
}

/// What decides between suffixes whose first [`PERIOD`] tokens are the same.
#[derive(Clone, Copy)]
enum Ties<'a> {
    Positions,
    Ranks(&'a Ranks),
}

impl Ties<'_> {
    fn compare(self, a: usize, b: usize) -> Ordering {
        match self {
            Self::Positions => a.cmp(&b),
            Self::Ranks(ranks) => ranks.compare(a, b),
        }
    }
}

/// Sorts the suffixes at the positions of some residues.
struct Sorter<'a, const WIDTH: usize> {
    text: &'a Text<'a, WIDTH>,
    residues: u64,
    ties: Ties<'a>,
}

/// A part of the order: from the suffix at `low` on, up to that at `high`.
#[derive(Debug, Clone, Copy)]
struct Part {
    low: Option<usize>,
    high: Option<usize>,
}

/// Suffixes of a part in their order: entries of key and position.
struct Gathered {
    entries: Entries,
    /// How many suffixes the part has: where not all fit, the entries are evenly drawn from them.
    count: usize,
}

fn entry(key: u128, position: usize) -> u128 {
    key << POSITION_BITS | position as u128
}

fn key(entry: u128) -> u128 {
    entry >> POSITION_BITS
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the lower half of an entry is its position"
)]
fn position(entry: u128) -> u32 {
    entry as u32
}

impl<const WIDTH: usize> Sorter<'_, WIDTH> {
    fn sort(&self, max_memory: u64, sink: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()> {
        let num_threads = threads::num_threads().clamp(1, MAX_THREADS);
        let num_bytes = usize::try_from(max_memory).unwrap_or(usize::MAX);
        let capacity = num_bytes / num_threads / size_of::<u128>();
        // The next part is the last one.
        let mut parts = vec![Part {
            low: None,
            high: None,
        }];
        while !parts.is_empty() {
            let mut batch = parts.split_off(parts.len().saturating_sub(num_threads));
            let gathered = in_parallel(&mut batch, 1, |&mut part| self.gather(part, capacity));
            let mut gathered: Vec<_> = gathered.into_iter().collect::<Result<_>>()?;
            while let (Some(part), Some(found)) = (batch.pop(), gathered.pop()) {
                if found.entries.len() == found.count {
                    hand_on(&found.entries, sink)?;
                } else {
                    parts.append(&mut batch);
                    parts.extend(split(part, &found, capacity).into_iter().rev());
                }
            }
        }
        Ok(())
    }

    /// The suffixes of a part, all of them or as many as show where to split it.
    fn gather(&self, part: Part, capacity: usize) -> Result<Gathered> {
        let mut gathered = self.scan(part, capacity)?;
        let entries = &mut gathered.entries;
        if entries.len() < gathered.count {
            entries.thin(entries.len().div_ceil(MAX_SAMPLES));
        }
        self.sort_entries(entries, 0);
        Ok(gathered)
    }

    fn scan(&self, part: Part, capacity: usize) -> Result<Gathered> {
        let text = self.text;
        let bound = |position| Bound::new(text, self.ties, position);
        let (mut low, mut high) = (part.low.map(bound), part.high.map(bound));
        let first = |bound: &Bound<WIDTH>| text.digit(bound.position);
        let first_tokens = low.as_ref().map_or(0, first)..=high.as_ref().map_or(u32::MAX, first);
        let mut entries = Entries::new(capacity.min(text.len()))?;
        let (mut count, mut stride) = (0, 1);
        for block in (0..text.len()).step_by(PERIOD) {
            let mut candidates = self.residues & text.find(block, &first_tokens);
            while candidates != 0 {
                let position = block + candidates.trailing_zeros() as usize;
                candidates &= candidates - 1;
                let key = text.key(position);
                let is_below = |bound: &mut Bound<WIDTH>| bound.compare(key, position).is_lt();
                if low.as_mut().is_some_and(is_below) || !high.as_mut().is_none_or(is_below) {
                    continue;
                }
                if count % stride == 0 && entries.is_full() {
                    entries.thin(THINNING);
                    stride *= THINNING;
                }
                if count % stride == 0 {
                    entries.push(entry(key, position));
                }
                count += 1;
            }
        }
        Ok(Gathered { entries, count })
    }

    /// Sorts entries that hold the keys `depth` tokens from their positions.
    fn sort_entries(&self, entries: &mut [u128], depth: usize) {
        entries.sort_unstable();
        let depth = depth + self.text.key_len;
        for group in entries.chunk_by_mut(|&a, &b| key(a) == key(b)) {
            if group.len() > SMALL && depth < PERIOD {
                for place in &mut *group {
                    let position = position(*place) as usize;
                    *place = entry(self.text.key(position + depth), position);
                }
                self.sort_entries(group, depth);
            } else if group.len() > 1 {
                group.sort_unstable_by(|&a, &b| {
                    self.compare(position(a) as usize, position(b) as usize)
                });
            }
        }
    }

    fn compare(&self, a: usize, b: usize) -> Ordering {
        compare(self.text.window(a), self.text.window(b)).then_with(|| self.ties.compare(a, b))
    }
}

/// How much rarer entries become each time that they do not fit. Not 2: texts often repeat
/// themselves with such a period, and then all entries would be of one kind.
const THINNING: usize = 3;

/// Splits a part so that each of its parts can be expected to fit.
fn split(part: Part, found: &Gathered, capacity: usize) -> Vec<Part> {
    let num_parts = found
        .count
        .div_ceil(capacity / 8 * 7)
        .min(found.entries.len());
    let inner = (1..num_parts).map(|index| {
        let sample = index * found.entries.len() / num_parts;
        Some(position(found.entries[sample]) as usize)
    });
    let bounds: Vec<_> = [part.low]
        .into_iter()
        .chain(inner)
        .chain([part.high])
        .collect();
    bounds
        .windows(2)
        .map(|bounds| Part {
            low: bounds[0],
            high: bounds[1],
        })
        .collect()
}

fn hand_on(entries: &[u128], sink: &mut dyn FnMut(&[u32]) -> Result<()>) -> Result<()> {
    let mut positions = Vec::with_capacity(CHUNK.min(entries.len()));
    for chunk in entries.chunks(CHUNK) {
        positions.clear();
        positions.extend(chunk.iter().map(|&entry| position(entry)));
        sink(&positions)?;
    }
    Ok(())
}

/// A suffix that all suffixes are compared to, in the order of their positions.
struct Bound<'a, const WIDTH: usize> {
    text: &'a Text<'a, WIDTH>,
    ties: Ties<'a>,
    position: usize,
    key: u128,
    window: &'a [[u8; WIDTH]],
    /// The window repeats itself after so many tokens: another suffix that begins like it, so many
    /// tokens after one that does, is known to do so but for as many.
    period: usize,
    last_equal: Option<usize>,
}

impl<'a, const WIDTH: usize> Bound<'a, WIDTH> {
    fn new(text: &'a Text<'a, WIDTH>, ties: Ties<'a>, position: usize) -> Self {
        let window = text.window(position);
        let repeats = |&period: &usize| window[period..] == window[..window.len() - period];
        Self {
            text,
            ties,
            position,
            key: text.key(position),
            window,
            period: (1..window.len()).find(repeats).unwrap_or(PERIOD),
            last_equal: None,
        }
    }

    /// How the suffix at `position`, which has this key, compares to the bound.
    fn compare(&mut self, key: u128, position: usize) -> Ordering {
        if key != self.key {
            return key.cmp(&self.key);
        }
        let window = self.text.window(position);
        if self.equals(window, position) {
            self.last_equal = Some(position);
            self.ties.compare(position, self.position)
        } else {
            compare(window, self.window)
        }
    }

    fn equals(&self, window: &[[u8; WIDTH]], position: usize) -> bool {
        let is_next = self
            .last_equal
            .is_some_and(|last| last + self.period == position);
        if is_next && window.len() == PERIOD && self.window.len() == PERIOD {
            (PERIOD - self.period..PERIOD).all(|index| window[index] == self.window[index])
        } else {
            window == self.window
        }
    }
}
