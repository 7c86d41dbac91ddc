//! What do tri-grams that adapt to the text make likely? ADED's drafts.

use std::sync::Arc;

use crate::base::checks::check_tokens;
use crate::base::error::{Error, Result};
use crate::draft::session::{DraftLimits, Session};
use crate::draft::token_tree::TokenTree;
use crate::papers::aded::adaptive::{Adaptation, AdaptiveTrigrams};
use crate::papers::aded::mcts::{self, Search, SearchConfig};
use crate::papers::aded::trigrams::Prefix;

/// How sentences are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SearchMethod {
    /// By Monte Carlo tree search: the paper's own.
    #[default]
    Mcts,
    /// By the likeliest word at each place: the paper's ablation.
    Greedy,
}

/// How an [`AdedSession`] drafts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdedConfig {
    /// How sentences are found.
    pub method: SearchMethod,
    /// The search.
    pub search: SearchConfig,
    /// What is learned from the text; nothing where it is none.
    pub adaptation: Option<Adaptation>,
    /// How much of the end of a text is learned from, each time that some is observed, in tokens.
    pub max_length: usize,
}

impl Default for AdedConfig {
    fn default() -> Self {
        Self {
            method: SearchMethod::Mcts,
            search: SearchConfig::default(),
            adaptation: Some(Adaptation::default()),
            max_length: usize::MAX,
        }
    }
}

impl AdedConfig {
    fn check(&self) -> Result<()> {
        self.search.check()?;
        if self.max_length == 0 {
            return Err(Error::invalid("max_length", "must be at least 1"));
        }
        self.adaptation
            .map_or(Ok(()), |adaptation| adaptation.check())
    }
}

/// One request that is drafted for by tri-grams: ADED (Liu et al., 2024).
///
/// The matrix learns every tri-gram of the request as it is observed (Algorithm 2), and Monte Carlo
/// tree search finds sentences that are likely by it (Algorithm 1). Sessions that share an
/// [`AdaptiveTrigrams`] learn from each other, those that have one each do not.
///
/// The same tri-grams, the same observed tokens and the same seed give the same tree, always.
#[derive(Debug, Clone)]
pub struct AdedSession {
    trigrams: Arc<AdaptiveTrigrams>,
    config: AdedConfig,
    exploration: Vec<f64>,
    /// The end of the context: the tokens before a word, all after the last separator.
    context: Vec<u32>,
    match_length: usize,
}

impl AdedSession {
    /// Starts a request with an empty context.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] unless `searches` lies in `1..=65536`, `depth` in `1..=1024`,
    /// `candidates` and `max_length` are at least 1, `c1 >= 0`, `c2 > 0`,
    /// `0 < increment <= max_prob <= 1` and `0 <= decay < 1`.
    pub fn new(trigrams: Arc<AdaptiveTrigrams>, config: AdedConfig) -> Result<Self> {
        config.check()?;
        Ok(Self {
            exploration: config.search.exploration(),
            trigrams,
            config,
            context: Vec::new(),
            match_length: 0,
        })
    }

    /// Takes a token into the context.
    fn step(&mut self, token: u32) {
        let facts = self.trigrams.trigrams().facts();
        if token == facts.separator {
            self.context.clear();
        } else {
            let surplus = (self.context.len() + 1).saturating_sub(facts.order - 1);
            self.context.drain(..surplus);
            self.context.push(token);
        }
    }

    /// The last `order - 1` tokens, where the context is that long.
    fn prefix(&self) -> Option<Prefix> {
        let order = self.trigrams.trigrams().facts().order;
        (self.context.len() == order - 1).then(|| Prefix::of(self.context.iter().copied()))
    }
}

impl Session for AdedSession {
    fn observe(&mut self, tokens: &[u32], _num_verified: Option<usize>) -> Result<()> {
        let trigrams = Arc::clone(&self.trigrams);
        let facts = trigrams.trigrams().facts();
        check_tokens(tokens, facts.vocab_size)?;
        let mut learner = trigrams.learner();
        for (&token, num_after) in tokens.iter().zip((0..tokens.len()).rev()) {
            if let Some(prefix) = self.prefix()
                && let Some(adaptation) = &self.config.adaptation
                && facts.order + num_after <= self.config.max_length
            {
                learner.learn(prefix, token, adaptation);
            }
            self.step(token);
        }
        Ok(())
    }

    /// The nodes of the best sentences, by what the search backed up to them; a node's probability
    /// is its share of that. With [`SearchMethod::Greedy`], it is that of its path.
    fn draft(&mut self, limits: DraftLimits) -> Result<TokenTree> {
        let config = &self.config.search;
        let tree = match self.prefix() {
            None => TokenTree::default(),
            Some(root) => {
                let reader = self.trigrams.reader();
                match self.config.method {
                    SearchMethod::Mcts => {
                        Search::run(&reader, config, &self.exploration, root).tree(limits.max_nodes)
                    }
                    SearchMethod::Greedy => {
                        mcts::greedy(&reader, root, config.depth.min(limits.max_nodes))
                    }
                }
            }
        };
        self.match_length = if tree.is_empty() {
            0
        } else {
            self.context.len()
        };
        Ok(limits.cut(tree))
    }

    fn draft_after(&self, tokens: &[u32], max_nodes: usize) -> Result<TokenTree> {
        check_tokens(tokens, self.trigrams.trigrams().facts().vocab_size)?;
        let mut trial = self.clone();
        for &token in tokens {
            trial.step(token);
        }
        trial.draft(DraftLimits::nodes(max_nodes))
    }

    fn match_length(&self) -> usize {
        self.match_length
    }
}
