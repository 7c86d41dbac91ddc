//! How is a shard indexed?

use crate::storage::token_array::TokenWidth;

/// How an index is built, and how much of it is kept.
#[derive(Debug, Clone)]
pub(crate) struct IndexOptions {
    pub(crate) vocab_size: u32,
    pub(crate) separator: u32,
    pub(crate) width: TokenWidth,
    /// Only suffixes that begin at a multiple of this are kept; 1 keeps all.
    pub(crate) position_stride: u32,
    /// How many suffixes that begin alike are kept; 0 keeps all.
    pub(crate) max_duplicates: u32,
}

impl IndexOptions {
    pub(crate) fn keeps_all(&self) -> bool {
        self.position_stride == 1 && self.max_duplicates == 0
    }
}
