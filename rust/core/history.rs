//! Where did a token, or two in a row, come before in a text that grows?

use crate::latest::{Latest, spread};
use crate::links::{Links, copy};
use crate::numeric::small;

/// The most tokens that are appended at a time: they are made room for at once.
pub(crate) const PIECE: usize = 1024;

/// A text that grows at its end; each position is linked to the one before that ends alike.
///
/// A token costs O(1) to append, and an earlier occurrence O(1) to step to. A token takes 12 bytes,
/// up to an eighth of that to spare, and at most 6 for each token or pair that is new: 13 to 16 in
/// a million tokens of text, 19 where no two tokens come twice.
#[derive(Debug, Default, Clone)]
pub struct History {
    columns: Columns,
    last_of_token: Latest,
    last_of_pair: Latest,
}

#[derive(Debug, Default, Clone)]
struct Columns {
    tokens: Vec<u32>,
    /// The position before that holds the same token.
    same_token: Links,
    /// The position before that holds the same token after the same token.
    same_pair: Links,
}

/// What a history needs to grow, made without changing it.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    columns: Option<Columns>,
    last_of_token: Option<Latest>,
    last_of_pair: Option<Latest>,
}

impl History {
    /// Divides documents. It is found nowhere itself, and no pair reaches across it.
    pub const BOUNDARY: u32 = u32::MAX;

    /// The most tokens that are kept.
    pub const MAX_LENGTH: usize = Links::MAX_PLACE as usize + 1;

    /// An empty text with room for so many tokens, though not for what finds them.
    pub(crate) fn with_capacity(num_tokens: usize) -> Self {
        let columns = Columns::default().grown(num_tokens).unwrap_or_default();
        Self {
            columns,
            ..Self::default()
        }
    }

    /// Appends tokens; those beyond [`MAX_LENGTH`](Self::MAX_LENGTH) are not kept. O(tokens).
    pub fn extend(&mut self, tokens: &[u32]) {
        for piece in tokens.chunks(PIECE) {
            let growth = self.growth(piece.len());
            self.adopt(growth);
            self.append(piece);
        }
    }

    /// Appends tokens that may be taken back. O(tokens), and seldom O(tokens so far).
    pub(crate) fn try_on(&mut self, tokens: &[u32]) {
        // Room for all of them at once: what was filed before a table grew cannot be taken back.
        let growth = self.growth(tokens.len());
        self.adopt(growth);
        self.append(tokens);
    }

    /// Takes back all but the first `length` tokens, the last of which were tried on at once.
    pub(crate) fn take_back(&mut self, length: usize) {
        while self.columns.tokens.len() > length {
            let Columns {
                tokens,
                same_token,
                same_pair,
            } = &mut self.columns;
            let (earlier, earlier_pair) = (same_token.pop(), same_pair.pop());
            let Some(token) = tokens.pop() else {
                return;
            };
            let position = small(tokens.len());
            if token != Self::BOUNDARY {
                self.last_of_token
                    .restore(spread(token.into()), position, earlier);
                let before = tokens.last().copied().unwrap_or(Self::BOUNDARY);
                if before != Self::BOUNDARY {
                    let hash = spread(pair(before, token));
                    self.last_of_pair.restore(hash, position, earlier_pair);
                }
            }
        }
    }

    /// The whole text.
    pub fn tokens(&self) -> &[u32] {
        &self.columns.tokens
    }

    /// The positions that hold `token`, the latest first.
    pub fn of_token(&self, token: u32) -> impl Iterator<Item = usize> {
        let last = self.last_of_token.get(spread(token.into()), |position| {
            self.columns.holds(position, token)
        });
        self.columns.same_token.from(last)
    }

    /// The positions that hold `token` right after `before`, the latest first.
    pub fn of_pair(&self, before: u32, token: u32) -> impl Iterator<Item = usize> {
        let last = self
            .last_of_pair
            .get(spread(pair(before, token)), |position| {
                self.columns.holds_pair(position, before, token)
            });
        self.columns.same_pair.from(last)
    }

    /// The memory that the history takes, in bytes.
    pub fn num_bytes(&self) -> usize {
        num_bytes(self.columns.tokens.capacity())
            + self.last_of_token.num_bytes()
            + self.last_of_pair.num_bytes()
    }

    /// The most memory that it takes once `additional` tokens are appended, in bytes.
    pub(crate) fn num_bytes_with(&self, additional: usize) -> usize {
        num_bytes(self.columns.most_with(additional))
            + self.last_of_token.num_bytes_with(additional, PIECE)
            + self.last_of_pair.num_bytes_with(additional, PIECE)
    }

    /// What it takes to append so many tokens. O(tokens so far), but seldom more than O(1).
    pub(crate) fn growth(&self, additional: usize) -> Growth {
        let Columns { tokens, .. } = &self.columns;
        let end = tokens.len() + additional;
        let token_hash = |position: u32| spread(tokens[position as usize].into());
        let pair_hash = |position: u32| {
            let position = position as usize;
            spread(pair(tokens[position - 1], tokens[position]))
        };
        Growth {
            columns: self.columns.grown(additional),
            last_of_token: self.last_of_token.grown(additional, end, token_hash),
            last_of_pair: self.last_of_pair.grown(additional, end, pair_hash),
        }
    }

    /// Grows; gives what is not needed any more.
    pub(crate) fn adopt(&mut self, growth: Growth) -> Growth {
        Growth {
            columns: replace(&mut self.columns, growth.columns),
            last_of_token: replace(&mut self.last_of_token, growth.last_of_token),
            last_of_pair: replace(&mut self.last_of_pair, growth.last_of_pair),
        }
    }

    /// Appends tokens that there is room for.
    pub(crate) fn append(&mut self, piece: &[u32]) {
        for &token in piece {
            let Self {
                columns,
                last_of_token,
                last_of_pair,
            } = self;
            if columns.tokens.len() == Self::MAX_LENGTH {
                return;
            }
            let position = small(columns.tokens.len());
            let (mut same_token, mut same_pair) = (None, None);
            if token != Self::BOUNDARY {
                same_token = last_of_token.replace(spread(token.into()), position, |position| {
                    columns.holds(position, token)
                });
                let before = columns.tokens.last().copied().unwrap_or(Self::BOUNDARY);
                if before != Self::BOUNDARY {
                    let hash = spread(pair(before, token));
                    same_pair = last_of_pair.replace(hash, position, |position| {
                        columns.holds_pair(position, before, token)
                    });
                }
            }
            columns.tokens.push(token);
            columns.same_token.push(same_token);
            columns.same_pair.push(same_pair);
        }
    }
}

impl Columns {
    fn holds(&self, position: u32, token: u32) -> bool {
        self.tokens[position as usize] == token
    }

    fn holds_pair(&self, position: u32, before: u32, token: u32) -> bool {
        let position = position as usize;
        self.tokens[position] == token && self.tokens[position - 1] == before
    }

    fn capacity_for(&self, additional: usize) -> usize {
        let length = self.tokens.len();
        if length + additional <= self.tokens.capacity() {
            self.tokens.capacity()
        } else {
            length + additional.max(length / 8)
        }
    }

    /// The largest capacity after so many tokens, which are made room for in pieces.
    fn most_with(&self, additional: usize) -> usize {
        let length = self.tokens.len() + additional;
        if length <= self.tokens.capacity() {
            self.tokens.capacity()
        } else {
            length + additional.min(PIECE).max(length / 8)
        }
    }

    fn grown(&self, additional: usize) -> Option<Self> {
        let capacity = self.capacity_for(additional);
        (capacity > self.tokens.capacity()).then(|| Self {
            tokens: copy(&self.tokens, capacity),
            same_token: self.same_token.grown(capacity),
            same_pair: self.same_pair.grown(capacity),
        })
    }
}

/// The memory that three columns take.
fn num_bytes(capacity: usize) -> usize {
    3 * size_of::<u32>() * capacity
}

/// Puts a new value in the place of an old one, where there is a new one; gives the old one.
pub(crate) fn replace<T>(value: &mut T, by: Option<T>) -> Option<T> {
    by.map(|by| std::mem::replace(value, by))
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn what_was_tried_on_and_taken_back_is_found_nowhere(
            pieces in vec(
                (
                    vec(prop_oneof![6 => 0_u32..4, 1 => Just(BOUNDARY)], 0..9),
                    vec(prop_oneof![6 => 0_u32..6, 1 => Just(BOUNDARY)], 0..40),
                ),
                0..8,
            ),
        ) {
            let mut history = History::default();
            let mut text = Vec::new();
            for (piece, trial) in pieces {
                history.extend(&piece);
                text.extend(piece);
                history.try_on(&trial);
                check(&history, &[&text[..], &trial].concat(), 6);
                history.take_back(text.len());
                check(&history, &text, 6);
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
        let growth = history.growth(5000);
        assert_eq!(history.num_bytes(), before);
        history.adopt(growth);
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
