//! Tables of the target model's predictions without a context and after a single token.

use specds_index::base::checks::check_tokens;
use specds_index::{Error, Result};

/// The likeliest tokens of a target model, computed once per model and shared by requests.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelTables {
    vocab_size: u32,
    k: usize,
    bigram: Vec<u32>,
    bigram_probs: Vec<f32>,
    unigram: Vec<u32>,
}

impl ModelTables {
    /// Creates tables from the `k` likeliest tokens after each token, best first, their probabilities,
    /// and the vocabulary in unigram order, best first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the lengths differ or a probability is not in 0 to 1; [`Error::TokenOutOfRange`].
    pub fn new(bigram: Vec<u32>, bigram_probs: Vec<f32>, unigram: Vec<u32>) -> Result<Self> {
        let vocab_size = u32::try_from(unigram.len()).unwrap_or(0);
        let k = bigram.len().checked_div(unigram.len()).unwrap_or(0);
        let is_whole = k * unigram.len() == bigram.len() && bigram_probs.len() == bigram.len();
        if k == 0 || !is_whole {
            let reason = format!("must have a row for each of {vocab_size} tokens, at least one");
            return Err(Error::invalid("bigram", reason));
        }
        if let Some(prob) = bigram_probs.iter().find(|p| !(0.0..=1.0).contains(*p)) {
            let reason = format!("must lie in 0.0..=1.0, not {prob}");
            return Err(Error::invalid("bigram_probs", reason));
        }
        check_tokens(bigram.iter().chain(&unigram), vocab_size)?;
        Ok(Self { vocab_size, k, bigram, bigram_probs, unigram })
    }

    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    pub fn k(&self) -> usize {
        self.k
    }

    /// Returns the likeliest tokens after each token, `k` a row.
    pub fn bigram(&self) -> &[u32] {
        &self.bigram
    }

    pub fn bigram_probs(&self) -> &[f32] {
        &self.bigram_probs
    }

    pub fn unigram(&self) -> &[u32] {
        &self.unigram
    }

    /// Returns the likeliest tokens after `token` with their probabilities, best first. A token outside
    /// the vocabulary has none.
    pub(crate) fn after(&self, token: u32) -> impl Iterator<Item = (u32, f32)> + '_ {
        let start = (token as usize).saturating_mul(self.k);
        let row = start..start.saturating_add(self.k);
        let tokens = self.bigram.get(row.clone()).unwrap_or_default();
        let probs = self.bigram_probs.get(row).unwrap_or_default();
        tokens.iter().copied().zip(probs.iter().copied())
    }
}
