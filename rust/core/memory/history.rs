//! Where did a token, or two in a row, come before in a text that grows?

use std::hint::black_box;
use std::ops::BitXor;

use crate::base::portable_math::saturating_u32;
use crate::memory::slot_table::{SlotTable, bytes_of, reserve};

/// A text that grows at its end, and the places of each of its tokens and pairs.
#[derive(Debug, Default, Clone)]
pub struct History {
    tokens: Vec<u32>,
    of_tokens: Links,
    of_pairs: Links,
}

/// The places of each key, the latest first.
#[derive(Debug, Default, Clone)]
struct Links {
    /// For each place the one before it with the same key, or [`NONE`].
    before: Vec<u32>,
    last: SlotTable,
}

/// Prefetched together.
const BLOCK: usize = 32;

const NONE: u32 = u32::MAX;

impl Links {
    fn add(&mut self, key_of: Option<impl Fn(u32) -> u64>) {
        let place = saturating_u32(self.before.len());
        let before = key_of.and_then(|key_of| self.last.replace(place, key_of));
        self.before.push(before.unwrap_or(NONE));
    }

    fn of(&self, key: u64, key_of: impl Fn(u32) -> u64) -> impl Iterator<Item = usize> {
        let before = |&place: &u32| {
            let before = self.before[place as usize];
            (before != NONE).then_some(before)
        };
        std::iter::successors(self.last.get(key, key_of), before).map(|place| place as usize)
    }

    fn num_bytes(&self) -> usize {
        bytes_of(&self.before) + self.last.num_bytes()
    }
}

impl History {
    /// Separates documents: no place of it is found, and no pair contains it.
    pub const BOUNDARY: u32 = u32::MAX;

    pub const MAX_LENGTH: usize = (1 << 30) - 1;

    /// Beyond [`MAX_LENGTH`](Self::MAX_LENGTH) in all, tokens are dropped. Amortised O(tokens).
    pub fn extend(&mut self, tokens: &[u32]) {
        let room = Self::MAX_LENGTH - self.tokens.len();
        let tokens = &tokens[..tokens.len().min(room)];
        self.reserve(tokens.len());
        for block in tokens.chunks(BLOCK) {
            self.prefetch(block);
            for &token in block {
                self.push(token);
            }
        }
    }

    pub(crate) fn reserve(&mut self, num_tokens: usize) {
        for places in [
            &mut self.tokens,
            &mut self.of_tokens.before,
            &mut self.of_pairs.before,
        ] {
            reserve(places, num_tokens);
        }
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(crate) fn into_tokens(self) -> Vec<u32> {
        self.tokens
    }

    /// The positions that hold `token`, the latest first.
    pub fn of_token(&self, token: u32) -> impl Iterator<Item = usize> {
        let key_of = |place| token_at(&self.tokens, place);
        self.of_tokens.of(token.into(), key_of)
    }

    /// The positions that hold `token` right after `before`, the latest first.
    pub fn of_pair(&self, before: u32, token: u32) -> impl Iterator<Item = usize> {
        let key_of = |place| pair_at(&self.tokens, place);
        self.of_pairs.of(pair(before, token), key_of)
    }

    pub fn num_bytes(&self) -> usize {
        bytes_of(&self.tokens) + self.of_tokens.num_bytes() + self.of_pairs.num_bytes()
    }

    /// Reads what appending these tokens will, without a branch that would wait: so all cache misses
    /// overlap.
    fn prefetch(&self, block: &[u32]) {
        let pairs = block.windows(2).map(|two| pair(two[0], two[1]));
        let places = pairs.map(|pair| self.of_pairs.last.guess(pair) as usize);
        let read = places.map(|place| self.tokens.get(place).copied().unwrap_or(0));
        black_box(read.fold(0, BitXor::bitxor));
    }

    fn push(&mut self, token: u32) {
        let before = self.tokens.last().copied().unwrap_or(Self::BOUNDARY);
        self.tokens.push(token);
        let tokens = &self.tokens;
        let is_in_text = token != Self::BOUNDARY;
        self.of_tokens
            .add(is_in_text.then_some(|place| token_at(tokens, place)));
        let is_pair = is_in_text && before != Self::BOUNDARY;
        self.of_pairs
            .add(is_pair.then_some(|place| pair_at(tokens, place)));
    }
}

fn token_at(tokens: &[u32], place: u32) -> u64 {
    tokens[place as usize].into()
}

fn pair_at(tokens: &[u32], place: u32) -> u64 {
    let place = place as usize;
    pair(tokens[place - 1], tokens[place])
}

fn pair(before: u32, token: u32) -> u64 {
    u64::from(before) << 32 | u64::from(token)
}

#[cfg(test)]
mod tests {
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

    /// Some pairs come once, some a thousand times.
    #[test]
    fn occurrences_equal_a_scan_through_many_growths() {
        let often = |token: u32| match token {
            39 => BOUNDARY,
            token if token.is_multiple_of(3) => 0,
            token => token,
        };
        let text: Vec<_> = text(20_000).into_iter().map(often).collect();
        let mut history = History::default();
        for (number, piece) in text.chunks(17).enumerate() {
            history.extend(piece);
            if number < 20 {
                check(&history, &text[..17 * (number + 1)], 40);
            }
        }
        let count = |before, token| history.of_pair(before, token).count();
        assert!(count(0, 0) > 1000 && (0..40).any(|token| count(1, token) == 1));
        check(&history, &text, 40);
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
