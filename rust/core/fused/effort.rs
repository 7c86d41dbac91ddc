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

    pub(crate) fn reading(self) -> Reading {
        match self {
            Self::Low => Reading {
                least_candidates: 16,
                passages: 32,
                passages_if_covered: 24,
                places: 256,
                unigram_places: 8,
                skipped_places: 8,
                full_from: 0.3,
                requery_min_prob: f32::INFINITY,
                requery_min_prob_long_text: 0.5,
                child_ratio: 0.4,
                enough_places: 4,
                finds_edits: false,
                prune_ratio: 1.0,
            },
            Self::Auto | Self::Normal => Reading {
                least_candidates: 32,
                passages: 64,
                passages_if_covered: 64,
                places: 512,
                unigram_places: 64,
                skipped_places: 32,
                full_from: 0.0,
                requery_min_prob: 0.1,
                requery_min_prob_long_text: 0.1,
                child_ratio: 0.5,
                enough_places: 16,
                finds_edits: true,
                prune_ratio: 0.0,
            },
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading {
    /// The weights correct at most this many of a node's likeliest tokens in a tree that has no room for
    /// more nodes.
    pub(crate) least_candidates: usize,
    /// At most this many passages are read of each match of the context.
    pub(crate) passages: usize,
    /// The same for a match where a longer one says enough.
    pub(crate) passages_if_covered: usize,
    /// At most this many of a text's latest places are read for a node, half as many in a long text.
    pub(crate) places: usize,
    /// In a long text, at most this many places after the root's last token alone are read.
    pub(crate) unigram_places: usize,
    /// Skip-grams of a text come from at most this many of its places.
    pub(crate) skipped_places: usize,
    /// A node this likely has all experts: skip-grams, and what follows its token alone beside longer
    /// matches.
    pub(crate) full_from: f32,
    /// A node this likely is looked up in the datastore again where few of its parent's passages are left.
    pub(crate) requery_min_prob: f32,
    /// The same for a search in a text that is too long for the cache.
    pub(crate) requery_min_prob_long_text: f32,
    /// A child is looked up only if this times its parent's probability could win a place in the tree. At a
    /// half, half of all nodes are leaves that are never looked up.
    pub(crate) child_ratio: f32,
    /// A node with at least this many places in a text is not searched for again.
    pub(crate) enough_places: usize,
    /// Whether experts tell places by how far they match beyond an edit.
    pub(crate) finds_edits: bool,
    /// Prune candidates below this times the least likely path that still fits: the correction seldom
    /// doubles a probability.
    pub(crate) prune_ratio: f32,
}

/// A tree with room for more nodes is large.
const LARGE: usize = 64;

impl Reading {
    /// In a large tree, a node whose path is less likely than 0.01 gets fewer experts: with 256 nodes, that saves
    /// a sixth of the instructions.
    pub(crate) fn for_nodes(self, max_nodes: usize) -> Self {
        let full_from = if max_nodes > LARGE { self.full_from.max(0.01) } else { self.full_from };
        Self { full_from, ..self }
    }
}
