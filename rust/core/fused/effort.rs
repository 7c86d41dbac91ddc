//! How much of the sources a draft reads.

use serde::{Deserialize, Serialize};

/// Reading more pays where the target model is slow: it takes some ten microseconds a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// The time of a step of the target model decides; normal until it is known.
    #[default]
    Auto,
    /// Each source is searched for the context alone; nodes inherit what was found.
    Low,
    /// Likely nodes are searched for as well.
    Normal,
}

impl Effort {
    /// Normal effort accepts 2 to 4 % more than low, for 35 to 75 µs, and several times that between two
    /// passes of a model, where caches are cold.
    const NORMAL_FROM_S: f64 = 0.008;

    #[must_use]
    pub fn for_steps_of(seconds: f64) -> Self {
        if seconds < Self::NORMAL_FROM_S { Self::Low } else { Self::Normal }
    }

    pub(crate) fn search_limits(self) -> SearchLimits {
        match self {
            Self::Low => SearchLimits {
                min_candidates: 16,
                max_continuations: 32,
                max_continuations_if_covered: 24,
                max_occurrences: 256,
                max_unigram_occurrences: 8,
                max_skip_grams: 8,
                full_search_min_prob: 0.3,
                requery_min_prob: f32::INFINITY,
                requery_min_prob_long_text: 0.5,
                child_ratio: 0.4,
                min_occurrences: 4,
                match_gapped: false,
                prune_ratio: 1.0,
            },
            Self::Auto | Self::Normal => SearchLimits {
                min_candidates: 32,
                max_continuations: 64,
                max_continuations_if_covered: 64,
                max_occurrences: 512,
                max_unigram_occurrences: 64,
                max_skip_grams: 32,
                full_search_min_prob: 0.0,
                requery_min_prob: 0.1,
                requery_min_prob_long_text: 0.1,
                child_ratio: 0.5,
                min_occurrences: 16,
                match_gapped: true,
                prune_ratio: 0.0,
            },
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchLimits {
    /// The weights correct at most this many of a node's likeliest tokens in a tree that has no room for
    /// more nodes.
    pub(crate) min_candidates: usize,
    /// At most this many passages are read of each match of the context.
    pub(crate) max_continuations: usize,
    /// The same for a match where a longer one says enough.
    pub(crate) max_continuations_if_covered: usize,
    /// At most this many of a text's latest places are read for a node, half as many in a long text.
    pub(crate) max_occurrences: usize,
    /// In a long text, at most this many places after the root's last token alone are read.
    pub(crate) max_unigram_occurrences: usize,
    /// Skip-grams of a text come from at most this many of its places.
    pub(crate) max_skip_grams: usize,
    /// A node this likely has all experts: skip-grams, and what follows its token alone beside longer
    /// matches.
    pub(crate) full_search_min_prob: f32,
    /// A node this likely is looked up in the datastore again where few of its parent's passages are left.
    pub(crate) requery_min_prob: f32,
    /// The same for a search in a text that is too long for the cache.
    pub(crate) requery_min_prob_long_text: f32,
    /// A child is looked up only if this times its parent's probability could win a place in the tree. At a
    /// half, half of all nodes are leaves that are never looked up.
    pub(crate) child_ratio: f32,
    /// A node with at least this many places in a text is not searched for again.
    pub(crate) min_occurrences: usize,
    /// Whether experts tell places by how far they match beyond an edit.
    pub(crate) match_gapped: bool,
    /// Prune candidates below this times the least likely path that still fits: the correction seldom
    /// doubles a probability.
    pub(crate) prune_ratio: f32,
}

/// A tree with room for more nodes is large.
const LARGE: usize = 64;

impl SearchLimits {
    /// In a large tree, a node whose path is less likely than 0.01 gets fewer experts: with 256 nodes, that saves
    /// a sixth of the instructions.
    pub(crate) fn for_nodes(self, max_nodes: usize) -> Self {
        let full_search_min_prob = if max_nodes > LARGE {
            self.full_search_min_prob.max(0.01)
        } else {
            self.full_search_min_prob
        };
        Self { full_search_min_prob, ..self }
    }
}
