//! Tri-grams that adapt to a request.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::papers::aded::config::AdedConfig;
use crate::papers::aded::trigrams::{Prefix, Trigrams, Word};

/// The maximum number of words in adapted rows, 8 bytes each.
const CAPACITY: usize = if cfg!(test) { 64 } else { 1 << 22 };

/// The overhead of a row, in words.
const ROW_SIZE: usize = 8;

/// Algorithm 2 of ADED for one n-gram.
fn adapt(words: &mut Vec<Word>, token: u32, config: &AdedConfig) {
    match words.iter_mut().find(|word| word.token == token) {
        Some(word) => word.prob = (word.prob + config.increment).min(config.max_prob),
        None => words.push(Word { token, prob: config.increment }),
    }
    words.sort_by(Word::compare); // takes linear time, because only one word is out of order
}

/// A matrix of tri-grams with adapted rows, for one or several requests.
///
/// The matrix is shared and immutable: an update copies a row. All copies are dropped when they exceed
/// about 32 MiB.
#[derive(Debug)]
pub struct AdaptiveTrigrams {
    trigrams: Arc<Trigrams>,
    learned: RwLock<AdaptedRows>,
}

#[derive(Debug, Default)]
struct AdaptedRows {
    rows: HashMap<Prefix, Vec<Word>>,
    /// The part of [`CAPACITY`] that the rows take.
    size: usize,
}

impl AdaptiveTrigrams {
    pub fn new(trigrams: Arc<Trigrams>) -> Self {
        Self { trigrams, learned: RwLock::default() }
    }

    pub fn trigrams(&self) -> &Arc<Trigrams> {
        &self.trigrams
    }

    /// Returns a reader that blocks updates.
    pub(crate) fn reader(&self) -> TrigramReader<'_> {
        TrigramReader {
            trigrams: &self.trigrams,
            learned: self.learned.read().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Updates the rows: each token followed its prefix. O(words of their rows).
    pub(crate) fn learn(&self, grams: &[(Prefix, u32)], config: &AdedConfig) {
        let mut learned = self.learned.write().unwrap_or_else(PoisonError::into_inner);
        for &(prefix, token) in grams {
            if learned.size > CAPACITY {
                *learned = AdaptedRows::default();
            }
            let AdaptedRows { rows, size } = &mut *learned;
            let words = rows.entry(prefix).or_insert_with(|| {
                let words = self.trigrams.row(prefix).to_vec();
                *size += ROW_SIZE + words.len();
                words
            });
            *size -= words.len();
            adapt(words, token, config);
            *size += words.len();
        }
    }
}

pub(crate) struct TrigramReader<'a> {
    trigrams: &'a Trigrams,
    learned: RwLockReadGuard<'a, AdaptedRows>,
}

impl TrigramReader<'_> {
    pub(crate) fn then(&self, prefix: Prefix, token: u32) -> Prefix {
        prefix.then(token, self.trigrams.options().order)
    }

    pub(crate) fn row(&self, prefix: Prefix) -> &[Word] {
        match self.learned.rows.get(&prefix) {
            Some(words) => &words[..words.len().min(self.trigrams.options().max_words)],
            None => self.trigrams.row(prefix),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{AdaptiveTrigrams, AdedConfig, CAPACITY, Prefix, ROW_SIZE};
    use crate::papers::aded::trigrams::{TrigramOptions, Trigrams};

    #[test]
    fn adapted_rows_are_dropped_beyond_the_capacity() {
        let trigrams = Trigrams::empty(TrigramOptions::default(), 100, 100).unwrap();
        let learning = AdaptiveTrigrams::new(Arc::new(trigrams));
        let most = CAPACITY / (ROW_SIZE + 1) + 1;
        for (prefix, number) in (0..).map(Prefix).zip((1..=most).cycle()).take(3 * most) {
            learning.learn(&[(prefix, 7)], &AdedConfig::default());
            let learned = learning.learned.read().unwrap();
            assert_eq!(learned.rows.len(), number);
            assert_eq!(learned.size, number * (ROW_SIZE + 1));
        }
    }
}
