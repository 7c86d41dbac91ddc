//! Where did a token, or two in a row, come before in a text that grows?

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

/// Stands for no position.
const NONE: u32 = u32::MAX;

/// A text that grows at its end; each position is linked to the one before that ends alike.
///
/// A token costs O(1) to append, and an earlier occurrence O(1) to step to.
#[derive(Debug, Default, Clone)]
pub(crate) struct History {
    tokens: Vec<u32>,
    /// The position before that holds the same token.
    same_token: Vec<u32>,
    /// The position before that holds the same token after the same token.
    same_pair: Vec<u32>,
    last_of_token: HashMap<u32, u32, BuildHasherDefault<Hasher>>,
    last_of_pair: HashMap<u64, u32, BuildHasherDefault<Hasher>>,
}

impl History {
    /// Appends tokens. O(tokens).
    pub(crate) fn extend(&mut self, tokens: &[u32]) {
        for &token in tokens {
            let position = u32::try_from(self.tokens.len()).unwrap_or(NONE);
            if position == NONE {
                return;
            }
            let pair = self.tokens.last().map(|&before| pair(before, token));
            let same_token = self.last_of_token.insert(token, position);
            let same_pair = pair.and_then(|pair| self.last_of_pair.insert(pair, position));
            self.tokens.push(token);
            self.same_token.push(same_token.unwrap_or(NONE));
            self.same_pair.push(same_pair.unwrap_or(NONE));
        }
    }

    /// The whole text.
    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The positions that hold `token`, the latest first.
    pub(crate) fn of_token(&self, token: u32) -> impl Iterator<Item = usize> {
        chain(self.last_of_token.get(&token), &self.same_token)
    }

    /// The positions that hold `token` right after `before`, the latest first.
    pub(crate) fn of_pair(&self, before: u32, token: u32) -> impl Iterator<Item = usize> {
        chain(self.last_of_pair.get(&pair(before, token)), &self.same_pair)
    }
}

fn pair(before: u32, token: u32) -> u64 {
    u64::from(before) << 32 | u64::from(token)
}

fn chain<'a>(last: Option<&u32>, links: &'a [u32]) -> impl Iterator<Item = usize> + 'a {
    let first = last.map(|&position| position as usize);
    std::iter::successors(first, |&position| {
        links
            .get(position)
            .filter(|&&link| link != NONE)
            .map(|&link| link as usize)
    })
}

/// Spreads the bits of one integer. Its keys are tokens of texts that are drafted for: whoever chose
/// them to collide would slow down his own request.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Hasher(u64);

impl std::hash::Hasher for Hasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // hashbrown takes its buckets from the low bits and its tags from the high ones.
        self.0 = (self.0 ^ number)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::History;

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
}
