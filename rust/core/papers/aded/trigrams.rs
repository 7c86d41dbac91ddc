//! What follows two tokens, and how often? ADED's matrix of tri-grams.

use crate::base::error::{Error, Result};

/// The bits that a token takes in a prefix.
const TOKEN_BITS: u32 = 21;

/// The largest vocabulary of a matrix: three of its tokens fit 64 bits.
pub const MAX_VOCAB_SIZE: u32 = 1 << TOKEN_BITS;

/// What is counted, and what of it is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrigramOptions {
    /// The tokens of an n-gram, 2 to 4: a word and the `order - 1` before it. ADED's is 3.
    pub order: usize,
    /// At most this many words are kept after each prefix, the likeliest: ADED's threshold `t`.
    pub max_words: usize,
    /// N-grams that occur less often are left out.
    pub min_count: u64,
}

impl Default for TrigramOptions {
    /// ADED's: tri-grams, and its threshold of 12.
    ///
    /// "The threshold for the elimination of tri-gram probability" can be no count, as the paper's
    /// corpora differ in size by six, nor a probability: the program that its authors have published
    /// takes the 12 likeliest words.
    fn default() -> Self {
        Self {
            order: 3,
            max_words: 12,
            min_count: 1,
        }
    }
}

/// What a matrix is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrigramFacts {
    /// What was counted, and what of it was kept.
    pub options: TrigramOptions,
    /// Tokens are below this.
    pub vocab_size: u32,
    /// The token that ends a document: only the last of an n-gram, and `vocab_size` where it is none.
    pub separator: u32,
}

impl TrigramFacts {
    pub(crate) fn check(&self) -> Result<()> {
        let TrigramOptions {
            order,
            max_words,
            min_count,
        } = self.options;
        if !(2..=4).contains(&order) {
            let reason = format!("must lie in 2..=4, not {order}");
            return Err(Error::invalid("order", reason));
        }
        if max_words == 0 {
            return Err(Error::invalid("max_words", "must be at least 1"));
        }
        if min_count == 0 {
            return Err(Error::invalid("min_count", "must be at least 1"));
        }
        let vocab_size = self.vocab_size;
        if !(1..=MAX_VOCAB_SIZE).contains(&vocab_size) || self.separator > vocab_size {
            let reason =
                format!("must lie in 1..={MAX_VOCAB_SIZE} for tri-grams, not {vocab_size}");
            return Err(Error::invalid("vocab_size", reason));
        }
        Ok(())
    }
}

/// A token after a prefix, and how likely it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Word {
    pub(crate) token: u32,
    pub(crate) prob: f32,
}

impl Word {
    /// The order of a row: the likeliest first, then by token.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "as sorts ask for it")]
    pub(crate) fn compare(&self, other: &Self) -> std::cmp::Ordering {
        let by_prob = other.prob.total_cmp(&self.prob);
        by_prob.then(self.token.cmp(&other.token))
    }
}

/// The words after a prefix in their order, and the sum of their probabilities.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Row<'a> {
    pub(crate) words: &'a [Word],
    pub(crate) total: f64,
}

/// The sum of probabilities as a row states it, added in the order of the row.
pub(crate) fn total(words: &[Word]) -> f64 {
    words.iter().map(|word| f64::from(word.prob)).sum()
}

/// The tokens before a word, of which there are `order - 1`; ordered as they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Prefix(pub(crate) u64);

impl Prefix {
    /// The prefix of the word after `token`.
    pub(crate) fn then(self, token: u32, order: usize) -> Self {
        let mask = (1 << (TOKEN_BITS as usize * (order - 1))) - 1;
        Self((self.0 << TOKEN_BITS | u64::from(token)) & mask)
    }

    /// The prefix of all these tokens.
    fn of(tokens: &[u32]) -> Self {
        let join = |prefix, &token| prefix << TOKEN_BITS | u64::from(token);
        Self(tokens.iter().fold(0, join))
    }

    /// The first of its tokens.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "no more bits than a token has"
    )]
    fn first(self, order: usize) -> usize {
        (self.0 >> (TOKEN_BITS as usize * (order - 2))) as usize
    }
}

/// The probabilities of frequent n-grams: `P(w₃ | w₁, w₂) = C(w₁, w₂, w₃) / C(w₁, w₂)` (ADED, Eq. 1).
///
/// `C(w₁, w₂)` counts the places where a token follows, so the probabilities of all words would add
/// up to 1; those of the words that are kept add up to less. The end of a document follows as its
/// separator, where that is a token of the vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct Trigrams {
    facts: TrigramFacts,
    /// Ascending.
    prefixes: Vec<Prefix>,
    /// Where the words of each prefix begin, and where those of the last one end.
    starts: Vec<usize>,
    words: Vec<Word>,
    totals: Vec<f64>,
    /// How many prefixes begin with a token below each.
    heads: Vec<usize>,
}

impl Trigrams {
    /// Puts a matrix together: prefixes ascend, `starts` says where the words of each begin and where
    /// the last ones end, and the words of a prefix are in their order.
    pub(crate) fn new(
        facts: TrigramFacts,
        prefixes: Vec<Prefix>,
        starts: Vec<usize>,
        words: Vec<Word>,
    ) -> Self {
        let rows = starts.windows(2).map(|range| &words[range[0]..range[1]]);
        let totals = rows.map(total).collect();
        let mut heads = vec![0; facts.vocab_size as usize + 1];
        for prefix in &prefixes {
            heads[prefix.first(facts.options.order) + 1] += 1;
        }
        for token in 1..heads.len() {
            heads[token] += heads[token - 1];
        }
        Self {
            facts,
            prefixes,
            starts,
            words,
            totals,
            heads,
        }
    }

    /// What it is made of.
    pub fn facts(&self) -> &TrigramFacts {
        &self.facts
    }

    /// The n-grams that it keeps.
    pub fn num_entries(&self) -> usize {
        self.words.len()
    }

    /// The different beginnings of these n-grams, all tokens but the last.
    pub fn num_prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// The words after some tokens and their probabilities, likeliest first, then by token; none
    /// unless there are `order - 1` tokens. O(log prefixes) and the words.
    pub fn words(&self, tokens: &[u32]) -> Vec<(u32, f32)> {
        let is_prefix = tokens.len() == self.facts.options.order - 1
            && tokens.iter().all(|&token| token < self.facts.vocab_size);
        if !is_prefix {
            return Vec::new();
        }
        let words = self.row(Prefix::of(tokens)).words.iter();
        words.map(|word| (word.token, word.prob)).collect()
    }

    /// The words after a prefix of tokens of the vocabulary. O(log of those that begin alike).
    pub(crate) fn row(&self, prefix: Prefix) -> Row<'_> {
        let first = prefix.first(self.facts.options.order);
        let range = self.heads[first]..self.heads[first + 1];
        match self.prefixes[range.clone()].binary_search(&prefix) {
            Ok(index) => self.row_at(range.start + index),
            Err(_) => Row::default(),
        }
    }

    fn row_at(&self, index: usize) -> Row<'_> {
        Row {
            words: &self.words[self.starts[index]..self.starts[index + 1]],
            total: self.totals[index],
        }
    }
}
