//! Session of ADED.

use std::sync::Arc;

use crate::draft::session::{DraftLimits, Session, draft_on_trial};
use crate::draft::token_tree::TokenTree;
use crate::papers::aded::adaptive::AdaptiveTrigrams;
use crate::papers::aded::config::{AdedConfig, SearchMethod};
use crate::papers::aded::mcts::{self, Search};
use crate::papers::aded::trigrams::Prefix;
use specds_index::Result;
use specds_index::base::checks::check_tokens;

/// A request that drafts from tri-grams: ADED (Liu et al., 2024).
///
/// The matrix adapts to every tri-gram of the request (Algorithm 2), and Monte Carlo tree search finds
/// likely sentences (Algorithm 1). Sessions with the same [`AdaptiveTrigrams`] share their updates.
#[derive(Debug, Clone)]
pub struct AdedSession {
    trigrams: Arc<AdaptiveTrigrams>,
    config: AdedConfig,
    exploration: Vec<f64>,
    /// The last `order - 1` tokens of the context.
    prefix: Prefix,
    /// The number of tokens of the prefix after the last separator.
    num_tokens: usize,
    match_length: usize,
}

impl AdedSession {
    /// Creates a session without a context.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if an option is out of its range.
    pub fn new(trigrams: Arc<AdaptiveTrigrams>, config: AdedConfig) -> Result<Self> {
        config.check()?;
        Ok(Self {
            exploration: config.exploration(),
            trigrams,
            config,
            prefix: Prefix::default(),
            num_tokens: 0,
            match_length: 0,
        })
    }

    fn prefix_len(&self) -> usize {
        self.trigrams.trigrams().options().order - 1
    }

    fn step(&mut self, token: u32) {
        let trigrams = self.trigrams.trigrams();
        self.num_tokens = if token == trigrams.separator {
            0
        } else {
            self.prefix_len().min(self.num_tokens + 1)
        };
        self.prefix = self.prefix.then(token, trigrams.options().order);
    }

    /// Returns the prefix, or `None` if the context is shorter.
    fn prefix(&self) -> Option<Prefix> {
        (self.num_tokens == self.prefix_len()).then_some(self.prefix)
    }
}

impl Session for AdedSession {
    fn observe(&mut self, tokens: &[u32], _num_verified: Option<usize>) -> Result<()> {
        check_tokens(tokens, self.trigrams.trigrams().vocab_size())?;
        let mut grams = Vec::new();
        for &token in tokens {
            grams.extend(self.prefix().map(|prefix| (prefix, token)));
            self.step(token);
        }
        if self.config.adaptive {
            self.trigrams.learn(&grams, &self.config);
        }
        Ok(())
    }

    /// A node's probability is its fraction of the scores that the search backed up, or that of its path in a
    /// greedy draft.
    fn draft(&mut self, limits: DraftLimits) -> Result<TokenTree> {
        let config = &self.config;
        let tree = match self.prefix() {
            None => TokenTree::default(),
            Some(root) => {
                let reader = self.trigrams.reader();
                if config.search == SearchMethod::Greedy {
                    mcts::greedy(&reader, root, config.depth.min(limits.max_nodes))
                } else {
                    Search::run(&reader, config, &self.exploration, root).tree(limits.max_nodes)
                }
            }
        };
        self.match_length = if tree.is_empty() { 0 } else { self.prefix_len() };
        Ok(limits.cut(tree))
    }

    fn draft_after(&self, tokens: &[u32], max_nodes: usize) -> Result<TokenTree> {
        let mut trial = self.clone();
        trial.config.adaptive = false; // other sessions share the matrix
        draft_on_trial(trial, tokens, max_nodes)
    }

    fn match_length(&self) -> usize {
        self.match_length
    }
}
