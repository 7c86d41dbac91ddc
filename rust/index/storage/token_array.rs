//! Arrays of tokens with two or three bytes each.

use std::cmp::Ordering;

use crate::storage::section::Section;

/// Bytes of a token, which are the same for a whole datastore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenWidth {
    Two,
    Three,
}

impl TokenWidth {
    /// Returns the smallest width for the vocabulary and the separator.
    pub fn of(vocab_size: u32, separator: u32) -> Self {
        let largest = separator.max(vocab_size.saturating_sub(1));
        if largest <= u16::MAX.into() { Self::Two } else { Self::Three }
    }

    pub fn num_bytes(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Three => 3,
        }
    }

    pub fn decode(self, bytes: &[u8]) -> Vec<u32> {
        let stored = bytes.chunks_exact(self.num_bytes());
        let token = |stored: &[u8]| {
            let mut token = [0; 4];
            token[..stored.len()].copy_from_slice(stored);
            u32::from_le_bytes(token)
        };
        stored.map(token).collect()
    }

    /// Appends the bytes of tokens. The caller has checked that each token fits.
    pub fn encode(self, tokens: &[u32], bytes: &mut Vec<u8>) {
        match self {
            Self::Two => encode::<2>(tokens, bytes),
            Self::Three => encode::<3>(tokens, bytes),
        }
    }
}

/// Appends the bytes of tokens. The width is a constant, so that the compiler uses whole registers.
fn encode<const WIDTH: usize>(tokens: &[u32], bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.resize(start + tokens.len() * WIDTH, 0);
    let (stored, _) = bytes[start..].as_chunks_mut::<WIDTH>();
    for (stored, token) in stored.iter_mut().zip(tokens) {
        stored.copy_from_slice(&token.to_le_bytes()[..WIDTH]);
    }
}

#[derive(Debug)]
pub(crate) struct Tokens {
    pub(crate) section: Section,
    pub(crate) width: TokenWidth,
}

impl Tokens {
    pub(crate) fn new(section: Section, width: TokenWidth) -> Self {
        Self { section, width }
    }

    pub(crate) fn len(&self) -> usize {
        self.section.payload().len() / self.width.num_bytes()
    }

    pub(crate) fn get(&self, index: usize) -> Option<u32> {
        match self.width {
            TokenWidth::Two => from::<2>(&self.section, index).next(),
            TokenWidth::Three => from::<3>(&self.section, index).next(),
        }
    }

    /// Compares the tokens from `index` on with `pattern`, up to the length of the pattern.
    pub(crate) fn compare(&self, index: usize, pattern: &[u32]) -> Ordering {
        match self.width {
            TokenWidth::Two => compare(from::<2>(&self.section, index), pattern),
            TokenWidth::Three => compare(from::<3>(&self.section, index), pattern),
        }
    }

    pub(crate) fn extend(&self, index: usize, length: usize, tokens: &mut Vec<u32>) {
        match self.width {
            TokenWidth::Two => extend::<2>(&self.section, index, length, tokens),
            TokenWidth::Three => extend::<3>(&self.section, index, length, tokens),
        }
    }

    pub(crate) fn will_need(&self, index: usize, length: usize) {
        let byte = |index: usize| index.saturating_mul(self.width.num_bytes());
        let end = byte(index.saturating_add(length));
        self.section.will_need(byte(index)..end);
    }

    /// Visits the tokens from `index` on until `visit` returns false.
    pub(crate) fn visit(&self, index: usize, visit: impl FnMut(u32) -> bool) {
        let _ = match self.width {
            TokenWidth::Two => from::<2>(&self.section, index).all(visit),
            TokenWidth::Three => from::<3>(&self.section, index).all(visit),
        };
    }
}

fn stored<const WIDTH: usize>(section: &Section, index: usize) -> &[[u8; WIDTH]] {
    let (words, _) = section.payload().as_chunks();
    words.get(index..).unwrap_or_default()
}

fn decode<const WIDTH: usize>(word: &[u8; WIDTH]) -> u32 {
    let mut bytes = [0; 4];
    bytes[..WIDTH].copy_from_slice(word);
    u32::from_le_bytes(bytes)
}

fn from<const WIDTH: usize>(section: &Section, index: usize) -> impl ExactSizeIterator<Item = u32> {
    stored(section, index).iter().map(decode::<WIDTH>)
}

/// Appends up to `length` tokens from `index` on. The length is known before, so memory is reserved once.
fn extend<const WIDTH: usize>(
    section: &Section,
    index: usize,
    length: usize,
    tokens: &mut Vec<u32>,
) {
    let stored = stored::<WIDTH>(section, index);
    tokens.extend(stored[..length.min(stored.len())].iter().map(decode));
}

fn compare(mut tokens: impl Iterator<Item = u32>, pattern: &[u32]) -> Ordering {
    for wanted in pattern {
        match tokens.next() {
            None => return Ordering::Less,
            Some(token) if token != *wanted => return token.cmp(wanted),
            Some(_) => {}
        }
    }
    Ordering::Equal
}
