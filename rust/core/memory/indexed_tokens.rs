//! An append-only token sequence with an index of its 1-grams and 2-grams.

use std::hint::black_box;
use std::ops::BitXor;

use crate::memory::keyless_table::{KeylessTable, bytes_of, reserve};
use crate::portable_math::saturating_u32;

/// An append-only token sequence that finds the positions of a token or a pair, the latest first.
///
/// Each position links to the previous one of the same key, and a keyless table maps a key to its latest
/// position. The tables store no keys, because a key can be read from the sequence: about 13 bytes a token.
#[derive(Debug, Default, Clone)]
pub struct IndexedTokens {
    tokens: Vec<u32>,
    of_tokens: Links,
    of_pairs: Links,
}

/// The positions of each key, the latest first.
#[derive(Debug, Default, Clone)]
struct Links {
    /// The previous position with the same key for each position, or [`NONE`].
    previous: Vec<u32>,
    last: KeylessTable,
}

/// Number of tokens that are prefetched together.
const BLOCK: usize = 32;

const NONE: u32 = u32::MAX;

impl Links {
    fn add(&mut self, key_of: Option<impl Fn(u32) -> u64>) {
        let place = saturating_u32(self.previous.len());
        let before = key_of.and_then(|key_of| self.last.replace(place, key_of));
        self.previous.push(before.unwrap_or(NONE));
    }

    fn of(&self, key: u64, key_of: impl Fn(u32) -> u64) -> impl Iterator<Item = usize> {
        let before = |&place: &u32| {
            let before = self.previous[place as usize];
            (before != NONE).then_some(before)
        };
        std::iter::successors(self.last.get(key, key_of), before).map(|place| place as usize)
    }

    fn num_bytes(&self) -> usize {
        bytes_of(&self.previous) + self.last.num_bytes()
    }
}

impl IndexedTokens {
    /// Separates documents. It has no position in the index and is in no pair.
    pub const BOUNDARY: u32 = u32::MAX;

    pub const MAX_LENGTH: usize = (1 << 30) - 1;

    /// Appends tokens; those beyond [`MAX_LENGTH`](Self::MAX_LENGTH) are dropped. Amortized O(tokens).
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
        for places in [&mut self.tokens, &mut self.of_tokens.previous, &mut self.of_pairs.previous]
        {
            reserve(places, num_tokens);
        }
    }

    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(crate) fn into_tokens(self) -> Vec<u32> {
        self.tokens
    }

    /// Returns the positions of `token`, the latest first.
    pub fn of_token(&self, token: u32) -> impl Iterator<Item = usize> {
        let key_of = |place| token_at(&self.tokens, place);
        self.of_tokens.of(token.into(), key_of)
    }

    /// Returns the positions of `token` directly after `before`, the latest first.
    pub fn of_pair(&self, before: u32, token: u32) -> impl Iterator<Item = usize> {
        let key_of = |place| pair_at(&self.tokens, place);
        self.of_pairs.of(pair(before, token), key_of)
    }

    pub fn num_bytes(&self) -> usize {
        bytes_of(&self.tokens) + self.of_tokens.num_bytes() + self.of_pairs.num_bytes()
    }

    /// Reads the slots that appending these tokens will read. No branch depends on a read, so all cache misses
    /// overlap.
    fn prefetch(&self, block: &[u32]) {
        let pairs = block.windows(2).map(|two| pair(two[0], two[1]));
        let places = pairs.map(|pair| self.of_pairs.last.peek(pair) as usize);
        let read = places.map(|place| self.tokens.get(place).copied().unwrap_or(0));
        black_box(read.fold(0, BitXor::bitxor));
    }

    fn push(&mut self, token: u32) {
        let before = self.tokens.last().copied().unwrap_or(Self::BOUNDARY);
        self.tokens.push(token);
        let tokens = &self.tokens;
        let is_in_text = token != Self::BOUNDARY;
        self.of_tokens.add(is_in_text.then_some(|place| token_at(tokens, place)));
        let is_pair = is_in_text && before != Self::BOUNDARY;
        self.of_pairs.add(is_pair.then_some(|place| pair_at(tokens, place)));
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
