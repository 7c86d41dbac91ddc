//! What do all sources together make of the next tokens?

use std::sync::Arc;

use crate::context::Context;
use crate::datastore::Datastore;
use crate::draft::Session;
use crate::error::Result;
use crate::mixer::{Candidates, mix};
use crate::rest::{RestConfig, RestSession};
use crate::tree::{Source, TokenTree};

/// One request that is drafted for from a datastore and from its own text.
///
/// The datastore drafts as a [`RestSession`]; the request's own text drafts what followed the longest
/// suffix that came in it before. The nodes of both are ranked by likelihood: see the module `mixer`.
#[derive(Debug)]
pub struct FusedSession {
    datastore: RestSession,
    context: Context,
    match_length: usize,
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
            match_length: 0,
        })
    }
}

impl Session for FusedSession {
    fn observe(&mut self, tokens: &[u32]) -> Result<()> {
        self.datastore.observe(tokens)?;
        self.context.observe(tokens);
        Ok(())
    }

    fn draft(&mut self, max_nodes: usize) -> Result<TokenTree> {
        let looked_up = self.datastore.draft(max_nodes.max(Self::CANDIDATES))?;
        let config = self.datastore.config();
        let (match_length, own) = self.context.draft(
            config.max_match,
            config.continuation,
            self.datastore.datastore().separator(),
        );
        self.match_length = self.datastore.match_length().max(match_length);
        let sources = [
            Candidates {
                source: Source::Datastore,
                tree: &looked_up,
                match_length: self.datastore.match_length(),
            },
            Candidates {
                source: Source::Context,
                tree: &own,
                match_length,
            },
        ];
        Ok(mix(&sources, max_nodes))
    }

    fn match_length(&self) -> usize {
        self.match_length
    }
}
