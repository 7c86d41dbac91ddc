//! External proposal for the next tokens.

use crate::draft::token_tree::TokenTree;
use specds_index::{Error, Result};

/// A proposed tree, kept while the emitted tokens follow it.
#[derive(Debug, Clone)]
pub(crate) struct Suggestion {
    pub(crate) tree: TokenTree,
    /// The node that the emitted tokens have reached; -1 for the root.
    pub(crate) reached: i32,
}

impl Suggestion {
    pub(crate) fn new(tree: TokenTree) -> Result<Self> {
        let (most, found) = (TokenTree::MAX_SUGGESTED, tree.len());
        if found > most {
            let reason = format!("has {found} nodes: give at most {most}");
            return Err(Error::invalid("suggestion", reason));
        }
        Ok(Self { tree, reached: -1 })
    }

    /// Returns the proposal after `tokens` were emitted, or `None` if they leave it.
    pub(crate) fn after(mut self, tokens: &[u32]) -> Option<Self> {
        for &token in tokens {
            self.reached = self.child(self.reached, token)?;
        }
        Some(self)
    }

    pub(crate) fn children(&self, node: i32) -> impl Iterator<Item = usize> {
        let parents = self.tree.parents().iter().enumerate();
        let below = parents.filter(move |&(_, &parent)| parent == node);
        below.map(|(child, _)| child)
    }

    pub(crate) fn child(&self, node: i32, token: u32) -> Option<i32> {
        let child = self.children(node).find(|&child| self.tree.token_ids()[child] == token)?;
        i32::try_from(child).ok()
    }
}
