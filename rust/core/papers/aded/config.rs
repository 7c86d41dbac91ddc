//! Options of ADED.

use serde::{Deserialize, Serialize};

use specds_index::Result;
use specds_index::base::checks::check_within;

/// The search for sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SearchMethod {
    /// Monte Carlo tree search, as in the paper.
    #[default]
    Mcts,
    /// The likeliest word at each position, without a search; the ablation of the paper.
    Greedy,
}

/// Options of ADED. Defaults are the paper's; it names the last two without values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdedConfig {
    pub search: SearchMethod,
    /// The number of iterations of a search (s), up to 65,536.
    pub searches: usize,
    /// The number of tokens of a sentence (l), up to 1024.
    pub depth: usize,
    /// The number of sentences of a draft (n).
    pub candidates: usize,
    /// The weight of exploration.
    pub c1: f64,
    /// The number of visits after which exploration grows.
    pub c2: f64,
    /// The seed of the random numbers, which restart with each draft.
    pub seed: u64,
    /// Adapt the matrix to the context.
    pub adaptive: bool,
    /// The increment of the probability of an occurring n-gram, and the probability of a new one.
    pub increment: f32,
    /// The upper bound of an incremented probability.
    pub max_prob: f32,
}

impl Default for AdedConfig {
    fn default() -> Self {
        Self {
            search: SearchMethod::default(),
            searches: 150,
            depth: 4,
            candidates: 24,
            c1: 32.0,
            c2: 8.0,
            seed: 0,
            adaptive: true,
            increment: 0.5,
            max_prob: 1.0,
        }
    }
}

const MAX_SEARCHES: usize = 1 << 16;
const MAX_DEPTH: usize = 1 << 10;

impl AdedConfig {
    pub(crate) fn check(&self) -> Result<()> {
        check_within("searches", self.searches, 1..=MAX_SEARCHES)?;
        check_within("depth", self.depth, 1..=MAX_DEPTH)?;
        check_within("candidates", self.candidates, 1..=usize::MAX)?;
        check_within("c1", self.c1, 0.0..=1e9)?;
        check_within("c2", self.c2, 1e-9..=1e9)?;
        check_within("max_prob", self.max_prob, f32::EPSILON..=1.0)?;
        check_within("increment", self.increment, f32::EPSILON..=self.max_prob)
    }

    /// `E` after each number of visits (ADED, Eq. 3): `c1 + log((ΣN + c2 + 1) / c2)`.
    ///
    /// Rounded to 32 bits, as the last bits of a logarithm differ between systems.
    #[expect(clippy::cast_possible_truncation, reason = "as precise as is asked for")]
    pub(crate) fn exploration(&self) -> Vec<f64> {
        let after = |visits| self.c1 + ((visits as f64 + self.c2 + 1.0) / self.c2).ln();
        (0..=self.searches).map(|visits| f64::from(after(visits) as f32)).collect()
    }
}
