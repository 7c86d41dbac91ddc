//! Token probabilities by the counts of a corpus.

use crate::base::error::{Error, Result};
use crate::base::threads::in_parallel;
use crate::lookup::datastore::Datastore;
use crate::lookup::matches::Match;

const MIN_IN_PARALLEL: usize = 64;

impl Datastore {
    /// Returns the infinity-gram probability of each token (Liu et al. 2024, section 2) and the length of its
    /// context.
    ///
    /// The context is the longest suffix of the text before the token, of at most `max_match` tokens, that occurs
    /// in the corpus; the probability is the share of its occurrences that the token follows. A context does not
    /// extend across a separator. The end of a document counts as the separator.
    /// O(log `max_match` · log n) a token.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`] if a token is not in the vocabulary.
    pub fn infinity_gram(&self, tokens: &[u32], max_match: usize) -> Result<Vec<(f64, usize)>> {
        self.check_text(tokens)?;
        let everywhere = self.find(&[])?;
        let (mut found, mut document_start) = (Match::default(), 0);
        let mut score = |(place, &token): (usize, &u32)| {
            // Each part of a match occurs too, so a match grows by at most one token.
            let longest = max_match.min(found.length + 1).min(place - document_start);
            let context = &tokens[place - longest..place];
            if longest == 0 {
                found = Match::default();
            } else {
                self.shards.find_longest(context, longest, 1, &mut found);
            }
            if token == self.separator() {
                document_start = place + 1;
            }
            let of = if found.length == 0 { &everywhere } else { &found };
            let share = self.count_next(of, token) as f64 / of.count().max(1) as f64;
            (share, found.length)
        };
        Ok(tokens.iter().enumerate().map(&mut score).collect())
    }

    /// Returns the natural logarithm of each token's probability after at most `max_match` tokens, which is always
    /// finite.
    ///
    /// The counts of each context length are smoothed with the next shorter one by a Dirichlet prior of
    /// `concentration` occurrences (`MacKay` and Peto 1995):
    /// `p(t | c) = (#(c t) + concentration · p(t | c')) / (#c + concentration)`, where `c'` is `c` without its first
    /// token. Without context, all tokens and the end of a document are equally likely. A context does not extend
    /// across a separator. O(`max_match` · log n) a token.
    ///
    /// # Errors
    /// [`Error::TokenOutOfRange`], or [`Error::InvalidArgument`] if `concentration` is not finite and above 0.
    pub fn score(&self, tokens: &[u32], max_match: usize, concentration: f64) -> Result<Vec<f64>> {
        self.check_text(tokens)?;
        if !(concentration.is_finite() && concentration > 0.0) {
            let reason = format!("must be finite and above 0, not {concentration}");
            return Err(Error::invalid("concentration", reason));
        }
        let everywhere = self.find(&[])?;
        let has_end = self.separator() < self.vocab_size();
        let num_outcomes = f64::from(self.vocab_size()) + f64::from(u8::from(!has_end));
        let score = |place: &mut usize| {
            let (place, token) = (*place, tokens[*place]);
            let (mut prob, mut found) = (1.0 / num_outcomes, Match::default());
            let before = tokens[..place].iter().rev().take(max_match);
            let longest = before.take_while(|&&token| token != self.separator());
            for length in 0..=longest.count() {
                let of = if length == 0 {
                    &everywhere
                } else {
                    self.shards.find(&tokens[place - length..place], &mut found);
                    &found
                };
                let count = of.count();
                if count == 0 {
                    break; // no longer context occurs either
                }
                prob = (self.count_next(of, token) as f64 + concentration * prob)
                    / (count as f64 + concentration);
            }
            prob.ln()
        };
        let mut places: Vec<usize> = (0..tokens.len()).collect();
        Ok(in_parallel(&mut places, MIN_IN_PARALLEL, score))
    }

    /// Counts the occurrences of `token` after a match; of the separator, the documents that end there.
    pub(crate) fn count_next(&self, found: &Match, token: u32) -> u64 {
        let shards = self.shards.iter().zip(&found.ranges);
        let counts = shards.map(|(shard, ranks)| {
            let count = shard.count_next(ranks.clone(), found.length, token);
            count as u64
        });
        counts.sum()
    }

    fn check_text(&self, tokens: &[u32]) -> Result<()> {
        let documents = tokens.split(|&token| token == self.separator());
        let mut documents = documents.map(|document| self.check_tokens(document));
        documents.try_for_each(|checked| checked)
    }
}
