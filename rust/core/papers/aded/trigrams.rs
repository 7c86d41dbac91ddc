//! Tri-gram matrix of ADED.

use serde::{Deserialize, Serialize};

use specds_index::Result;
use specds_index::base::checks::check_within;

const TOKEN_BITS: u32 = 21;

/// The maximum vocabulary size, so that three tokens fit 64 bits.
pub const MAX_VOCAB_SIZE: u32 = 1 << TOKEN_BITS;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrigramOptions {
    /// The tokens of an n-gram, 2 to 4: a word and those before it.
    pub order: usize,
    /// The maximum number of words after each prefix, likeliest first: the threshold `t` of ADED.
    pub max_words: usize,
}

impl Default for TrigramOptions {
    /// The paper's threshold is not a count, because its corpora differ sixfold in size, nor a probability:
    /// the program of its authors keeps the 12 likeliest words.
    fn default() -> Self {
        Self { order: 3, max_words: 12 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Word {
    pub(crate) token: u32,
    pub(crate) prob: f32,
}

impl Word {
    /// The likeliest first, then by token.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as sorts ask for it")]
    pub(crate) fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let by_prob = other.prob.total_cmp(&self.prob);
        by_prob.then(self.token.cmp(&other.token))
    }
}

/// The `order - 1` tokens before a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Prefix(pub(crate) u64);

impl Prefix {
    pub(crate) fn then(self, token: u32, order: usize) -> Self {
        let mask = (1 << (TOKEN_BITS as usize * (order - 1))) - 1;
        Self((self.0 << TOKEN_BITS | u64::from(token)) & mask)
    }
}

/// The probabilities of frequent n-grams: `P(w₃ | w₁, w₂) = C(w₁, w₂, w₃) / C(w₁, w₂)` (ADED, Eq. 1).
///
/// `C(w₁, w₂)` counts the places where a token follows. The end of a document follows as its separator,
/// where that is a token of the vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigrams {
    options: TrigramOptions,
    vocab_size: u32,
    pub(crate) separator: u32,
    /// The prefixes, ascending.
    prefixes: Vec<Prefix>,
    /// The start of the words of each prefix, and the end of the last ones.
    starts: Vec<usize>,
    words: Vec<Word>,
}

impl Trigrams {
    pub(super) fn empty(options: TrigramOptions, vocab_size: u32, separator: u32) -> Result<Self> {
        check_within("order", options.order, 2..=4)?;
        check_within("max_words", options.max_words, 1..=usize::MAX)?;
        check_within("vocab_size", vocab_size, 1..=MAX_VOCAB_SIZE)?;
        Ok(Self {
            options,
            vocab_size,
            separator,
            prefixes: Vec::new(),
            starts: vec![0],
            words: Vec::new(),
        })
    }

    /// Appends a prefix above all others, and its likeliest words.
    pub(super) fn append(&mut self, prefix: Prefix, mut words: Vec<Word>) {
        words.sort_unstable_by(Word::compare);
        words.truncate(self.options.max_words);
        self.prefixes.push(prefix);
        self.words.extend(words);
        self.starts.push(self.words.len());
    }

    pub fn options(&self) -> TrigramOptions {
        self.options
    }

    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    pub fn num_entries(&self) -> usize {
        self.words.len()
    }

    /// The words after `order - 1` tokens and their probabilities, likeliest first, then by token. O(log
    /// prefixes) and the words.
    pub fn words(&self, tokens: &[u32]) -> Vec<(u32, f32)> {
        let order = self.options.order;
        if tokens.len() != order - 1 || tokens.iter().any(|&token| token >= self.vocab_size) {
            return Vec::new();
        }
        let then = |prefix: Prefix, &token| prefix.then(token, order);
        let words = self.row(tokens.iter().fold(Prefix::default(), then)).iter();
        words.map(|word| (word.token, word.prob)).collect()
    }

    /// O(log prefixes).
    pub(crate) fn row(&self, prefix: Prefix) -> &[Word] {
        let index = self.prefixes.binary_search(&prefix);
        index.map_or(&[], |index| &self.words[self.starts[index]..self.starts[index + 1]])
    }
}
