//! Deduplication and limits of a build.

use std::collections::HashSet;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::base::error::Result;
use crate::indexing::document_log::{Checkpoint, Documents};
use crate::indexing::options::DatastoreOptions;

/// Admits documents up to the limits of a build, and rejects duplicates if the options say so.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// The hashes of admitted documents, and of those that the datastore had before.
    seen: HashSet<u128>,
    /// Number of documents that were passed, including those before a kill.
    pub(crate) num_given: u64,
    pub(crate) num_documents: u64,
    /// Tokens of the admitted documents, separators included.
    pub(crate) num_tokens: u64,
    pub(crate) num_duplicates: u64,
    has_left_out: bool,
}

impl Admission {
    /// Returns whether a limit is reached.
    pub(crate) fn is_full(&self, options: &DatastoreOptions) -> bool {
        self.has_left_out || self.num_documents >= options.max_documents.unwrap_or(u64::MAX)
    }

    /// Counts a document and returns whether it is admitted. An empty one is not.
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

    /// Counts the documents that a killed build wrote, and stores their hashes.
    pub(crate) fn resume(
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

    /// Stores the hashes of documents, whose copies are then duplicates.
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
