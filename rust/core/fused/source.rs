//! What the tree builder asks of a source of drafts.
//!
//! It keeps what it knows of each node by the node's number: a child begins where its parent's matches left
//! off.

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

#[derive(Clone, Copy)]
pub(crate) struct SourceInputs<'a> {
    pub(crate) search: SearchLimits,
    pub(crate) weights: TenantWeights<'a>,
    pub(crate) datastore: Option<&'a Datastore>,
    /// The request's own text.
    pub(crate) context: &'a IndexedTokens,
    /// Earlier texts of the request's tenant.
    pub(crate) memory: Option<&'a IndexedTokens>,
    /// The texts of other requests of its group.
    pub(crate) group: Option<&'a GroupText>,
    /// The output that the caller expects.
    pub(crate) predicted_output: Option<&'a IndexedTokens>,
    /// What a caller suggested for what follows the context.
    pub(crate) suggestion: Option<&'a Suggestion>,
    pub(crate) model_tables: Option<&'a ModelTables>,
    /// Tokens are below this; the tables of a model may hold larger ones.
    pub(crate) vocab_size: u32,
}

/// A node whose next token is asked for.
#[derive(Clone, Copy)]
pub(crate) struct NodeView<'a> {
    /// Its parent's number among the nodes asked for in this draft, in order; `None` at the root, number 0.
    pub(crate) parent: Option<usize>,
    /// The last tokens of the context, then the path to the node.
    pub(crate) tail: &'a [u32],
    /// The path to the node; empty at the root.
    pub(crate) path: &'a [u32],
    /// The estimated probability of the path.
    pub(crate) prob: f32,
    /// A token with a smaller share cannot become a node.
    pub(crate) min_child_prob: f32,
}

/// One source of drafts of one request: a file in `sources` and a row of
/// [`REGISTRY`](crate::fused::registry::REGISTRY).
pub(crate) trait DraftSource: BoxedClone + fmt::Debug + Send + Sync {
    /// Adds an expert for each match at a node. Every node is asked for once, parents before children.
    fn add_experts(
        &mut self,
        inputs: &SourceInputs<'_>,
        node: &NodeView<'_>,
        arena: &mut DraftArena,
    );

    /// The kind of its skip-grams, and how much less each of their tokens counts than the one before.
    fn skip_gram_kind(&self, _inputs: &SourceInputs<'_>) -> Option<(ExpertKind, f32)> {
        None
    }

    /// Collects what followed a node's matches after another token than `token`.
    fn collect_skip_grams(
        &self,
        _node: usize,
        _token: u32,
        _search: SearchLimits,
        _skip_grams: &mut SkipGrams,
    ) {
    }

    fn clear(&mut self) {}

    /// Learns for all requests of the tenant that `token` came after `context`.
    fn learn(&self, _adaptation: &mut TenantAdaptation, _context: &IndexedTokens, _token: u32) {}

    /// How many of the target model's likeliest tokens at each verified node the source uses.
    fn num_predictions(&self) -> usize {
        0
    }

    /// Takes the target model's `k` likeliest tokens after the context and after each node of `tree`.
    fn observe_predictions(
        &mut self,
        _context: &[u32],
        _tree: &TokenTree,
        _predictions: &[u32],
        _k: usize,
    ) {
    }

    /// The length of the longest match at the root; 0 where nothing matched.
    fn match_length(&self) -> usize {
        0
    }
}

/// A copy, for a draft on trial.
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

/// A skip-gram: the tokens two places after a node's matches, wherever the token in between is another one.
///
/// A name or a number that changes ends every match, yet what comes after it often stays. So a source that
/// knows the parent's matches has one more expert, for no search.
#[derive(Debug, Default, Clone)]
pub(crate) struct SkipGrams {
    /// The length of the longest match before the skipped token.
    order: u32,
    /// The tokens after the skipped one, each with the length of its match; the latest come first.
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

    /// Adds an expert in which a token counts in proportion to the length of its match: after a long match, few
    /// of the many places that the last token alone leads to are right.
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
