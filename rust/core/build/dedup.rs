//! Which documents came before?

use std::collections::HashSet;

use xxhash_rust::xxh3::xxh3_128;

/// The documents that were seen, by 128-bit hashes of their tokens: 16 bytes each and the set's own.
#[derive(Debug, Default)]
pub(crate) struct Seen(HashSet<u128>);

impl Seen {
    /// Remembers a document; whether it is a new one.
    pub(crate) fn insert(&mut self, document: &[u32]) -> bool {
        self.0.insert(xxh3_128(bytemuck::cast_slice(document)))
    }
}
