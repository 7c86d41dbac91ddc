//! The choice of the documents that a build takes.

use std::collections::HashSet;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::base::error::Result;
use crate::indexing::document_log::{Checkpoint, Documents};
use crate::indexing::options::DatastoreOptions;

/// Takes documents up to the limits, and leaves out duplicates where these are dropped.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// The hashes of the documents that were taken.
    seen: HashSet<u128>,
    /// How many documents came, those before a kill included.
    pub(crate) num_given: u64,
    pub(crate) num_documents: u64,
    /// The tokens of the documents that were taken, separators included.
    pub(crate) num_tokens: u64,
    pub(crate) num_duplicates: u64,
    has_left_out: bool,
}

impl Admission {
    /// Whether a limit is reached.
    pub(crate) fn is_full(&self, options: &DatastoreOptions) -> bool {
        self.has_left_out || self.num_documents >= options.max_documents.unwrap_or(u64::MAX)
    }

    /// Whether a document is taken; it counts. One without tokens is not.
    pub(crate) fn admit(&mut self, document: &[u32], options: &DatastoreOptions) -> bool {
        self.num_given += 1;
        if document.is_empty() || self.is_full(options) {
            return false;
        }
        if options.drop_duplicates && !self.is_new(document) {
            self.num_duplicates += 1;
            return false;
        }
        let num_tokens = self.num_tokens.saturating_add(document.len() as u64 + 1);
        if num_tokens > options.max_tokens.unwrap_or(u64::MAX) {
            self.has_left_out = true;
            return false;
        }
        self.num_tokens = num_tokens;
        self.num_documents += 1;
        true
    }

    /// Counts the documents of a text that an earlier build wrote, and remembers them.
    pub(crate) fn take_up(
        &mut self,
        text: &Checkpoint,
        folder: &Path,
        options: &DatastoreOptions,
    ) -> Result<()> {
        self.num_given = text.num_given;
        self.num_tokens += text.num_tokens;
        self.num_documents += text.num_documents;
        if options.drop_duplicates {
            self.remember(Documents::of_text(folder, options.width(), text)?)?;
        }
        Ok(())
    }

    /// Remembers documents: what equals one of them is a duplicate.
    pub(crate) fn remember(&mut self, mut documents: Documents) -> Result<()> {
        documents.try_for_each(|document| {
            self.is_new(&document?);
            Ok(())
        })
    }

    fn is_new(&mut self, document: &[u32]) -> bool {
        self.seen.insert(xxh3_128(bytemuck::cast_slice(document)))
    }
}
