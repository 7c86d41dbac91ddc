//! What is drafted at a decoding step?

use std::sync::Arc;

use crate::context::Context;
use crate::datastore::{Datastore, Match, Samples, check_match_lengths};
use crate::error::{Error, Result};
use crate::mixer::{Candidates, mix};
use crate::tree::TokenTree;
use crate::trie::{MAX_CONTINUATIONS, MAX_DEPTH, Trie};

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

fn check_limit(name: &'static str, value: usize, limit: usize) -> Result<()> {
    if (1..=limit).contains(&value) {
        Ok(())
    } else {
        Err(Error::invalid(
            name,
            format!("must lie in 1..={limit}, not {value}"),
        ))
    }
}

/// One request that is drafted for from a datastore alone: REST (He et al., 2024).
///
/// The longest suffix of the context that occurs in the datastore is looked up, its continuations
/// become a trie weighted by count, and the trie's most frequent nodes are the draft. Two things
/// differ from the paper's program, as they cost it accepted tokens: the continuations are an even
/// sample of all occurrences, not the lexicographically first; and the nodes are the most frequent
/// ones, exactly as many as asked for.
///
/// The same datastore and the same context give the same tree, always.
#[derive(Debug)]
pub struct RestSession {
    datastore: Arc<Datastore>,
    config: RestConfig,
    /// The end of the context: at most `max_match` tokens, all after the last separator.
    context: Vec<u32>,
    /// No suffix of the context longer than this occurs in the datastore.
    longest_possible: usize,
    found: Match,
    samples: Samples,
    trie: Trie,
}

impl RestSession {
    /// Starts a request with an empty context.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidArgument`] unless `1 <= min_match <= max_match`, `continuation` lies in
    /// `1..=1024` and `max_samples` in `1..=65536`.
    pub fn new(datastore: Arc<Datastore>, config: RestConfig) -> Result<Self> {
        config.check()?;
        Ok(Self {
            datastore,
            config,
            context: Vec::new(),
            longest_possible: 0,
            found: Match::default(),
            samples: Samples::default(),
            trie: Trie::default(),
        })
    }

    /// Appends tokens to the context: the prompt, then what the target model emitted. O(tokens).
    ///
    /// # Errors
    ///
    /// [`Error::TokenOutOfRange`] where a token is not in the vocabulary; the context is then as it
    /// was.
    pub fn observe(&mut self, tokens: &[u32]) -> Result<()> {
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

    /// Drafts the likeliest continuations of the context: at most `max_nodes` nodes, the most
    /// frequent first, so that a prefix of the tree is the best smaller tree. A node's probability
    /// is its share of the sampled continuations. Empty where nothing matches.
    ///
    /// One lookup, `max_samples` continuations, and their trie; a few microseconds on 10⁸ tokens.
    ///
    /// # Errors
    ///
    /// Does not fail: what a damaged datastore gives is a worse draft. The result is what the draft
    /// of any session is.
    pub fn draft(&mut self, max_nodes: usize) -> Result<TokenTree> {
        let RestConfig {
            min_match,
            continuation,
            max_samples,
            ..
        } = self.config;
        let Self {
            datastore,
            context,
            found,
            samples,
            ..
        } = self;
        datastore.find_longest(context, self.longest_possible, min_match, found);
        datastore.sample(found, continuation, max_samples, samples);
        self.longest_possible = found.length.max(min_match - 1);
        self.trie.fill(samples);
        Ok(self.trie.select(max_nodes))
    }

    /// The length of the match that the last draft was made from, 0 where nothing matched.
    pub fn match_length(&self) -> usize {
        self.found.length
    }
}

/// One request that is drafted for from a datastore and from its own text.
///
/// The datastore drafts as a [`RestSession`]; the request's own text drafts what followed the longest
/// suffix that came in it before. The nodes of both are ranked by likelihood: see the module `mixer`.
#[derive(Debug)]
pub struct FusedSession {
    datastore: RestSession,
    context: Context,
}

impl FusedSession {
    /// The datastore proposes at least so many nodes: which of them are drafted, the mixer decides.
    const CANDIDATES: usize = 64;

    /// Starts a request with an empty context; `config` limits both sources.
    ///
    /// # Errors
    ///
    /// As [`RestSession::new`].
    pub fn new(datastore: Arc<Datastore>, config: RestConfig) -> Result<Self> {
        Ok(Self {
            datastore: RestSession::new(datastore, config)?,
            context: Context::default(),
        })
    }

    /// Appends tokens to the context: the prompt, then what the target model emitted. O(tokens).
    ///
    /// # Errors
    ///
    /// As [`RestSession::observe`].
    pub fn observe(&mut self, tokens: &[u32]) -> Result<()> {
        self.datastore.observe(tokens)?;
        self.context.observe(tokens);
        Ok(())
    }

    /// Drafts the likeliest continuations of the context: at most `max_nodes` nodes, the likeliest
    /// first. A node's probability is how likely its path is held to be.
    ///
    /// # Errors
    ///
    /// As [`RestSession::draft`].
    pub fn draft(&mut self, max_nodes: usize) -> Result<TokenTree> {
        let looked_up = self.datastore.draft(max_nodes.max(Self::CANDIDATES))?;
        let RestSession {
            config, datastore, ..
        } = &self.datastore;
        let (match_length, own) =
            self.context
                .draft(config.max_match, config.continuation, datastore.separator());
        let sources = [
            Candidates {
                tree: &looked_up,
                match_length: self.datastore.match_length(),
            },
            Candidates {
                tree: &own,
                match_length,
            },
        ];
        Ok(mix(&sources, max_nodes))
    }
}
