//! The probability of each token of a text, by the counts of the corpus.

use crate::base::error::{Error, Result};
use crate::base::threads::in_parallel;
use crate::lookup::datastore::Datastore;
use crate::lookup::matches::Match;

const MIN_IN_PARALLEL: usize = 64;

impl Datastore {
    /// The infinity-gram probability of each token (Liu et al. 2024, section 2): of the occurrences of the
    /// longest suffix of the text before it, of at most `max_match` tokens, the share that goes on with it;
    /// and that suffix's length. Only what follows the last separator is context. The end of a document
    /// counts as the separator. O(log `max_match` · log n) a token.
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

    /// The natural logarithm of each token's probability after at most `max_match` tokens, never that of 0:
    /// the counts of each length are mixed with the next shorter one's as by a Dirichlet prior of
    /// `concentration` occurrences (`MacKay` and Peto 1995), `p(t | c) = (#(c t) + concentration · p(t |
    /// c')) / (#c + concentration)`, where `c'` is `c` without its first token; without context all tokens
    /// and the end of a document are equally likely. Only what follows the last separator is context.
    /// O(`max_match` · log n) a token.
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
                    break; // and nothing that is longer occurs
                }
                prob = (self.count_next(of, token) as f64 + concentration * prob)
                    / (count as f64 + concentration);
            }
            prob.ln()
        };
        let mut places: Vec<usize> = (0..tokens.len()).collect();
        Ok(in_parallel(&mut places, MIN_IN_PARALLEL, score))
    }

    /// How often `token` follows a match; for the separator, how often a document ends there.
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
