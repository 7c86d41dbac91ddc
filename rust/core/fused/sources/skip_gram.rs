//! What followed where a match goes on with another token than the node's?
//!
//! A name or a number that changes ends every match, yet what comes after it is often what came after
//! the old one. So a source that knows the matches of a node's parent adds one more expert, a
//! skip-gram: the tokens two places after these matches, wherever the token in between is not the
//! node's. It costs no search.

use crate::fused::effort::Reading;
use crate::fused::evidence::{END, Evidence, Kind, Matched};
use crate::fused::source::NodeView;

/// The skip-grams of one source.
#[derive(Debug, Default, Clone)]
pub(crate) struct SkipGrams {
    /// Those of the next draft's root.
    of_root: Skipped,
    of_node: Skipped,
}

/// Tokens that follow a skipped one.
#[derive(Debug, Default, Clone)]
pub(crate) struct Skipped {
    /// The length of the longest match before the skipped token.
    order: usize,
    /// The tokens after it, those that count most first.
    pub(crate) tokens: Vec<u32>,
}

impl SkipGrams {
    /// Adds the expert of a node; `collect(parent, token, skipped)` collects what follows its
    /// parent's matches after any other token than `token`.
    ///
    /// # Arguments
    ///
    /// * `decay`: How much less each token counts than the one before it.
    pub(crate) fn add_expert(
        &mut self,
        (kind, decay): (Kind, f32),
        node: &NodeView<'_>,
        reading: Reading,
        evidence: &mut Evidence,
        collect: impl FnOnce(usize, u32, &mut Skipped),
    ) {
        match (node.parent, node.path.last()) {
            (Some(parent), Some(&token)) if node.prob >= reading.full_from => {
                self.of_node.clear();
                collect(parent, token, &mut self.of_node);
                self.of_node.add_expert(kind, decay, evidence);
            }
            (None, _) => self.of_root.add_expert(kind, decay, evidence),
            _ => {}
        }
    }

    /// Collects what the next draft's root needs: `node` is the last accepted one, as far as the draft
    /// had it.
    pub(crate) fn advance(
        &mut self,
        node: Option<usize>,
        collect: impl FnOnce(usize, &mut Skipped),
    ) {
        self.of_root.clear();
        if let Some(node) = node {
            collect(node, &mut self.of_root);
        }
    }
}

impl Skipped {
    fn clear(&mut self) {
        self.order = 0;
        self.tokens.clear();
    }

    /// Adds a token that follows the skipped one after a match of `order` tokens.
    pub(crate) fn add(&mut self, order: usize, token: u32) {
        if token != END {
            self.order = self.order.max(order);
            self.tokens.push(token);
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "there are few tokens")]
    fn add_expert(&self, kind: Kind, decay: f32, evidence: &mut Evidence) {
        if self.tokens.is_empty() {
            return;
        }
        let matched = Matched {
            kind,
            order: self.order,
            rank: 0,
            num_matches: self.tokens.len() as f32,
        };
        let counts = std::iter::successors(Some(1.0), |count| Some(count * decay));
        evidence.add(matched, None, self.tokens.iter().copied().zip(counts));
    }
}
