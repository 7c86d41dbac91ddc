//! Where did a token, or two in a row, come before in a text that grows?

use crate::base::portable_math::saturating_u32;
use crate::memory::postings::Postings;
use crate::memory::slot_table::{SlotTable, bits_of, bytes_of, reserve};

/// A text that grows at its end, and the places of each token and pair of it.
///
/// A token costs O(1) to append, and an earlier occurrence O(1) to step to.
#[derive(Debug, Default, Clone)]
pub struct History {
    tokens: Vec<u32>,
    /// For each place the one before it that holds the same token, or [`NONE`].
    same_token: Vec<u32>,
    last_of_token: SlotTable,
    of_pairs: Postings,
}

impl AsRef<[u32]> for History {
    fn as_ref(&self) -> &[u32] {
        &self.tokens
    }
}

/// Indexing a whole text lists the last place of every token, up to this one.
const MAX_LISTED: usize = 1 << 24;

/// No place.
const NONE: u32 = u32::MAX;

impl History {
    /// Separates documents: it has no postings, and no pair contains it.
    pub const BOUNDARY: u32 = u32::MAX;

    /// The most tokens that are kept.
    pub const MAX_LENGTH: usize = Postings::MAX_PLACES;

    /// Appends tokens, up to [`MAX_LENGTH`](Self::MAX_LENGTH) in all. Amortised O(tokens).
    pub fn extend(&mut self, tokens: &[u32]) {
        let room = Self::MAX_LENGTH - self.tokens.len();
        let tokens = &tokens[..tokens.len().min(room)];
        reserve(&mut self.tokens, tokens.len());
        reserve(&mut self.same_token, tokens.len());
        for &token in tokens {
            self.push(token);
        }
    }

    /// Indexes a whole text at once, in a fraction of the time that appending takes.
    pub(crate) fn of(mut tokens: Vec<u32>) -> Self {
        tokens.truncate(Self::MAX_LENGTH);
        let in_text = tokens.iter().filter(|&&token| token != Self::BOUNDARY);
        let most = in_text.max().map_or(0, |&token| token as usize + 1);
        let token_bits = bits_of(most.saturating_sub(1));
        if most > MAX_LISTED || 2 * token_bits + bits_of(tokens.len()) > u64::BITS {
            let mut history = Self::default();
            history.extend(&tokens);
            return history;
        }
        let mut last = vec![NONE; most];
        let mut same_token = Vec::new();
        reserve(&mut same_token, tokens.len());
        for (place, &token) in tokens.iter().enumerate() {
            let before = last.get_mut(token as usize);
            let place = saturating_u32(place);
            same_token.push(before.map_or(NONE, |last| std::mem::replace(last, place)));
        }
        let tokens_with_last = (0..).zip(last).filter(|&(_, place)| place != NONE);
        let last_of_token = SlotTable::of(&tokens_with_last.collect::<Vec<_>>(), tokens.len());
        let pairs = (1..).zip(tokens.windows(2));
        let pairs = pairs.filter(|(_, two)| !two.contains(&Self::BOUNDARY));
        let pairs =
            pairs.map(|(place, two)| (place, u64::from(two[0]) << token_bits | u64::from(two[1])));
        let widened = |key| (key >> token_bits) << 32 | key & !(u64::MAX << token_bits);
        let of_pairs = Postings::of_all(&pairs, widened, tokens.len());
        Self {
            tokens,
            same_token,
            last_of_token,
            of_pairs,
        }
    }

    /// The whole text.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The whole text, without its index.
    pub(crate) fn into_tokens(self) -> Vec<u32> {
        self.tokens
    }

    /// The positions that hold `token`, the latest first.
    pub fn of_token(&self, token: u32) -> impl Iterator<Item = usize> {
        let key_of = |place| token_at(&self.tokens, place);
        let last = self.last_of_token.get(token.into(), key_of);
        let earlier = |&place: &u32| {
            let earlier = self.same_token[place as usize];
            (earlier != NONE).then_some(earlier)
        };
        std::iter::successors(last, earlier).map(|place| place as usize)
    }

    /// The positions that hold `token` right after `before`, the latest first.
    pub fn of_pair(&self, before: u32, token: u32) -> impl Iterator<Item = usize> {
        let key_of = |place| pair_at(&self.tokens, place);
        self.of_pairs.of(pair(before, token), key_of)
    }

    /// The memory that the history takes, in bytes.
    pub fn num_bytes(&self) -> usize {
        bytes_of(&self.tokens)
            + bytes_of(&self.same_token)
            + self.last_of_token.num_bytes()
            + self.of_pairs.num_bytes()
    }

    fn push(&mut self, token: u32) {
        let place = saturating_u32(self.tokens.len());
        let before = self.tokens.last().copied().unwrap_or(Self::BOUNDARY);
        self.tokens.push(token);
        let mut same_token = None;
        if token != Self::BOUNDARY {
            let tokens = &self.tokens;
            let key_of = |place| token_at(tokens, place);
            same_token = self.last_of_token.replace(place, key_of);
            if before != Self::BOUNDARY {
                self.of_pairs.add(place, |place| pair_at(tokens, place));
            }
        }
        self.same_token.push(same_token.unwrap_or(NONE));
    }
}

fn token_at(tokens: &[u32], place: u32) -> u64 {
    tokens[place as usize].into()
}

/// The pair that ends at a place.
fn pair_at(tokens: &[u32], place: u32) -> u64 {
    let place = place as usize;
    pair(tokens[place - 1], tokens[place])
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn occurrences_equal_a_scan_after_every_piece(
            pieces in vec(vec(prop_oneof![6 => 0_u32..4, 1 => Just(BOUNDARY)], 0..12), 0..8),
        ) {
            let mut history = History::default();
            let mut text = Vec::new();
            for piece in pieces {
                history.extend(&piece);
                text.extend(piece);
                check(&history, &text, 4);
            }
            let mut filed = History::of(text.clone());
            check(&filed, &text, 4);
            filed.extend(&[1, 2, 1, 2]);
            check(&filed, &[&text[..], &[1, 2, 1, 2]].concat(), 4);
        }
    }

    /// Some pairs come once, some as often as it takes for runs of every size.
    #[test]
    fn occurrences_equal_a_scan_through_many_growths() {
        let often = |token: u32| if token.is_multiple_of(3) { 0 } else { token };
        let text: Vec<_> = text(20_000).into_iter().map(often).collect();
        let mut history = History::default();
        for piece in text.chunks(1777) {
            history.extend(piece);
        }
        let count = |before, token| history.of_pair(before, token).count();
        assert!(count(0, 0) > 1000 && (0..40).any(|token| count(1, token) == 1));
        check(&history, &text, 40);
        let filed = History::of(text.clone());
        check(&filed, &text, 40);
        assert!(filed.num_bytes() <= history.num_bytes());
        check(&History::of(vec![u32::MAX - 1, 7]), &[u32::MAX - 1, 7], 8);
        assert_eq!(History::of(Vec::new()).num_bytes(), 0);
    }

    /// A pair and its place are filed as 64 bits: all of them used, and more than there are.
    #[test]
    fn the_largest_tokens_are_filed_as_others_are() {
        for length in [(1 << 16) - 3, 1 << 16] {
            let largest = [(1 << 24) - 1, 7, (1 << 24) - 1];
            let text = [&text(length)[..length - 1], &largest].concat();
            let filed = History::of(text.clone());
            check(&filed, &text, 4);
            for token in [7, (1 << 24) - 1] {
                let found: Vec<_> = filed.of_pair((1 << 24) - 1, token).collect();
                assert_eq!(found, occurrences(&text, &[(1 << 24) - 1, token]));
                assert!(filed.of_pair(token, (1 << 24) - 1).count() <= 1);
            }
        }
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
