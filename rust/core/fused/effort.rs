//! Search effort of a draft.

use serde::{Deserialize, Serialize};

/// The amount of search per draft. More search costs about ten microseconds a draft, which a slow target
/// model repays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effort {
    /// Choose by the time of a decode step; normal until it is known.
    #[default]
    Auto,
    /// Search each source for the context only. Nodes filter the occurrences of their parents.
    Low,
    /// Also search for likely nodes.
    Normal,
}

impl Effort {
    /// Normal effort accepts 2 to 4 % more tokens than low effort. It costs 35 to 75 µs, and several
    /// times that between forward passes of a model, where caches are cold.
    const NORMAL_FROM_S: f64 = 0.008;

    #[must_use]
    /// Returns the effort for a target model with this step time.
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

/// Limits of the search for one draft.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchLimits {
    /// The maximum number of candidates of a node if the tree has room for no more nodes than this.
    pub(crate) min_candidates: usize,
    /// The maximum number of continuations that are read for each match of the context.
    pub(crate) max_continuations: usize,
    /// The maximum number of continuations read for a match that is covered by a longer match.
    pub(crate) max_continuations_if_covered: usize,
    /// The maximum number of occurrences in a token sequence that are read for a node; half of it in a
    /// long sequence.
    pub(crate) max_occurrences: usize,
    /// The maximum number of occurrences of the last token alone that are read for the root in a long
    /// sequence.
    pub(crate) max_unigram_occurrences: usize,
    /// The maximum number of occurrences from which skip-grams of a sequence are collected.
    pub(crate) max_skip_grams: usize,
    /// Nodes with at least this path probability use all experts, including skip-grams and unigram
    /// matches.
    pub(crate) full_search_min_prob: f32,
    /// Nodes with at least this path probability query the datastore again if few continuations of their
    /// parent remain.
    pub(crate) requery_min_prob: f32,
    /// Nodes with at least this path probability are searched for in a sequence that exceeds the cache.
    pub(crate) requery_min_prob_long_text: f32,
    /// A node is expanded only if a child with this conditional probability could enter the tree. At 0.5,
    /// half of all nodes are leaves that are never expanded.
    pub(crate) child_ratio: f32,
    /// A node with at least this many occurrences in a sequence is not searched for again.
    pub(crate) min_occurrences: usize,
    /// Compute the gapped length of occurrences and use it in experts.
    pub(crate) match_gapped: bool,
    /// Candidates below this factor times the least likely path that still fits are pruned: the
    /// correction rarely doubles a probability.
    pub(crate) prune_ratio: f32,
}

/// The maximum number of nodes of a small tree.
const LARGE: usize = 64;

impl SearchLimits {
    /// Returns the limits for a tree size. In a large tree, nodes with a path probability below 0.01 use
    /// fewer experts, which saves a sixth of the instructions at 256 nodes.
    pub(crate) fn for_nodes(self, max_nodes: usize) -> Self {
        let full_search_min_prob = if max_nodes > LARGE {
            self.full_search_min_prob.max(0.01)
        } else {
            self.full_search_min_prob
        };
        Self { full_search_min_prob, ..self }
    }
}
