//! Session interface of drafters, and the limits of a draft.

use crate::draft::token_tree::TokenTree;
use specds_index::Result;
use specds_index::base::threads::{batch_size, in_parallel};

/// Limits of one draft.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftLimits {
    /// The maximum number of nodes.
    pub max_nodes: usize,
    /// The minimum probability of a node.
    pub min_prob: f32,
    /// The maximum depth of a node. Children of the context have depth 1.
    pub max_depth: usize,
    /// Draft a chain: neither the context nor a node has two children.
    pub is_chain: bool,
}

impl DraftLimits {
    pub fn nodes(max_nodes: usize) -> Self {
        Self { max_nodes, min_prob: 0.0, max_depth: usize::MAX, is_chain: false }
    }

    /// Cuts a tree to the limits. Drafters that search without limits apply it once.
    pub(crate) fn cut(self, tree: TokenTree) -> TokenTree {
        let tree = if self.is_chain { tree.best_chain() } else { tree };
        let mut tree = tree.limited(self.max_nodes, self.max_depth);
        let gains = tree.probs().iter();
        tree.truncate(gains.take_while(|&&gain| gain >= self.min_prob).count());
        tree
    }
}

/// One request with a drafter.
pub trait Session: Send {
    /// Appends the prompt, or the emitted tokens after the target model verified the first `num_verified`
    /// nodes of the last draft, or all. The context is unchanged if a token is not in the vocabulary.
    /// O(tokens).
    ///
    /// # Errors
    /// `TokenOutOfRange` if a token is not in the vocabulary.
    fn observe(&mut self, tokens: &[u32], num_verified: Option<usize>) -> Result<()>;

    /// Drafts the likeliest continuations within `limits`, best first, so that each prefix of the tree is
    /// the best smaller tree. The probability of a node is that of its path. The tree is empty without a
    /// match.
    ///
    /// # Errors
    /// Those of the implementation; the sessions of this crate have none.
    fn draft(&mut self, limits: DraftLimits) -> Result<TokenTree>;

    /// Drafts as if `tokens` had been observed, without any update. The session is unchanged.
    ///
    /// # Errors
    /// `TokenOutOfRange` if a token is not in the vocabulary.
    fn draft_after(&self, tokens: &[u32], max_nodes: usize) -> Result<TokenTree>;

    /// Sets the duration of a step of the target model without a draft, of which a draft may take a
    /// fraction.
    fn set_step_time(&mut self, _step_seconds: f64) {}

    /// Returns the number of top-k predictions at each verified node that the session uses.
    fn num_predictions(&self) -> usize {
        0
    }

    /// Takes the target model's predictions of a verification, before the emitted tokens are observed:
    /// its `k` likeliest tokens after the context, then after each node of the tree.
    ///
    /// # Errors
    /// `InvalidArgument` if the predictions are not `k` for the context and each node.
    fn observe_predictions(
        &mut self,
        _tree: &TokenTree,
        _predictions: &[u32],
        _k: usize,
    ) -> Result<()> {
        Ok(())
    }

    /// Sets an external proposal for the tokens after the context. The probability of a proposed node is
    /// conditional on its parent. It replaces an earlier proposal and remains while the emitted tokens
    /// follow it. Returns true if the session uses proposals.
    ///
    /// # Errors
    /// `InvalidArgument` if the proposal is too large, and `TokenOutOfRange`.
    fn suggest(&mut self, _tree: TokenTree) -> Result<bool> {
        Ok(false)
    }

    /// Returns the length of the longest context suffix that the last draft matched, or 0.
    fn match_length(&self) -> usize;

    /// Ends the request. The session is not used afterwards.
    fn finish(&mut self) {}
}

/// Drafts with a session that may be changed: [`Session::draft_after`] by a clone.
pub(crate) fn draft_on_trial(
    mut trial: impl Session,
    tokens: &[u32],
    max_nodes: usize,
) -> Result<TokenTree> {
    trial.observe(tokens, None)?;
    trial.draft(DraftLimits::nodes(max_nodes))
}

/// Drafts for every session within its limits, on at most `num_threads` threads, or all. The trees do not
/// depend on the number of threads.
///
/// # Errors
/// `InvalidArgument` if `num_threads` is 0, or the error of the first session that has one.
pub fn draft_batch<S: Session + ?Sized>(
    sessions: &mut [(&mut S, DraftLimits)],
    num_threads: Option<usize>,
) -> Result<Vec<TokenTree>> {
    let size = batch_size(sessions.len(), num_threads)?;
    let trees = in_parallel(sessions, size, |(session, limits)| session.draft(*limits));
    trees.into_iter().collect()
}
