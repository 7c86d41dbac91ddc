//! What followed the longest context suffix that is in a datastore? REST's drafts.

use std::sync::Arc;

use crate::base::checks::{check_limit, check_match_lengths};
use crate::base::error::Result;
use crate::draft::session::{DraftLimits, Session, draft_after};
use crate::draft::token_tree::TokenTree;
use crate::lookup::continuations::Samples;
use crate::lookup::datastore::Datastore;
use crate::lookup::matches::Match;
use crate::papers::continuation_trie::{ContinuationTrie, MAX_CONTINUATIONS, MAX_DEPTH};

/// How a [`RestSession`] drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestConfig {
    /// The longest context suffix that is looked up.
    pub max_match: usize,
    /// The shortest context suffix that is drafted from.
    pub min_match: usize,
    /// The number of tokens taken from each continuation, up to 1024: the depth of the tree.
    pub continuation: usize,
    /// The number of continuations taken from a match, up to 65,536.
    ///
    /// An even sample of them ranks the nodes, and bounds the time of a draft.
    pub max_samples: usize,
}

impl Default for RestConfig {
    fn default() -> Self {
        Self {
            max_match: 16,
            min_match: 1,
            continuation: 10,
            max_samples: 256,
        }
    }
}

impl RestConfig {
    fn check(&self) -> Result<()> {
        check_match_lengths(self.max_match, self.min_match)?;
        check_limit("continuation", self.continuation, MAX_DEPTH)?;
        check_limit("max_samples", self.max_samples, MAX_CONTINUATIONS)
    }
}

/// One request that is drafted for from a datastore alone: REST (He et al., 2024).
///
/// The continuations of the longest suffix of the context that occurs become a trie, whose most frequent
/// nodes are the draft. Two things differ from the paper's program, as they cost it accepted tokens: the
/// continuations are an even sample of all occurrences, not the lexicographically first; and the nodes
/// are the most frequent ones, exactly as many as asked for.
#[derive(Debug, Clone)]
pub struct RestSession {
    datastore: Arc<Datastore>,
    config: RestConfig,
    /// The end of the context: at most `max_match` tokens, all after the last separator.
    context: Vec<u32>,
    /// No suffix of the context longer than this occurs in the datastore.
    longest_possible: usize,
    found: Match,
    samples: Samples,
    trie: ContinuationTrie,
}

impl RestSession {
    /// Starts a request with an empty context.
    pub fn new(datastore: Arc<Datastore>, config: RestConfig) -> Result<Self> {
        config.check()?;
        Ok(Self {
            datastore,
            config,
            context: Vec::new(),
            longest_possible: 0,
            found: Match::default(),
            samples: Samples::default(),
            trie: ContinuationTrie::default(),
        })
    }
}

impl Session for RestSession {
    fn observe(&mut self, tokens: &[u32], _num_verified: Option<usize>) -> Result<()> {
        self.datastore.check_tokens(tokens)?;
        let separator = self.datastore.separator();
        if let Some(last) = tokens.iter().rposition(|&token| token == separator) {
            self.context.clear();
            self.context.extend_from_slice(&tokens[last + 1..]);
        } else {
            self.context.extend_from_slice(tokens);
        }
        let surplus = self.context.len().saturating_sub(self.config.max_match);
        self.context.drain(..surplus);
        // A longer match would have been one before these tokens came.
        let longest = self.longest_possible.saturating_add(tokens.len());
        self.longest_possible = longest.min(self.context.len());
        Ok(())
    }

    /// The most frequent nodes first; a node's probability is its share of the sampled continuations.
    ///
    /// One lookup, `max_samples` continuations, and their trie; a few microseconds on 10⁸ tokens.
    fn draft(&mut self, limits: DraftLimits) -> Result<TokenTree> {
        let Self {
            datastore,
            config,
            context,
            found,
            ..
        } = self;
        datastore
            .shards()
            .find_longest(context, self.longest_possible, config.min_match, found);
        self.longest_possible = found.length.max(config.min_match - 1);
        let (length, max_samples) = (config.continuation, config.max_samples);
        let samples = &mut self.samples;
        datastore
            .shards()
            .read_samples(found, length, max_samples, &[], samples);
        self.trie.fill(samples);
        Ok(limits.cut(self.trie.select(limits.max_nodes)))
    }

    fn draft_after(&self, tokens: &[u32], max_nodes: usize) -> Result<TokenTree> {
        draft_after(self, tokens, max_nodes)
    }

    fn match_length(&self) -> usize {
        self.found.length
    }
}
