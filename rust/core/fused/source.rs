//! Interface between the tree builder and the sources of drafts.
//!
//! A source stores the matches of each node by node index, so that a child starts from the matches of its
//! parent.

use std::fmt;

use crate::draft::model_tables::ModelTables;
use crate::draft::token_tree::TokenTree;
use crate::fused::arena::{DraftArena, END, Matched};
use crate::fused::effort::SearchLimits;
use crate::fused::suggestion::Suggestion;
use crate::memory::group_text::GroupText;
use crate::memory::indexed_tokens::IndexedTokens;
use crate::weights::adaptation::{TenantAdaptation, TenantWeights};
use crate::weights::kind::ExpertKind;
use specds_index::Datastore;

/// Read-only inputs of the sources for one draft.
#[derive(Clone, Copy)]
pub(crate) struct SourceInputs<'a> {
    pub(crate) search: SearchLimits,
    pub(crate) weights: TenantWeights<'a>,
    pub(crate) datastore: Option<&'a Datastore>,
    /// The tokens of the request itself.
    pub(crate) context: &'a IndexedTokens,
    /// Earlier token sequences of the tenant.
    pub(crate) memory: Option<&'a IndexedTokens>,
    /// Token sequences of other requests of the group.
    pub(crate) group: Option<&'a GroupText>,
    /// The predicted output that the caller passed.
    pub(crate) predicted_output: Option<&'a IndexedTokens>,
    /// The external proposal for the tokens after the context.
    pub(crate) suggestion: Option<&'a Suggestion>,
    pub(crate) model_tables: Option<&'a ModelTables>,
    /// The vocabulary size. Tables of a model may contain larger tokens.
    pub(crate) vocab_size: u32,
}

/// A node whose continuations are collected.
#[derive(Clone, Copy)]
pub(crate) struct NodeView<'a> {
    /// The index of the parent among the expanded nodes; `None` for the root, which has index 0.
    pub(crate) parent: Option<usize>,
    /// The last tokens of the context, then the path to the node.
    pub(crate) tail: &'a [u32],
    /// The path to the node, empty for the root.
    pub(crate) path: &'a [u32],
    /// The estimated probability of the path.
    pub(crate) prob: f32,
    /// Tokens with a smaller conditional probability cannot enter the tree.
    pub(crate) min_child_prob: f32,
}

/// One source of drafts for one request: a file in `sources` and an entry of
/// [`REGISTRY`](crate::fused::registry::REGISTRY).
pub(crate) trait DraftSource: BoxedClone + fmt::Debug + Send + Sync {
    /// Adds an expert for each match of a node. It is called once per node, parents before children.
    fn add_experts(
        &mut self,
        inputs: &SourceInputs<'_>,
        node: &NodeView<'_>,
        arena: &mut DraftArena,
    );

    /// Returns the kind of its skip-grams, and the decay of a skip-gram's count relative to the one
    /// before.
    fn skip_gram_kind(&self, _inputs: &SourceInputs<'_>) -> Option<(ExpertKind, f32)> {
        None
    }

    /// Collects the continuations of a node's matches after a token other than `token`.
    fn collect_skip_grams(
        &self,
        _node: usize,
        _token: u32,
        _search: SearchLimits,
        _skip_grams: &mut SkipGrams,
    ) {
    }

    fn clear(&mut self) {}

    /// Updates the tenant's adaptation: `token` came after `context`.
    fn learn(&self, _adaptation: &mut TenantAdaptation, _context: &IndexedTokens, _token: u32) {}

    /// Returns the number of top-k predictions at each verified node that the source uses.
    fn num_predictions(&self) -> usize {
        0
    }

    /// Stores the target model's top-`k` predictions after the context and after each node of `tree`.
    fn observe_predictions(
        &mut self,
        _context: &[u32],
        _tree: &TokenTree,
        _predictions: &[u32],
        _k: usize,
    ) {
    }

    /// Returns the length of the longest match at the root, or 0.
    fn match_length(&self) -> usize {
        0
    }
}

/// Clones a boxed source: `draft_after` works on a clone of the session.
pub(crate) trait BoxedClone {
    fn boxed_clone(&self) -> Box<dyn DraftSource>;
}

impl<S: DraftSource + Clone + 'static> BoxedClone for S {
    fn boxed_clone(&self) -> Box<dyn DraftSource> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn DraftSource> {
    fn clone(&self) -> Self {
        (**self).boxed_clone() // of the source, not of the box
    }
}

/// Skip-grams: the tokens two positions after a node's matches, for any other token in between.
///
/// A renamed identifier or a changed number ends every match, but the tokens after it often stay the
/// same. A source that has the matches of the parent adds this expert without a search.
#[derive(Debug, Default, Clone)]
pub(crate) struct SkipGrams {
    /// The length of the longest match before the skipped token.
    order: u32,
    /// The tokens after the skipped one, each with the length of its match, latest first.
    pub(crate) tokens: Vec<(u32, u32)>,
}

impl SkipGrams {
    pub(crate) fn clear(&mut self) {
        self.order = 0;
        self.tokens.clear();
    }

    /// `order` is the length of the match before the skipped token.
    pub(crate) fn add(&mut self, order: u32, token: u32) {
        if token != END {
            self.order = self.order.max(order);
            self.tokens.push((token, order));
        }
    }

    /// Adds an expert that weights a token by the length of its match: after a long match, few of the
    /// many occurrences of the last token alone are relevant.
    pub(crate) fn add_expert(&self, kind: ExpertKind, decay: f32, arena: &mut DraftArena) {
        let order = self.order as usize;
        let matched = Matched { kind, order, rank: 0, num_matches: self.tokens.len() as f32 };
        let mut part = 1.0 / (decay * self.order as f32);
        let counts = self.tokens.iter().map(|&(token, order)| {
            part *= decay;
            (token, part * order as f32)
        });
        arena.add(matched, None, counts);
    }
}
