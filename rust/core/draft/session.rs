//! What is drafted at a decoding step?

use crate::base::error::Result;
use crate::base::threads::{batch_size, in_parallel};
use crate::draft::token_tree::TokenTree;

/// One request that is drafted for, from whatever source.
pub trait Session: Send {
    /// Appends tokens to the context: the prompt, then what the target model emitted. O(tokens).
    ///
    /// # Errors
    ///
    /// [`Error::TokenOutOfRange`](crate::base::error::Error::TokenOutOfRange) where a token is not in the vocabulary; the context is then as it
    /// was.
    fn observe(&mut self, tokens: &[u32]) -> Result<()>;

    /// Drafts the likeliest continuations of the context: at most `max_nodes` nodes, the likeliest
    /// first, so that a prefix of the tree is the best smaller tree. A node's probability is how
    /// likely its path is held to be. Empty where nothing matches.
    ///
    /// # Errors
    ///
    /// The sessions of this crate do not fail: what a damaged datastore gives is a worse draft.
    fn draft(&mut self, max_nodes: usize) -> Result<TokenTree>;

    /// Drafts as [`draft`](Self::draft) does, but only nodes of a probability of `min_gain` or more:
    /// those that the target model is expected to accept so much of.
    ///
    /// # Errors
    ///
    /// As [`draft`](Self::draft).
    fn draft_until(&mut self, min_gain: f32, max_nodes: usize) -> Result<TokenTree> {
        let tree = self.draft(max_nodes)?;
        let is_worth_it = |&&prob: &&f32| prob >= min_gain;
        Ok(tree.prefix(tree.probs().iter().take_while(is_worth_it).count()))
    }

    /// Drafts as [`draft`](Self::draft) would if `tokens` had been observed, as a model does that drafts
    /// further than it was verified. The session stays as it is, and learns nothing; its last draft is
    /// still the one before. O(tokens) besides.
    ///
    /// What has adapted to the request so far, tri-grams, does not adapt to these tokens.
    ///
    /// # Errors
    ///
    /// As [`observe`](Self::observe).
    fn draft_after(&mut self, tokens: &[u32], max_nodes: usize) -> Result<TokenTree>;

    /// Tells that of the last draft only the first `num_nodes` nodes are verified: what is observed
    /// then says nothing of most others. Drafters that do not learn from it ignore it.
    fn cut(&mut self, num_nodes: usize) {
        let _ = num_nodes;
    }

    /// Tells how long a step of the target model takes without a draft, as far as that is known: what
    /// a draft may cost depends on it. Drafters that always do the same ignore it.
    fn pace(&mut self, step_seconds: f64) {
        let _ = step_seconds;
    }

    /// How many of the target model's likeliest tokens at each verified node the session wants to know
    /// by [`recycle`](Self::recycle); 0 where it has no use for them.
    fn num_predictions(&self) -> usize {
        0
    }

    /// Tells the session what the target model itself predicted where it verified a draft, before
    /// what it emitted is observed: its `k` likeliest tokens after the context, then after each node
    /// of the tree. Drafters that have no use for it ignore it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`](crate::base::error::Error::InvalidArgument) unless there are `k` for each,
    /// and [`Error::TokenOutOfRange`](crate::base::error::Error::TokenOutOfRange) where a token is not in the
    /// vocabulary.
    fn recycle(&mut self, tree: &TokenTree, predictions: &[u32], k: usize) -> Result<()> {
        let _ = (tree, predictions, k);
        Ok(())
    }

    /// The length of the context suffix that the last draft was made from, the longest of any
    /// source; 0 where nothing matched.
    fn match_length(&self) -> usize;

    /// Ends the request: nothing is observed or drafted after it.
    fn finish(&mut self) {}
}

/// Drafts for every session as its [`draft_until`](Session::draft_until) does, with up to
/// `num_threads` threads of the global pool, or all of them. The trees are the same with any number.
///
/// # Errors
///
/// As [`draft_until`](Session::draft_until), for the first session that has one; [`Error::InvalidArgument`](crate::base::error::Error::InvalidArgument) where
/// `num_threads` is 0.
pub fn draft_batch<S: Session + ?Sized>(
    sessions: &mut [&mut S],
    min_gain: f32,
    max_nodes: usize,
    num_threads: Option<usize>,
) -> Result<Vec<TokenTree>> {
    let size = batch_size(sessions.len(), num_threads)?;
    let trees = in_parallel(sessions, size, |session| {
        session.draft_until(min_gain, max_nodes)
    });
    trees.into_iter().collect()
}
