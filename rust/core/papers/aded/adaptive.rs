//! What has been learned since? ADED's update of the matrix by what the target model writes.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use crate::base::error::{Error, Result};
use crate::papers::aded::trigrams::{Prefix, Row, Trigrams, Word, total};

/// The words that are learned at most, and some for each row: 8 bytes each.
const CAPACITY: usize = 1 << 22;

/// What a row counts beside its words.
const ROW_SIZE: usize = 8;

/// How a matrix is adapted to a text.
///
/// ADED names the two numbers and does not state them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adaptation {
    /// What an n-gram that occurs gains, and what a new one begins with.
    pub increment: f32,
    /// No n-gram that occurs is likelier thereafter.
    pub max_prob: f32,
}

impl Default for Adaptation {
    fn default() -> Self {
        Self {
            increment: 0.5,
            max_prob: 1.0,
        }
    }
}

impl Adaptation {
    pub(crate) fn check(self) -> Result<()> {
        if !(self.max_prob > 0.0 && self.max_prob <= 1.0) {
            let reason = format!("must be above 0 and at most 1, not {}", self.max_prob);
            return Err(Error::invalid("max_prob", reason));
        }
        if !(self.increment > 0.0 && self.increment <= self.max_prob) {
            let reason = format!(
                "must be above 0 and at most `max_prob`, not {}",
                self.increment
            );
            return Err(Error::invalid("increment", reason));
        }
        Ok(())
    }

    /// Algorithm 2 of ADED for one n-gram: `token` came after the prefix of these words.
    fn apply(self, words: &mut Vec<Word>, token: u32) {
        match words.iter_mut().find(|word| word.token == token) {
            Some(word) => word.prob = (word.prob + self.increment).min(self.max_prob),
            None => words.push(Word {
                token,
                prob: self.increment,
            }),
        }
        words.sort_by(Word::compare); // linear in what is sorted but for a word
    }
}

/// A matrix of tri-grams and what was learned since, for one request or for several at a time.
///
/// The matrix itself is shared and never changes: a row that is learned from is copied first. What
/// is learned is bounded, to some 32 MiB: where it would grow beyond, all rows are again as they were
/// in the matrix.
#[derive(Debug)]
pub struct AdaptiveTrigrams {
    trigrams: Arc<Trigrams>,
    learned: RwLock<Learned>,
}

impl AdaptiveTrigrams {
    /// A matrix of which nothing was learned yet.
    pub fn new(trigrams: Arc<Trigrams>) -> Self {
        Self {
            trigrams,
            learned: RwLock::default(),
        }
    }

    /// The matrix as it was built.
    pub fn trigrams(&self) -> &Arc<Trigrams> {
        &self.trigrams
    }

    /// To read rows: nothing is learned meanwhile.
    pub(crate) fn reader(&self) -> Reader<'_> {
        Reader {
            trigrams: &self.trigrams,
            learned: self.learned.read().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Learns that each token came after the prefix beside it; nothing is read meanwhile. O(words of
    /// their rows).
    pub(crate) fn learn(&self, grams: &[(Prefix, u32)], adaptation: Adaptation) {
        let mut learned = self.learned.write().unwrap_or_else(PoisonError::into_inner);
        for &(prefix, token) in grams {
            let row = learned.take(prefix);
            let mut words = row.unwrap_or_else(|| self.trigrams.row(prefix).words.to_vec());
            adaptation.apply(&mut words, token);
            learned.put(prefix, words, self.trigrams.facts().options.max_words);
        }
    }
}

/// A matrix and what was learned, while nothing more is learned.
pub(crate) struct Reader<'a> {
    trigrams: &'a Trigrams,
    learned: RwLockReadGuard<'a, Learned>,
}

impl Reader<'_> {
    /// The prefix after another one and a token.
    pub(crate) fn then(&self, prefix: Prefix, token: u32) -> Prefix {
        prefix.then(token, self.trigrams.facts().options.order)
    }

    /// The words after a prefix.
    pub(crate) fn row(&self, prefix: Prefix) -> Row<'_> {
        match self.learned.rows.get(&prefix) {
            Some(row) => Row {
                words: &row.words[..row.words.len().min(self.trigrams.facts().options.max_words)],
                total: row.total,
            },
            None => self.trigrams.row(prefix),
        }
    }
}

#[derive(Debug)]
struct LearnedRow {
    words: Vec<Word>,
    total: f64,
}

/// Rows that differ from those of the matrix.
#[derive(Debug)]
struct Learned {
    rows: HashMap<Prefix, LearnedRow>,
    /// What they take, and may take at most.
    size: usize,
    max_size: usize,
}

impl Default for Learned {
    fn default() -> Self {
        Self {
            rows: HashMap::new(),
            size: 0,
            max_size: CAPACITY,
        }
    }
}

impl Learned {
    fn take(&mut self, prefix: Prefix) -> Option<Vec<Word>> {
        let row = self.rows.remove(&prefix)?;
        self.size -= ROW_SIZE + row.words.len();
        Some(row.words)
    }

    fn put(&mut self, prefix: Prefix, words: Vec<Word>, max_words: usize) {
        let size = ROW_SIZE + words.len();
        if self.size + size > self.max_size {
            self.rows.clear();
            self.size = 0;
        }
        self.size += size;
        let total = total(&words[..words.len().min(max_words)]);
        self.rows.insert(prefix, LearnedRow { words, total });
    }
}

#[cfg(test)]
mod tests {
    use super::{Learned, Prefix, ROW_SIZE, Word};

    #[test]
    fn what_was_learned_is_forgotten_where_there_is_no_room() {
        let mut learned = Learned {
            max_size: 3 * (ROW_SIZE + 1),
            ..Learned::default()
        };
        for (prefix, num_rows) in (0..).map(Prefix).zip([1, 2, 3, 1, 2, 3, 1]) {
            let words = learned.take(prefix);
            assert_eq!(words, None);
            learned.put(
                prefix,
                vec![Word {
                    token: 7,
                    prob: 0.5,
                }],
                1,
            );
            assert_eq!(learned.rows.len(), num_rows);
            assert_eq!(learned.size, num_rows * (ROW_SIZE + 1));
            let words = learned.take(prefix).unwrap();
            learned.put(prefix, words, 1);
        }
    }
}
