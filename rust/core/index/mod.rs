//! How are all suffixes of a shard brought into order and written?
//!
//! It imports `base` and `storage`.

mod cover;
mod entries;
mod lightweight;
pub(crate) mod ngram_table;
pub(crate) mod options;
#[cfg(test)]
mod sort_tests;
pub(crate) mod suffix_array;
mod thin;
pub(crate) mod write;

pub use write::Stage;
