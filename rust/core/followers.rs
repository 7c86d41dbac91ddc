//! What follows a single token in a datastore?

use std::sync::OnceLock;

use crate::datastore::{Datastore, Match, Samples};
use crate::evidence::runs;
use crate::hidden::Hidden;

/// How many occurrences of a token are looked at.
const MAX_SAMPLES: usize = 128;

/// How many of the tokens that follow them are kept.
const MAX_TOKENS: usize = 24;

/// The most frequent tokens after one token, in an even sample of its occurrences.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    pub(crate) num_matches: f32,
    pub(crate) num_samples: f32,
    /// Count descending, then token ascending.
    pub(crate) counts: Box<[(u32, f32)]>,
}

/// Those of every token of a datastore: looked up when they are first asked for, then kept.
///
/// Every node of a tree asks for its token's, and few tokens are most of a text.
#[derive(Debug)]
pub(crate) struct AllFollowers {
    of_tokens: Box<[OnceLock<Followers>]>,
    /// Of each token, half the logarithm of how often it occurs.
    pub(crate) frequencies: Box<[u8]>,
}

impl AllFollowers {
    /// O(vocabulary).
    pub(crate) fn new(datastore: &Datastore) -> Self {
        let tokens = 0..datastore.vocab_size();
        let frequency = |token| {
            let count = datastore.count(&[token]).unwrap_or(0);
            u8::try_from((count + 1).ilog2() / 2).unwrap_or(u8::MAX)
        };
        Self {
            of_tokens: tokens.clone().map(|_| OnceLock::new()).collect(),
            frequencies: tokens.map(frequency).collect(),
        }
    }

    pub(crate) fn of(&self, datastore: &Datastore, token: u32) -> Option<&Followers> {
        let followers = self.of_tokens.get(token as usize)?;
        Some(followers.get_or_init(|| look_up(datastore, token)))
    }
}

fn look_up(datastore: &Datastore, token: u32) -> Followers {
    if token == datastore.separator() {
        return Followers::default();
    }
    let mut found = Match::default();
    datastore.find(&[token], &mut found);
    let samples = datastore.samples(&found, 1, MAX_SAMPLES);
    count(found.count(), &samples)
}

/// What follows a token elsewhere than in a hidden document; `None` where the token is so frequent
/// that one document makes no difference, and for the separator.
pub(crate) fn look_up_elsewhere(
    datastore: &Datastore,
    token: u32,
    hidden: &Hidden,
) -> Option<Followers> {
    if token == datastore.separator() {
        return None;
    }
    let mut found = Match::default();
    datastore.find(&[token], &mut found);
    let (num_matches, samples) = hidden.samples_elsewhere(datastore, &found, 1, MAX_SAMPLES)?;
    Some(count(num_matches, &samples))
}

#[expect(clippy::cast_precision_loss, reason = "as precise as a weight is")]
fn count(num_matches: u64, samples: &Samples) -> Followers {
    let nexts = samples.iter().filter_map(<[u32]>::first).copied();
    let mut counts: Vec<(u32, f32)> = runs(nexts).collect();
    // Stable, and the rows of a sample are sorted.
    counts.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    counts.truncate(MAX_TOKENS);
    Followers {
        num_matches: num_matches as f32,
        num_samples: samples.len() as f32,
        counts: counts.into(),
    }
}
