//! Most frequent tokens after each token.

use std::sync::OnceLock;

use crate::base::runs::runs;
use crate::base::threads::in_parallel;
use crate::lookup::matches::Match;
use crate::lookup::samples::Samples;
use crate::lookup::shards::Shards;

const MAX_SAMPLES: usize = 128;

const MAX_TOKENS: usize = 24;

/// The most frequent tokens after a token, in an even sample of its occurrences.
#[derive(Debug, Default)]
pub struct NextTokens {
    /// Number of occurrences of the token.
    pub num_matches: f32,
    /// Number of occurrences in the sample.
    pub num_samples: f32,
    /// The next tokens with their counts in the sample: count descending, then token ascending.
    pub counts: Box<[(u32, f32)]>,
}

/// A table of [`NextTokens`] by token. An entry is looked up at its first use and cached, because every node of a
/// draft needs the entry of its token.
#[derive(Debug)]
pub(crate) struct AllNextTokens {
    of_tokens: Box<[OnceLock<NextTokens>]>,
    /// Half the binary logarithm of the frequency of each token.
    pub(crate) frequencies: Box<[u8]>,
}

impl AllNextTokens {
    /// Counts each token; entries are not looked up yet. O(vocabulary).
    pub(crate) fn new(shards: &Shards) -> Self {
        let tokens = 0..shards.vocab_size;
        let mut found = Match::default();
        let frequency = |token| {
            shards.find(&[token], &mut found);
            u8::try_from((found.count() + 1).ilog2() / 2).unwrap_or(u8::MAX)
        };
        Self {
            of_tokens: tokens.clone().map(|_| OnceLock::new()).collect(),
            frequencies: tokens.map(frequency).collect(),
        }
    }

    pub(crate) fn fill(&self, shards: &Shards) {
        const MIN_IN_PARALLEL: usize = 64;
        let mut tokens: Vec<u32> = (0..shards.vocab_size).collect();
        in_parallel(&mut tokens, MIN_IN_PARALLEL, |token| {
            self.of(shards, *token);
        });
    }

    pub(crate) fn of(&self, shards: &Shards, token: u32) -> Option<&NextTokens> {
        let next_tokens = self.of_tokens.get(token as usize)?;
        Some(next_tokens.get_or_init(|| look_up(shards, token)))
    }
}

fn look_up(shards: &Shards, token: u32) -> NextTokens {
    let mut found = Match::default();
    shards.find(&[token], &mut found);
    let mut samples = Samples::default();
    shards.read_samples(&found, 1, MAX_SAMPLES, &[], &mut samples);
    count(found.count(), &samples)
}

fn count(num_matches: u64, samples: &Samples) -> NextTokens {
    let nexts = samples.iter().filter_map(<[u32]>::first).copied();
    let mut counts: Vec<(u32, f32)> = runs(nexts).collect();
    counts.sort_unstable_by(|(token, a), (other, b)| b.total_cmp(a).then(token.cmp(other)));
    counts.truncate(MAX_TOKENS);
    NextTokens {
        num_matches: num_matches as f32,
        num_samples: samples.len() as f32,
        counts: counts.into(),
    }
}
