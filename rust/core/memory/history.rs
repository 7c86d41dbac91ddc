//! Where did a token, or two in a row, come before in a text that grows?

use std::hint::black_box;
use std::ops::BitXor;

use crate::base::portable_math::saturating_u32;
use crate::memory::postings::{self, Postings};
use crate::memory::slot_table::{PARTS, SlotTable, copy, replace, spread};

/// The most tokens that are appended at a time: they are made room for at once.
pub(crate) const PIECE: usize = 1024;

/// The tokens of a piece that are appended one right after the other.
const BLOCK: usize = 32;

/// A text that grows at its end, and the places of each token and pair of it.
///
/// A token costs O(1) to append, and an earlier occurrence O(1) to step to.
#[derive(Debug, Default, Clone)]
pub struct History {
    columns: Columns,
    last_of_token: SlotTable,
    of_pairs: Postings,
}

#[derive(Debug, Default, Clone)]
struct Columns {
    tokens: Vec<u32>,
    /// For each place the one before it that holds the same token, or [`NONE`].
    same_token: Vec<u32>,
}

/// Stands for no place.
const NONE: u32 = u32::MAX;

/// What a history needs to grow, made without changing it.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    columns: Option<Columns>,
    last_of_token: Option<SlotTable>,
    of_pairs: postings::Reserved,
}

impl History {
    /// Divides documents. It is found nowhere itself, and no pair reaches across it.
    pub const BOUNDARY: u32 = u32::MAX;

    /// The most tokens that are kept.
    pub const MAX_LENGTH: usize = Postings::MAX_PLACES;

    /// An empty text with room for `num_tokens` tokens, though not for what finds them.
    pub(crate) fn with_capacity(num_tokens: usize) -> Self {
        Self {
            columns: Columns::default().copied(num_tokens),
            ..Self::default()
        }
    }

    /// Appends tokens; those beyond [`MAX_LENGTH`](Self::MAX_LENGTH) are not kept. O(tokens).
    pub fn extend(&mut self, tokens: &[u32]) {
        for piece in tokens.chunks(PIECE) {
            let reserved = self.reserved(piece.len());
            self.adopt(reserved);
            self.append(piece);
        }
    }

    /// The whole text.
    pub fn tokens(&self) -> &[u32] {
        &self.columns.tokens
    }

    /// The positions that hold `token`, the latest first.
    pub fn of_token(&self, token: u32) -> impl Iterator<Item = usize> {
        let is_same = |place| self.columns.holds(place, token);
        let last = self.last_of_token.get(spread(token.into()), is_same);
        let earlier = |&place: &u32| {
            let earlier = self.columns.same_token[place as usize];
            (earlier != NONE).then_some(earlier)
        };
        std::iter::successors(last, earlier).map(|place| place as usize)
    }

    /// The positions that hold `token` right after `before`, the latest first.
    pub fn of_pair(&self, before: u32, token: u32) -> impl Iterator<Item = usize> {
        let is_same = move |place| self.columns.holds_pair(place, before, token);
        self.of_pairs.of(spread(pair(before, token)), is_same)
    }

    /// The memory that the history takes, in bytes.
    pub fn num_bytes(&self) -> usize {
        num_bytes(self.columns.tokens.capacity())
            + self.last_of_token.num_bytes()
            + self.of_pairs.num_bytes()
    }

    /// The most memory that it takes once `additional` tokens are appended, in bytes.
    pub(crate) fn num_bytes_with(&self, additional: usize) -> usize {
        num_bytes(self.columns.most_with(additional))
            + self.last_of_token.num_bytes_with(additional, PIECE)
            + self.of_pairs.num_bytes_with(additional, PIECE)
    }

    /// The memory to append `additional` tokens. O(tokens so far), but seldom more than O(1).
    pub(crate) fn reserved(&self, additional: usize) -> Reserved {
        let tokens = self.tokens();
        let end = tokens.len() + additional;
        let token_hash = |place: u32| spread(tokens[place as usize].into());
        let pair_hash = |place: u32| {
            let place = place as usize;
            spread(pair(tokens[place - 1], tokens[place]))
        };
        Reserved {
            columns: self.columns.grown(additional),
            last_of_token: self.last_of_token.grown(additional, end, token_hash),
            of_pairs: self.of_pairs.reserved(additional, end, pair_hash),
        }
    }

    /// Grows; gives what is not needed any more.
    pub(crate) fn adopt(&mut self, reserved: Reserved) -> Reserved {
        Reserved {
            columns: replace(&mut self.columns, reserved.columns),
            last_of_token: replace(&mut self.last_of_token, reserved.last_of_token),
            of_pairs: self.of_pairs.adopt(reserved.of_pairs),
        }
    }

    /// Appends tokens that there is room for.
    pub(crate) fn append(&mut self, piece: &[u32]) {
        let room = Self::MAX_LENGTH - self.tokens().len();
        for block in piece[..piece.len().min(room)].chunks(BLOCK) {
            self.touch(block);
            for &token in block {
                self.push(token);
            }
        }
    }

    fn push(&mut self, token: u32) {
        let columns = &self.columns;
        let place = saturating_u32(columns.tokens.len());
        let mut same_token = None;
        if token != Self::BOUNDARY {
            let hash = spread(token.into());
            let is_same = |place| columns.holds(place, token);
            same_token = self.last_of_token.replace(hash, place, is_same);
            if let Some(before) = before(&columns.tokens) {
                let hash = spread(pair(before, token));
                let is_same = |place| columns.holds_pair(place, before, token);
                self.of_pairs.add(hash, place, is_same);
            }
        }
        self.columns.tokens.push(token);
        self.columns.same_token.push(same_token.unwrap_or(NONE));
    }

    /// Brings what is read to append a block of tokens into the cache.
    fn touch(&self, block: &[u32]) {
        let tokens = self.tokens();
        let hashes = block.windows(2).map(|two| spread(pair(two[0], two[1])));
        let places = self.of_pairs.touch(hashes);
        let touched = places.map(|place| tokens.get(place as usize).copied().unwrap_or(0));
        black_box(touched.fold(0, BitXor::bitxor));
    }
}

impl Columns {
    fn holds(&self, place: u32, token: u32) -> bool {
        self.tokens[place as usize] == token
    }

    fn holds_pair(&self, place: u32, before: u32, token: u32) -> bool {
        let place = place as usize;
        self.tokens[place] == token && self.tokens[place - 1] == before
    }

    /// The same with room for `capacity` tokens.
    fn copied(&self, capacity: usize) -> Self {
        Self {
            tokens: copy(&self.tokens, capacity),
            same_token: copy(&self.same_token, capacity),
        }
    }

    fn grown(&self, additional: usize) -> Option<Self> {
        let length = self.tokens.len();
        (length + additional > self.tokens.capacity())
            .then(|| self.copied(length + additional.max(length / PARTS)))
    }

    /// The largest capacity after `additional` more tokens, which are made room for in pieces.
    fn most_with(&self, additional: usize) -> usize {
        let length = self.tokens.len() + additional;
        if length <= self.tokens.capacity() {
            self.tokens.capacity()
        } else {
            length + additional.min(PIECE).max(length / PARTS)
        }
    }
}

/// The memory that two columns take.
fn num_bytes(capacity: usize) -> usize {
    2 * size_of::<u32>() * capacity
}

/// The last token, where a pair may begin with it.
fn before(tokens: &[u32]) -> Option<u32> {
    let last = tokens.last().copied();
    last.filter(|&last| last != History::BOUNDARY)
}

fn pair(before: u32, token: u32) -> u64 {
    u64::from(before) << 32 | u64::from(token)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::History;

    const BOUNDARY: u32 = History::BOUNDARY;

    /// Positions by definition, the latest first.
    fn occurrences(text: &[u32], pattern: &[u32]) -> Vec<usize> {
        let ends = pattern.len()..=text.len();
        let ends = ends.filter(|&end| text[..end].ends_with(pattern));
        ends.map(|end| end - 1).rev().collect()
    }

    fn check(history: &History, text: &[u32], num_tokens: u32) {
        assert_eq!(history.tokens(), text);
        assert_eq!(history.of_token(BOUNDARY).count(), 0);
        for token in 0..num_tokens {
            let found: Vec<_> = history.of_token(token).collect();
            assert_eq!(found, occurrences(text, &[token]));
            assert_eq!(history.of_pair(token, BOUNDARY).count(), 0);
            assert_eq!(history.of_pair(BOUNDARY, token).count(), 0);
            for before in 0..num_tokens {
                let found: Vec<_> = history.of_pair(before, token).collect();
                assert_eq!(found, occurrences(text, &[before, token]));
            }
        }
    }

    /// Numbers that look like any other but are the same in every run.
    fn numbers(below: u32) -> impl Iterator<Item = u32> {
        let step = |state: &u32| Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
        std::iter::successors(Some(1_u32), step).map(move |state| (state >> 8) % below)
    }

    /// Ranks fall as in text: few tokens make up most of it, and few pairs come once.
    fn text(length: usize) -> Vec<u32> {
        let skewed = |(a, b): (u32, u32)| (a + 1) * (b + 1) / 1000;
        let pairs = numbers(1000).zip(numbers(1000).skip(7));
        pairs.map(skewed).take(length).collect()
    }

    #[test]
    fn positions_come_latest_first() {
        let mut history = History::default();
        history.extend(&[1, 2, 1]);
        history.extend(&[2, 2, 1, 2]);
        assert_eq!(history.of_token(1).collect::<Vec<_>>(), [5, 2, 0]);
        assert_eq!(history.of_token(2).collect::<Vec<_>>(), [6, 4, 3, 1]);
        assert_eq!(history.of_pair(1, 2).collect::<Vec<_>>(), [6, 3, 1]);
        assert_eq!(history.of_pair(2, 2).collect::<Vec<_>>(), [4]);
        assert_eq!(history.of_pair(3, 2).count(), 0);
        assert_eq!(history.tokens(), [1, 2, 1, 2, 2, 1, 2]);
    }

    #[test]
    fn nothing_is_found_in_an_empty_text() {
        check(&History::default(), &[], 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn occurrences_equal_a_scan_after_every_piece(
            pieces in vec(vec(prop_oneof![6 => 0_u32..4, 1 => Just(BOUNDARY)], 0..12), 0..8),
        ) {
            let mut history = History::default();
            let mut text = Vec::new();
            for piece in pieces {
                let most = history.num_bytes_with(piece.len());
                history.extend(&piece);
                text.extend(piece);
                check(&history, &text, 4);
                prop_assert!(history.num_bytes() <= most);
            }
        }
    }

    #[test]
    fn occurrences_equal_a_scan_through_many_growths() {
        let text: Vec<u32> = numbers(60).take(20_000).collect();
        let mut history = History::default();
        for piece in text.chunks(1777) {
            let most = history.num_bytes_with(piece.len());
            history.extend(piece);
            assert!(history.num_bytes() <= most);
        }
        check(&history, &text, 60);
    }

    #[test]
    fn a_growth_leaves_the_history_as_it_was_until_it_is_adopted() {
        let text = text(3000);
        let mut history = History::default();
        history.extend(&text);
        let before = history.num_bytes();
        let reserved = history.reserved(5000);
        assert_eq!(history.num_bytes(), before);
        history.adopt(reserved);
        check(&history, &text, 20);
    }

    #[test]
    fn a_million_tokens_take_sixteen_bytes_each_at_the_most() {
        let text = text(1_100_000);
        let mut history = History::default();
        for piece in text.chunks(1000) {
            history.extend(piece);
            if history.tokens().len() >= 1_000_000 {
                assert!(history.num_bytes() <= 16 * history.tokens().len());
            }
        }
    }
}
