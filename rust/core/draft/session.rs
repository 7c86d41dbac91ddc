//! The session of one request, and the limits of its drafts.

use crate::draft::token_tree::TokenTree;
use specds_index::Result;
use specds_index::base::threads::{batch_size, in_parallel};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftLimits {
    pub max_nodes: usize,
    /// The least probability of a node that is worth its verification.
    pub min_prob: f32,
    /// The depth of the deepest node; a child of the context has depth 1.
    pub max_depth: usize,
    /// Whether neither a node nor the context has two children.
    pub is_chain: bool,
}

impl DraftLimits {
    pub fn nodes(max_nodes: usize) -> Self {
        Self { max_nodes, min_prob: 0.0, max_depth: usize::MAX, is_chain: false }
    }

    pub(crate) fn cut(self, tree: TokenTree) -> TokenTree {
        let tree = if self.is_chain { tree.best_chain() } else { tree };
        let mut tree = tree.limited(self.max_nodes, self.max_depth);
        let gains = tree.probs().iter();
        tree.truncate(gains.take_while(|&&gain| gain >= self.min_prob).count());
        tree
    }
}

/// One request that is drafted for.
pub trait Session: BoxedClone + Send {
    /// Appends the prompt, then what the target model emitted, which verified the first `num_verified`
    /// nodes of the last draft, or all. Where a token is not in the vocabulary, the context stays as it
    /// was. O(tokens).
    fn observe(&mut self, tokens: &[u32], num_verified: Option<usize>) -> Result<()>;

    /// Drafts the likeliest continuations, best first, so that a prefix of the tree is the best smaller
    /// tree. A node's probability is that of its whole path. Empty where nothing matches.
    fn draft(&mut self, limits: DraftLimits) -> Result<TokenTree>;

    /// Drafts as if `tokens` had been observed, but learns nothing. The session stays as it is.
    fn draft_after(&self, tokens: &[u32], max_nodes: usize) -> Result<TokenTree> {
        let mut trial = self.boxed_clone();
        trial.observe(tokens, None)?;
        trial.draft(DraftLimits::nodes(max_nodes))
    }

    /// Tells how many seconds a step of the target model takes without a draft: a draft may cost a share of
    /// that.
    fn set_step_time(&mut self, _step_seconds: f64) {}

    /// How many of the target model's likeliest tokens at each verified node the session uses.
    fn num_predictions(&self) -> usize {
        0
    }

    /// Takes what the target model predicted where it verified a draft, before the emitted tokens are
    /// observed: its `k` likeliest tokens after the context, then after each node of the tree.
    fn observe_predictions(
        &mut self,
        _tree: &TokenTree,
        _predictions: &[u32],
        _k: usize,
    ) -> Result<()> {
        Ok(())
    }

    /// Suggests what follows the context, from outside; a node's probability is that of its token after its
    /// parent. It replaces an earlier suggestion, and stays while the text follows it. Tells whether the
    /// session uses suggestions.
    fn suggest(&mut self, _tree: TokenTree) -> Result<bool> {
        Ok(false)
    }

    /// The longest context suffix, in tokens, that the last draft was made from; 0 where nothing matched.
    fn match_length(&self) -> usize;

    /// Ends the request: nothing is observed or drafted after it.
    fn finish(&mut self) {}
}

/// A copy, for a draft on trial.
pub trait BoxedClone {
    fn boxed_clone(&self) -> Box<dyn Session>;
}

impl<S: Session + Clone + 'static> BoxedClone for S {
    fn boxed_clone(&self) -> Box<dyn Session> {
        Box::new(self.clone())
    }
}

/// Drafts for every session within its limits, on at most `num_threads` threads, or all. The trees do not
/// depend on the number.
pub fn draft_batch<S: Session + ?Sized>(
    sessions: &mut [(&mut S, DraftLimits)],
    num_threads: Option<usize>,
) -> Result<Vec<TokenTree>> {
    let size = batch_size(sessions.len(), num_threads)?;
    let trees = in_parallel(sessions, size, |(session, limits)| session.draft(*limits));
    trees.into_iter().collect()
}
