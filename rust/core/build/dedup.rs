//! Which documents came before?

use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_128;

use crate::base::error::Result;
use crate::build::checks::{check_lengths, split_documents};

/// What tells each of these documents from others: a 128-bit hash of its tokens. The arguments are
/// those of [`DatastoreBuilder::add_documents`].
///
/// # Errors
///
/// [`Error::InvalidArgument`](crate::base::error::Error::InvalidArgument) where `lengths` do not add up.
///
/// [`DatastoreBuilder::add_documents`]: crate::build::builder::DatastoreBuilder::add_documents
pub fn document_hashes(tokens: &[u32], lengths: &[usize]) -> Result<Vec<u128>> {
    check_lengths(tokens, lengths)?;
    Ok(split_documents(tokens, lengths)
        .map(document_hash)
        .collect())
}

pub(crate) fn document_hash(document: &[u32]) -> u128 {
    xxh3_128(bytemuck::cast_slice(document))
}

/// The documents that were seen, by their hashes: 16 bytes each and the set's own.
#[derive(Debug, Default)]
pub(crate) struct Seen(HashSet<u128>);

impl Seen {
    /// Remembers a document; whether it is a new one.
    pub(crate) fn insert(&mut self, hash: u128) -> bool {
        self.0.insert(hash)
    }
}
