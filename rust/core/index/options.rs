//! How is a shard indexed?

use crate::storage::token_array::TokenWidth;

/// What the tokens of an index are.
#[derive(Debug, Clone)]
pub(crate) struct IndexOptions {
    pub(crate) vocab_size: u32,
    pub(crate) separator: u32,
    pub(crate) width: TokenWidth,
}
