//! Prompt lookup: the continuation of an earlier occurrence of the end of the context.

use serde::{Deserialize, Serialize};

use crate::draft::session::{DraftLimits, Session, draft_on_trial};
use crate::draft::token_tree::{Source, TokenTree};
use crate::memory::indexed_tokens::IndexedTokens;
use specds_index::Result;
use specds_index::base::checks::check_within;

/// Options of prompt lookup, with the published defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PromptLookupConfig {
    /// The maximum length of the matched context suffix, up to 1024.
    pub max_match: usize,
    /// The maximum number of drafted tokens, up to 1024.
    pub num_tokens: usize,
}

impl Default for PromptLookupConfig {
    fn default() -> Self {
        Self { max_match: 3, num_tokens: 10 }
    }
}

impl PromptLookupConfig {
    const MOST: usize = 1024;

    fn check(&self) -> Result<()> {
        check_within("max_match", self.max_match, 1..=Self::MOST)?;
        check_within("num_tokens", self.num_tokens, 1..=Self::MOST)
    }
}

/// A request that drafts from its own tokens: prompt lookup decoding (Saxena, 2023).
///
/// The draft is the continuation of the *first* occurrence of the longest context suffix of at most
/// `max_match` tokens: one path of probability 1. It may have fewer than `num_tokens` tokens, as in
/// transformers' `PromptLookupCandidateGenerator` (5.23); the original program falls back to a shorter
/// match.
#[derive(Debug, Clone)]
pub struct PromptLookupSession {
    config: PromptLookupConfig,
    history: IndexedTokens,
    match_length: usize,
}

impl PromptLookupSession {
    /// Creates a session without a context.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if an option is out of its range.
    pub fn new(config: PromptLookupConfig) -> Result<Self> {
        config.check()?;
        Ok(Self { config, history: IndexedTokens::default(), match_length: 0 })
    }

    /// Returns the length of the longest suffix that occurred before, and the end of its first
    /// occurrence, or (0, 0).
    fn longest_match(&self) -> (usize, usize) {
        let tokens = self.history.tokens();
        let Some(&last) = tokens.last() else {
            return (0, 0);
        };
        let mut best = (0, 0);
        for end in self.history.of_token(last).skip(1) {
            let pairs = tokens[..=end].iter().rev().zip(tokens.iter().rev());
            let pairs = pairs.take(self.config.max_match);
            let length = pairs.take_while(|(a, b)| a == b).count();
            // Occurrences come latest first, so the first of a length wins last.
            if length >= best.0 {
                best = (length, end + 1);
            }
        }
        best
    }
}

impl Session for PromptLookupSession {
    fn observe(&mut self, tokens: &[u32], _num_verified: Option<usize>) -> Result<()> {
        self.history.extend(tokens);
        Ok(())
    }

    /// O(earlier occurrences of the last token).
    fn draft(&mut self, limits: DraftLimits) -> Result<TokenTree> {
        let (length, end) = self.longest_match();
        self.match_length = length;
        let num_nodes = if length > 0 { self.config.num_tokens.min(limits.max_nodes) } else { 0 };
        let mut tree = TokenTree::with_capacity(num_nodes);
        let followed = self.history.tokens()[end..].iter().take(num_nodes);
        for (parent, &token) in (-1..).zip(followed) {
            tree.push(token, parent, 1.0, Source::Context);
        }
        Ok(limits.cut(tree))
    }

    fn draft_after(&self, tokens: &[u32], max_nodes: usize) -> Result<TokenTree> {
        draft_on_trial(self.clone(), tokens, max_nodes)
    }

    fn match_length(&self) -> usize {
        self.match_length
    }
}
